"""Features of a block, of its neighbours and of its page: the input of the block model."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

_TAG = re.compile(r"<[^<>]*>")
_LINKED = re.compile(r'<a href="[^"]*">(.*?)</a>', re.DOTALL)
_NO_DIGITS = {ord(digit): None for digit in "0123456789"}
_ENDS = frozenset('.!?。！？:;"”’)')
_NEAR, _AROUND, _REGION = 1, 3, 8
_PROSE_WORDS = 12
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
    words = _figures(text.count(" ") + 1 for text in texts)
    chars = _figures(map(len, texts))
    linked = _figures(map(_linked_chars, blocks)) / np.maximum(chars, 1)
    is_main = _figures(block in main for block in blocks)
    ends = _figures(text[-1:] in _ENDS for text in texts)
    heads = [text[:50] for text in texts]
    digits = _figures(len(head) - len(head.translate(_NO_DIGITS)) for head in heads) / np.maximum(
        np.minimum(chars, 50), 1
    )
    starts = [block[:3] for block in blocks]
    often = Counter(blocks)
    length = np.log1p(words)
    prose = words * ((words >= _PROSE_WORDS) & (linked < 0.5))
    until = np.concatenate([[0.0], np.cumsum(prose)])
    before, after = until[:-1] / (until[-1] + 1), 1 - until[1:] / (until[-1] + 1)
    all_words, all_chars = words.sum() + 1, chars.sum() + 1
    in_main = (is_main * words).sum() / all_words
    return np.column_stack(
        [
            length,
            length**2,
            linked,
            ends,
            _figures(start == "<p>" for start in starts),
            _figures(start[:2] == "<h" for start in starts),
            _figures(start == "<li" for start in starts),
            np.arange(count) / count,
            before,
            after,
            np.minimum(before, after),
            digits,
            _figures(often[block] > 1 for block in blocks),
            *(_mean(length, reach) for reach in (_NEAR, _AROUND, _REGION)),
            *(_mean(linked, reach) for reach in (_NEAR, _AROUND, _REGION)),
            _mean(ends, _AROUND),
            _mean(ends, _REGION),
            _mean(digits, _REGION),
            np.concatenate([[0.0], length[:-1]]),
            np.concatenate([length[1:], [0.0]]),
            np.concatenate([linked[1:], [1.0]]),
            np.full(count, np.log1p(words.sum())),
            np.full(count, prose.sum() / all_words),
            np.full(count, (linked * chars).sum() / all_chars),
            is_main,
            _mean(is_main, _AROUND),
            _mean(is_main, _REGION),
            np.full(count, in_main),
            is_main * in_main,
            is_main * linked,
            is_main * length,
            _figures("|" in text for text in texts),
        ]
    )


def _figures(values: object) -> Floats:
    return np.array(list(values), np.float64)  # type: ignore[call-overload]


def _linked_chars(block: str) -> int:
    """The number of characters of the block in links."""
    return sum(len(_TAG.sub("", link)) for link in _LINKED.findall(block)) if "<a " in block else 0


def _mean(values: Floats, reach: int) -> Floats:
    """The mean of each value and its `reach` neighbours on both sides."""
    sums = np.concatenate([[0.0], np.cumsum(values)])
    places = np.arange(len(values))
    low, high = np.maximum(places - reach, 0), np.minimum(places + reach + 1, len(values))
    mean: Floats = (sums[high] - sums[low]) / (high - low)
    return mean
