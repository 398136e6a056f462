"""Windows of consecutive words or bytes: which may repeat, their hashes, and the passages that repeated ones cover.

Every window of `size` units chooses one of the shorter sequences of `part` units in it, the one with the lowest hash
(winnowing: Schleimer, Wilkerson and Aiken 2003). Equal windows choose equal sequences at the same distance, so a window
can only repeat where the sequence it chose does. Choices change rarely from one window to the next: for texts without
repetitions only these few hashes have to be counted, about 2 for every `size - part` units.

Words are separated by white space and compared byte for byte. Hashes of windows are two rolling polynomials.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from gristmill.kernels.arrays import grown
from gristmill.kernels.compiler import kernel, leaf
from gristmill.kernels.repeats import Hashes, place_of
from gristmill.kernels.text_column import Bytes, Integers, Mask
from gristmill.kernels.text_units import final_mix
from gristmill.kernels.utf8 import space_width, strip_left

TOKEN = 0
BYTE = 1

CHOSEN = 0
CANDIDATES = 1
REPEATS = 2

_SEED = np.uint64(0xCBF29CE484222325)
_PRIME = np.uint64(0x100000001B3)
_B1 = np.uint64(0x9FB21C651E98DF25)
_B2 = np.uint64(0xD1342543DE82EF95)
_TURN = np.uint64(0xA0761D6478BD642F)


@leaf
def _power(base, exponent):
    result = np.uint64(1)
    for _ in range(exponent):
        result *= base
    return result


@leaf
def _second(value):
    """Another value of the same unit, for the second hash."""
    return (value ^ (value >> np.uint64(31))) * _TURN


@leaf
def _is_space(data, at, end):
    byte = data[at]
    if byte > 32 and byte < 0xC2:
        return False
    return byte == 32 or space_width(data, at, end) > 0


@kernel
def scan_windows(
    data: Bytes,
    offsets: Integers,
    wanted: Mask,
    mode: int,
    unit: int,
    size: int,
    part: int,
    documents: Hashes,
    table: Integers,
    list_first: Hashes,
    list_second: Hashes,
    list_documents: Hashes,
    kept: Hashes,
    kept_places: Integers,
) -> tuple[
    npt.NDArray[np.int64],
    npt.NDArray[np.uint64],
    npt.NDArray[np.uint64],
    npt.NDArray[np.int64],
    npt.NDArray[np.int64],
]:
    """Go through the windows of every wanted row.

    Args:
        data: The bytes of the column.
        offsets: Its offsets.
        wanted: The rows to look at.
        mode: CHOSEN lists the sequences that windows choose; CANDIDATES the windows whose sequence is in the list;
            REPEATS the passages that windows in the list cover, without the occurrences that are kept.
        unit: TOKEN or BYTE.
        size: The units of a window.
        part: The units of a sequence.
        documents: The key of every row.
        table: The list by hash and document, from `build_lookup`.
        list_first: The first half of the hashes in the list.
        list_second: The second half; 0 for sequences.
        list_documents: The document of each.
        kept: The document where the occurrence that stays is.
        kept_places: Its place there, in units.

    Returns:
        The row of each result, two hashes, and two places: those of a window or sequence in units (the second one
        counts bytes), or the start and end of a passage in `data`.
    """
    room = 1024
    rows = np.empty(room, np.int64)
    first, second = np.empty(room, np.uint64), np.empty(room, np.uint64)
    places, stops = np.empty(room, np.int64), np.empty(room, np.int64)
    count = 0
    span = size - part + 1
    power_1, power_2, power_part = _power(_B1, size), _power(_B2, size), _power(_B1, part)
    values = np.zeros(size, np.uint64)
    starts = np.zeros(size, np.int64)
    # The sequences that may still be the lowest of a window, with ascending hashes.
    low_hashes, low_places = np.zeros(span, np.uint64), np.zeros(span, np.int64)
    for row in range(len(offsets) - 1):
        if not wanted[row]:
            continue
        end = offsets[row + 1]
        at = offsets[row] if unit == BYTE else strip_left(data, offsets[row], end)
        document = documents[row]
        number = 0
        hash_1 = hash_2 = hash_part = np.uint64(0)
        head = held = 0
        last = np.int64(-1)
        listed = False
        open_start = open_end = open_unit = -1
        while at < end:
            start = at
            if unit == BYTE:
                value = final_mix(np.uint64(data[at]) + _SEED)
                stop = at + 1
                at = stop
            else:
                state = _SEED
                while at < end and not _is_space(data, at, end):
                    state = (state ^ np.uint64(data[at])) * _PRIME
                    at += 1
                stop = at
                value = final_mix(state)
                at = strip_left(data, at, end)
            slot = number % size
            old = values[slot] if number >= size else np.uint64(0)
            old_part = values[(number - part) % size] if number >= part else np.uint64(0)
            hash_1 = hash_1 * _B1 + value - old * power_1
            hash_2 = hash_2 * _B2 + _second(value) - (_second(old) * power_2 if number >= size else np.uint64(0))
            hash_part = hash_part * _B1 + value - old_part * power_part
            values[slot] = value
            starts[slot] = start
            number += 1
            if mode != REPEATS and number >= part:
                own = final_mix(hash_part)
                place = number - part
                if held and low_places[head] <= number - size - 1:
                    head = (head + 1) % span
                    held -= 1
                while held and low_hashes[(head + held - 1) % span] > own:
                    held -= 1
                low_hashes[(head + held) % span] = own
                low_places[(head + held) % span] = place
                held += 1
            if number < size:
                continue
            begin = number - size
            found = np.int64(-1)
            if mode == REPEATS:
                one, other = final_mix(hash_1), final_mix(hash_2)
                found = place_of(table, list_first, list_second, list_documents, one, other, document)
                if found < 0:
                    continue
                cut = begin
                if kept[found] == document:
                    if kept_places[found] == begin:
                        continue
                    # An occurrence that overlaps the kept one leaves that intact.
                    if kept_places[found] < begin:
                        cut = max(begin, kept_places[found] + size)
                if cut >= number:
                    continue
                if open_unit >= 0 and cut <= open_unit:
                    open_end, open_unit = stop, number
                    continue
                if open_unit < 0:
                    open_start, open_end, open_unit = starts[cut % size], stop, number
                    continue
            elif mode == CHOSEN:
                if low_places[head] == last:
                    continue
                last = low_places[head]
            else:
                if low_places[head] != last:
                    last = low_places[head]
                    own = low_hashes[head]
                    listed = place_of(table, list_first, list_second, list_documents, own, np.uint64(0), document) >= 0
                if not listed:
                    continue
            if count == len(rows):
                room = 2 * count
                rows, first, second = grown(rows, room), grown(first, room), grown(second, room)
                places, stops = grown(places, room), grown(stops, room)
            rows[count] = row
            if mode == REPEATS:
                places[count], stops[count] = open_start, open_end
                open_start, open_end, open_unit = starts[cut % size], stop, number
            elif mode == CHOSEN:
                first[count], second[count], places[count], stops[count] = low_hashes[head], np.uint64(0), last, 0
            else:
                first[count], second[count] = final_mix(hash_1), final_mix(hash_2)
                places[count], stops[count] = begin, 0
            count += 1
        if open_unit >= 0:
            if count == len(rows):
                room = 2 * count
                rows, first, second = grown(rows, room), grown(first, room), grown(second, room)
                places, stops = grown(places, room), grown(stops, room)
            rows[count], places[count], stops[count] = row, open_start, open_end
            count += 1
    return rows[:count], first[:count], second[:count], places[:count], stops[:count]
