"""URLs in canonical form, so that those that differ only in spelling become equal bytes.

`UrlNormalizer` documents the rules.
"""

from __future__ import annotations

import numpy as np

from gristmill.kernels.compiler import kernel, leaf, routine
from gristmill.kernels.text_column import Bytes, Integers, Mask
from gristmill.kernels.url_parts import END, FLAGS, HOST, HOST_END, ODD_HOST, PATH, PATH_END, lower_byte

_HEX = np.frombuffer(b"0123456789ABCDEF", dtype=np.uint8)


@leaf
def _hex_value(byte):
    if 48 <= byte <= 57:
        return np.int64(byte) - 48
    if 97 <= (byte | 32) <= 102:
        return np.int64(byte | 32) - 87
    return np.int64(-1)


@leaf
def _is_unreserved(byte):
    return 48 <= byte <= 57 or 97 <= (byte | 32) <= 122 or byte == 45 or byte == 46 or byte == 95 or byte == 126


@leaf
def _is_plain(byte):
    """Whether a byte may stand in a path or query as it is, by RFC 3986 and with `[`, `]` and `%` as they come."""
    if byte <= 32 or byte >= 127:
        return False
    return not (byte == 34 or byte == 60 or byte == 62 or byte == 92 or byte == 94 or byte == 96 or 123 <= byte <= 125)


@routine
def _put(data, at, end, out, size):
    """Write the character at `at`; returns the next place to read and the new size."""
    byte = data[at]
    if byte == 9 or byte == 10 or byte == 13:
        return at + 1, size
    if byte == 37:
        high = _hex_value(data[at + 1]) if at + 2 < end else np.int64(-1)
        low = _hex_value(data[at + 2]) if at + 2 < end else np.int64(-1)
        if high >= 0 and low >= 0:
            value = np.uint8(high * 16 + low)
            if _is_unreserved(value):
                out[size] = value
                return at + 3, size + 1
            out[size], out[size + 1], out[size + 2] = 37, _HEX[high], _HEX[low]
            return at + 3, size + 3
    elif _is_plain(byte):
        out[size] = byte
        return at + 1, size + 1
    out[size], out[size + 1], out[size + 2] = 37, _HEX[byte >> 4], _HEX[byte & 15]
    return at + 1, size + 3


@leaf
def _matches(out, begin, end, names, first, last):
    """Whether bytes match a name in lower case; one that ends with `*` stands for all that begin so."""
    open_end = last > first and names[last - 1] == 42
    length = last - first - open_end
    if end - begin < length or (not open_end and end - begin != length):
        return False
    for i in range(length):  # noqa: SIM110 - compiled
        if lower_byte(out[begin + i]) != names[first + i]:
            return False
    return True


@leaf
def _is_dropped(out, begin, end, names, bounds):
    stop = begin
    while stop < end and out[stop] != 61:
        stop += 1
    for number in range(len(bounds) - 1):
        if _matches(out, begin, stop, names, bounds[number], bounds[number + 1]):
            return True
    return False


@routine
def _end_segment(out, first, segment, size, names, bounds):
    """The new size when a segment is complete: without dropped names behind `;`, resolved if it is `.` or `..`.

    Also whether it was dots, behind which stands the slash before them.
    """
    at = kept = segment
    while at < size:
        stop = at + 1
        while stop < size and out[stop] != 59:
            stop += 1
        if not (out[at] == 59 and _is_dropped(out, at + 1, stop, names, bounds)):
            for i in range(at, stop):
                out[kept] = out[i]
                kept += 1
        at = stop
    if kept - segment == 1 and out[segment] == 46:
        return segment, True
    if kept - segment == 2 and out[segment] == 46 and out[segment + 1] == 46:
        back = segment - 1  # the slash before this segment
        while back > first and out[back - 1] != 47:
            back -= 1
        return max(back, first + 1), True
    return kept, False


@routine
def _put_path(data, at, end, out, size, names, bounds):
    first = size
    out[size] = 47
    size += 1
    segment = size
    if at < end and (data[at] == 47 or data[at] == 92):
        at += 1
    while at < end:
        if data[at] == 47 or data[at] == 92:
            size, dots = _end_segment(out, first, segment, size, names, bounds)
            if not dots:
                out[size] = 47
                size += 1
            segment = size
            at += 1
        else:
            at, size = _put(data, at, end, out, size)
    size, dots = _end_segment(out, first, segment, size, names, bounds)
    while size > first + 1 and out[size - 1] == 47:
        size -= 1
    return size


@routine
def _put_query(data, at, end, out, size, names, bounds):
    first = size
    out[size] = 63
    size += 1
    piece = size
    while at <= end:
        if at == end or data[at] == 38:
            if size == piece or _is_dropped(out, piece, size, names, bounds):
                size = piece
            else:
                out[size] = 38
                size += 1
                piece = size
            at += 1
        else:
            at, size = _put(data, at, end, out, size)
    return size - 1 if size > first + 1 else first


@routine
def _port(data, begin, end):
    """The number behind the colon: 0 if there is none, -1 if it is not a number."""
    if begin == end:
        return np.int64(0)
    number = np.int64(0)
    for at in range(begin + 1, end):
        if data[begin] != 58 or not 48 <= data[at] <= 57 or number > 65535:
            return np.int64(-1)
        number = number * 10 + np.int64(data[at]) - 48
    return number if data[begin] == 58 else np.int64(-1)


@routine
def _behind_www(data, begin, end):
    """Where the host begins without `www.`, as long as a dot is left."""
    while end - begin > 4 and data[begin + 3] == 46:
        if data[begin] | 32 != 119 or data[begin + 1] | 32 != 119 or data[begin + 2] | 32 != 119:
            break
        at = begin + 4
        while at < end and data[at] != 46:
            at += 1
        if at == end:
            break
        begin += 4
    return begin


@routine
def _scheme_end(data, begin):
    """Where the name of the scheme ends, if it is http, https or ftp; -1 for others."""
    if data[begin] | 32 == 104 and data[begin + 1] | 32 == 116 and data[begin + 2] | 32 == 116:
        if data[begin + 3] | 32 == 112:
            if data[begin + 4] == 58:
                return begin + 4
            if data[begin + 4] | 32 == 115 and data[begin + 5] == 58:
                return begin + 5
    elif (
        data[begin] | 32 == 102
        and data[begin + 1] | 32 == 116
        and data[begin + 2] | 32 == 112
        and data[begin + 3] == 58
    ):
        return begin + 3
    return np.int64(-1)


@kernel
def normal_urls(
    data: Bytes, starts: Integers, parts: Integers, names: Bytes, bounds: Integers, scheme: bool, www: bool
) -> tuple[Bytes, Integers, Mask]:
    """The URLs in normal form, their offsets, and which were left unchanged: not a URL, or an unusual host.

    `scheme` and `www` say whether these stay.
    """
    rows = len(parts)
    room = 0
    for number in range(rows):
        room += (parts[number, END] - starts[number]) * 3 + 8
    out = np.empty(room, np.uint8)
    offsets = np.zeros(rows + 1, np.int64)
    left = np.zeros(rows, np.bool_)
    size = 0
    for number in range(rows):
        row = parts[number]
        begin, host, host_end = starts[number], row[HOST], row[HOST_END]
        while begin < row[END] and data[begin] <= 32:
            begin += 1
        colon = _scheme_end(data, begin) if host - begin >= 6 else np.int64(-1)
        bracketed = host > begin and host < host_end and data[host - 1] == 91
        behind = host_end + bracketed
        while behind < row[PATH] and data[behind] == 46:
            behind += 1
        port = _port(data, behind, row[PATH])
        if colon < 0 or host == host_end or row[FLAGS] & ODD_HOST or port < 0:
            left[number] = True
            offsets[number + 1] = size
            continue
        if scheme:
            for at in range(begin, colon):
                out[size] = data[at] | 32
                size += 1
            out[size], out[size + 1], out[size + 2] = 58, 47, 47
            size += 3
        if bracketed:
            out[size] = 91
            size += 1
        elif not www:
            host = _behind_www(data, host, host_end)
        for at in range(host, host_end):
            out[size] = lower_byte(data[at])
            size += 1
        if bracketed:
            out[size] = 93
            size += 1
        usual = 21 if colon - begin == 3 else 80 if colon - begin == 4 else 443
        if port != 0 and port != usual:
            for at in range(behind, row[PATH]):
                out[size] = data[at]
                size += 1
        size = _put_path(data, row[PATH], row[PATH_END], out, size, names, bounds)
        at = row[PATH_END]
        if at < row[END] and data[at] == 63:
            stop = at + 1
            while stop < row[END] and data[stop] != 35:
                stop += 1
            size = _put_query(data, at + 1, stop, out, size, names, bounds)
            at = stop
        if at + 1 < row[END] and data[at + 1] == 33:  # "#!" names a page
            out[size] = 35
            size, at = size + 1, at + 1
            while at < row[END]:
                at, size = _put(data, at, row[END], out, size)
        offsets[number + 1] = size
    return out[:size], offsets, left
