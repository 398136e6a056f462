"""Cuts length-sorted documents into batches that waste little padding and stay within a token budget."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from gristmill.stages.text.models.tokens import Integers

MAX_PADDING = 1.045
"""Padded tokens per real token that a sequence of batches may reach; below the promised 1.05."""


class BatchCutter:
    """Hands out rows in batches, longest documents first, so that memory runs out at the start or never.

    A batch grows while its padded size stays within the budget, its rows within `max_rows`, and all batches so far
    within `MAX_PADDING`: long documents, which waste little, save up the padding that short ones may spend.

    Args:
        lengths: The tokens of each row.
        budget: The most padded tokens of a batch; a single longer document is a batch of its own.
        max_rows: The most rows of a batch.
    """

    def __init__(self, lengths: Integers, *, budget: int, max_rows: int) -> None:
        self.budget = budget
        self.max_rows = max_rows
        self.padded = 0
        self.real = 0
        # Rows without tokens cost one column, as a tensor cannot have none.
        self._lengths = np.maximum(lengths, 1)
        self._order = np.argsort(-self._lengths, kind="stable")

    def __iter__(self) -> Iterator[Integers]:
        start = 0
        while start < len(self._order):
            end = self._end(start)
            rows = self._order[start:end]
            self.padded += int(self._lengths[rows[0]]) * len(rows)
            self.real += int(self._lengths[rows].sum())
            yield rows
            start = end

    def _end(self, start: int) -> int:
        width = int(self._lengths[self._order[start]])
        limit = min(len(self._order), start + max(1, min(self.max_rows, self.budget // width)))
        real = self.real + np.cumsum(self._lengths[self._order[start:limit]])
        padded = self.padded + width * np.arange(1, limit - start + 1)
        fits = np.flatnonzero(padded <= MAX_PADDING * real)
        # Documents of one length never waste anything; the longest prefix that fits is taken.
        return start + (int(fits[-1]) + 1 if len(fits) else 1)
