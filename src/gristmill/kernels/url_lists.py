"""Lists of domains and URLs as one table of hashes, and which URLs are on them.

A domain covers itself and all its subdomains; a URL covers itself and everything below its path. Both are compared
without regard to the case of ASCII letters. The table holds 61 bits of a hash per entry and no text: five million
entries take about 70 MB, and the chance that any of a billion URLs is taken for one of them is about one in a hundred.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from gristmill.kernels.compiler import kernel, leaf
from gristmill.kernels.text_column import Bytes, Integers, Mask
from gristmill.kernels.url_parts import END, EXTENSION, FLAGS, HOST, HOST_END, IP_HOST, PATH, PATH_END, lower_byte

Hashes = npt.NDArray[np.uint64]

# Flags of a key of the table, in its low bits.
WHOLE_DOMAIN = 1
SOME_URLS = 2  # of the domain
WHOLE_URL = 4

# The results of `find_listed`.
LISTED_DOMAIN = 1
LISTED_URL = 2

_KEY = np.uint64(0xFFFFFFFFFFFFFFF8)
_FLAGS = np.uint64(7)
BASIS = np.uint64(0xCBF29CE484222325)
_PRIME = np.uint64(0x9E3779B97F4A7C15)
_ONE_KEY = np.uint64(8)


@leaf
def hash_step(state, byte):
    """The state of a hash after one more byte."""
    state = (state ^ np.uint64(byte)) * _PRIME
    return state ^ (state >> np.uint64(32))


@leaf
def hash_key(state):
    """The key that a hash stands for; its low bits are free for flags."""
    state = (state ^ (state >> np.uint64(29))) * _PRIME
    state = (state ^ (state >> np.uint64(32))) & _KEY
    return state if state != np.uint64(0) else _ONE_KEY


@leaf
def find_slot(table, key):
    """The slot of a key, or an empty one if it is not there."""
    mask = np.uint64(len(table) - 1)
    at = (key >> np.uint64(3)) & mask
    while table[at] != np.uint64(0) and (table[at] ^ key) & _KEY != np.uint64(0):
        at = (at + np.uint64(1)) & mask
    return at


@leaf
def _lookup(table, key):
    """The flags of a key; 0 if it is not there."""
    return table[find_slot(table, key)] & _FLAGS


@leaf
def _without_www(data, begin, end):
    """Where a host begins without `www.`."""
    if end - begin > 4 and data[begin + 3] == 46:
        for at in range(begin, begin + 3):
            if data[at] | 32 != 119:
                return begin
        return begin + 4
    return begin


@leaf
def _ends_segment(byte):
    return byte == 47 or byte == 92 or byte == 63 or byte == 38


@leaf
def _slash(byte):
    return np.uint8(47) if byte == 92 else lower_byte(byte)


@kernel
def entry_spans(data: Bytes) -> Integers:
    """Start and end of the last word of every line: what is left when comments (#) and what stands before are gone."""
    count = 1
    for byte in data:
        count += byte == 10
    spans = np.zeros((2, count), np.int64)
    number, begin = 0, 0
    for at in range(len(data) + 1):
        if at < len(data) and data[at] != 10:
            continue
        end = begin
        while end < at and not (data[end] == 35 and (end == begin or data[end - 1] <= 32)):
            end += 1
        while end > begin and data[end - 1] <= 32:
            end -= 1
        start = end
        while start > begin and data[start - 1] > 32:
            start -= 1
        while start < end and data[start] == 42:  # *.example.org
            start += 1
        spans[0, number], spans[1, number] = start, end
        number, begin = number + 1, at + 1
    return spans


@kernel
def list_keys(data: Bytes, parts: Integers) -> Hashes:
    """The keys of list entries, with their flags: one for a domain, two for a URL; 0 fills up."""
    keys = np.zeros((len(parts), 2), np.uint64)
    for number in range(len(parts)):
        row = parts[number]
        begin, end = row[HOST], row[HOST_END]
        if begin == end:
            continue
        stop = row[END]
        at = row[PATH]
        while at < stop and data[at] != 35:
            at += 1
        stop = at
        while stop > row[PATH] and _ends_segment(data[stop - 1]):
            stop -= 1
        if stop > row[PATH]:
            begin = _without_www(data, begin, end)
        state = BASIS
        for at in range(end - 1, begin - 1, -1):
            state = hash_step(state, lower_byte(data[at]))
        if stop == row[PATH]:
            keys[number, 0] = hash_key(state) | np.uint64(WHOLE_DOMAIN)
            continue
        keys[number, 0] = hash_key(state) | np.uint64(SOME_URLS)
        for at in range(row[PATH], stop):
            state = hash_step(state, _slash(data[at]))
        keys[number, 1] = hash_key(state) | np.uint64(WHOLE_URL)
    return keys


@kernel
def fill_table(keys: Hashes, table: Hashes) -> int:
    """Insert keys into a table whose size is a power of two with room for all; returns the number of new ones."""
    count = 0
    for number in range(len(keys)):
        if keys[number] != np.uint64(0):
            at = find_slot(table, keys[number])
            count += table[at] == np.uint64(0)
            table[at] |= keys[number]
    return count


@kernel
def find_listed(data: Bytes, parts: Integers, alive: Mask, table: Hashes) -> Integers:
    """For every URL whether its domain or one above it is listed, or the URL itself or one above it."""
    out = np.zeros(len(parts), np.int64)
    for number in range(len(parts)):
        row = parts[number]
        begin, end = row[HOST], row[HOST_END]
        if not alive[number] or begin == end:
            continue
        short = _without_www(data, begin, end)
        whole = row[FLAGS] & IP_HOST != 0
        state = BASIS
        urls_of, urls_too = BASIS, False
        for at in range(end - 1, begin - 1, -1):
            state = hash_step(state, lower_byte(data[at]))
            if at > begin and (whole or data[at - 1] != 46):
                continue
            flags = _lookup(table, hash_key(state))
            if flags & np.uint64(WHOLE_DOMAIN):
                out[number] = LISTED_DOMAIN
                break
            if flags & np.uint64(SOME_URLS) and at in (begin, short):
                urls_of, urls_too = state, True
        if out[number] or not urls_too:
            continue
        state, stop = urls_of, row[END]
        for at in range(row[PATH], stop):
            if data[at] == 35:
                break
            state = hash_step(state, _slash(data[at]))
            last = at + 1 == stop or data[at + 1] == 35
            if (last or _ends_segment(data[at + 1])) and _lookup(table, hash_key(state)) & np.uint64(WHOLE_URL):
                out[number] = LISTED_URL
                break
    return out


@kernel
def find_extensions(data: Bytes, parts: Integers, alive: Mask, table: Hashes) -> Integers:
    """For every URL whether its extension is in a table of `word_keys`."""
    out = np.zeros(len(parts), np.int64)
    for number in range(len(parts)):
        begin, end = parts[number, EXTENSION], parts[number, PATH_END]
        if not alive[number] or begin == end:
            continue
        state = BASIS
        for at in range(begin, end):
            state = hash_step(state, lower_byte(data[at]))
        out[number] = _lookup(table, hash_key(state)) != np.uint64(0)
    return out


@kernel
def word_keys(data: Bytes, offsets: Integers, flag: int) -> Hashes:
    """The keys of whole words, each with a flag, which is not 0."""
    keys = np.zeros(len(offsets) - 1, np.uint64)
    for number in range(len(keys)):
        state = BASIS
        for at in range(offsets[number], offsets[number + 1]):
            state = hash_step(state, lower_byte(data[at]))
        keys[number] = hash_key(state) | np.uint64(flag)
    return keys


def make_table(keys: Hashes) -> Hashes:
    """A table of keys, at most three quarters full."""
    slots = 8
    while slots * 3 < len(keys) * 4:
        slots *= 2
    table = np.zeros(slots, np.uint64)
    fill_table(keys, table)
    table.flags.writeable = False
    return table
