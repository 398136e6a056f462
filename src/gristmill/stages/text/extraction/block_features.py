"""Features of a block, of its neighbours and of its page: the input of the block model."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import repeat
from operator import contains

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

_TAG = re.compile(r"<[^<>]*>")
_LINKED = re.compile(r'<a href="[^"]*">(.*?)</a>', re.DOTALL)
_ENDS = frozenset('.!?。！？:;"”’)')
_NEAR, _AROUND, _REGION = 1, 3, 8
_PROSE_WORDS = 12
_HEAD = 50
"""Number of characters at the beginning of a block in which digits are counted."""
FEATURES = 36


def features(blocks: Sequence[str], texts: Sequence[str], main: frozenset[str]) -> Floats:
    """A row of features for each block.

    Args:
        blocks: The blocks of a page, as reduced markup with links.
        texts: Their plain texts.
        main: Those that Resiliparse considers main content.
    """
    count = len(blocks)
    if not count:
        return np.zeros((0, FEATURES))
    words = _figures(map(str.count, texts, repeat(" ")), count) + 1
    chars = _figures(map(len, texts), count)
    linked = _figures(map(_linked_chars, blocks), count) / np.maximum(chars, 1)
    is_main = _figures(map(main.__contains__, blocks), count)
    ends = _figures(map(_ENDS.__contains__, [text[-1:] for text in texts]), count)
    digits = _digits([text[:_HEAD] for text in texts]) / np.maximum(np.minimum(chars, _HEAD), 1)
    starts = [block[:3] for block in blocks]
    often = Counter(blocks)
    length = np.log1p(words)
    prose = words * ((words >= _PROSE_WORDS) & (linked < 0.5))
    until = np.concatenate([[0.0], np.cumsum(prose)])
    before, after = until[:-1] / (until[-1] + 1), 1 - until[1:] / (until[-1] + 1)
    all_words, all_chars = words.sum() + 1, chars.sum() + 1
    in_main = (is_main * words).sum() / all_words
    near_length, near_linked = _means([length, linked], _NEAR)
    around_length, around_linked, around_ends, around_main = _means([length, linked, ends, is_main], _AROUND)
    region_length, region_linked, region_ends, region_digits, region_main = _means(
        [length, linked, ends, digits, is_main], _REGION
    )
    return np.column_stack(
        [
            length,
            length**2,
            linked,
            ends,
            _figures(map("<p>".__eq__, starts), count),
            _figures(map(str.startswith, starts, repeat("<h")), count),
            _figures(map("<li".__eq__, starts), count),
            np.arange(count) / count,
            before,
            after,
            np.minimum(before, after),
            digits,
            _figures(map(often.__getitem__, blocks), count) > 1,
            near_length,
            around_length,
            region_length,
            near_linked,
            around_linked,
            region_linked,
            around_ends,
            region_ends,
            region_digits,
            np.concatenate([[0.0], length[:-1]]),
            np.concatenate([length[1:], [0.0]]),
            np.concatenate([linked[1:], [1.0]]),
            np.full(count, np.log1p(words.sum())),
            np.full(count, prose.sum() / all_words),
            np.full(count, (linked * chars).sum() / all_chars),
            is_main,
            around_main,
            region_main,
            np.full(count, in_main),
            is_main * in_main,
            is_main * linked,
            is_main * length,
            _figures(map(contains, texts, repeat("|")), count),
        ]
    )


def _figures(values: Iterable[float], count: int) -> Floats:
    return np.fromiter(values, np.float64, count)


def _linked_chars(block: str) -> int:
    """The number of characters of the block in links."""
    if "<a " not in block:
        return 0
    return sum(len(_TAG.sub("", link) if "<" in link else link) for link in _LINKED.findall(block))


def _digits(texts: Sequence[str]) -> Floats:
    """How many digits of ASCII each text has, counted in all of them at once."""
    points = np.frombuffer("".join(texts).encode("utf-32-le", "surrogatepass"), np.uint32)
    until = np.concatenate([[0.0], np.cumsum((points >= ord("0")) & (points <= ord("9")))])
    ends = np.cumsum([0, *map(len, texts)])
    counts: Floats = np.diff(until[ends])
    return counts


def _means(columns: Sequence[Floats], reach: int) -> Floats:
    """For each column, the mean of each value and its `reach` neighbours on both sides."""
    values = np.array(columns)
    count = values.shape[1]
    sums = np.zeros((len(columns), count + 1))
    np.cumsum(values, axis=1, out=sums[:, 1:])
    places = np.arange(count)
    low, high = np.maximum(places - reach, 0), np.minimum(places + reach + 1, count)
    means: Floats = (sums[:, high] - sums[:, low]) / (high - low)
    return means
