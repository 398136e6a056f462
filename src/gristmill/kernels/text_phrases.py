"""Fixed phrases, found whatever their case, and the paragraphs that hold one.

Each phrase is looked for at its rarest pair of neighbouring characters: one table lookup per byte, and a comparison
only where that pair stands.
"""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

import numpy as np

from gristmill.kernels.compiler import kernel, leaf, routine
from gristmill.kernels.text_column import Integers, Mask, TextColumn
from gristmill.kernels.utf8 import byte_table

# Columns of the result.
N_PARAGRAPHS = 0
MARKED_PARAGRAPHS = 1  # that hold a phrase of the first kind
SECOND_KIND = 2  # whether the document holds a phrase of the second kind
WIDTH = 3

_CLASSES = 32
_OTHER = 0
_SPACE = 27
_NEWLINE = 28
_WIDE = 29  # first byte of the Kelvin sign, which is a k in lower case
_BREAK = 255

# How often letters and the space stand in English text, per thousand characters; only their order matters here.
_FREQUENCY = dict(zip(" etaoinshrdlcumwfgypbvkjxqz", range(27, 0, -1), strict=True))


class Phrases(NamedTuple):
    """Phrases compiled for the kernel; make one with `compile_phrases`."""

    pairs: np.ndarray
    bounds: np.ndarray
    members: np.ndarray
    text: np.ndarray
    offsets: np.ndarray
    anchors: np.ndarray
    kinds: np.ndarray


_BYTE_CLASSES = byte_table(
    {
        **{number: bytes([64 + number, 96 + number]) for number in range(1, 27)},  # letters, whatever their case
        _SPACE: b" ",
        _NEWLINE: b"\n",
        _WIDE: b"\xe2",
    }
)


def compile_phrases(*kinds: tuple[str, ...]) -> Phrases:
    """Prepare up to eight kinds of lower-case ASCII phrases; kind `k` is reported as the bit `1 << k`.

    Phrases hold no newline and do not end in i: "İ" becomes an i with a dot above in lower case, not taken for one.
    """
    phrases = [phrase for kind in kinds for phrase in kind]
    anchors = []
    for phrase in phrases:
        costs = [_FREQUENCY.get(one, 1000) * _FREQUENCY.get(other, 1000) for one, other in pairwise(phrase)]
        anchors.append(costs.index(min(costs)))
    by_pair: dict[int, list[int]] = {}
    for number, (phrase, anchor) in enumerate(zip(phrases, anchors, strict=True)):
        one, other = (int(_BYTE_CLASSES[ord(character)]) for character in phrase[anchor : anchor + 2])
        by_pair.setdefault(one * _CLASSES + other, []).append(number)
    pairs = np.zeros(_CLASSES * _CLASSES, dtype=np.uint8)
    bounds = [0, 0]
    members: list[int] = []
    for group, (pair, numbers) in enumerate(by_pair.items(), start=1):
        pairs[pair] = group
        members += numbers
        bounds.append(len(members))
    pairs[_NEWLINE * _CLASSES + _NEWLINE] = _BREAK
    return Phrases(
        pairs,
        np.array(bounds, dtype=np.int64),
        np.array(members, dtype=np.int64),
        np.frombuffer("".join(phrases).encode("ascii"), dtype=np.uint8).copy(),
        np.concatenate([[0], np.cumsum([len(phrase) for phrase in phrases])]).astype(np.int64),
        np.array(anchors, dtype=np.int64),
        np.array([1 << number for number, kind in enumerate(kinds) for _ in kind], dtype=np.int64),
    )


@leaf
def _lower(byte):
    if 65 <= byte <= 90:
        return byte + 32
    return byte


@routine
def _phrase_at(data, at, begin, end, group, bounds, members, text, offsets, anchors, kinds):
    """The kinds of the phrases whose rare pair is the one at `at`, as bits."""
    found = 0
    for member in range(bounds[group], bounds[group + 1]):
        phrase = members[member]
        start = at - anchors[phrase]
        length = offsets[phrase + 1] - offsets[phrase]
        if start < begin or start + length > end:
            continue
        equal = True
        for position in range(length):
            if _lower(data[start + position]) != text[offsets[phrase] + position]:
                equal = False
                break
        if equal:
            found |= kinds[phrase]
    return found


@routine
def phrase_kinds(data, begin, end, pairs, bounds, members, text, offsets, anchors, kinds):
    """The kinds of all phrases between two places, as bits."""
    found = 0
    before = np.int64(_OTHER)
    for at in range(begin, end):
        now = np.int64(_BYTE_CLASSES[data[at]])
        group = np.int64(pairs[before * _CLASSES + now])
        before = now
        if group != 0 and group != _BREAK:
            found |= _phrase_at(data, at - 1, begin, end, group, bounds, members, text, offsets, anchors, kinds)
    return found


@routine
def kelvin_folded(data, begin, end, out):
    """Copy a range with the Kelvin sign as the k that it is in lower case; returns the size of the copy."""
    size = 0
    at = begin
    while at < end:
        if at + 2 < end and data[at] == 0xE2 and data[at + 1] == 0x84 and data[at + 2] == 0xAA:
            out[size] = 107
            at += 3
        else:
            out[size] = data[at]
            at += 1
        size += 1
    return size


@routine
def _scan(data, begin, end, pairs, bounds, members, text, offsets, anchors, kinds, counts):
    """Count paragraphs and phrases between two places; returns whether a Kelvin sign stands there."""
    paragraphs = 1
    marked = 0
    here = 0
    everywhere = 0
    free = begin
    before = np.int64(_OTHER)
    kelvin = False
    for at in range(begin, end):
        now = np.int64(_BYTE_CLASSES[data[at]])
        group = np.int64(pairs[before * _CLASSES + now])
        before = now
        if now == _WIDE and at + 2 < end and data[at + 1] == 0x84 and data[at + 2] == 0xAA:
            kelvin = True
        if group == 0:
            continue
        if group == _BREAK:
            if at - 1 >= free:
                marked += here & 1
                paragraphs += 1
                here = 0
                free = at + 1
            continue
        kind = _phrase_at(data, at - 1, begin, end, group, bounds, members, text, offsets, anchors, kinds)
        here |= kind
        everywhere |= kind
    counts[N_PARAGRAPHS] = paragraphs
    counts[MARKED_PARAGRAPHS] = marked + (here & 1)
    counts[SECOND_KIND] = (everywhere >> 1) & 1
    return kelvin


@kernel
def _phrases(data, rows, alive, pairs, bounds, members, text, offsets, anchors, kinds, out):
    for row in range(len(alive)):
        if not alive[row]:
            continue
        begin = rows[row]
        end = rows[row + 1]
        kelvin = _scan(data, begin, end, pairs, bounds, members, text, offsets, anchors, kinds, out[row])
        if kelvin:
            # So rare that a copy costs nothing over a corpus.
            copy = np.empty(end - begin, dtype=np.uint8)
            size = kelvin_folded(data, begin, end, copy)
            _scan(copy, 0, size, pairs, bounds, members, text, offsets, anchors, kinds, out[row])


def phrase_counts(column: TextColumn, alive: Mask, phrases: Phrases) -> Integers:
    """The counts of every document that `alive` marks: an int64 row per document, one column per statistic."""
    out = np.zeros((len(column), WIDTH), dtype=np.int64)
    _phrases(column.data, column.offsets, alive, *phrases, out)
    return out
