"""Locates the parts of URLs: host, path, extension; never fails, whatever the bytes are.

A URL begins with a scheme and `://`, with `//`, or with its host, which then must have a dot. Backslashes count as
slashes, as in browsers. User name, password, port, and dots around the host are not part of the host.
"""

from __future__ import annotations

import numpy as np

from gristmill.kernels.compiler import kernel, leaf, routine
from gristmill.kernels.text_column import Bytes, Integers, Mask

# Columns of the result: places in the data, and flags.
HOST = 0
HOST_END = 1  # as HOST where there is no usable host
PATH = 2
PATH_END = 3
EXTENSION = 4  # behind the last dot of the last segment; PATH_END where there is none
END = 5
FLAGS = 6
WIDTH = 7

IP_HOST = 1
ODD_HOST = 2  # it has bytes outside ASCII or percent signs, and must be written as ASCII before it is compared


@leaf
def lower_byte(byte):
    """A byte in lower case, if it is an ASCII letter."""
    if 65 <= byte <= 90:
        return byte | 32
    return byte


@leaf
def is_word_byte(byte):
    """Whether a byte is an ASCII letter or digit, or part of a character outside ASCII."""
    return byte >= 128 or 48 <= byte <= 57 or 97 <= (byte | 32) <= 122


@leaf
def _is_slash(byte):
    return byte == 47 or byte == 92


@leaf
def ends_authority(byte):
    """Whether the authority of a URL ends before a byte: slash, backslash, question mark or number sign."""
    return _is_slash(byte) or byte == 63 or byte == 35


@routine
def authority_start(data, begin, end):
    """Where the authority begins: behind `scheme://` or `//`; -1 for other schemes, `begin` without any."""
    if begin + 1 < end and _is_slash(data[begin]) and _is_slash(data[begin + 1]):
        return begin + 2
    at = begin
    while at < end and data[at] < 128 and (is_word_byte(data[at]) or data[at] in (43, 45, 46)):
        at += 1
    if at >= end or data[at] != 58 or at == begin:
        return begin
    if at + 2 < end and _is_slash(data[at + 1]) and _is_slash(data[at + 2]):
        return at + 3
    port = at + 1
    while port < end and 48 <= data[port] <= 57:
        port += 1
    if port > at + 1 and (port == end or ends_authority(data[port])):
        return begin  # a host with a port
    return -1


@routine
def _is_number(data, begin, end):
    """Whether a label is a number, decimal or hexadecimal: no top-level domain is one, so the host is an address."""
    if end - begin > 2 and data[begin] == 48 and data[begin + 1] | 32 == 120:
        for at in range(begin + 2, end):  # noqa: SIM110 - compiled
            if not (48 <= data[at] <= 57 or 97 <= (data[at] | 32) <= 102):
                return False
        return True
    for at in range(begin, end):
        if not 48 <= data[at] <= 57:
            return False
    return end > begin


@routine
def _find_host(data, begin, authority_end, needs_dot, row):
    """Fill in host and flags; False if there is no usable host."""
    for at in range(begin, authority_end):
        if data[at] == 64:
            begin = at + 1
    if begin < authority_end and data[begin] == 91:  # an IPv6 address
        for at in range(begin + 1, authority_end):
            byte = data[at]
            if byte == 93:
                row[HOST], row[HOST_END], row[FLAGS] = begin + 1, at, IP_HOST
                return at > begin + 1
            if not (48 <= byte <= 58 or 97 <= (byte | 32) <= 122 or byte == 46 or byte == 37):
                return False
        return False
    end = begin
    while end < authority_end and data[end] != 58:
        end += 1
    while begin < end and data[begin] == 46:
        begin += 1
    while end > begin and data[end - 1] == 46:
        end -= 1
    last, flags = begin, 0
    for at in range(begin, end):
        byte = data[at]
        if byte == 46:
            last = at + 1
        elif byte >= 128 or byte == 37:
            flags = ODD_HOST
        elif not (is_word_byte(byte) or byte == 45 or byte == 95 or byte == 126):
            return False
    if begin == end or (needs_dot and last == begin):
        return False
    if _is_number(data, last, end):
        flags |= IP_HOST
    row[HOST], row[HOST_END], row[FLAGS] = begin, end, flags
    return True


@kernel
def url_parts(data: Bytes, starts: Integers, ends: Integers, alive: Mask, bare: bool) -> Integers:
    """The parts of every URL; with `bare`, a host without a scheme needs no dot (`com` on a list of domains)."""
    out = np.zeros((len(starts), WIDTH), np.int64)
    for number in range(len(starts)):
        if not alive[number]:
            continue
        row = out[number]
        begin, end = starts[number], ends[number]
        while begin < end and data[begin] <= 32:
            begin += 1
        while end > begin and data[end - 1] <= 32:
            end -= 1
        found = authority_start(data, begin, end)
        start = path = max(found, begin)
        while path < end and not ends_authority(data[path]):
            path += 1
        if found < 0 or not _find_host(data, start, path, found == begin and not bare, row):
            row[HOST] = row[HOST_END] = start
            row[FLAGS] = 0
        stop = path
        while stop < end and data[stop] != 63 and data[stop] != 35:
            stop += 1
        extension = stop
        at = stop
        while at > path and not _is_slash(data[at - 1]):
            at -= 1
            if data[at] == 46:
                extension = at + 1
                break
        row[PATH], row[PATH_END], row[EXTENSION], row[END] = path, stop, extension, end
    return out
