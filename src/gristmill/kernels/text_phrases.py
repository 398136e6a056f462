"""Finds fixed phrases, ignoring case, and the paragraphs that contain one.

Each phrase is located by three rare letters in it, which phrases share if possible: many bytes at once are compared
with those letters, and whole phrases only where they match.
"""

from __future__ import annotations

import math
from itertools import chain, repeat
from typing import NamedTuple

import numpy as np

from gristmill.kernels.compiler import kernel, leaf, routine
from gristmill.kernels.machine import WIDTH as BLOCK
from gristmill.kernels.machine import address_of, pair_mask, trailing_zeros
from gristmill.kernels.text_column import Integers, Mask, TextColumn, text_column
from gristmill.kernels.utf8 import ALL, ONE, ZERO

# Columns of the result.
N_PARAGRAPHS = 0
MARKED_PARAGRAPHS = 1  # that hold a phrase of the first kind
SECOND_KIND = 2  # whether the document holds a phrase of the second kind
WIDTH = 3

_GROUPS = 5
_CASE = 0x20  # the bit by which the cases of a letter differ
_CASES = 0x202020

# How often letters and the space stand in English text, per thousand characters; only their order matters here.
_FREQUENCY = {" ": 100, **dict(zip("etaoinshrdlcumwfgypbvkjxqz", range(26, 0, -1), strict=True))}


class Phrases(NamedTuple):
    """Phrases compiled for the kernel; make one with `compile_phrases`."""

    letters: np.ndarray
    bounds: np.ndarray
    members: np.ndarray
    text: np.ndarray
    offsets: np.ndarray
    anchors: np.ndarray
    kinds: np.ndarray


def compile_phrases(*kinds: tuple[str, ...]) -> Phrases:
    """Prepare up to eight kinds of lower-case ASCII phrases; kind `k` is reported as the bit `1 << k`.

    Phrases hold no newline and do not end in i: "İ" becomes an i with a dot above in lower case, not taken for one.
    """
    phrases = list(chain.from_iterable(kinds))
    groups: dict[str, list[int]] = {}
    anchors = []
    for number, phrase in enumerate(phrases):
        triples = list(map("".join, zip(phrase, phrase[1:], phrase[2:], strict=False)))
        chosen = next(filter(groups.__contains__, triples), None) or min(triples, key=_commonness)
        groups.setdefault(chosen, []).append(number)
        anchors.append(triples.index(chosen))
    if len(groups) > _GROUPS:
        raise ValueError(f"{len(phrases)} phrases share {len(groups)} groups of three letters; at most {_GROUPS} fit.")
    searched = "".join((list(groups) * _GROUPS)[:_GROUPS])  # again where there are fewer
    letters = np.frombuffer(searched.encode("ascii"), dtype=np.uint8).reshape(-1, 3) | np.uint8(_CASE)
    return Phrases(
        letters.astype(np.int64) @ np.array([1, 1 << 8, 1 << 16]),
        np.cumsum([0, *map(len, groups.values())], dtype=np.int64),
        np.array(list(chain.from_iterable(groups.values())), dtype=np.int64),
        np.frombuffer("".join(phrases).encode("ascii"), dtype=np.uint8).copy(),
        np.cumsum([0, *map(len, phrases)], dtype=np.int64),
        np.array(anchors, dtype=np.int64),
        np.repeat(1 << np.arange(len(kinds)), list(map(len, kinds))),
    )


def _commonness(triple: str) -> int:
    return math.prod(map(_FREQUENCY.get, triple, repeat(1000)))


@leaf
def _lower(byte):
    if 65 <= byte <= 90:
        return byte + 32
    return byte


@leaf
def _triples(address, letters):
    one, two, three = letters & 255, (letters >> 8) & 255, letters >> 16
    return pair_mask(address, 1, one, two, _CASE) & pair_mask(address + 1, 1, two, three, _CASE)


@leaf
def _letters_at(data, at):
    return (np.int64(data[at]) | np.int64(data[at + 1]) << 8 | np.int64(data[at + 2]) << 16) | _CASES


@leaf
def _letter_hits(data, at, a, b, c, d, e):
    """One bit for each of the next `BLOCK` bytes with which the letters of a group may begin, whatever their case."""
    if at + 2 + BLOCK > len(data):
        return ALL  # the very last bytes of a column
    base = address_of(data) + at
    return np.uint64(_triples(base, a) | _triples(base, b) | _triples(base, c) | _triples(base, d) | _triples(base, e))


@leaf
def _byte_hits(data, at, distance, one, other):
    """One bit for each of the next `BLOCK` bytes at which two bytes may stand at a distance."""
    if at + distance + BLOCK > len(data):
        return ALL
    return np.uint64(pair_mask(address_of(data) + at, distance, one, other, 0))


@leaf
def _before(at, end):
    """One bit for each of the next `BLOCK` places before `end`."""
    return ALL >> np.uint64(64 - min(BLOCK, end - at)) if end > at else ZERO


@routine
def _phrases_at(data, at, begin, end, letters, bounds, members, text, offsets, anchors, kinds):
    """The kinds of the phrases whose letters are those at `at`, as bits."""
    found = 0
    for group in range(len(bounds) - 1):
        if _letters_at(data, at) != letters[group]:
            continue
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
def phrase_kinds(data, begin, end, letters, bounds, members, text, offsets, anchors, kinds):
    """The kinds of all phrases between two places, as bits."""
    found = 0
    a, b, c, d, e = letters[0], letters[1], letters[2], letters[3], letters[4]
    for at in range(begin, end, BLOCK):
        hits = _letter_hits(data, at, a, b, c, d, e) & _before(at, end - 2)
        while hits:
            place = at + trailing_zeros(hits)
            hits &= hits - ONE
            found |= _phrases_at(data, place, begin, end, letters, bounds, members, text, offsets, anchors, kinds)
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
def _scan(data, begin, end, letters, bounds, members, text, offsets, anchors, kinds, counts):
    """Count paragraphs and phrases between two places; returns whether a Kelvin sign stands there."""
    paragraphs = 1
    marked = 0
    here = 0
    everywhere = 0
    free = begin
    kelvin = False
    a, b, c, d, e = letters[0], letters[1], letters[2], letters[3], letters[4]
    for at in range(begin, end, BLOCK):
        hits = _letter_hits(data, at, a, b, c, d, e) & _before(at, end - 2)
        hits |= _byte_hits(data, at, 1, 10, 10) & _before(at, end - 1)
        signs = _byte_hits(data, at, 2, 0xE2, 0xAA) & _before(at, end - 2)
        while signs:
            place = at + trailing_zeros(signs)
            kelvin |= data[place] == 0xE2 and data[place + 1] == 0x84 and data[place + 2] == 0xAA
            signs &= signs - ONE
        while hits:
            place = at + trailing_zeros(hits)
            hits &= hits - ONE
            if data[place] == 10 and data[place + 1] == 10:
                if place >= free:
                    marked += here & 1
                    paragraphs += 1
                    here = 0
                    free = place + 2
            elif place + 2 < end:
                kind = _phrases_at(data, place, begin, end, letters, bounds, members, text, offsets, anchors, kinds)
                here |= kind
                everywhere |= kind
    counts[N_PARAGRAPHS] = paragraphs
    counts[MARKED_PARAGRAPHS] = marked + (here & 1)
    counts[SECOND_KIND] = (everywhere >> 1) & 1
    return kelvin


@kernel
def _phrases(data, rows, alive, letters, bounds, members, text, offsets, anchors, kinds, out, kelvin):
    for row in range(len(alive)):
        if alive[row]:
            kelvin[row] = _scan(
                data, rows[row], rows[row + 1], letters, bounds, members, text, offsets, anchors, kinds, out[row]
            )


def phrase_counts(column: TextColumn, alive: Mask, phrases: Phrases) -> Integers:
    """The counts of every document that `alive` marks: an int64 row per document, one column per statistic."""
    out = np.zeros((len(column), WIDTH), dtype=np.int64)
    kelvin = np.zeros(len(column), dtype=np.bool_)
    _phrases(column.data, column.offsets, alive, *phrases, out, kelvin)
    if kelvin.any():
        # So rare that the copy is negligible over a corpus.
        folded = text_column([column.text(int(row)).replace("\u212a", "k") for row in np.flatnonzero(kelvin)])
        out[kelvin] = phrase_counts(folded, folded.valid, phrases)
    return out
