"""Which rows a batch holds, and what stages have said about them: the half of a batch that user code never sees."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from gristmill.ledger.record.trail import Rows, Trail

if TYPE_CHECKING:
    from gristmill.tasks.columns import Columns

Indices = npt.NDArray[np.int64]


class RowTracking:
    """The rows of one batch.

    While a stage works on a batch, everything derived from it shares its trail, so that drops, changes and scores are
    recorded once, wherever the stage says them.

    Attributes:
        rows: The row number of each document within its partition; None before a source has numbered them.
        trail: What stages have recorded since the present call began.
        positions: For each row the row of the call's input that it continues; None: the same rows as went in.
        in_call: Whether the batch is derived from the input of a call, so that `positions` holds for that input.
        all_scores: Whether every score is wanted, so that none may be skipped.
        keeps_dropped: Whether these documents were dropped before and are only scored.
        frame_shown: The pandas frame that user code was given, the name of its index, and the columns it shows.
        polars_shown: The Polars frame that user code was given.
    """

    __slots__ = (
        "all_scores",
        "frame_shown",
        "in_call",
        "keeps_dropped",
        "polars_shown",
        "positions",
        "rows",
        "trail",
    )

    def __init__(
        self,
        rows: Rows | None = None,
        *,
        trail: Trail | None = None,
        positions: Indices | None = None,
        in_call: bool = False,
        all_scores: bool = False,
        keeps_dropped: bool = False,
    ) -> None:
        self.rows = rows
        self.trail = Trail() if trail is None else trail
        self.positions = positions
        self.in_call = in_call
        self.all_scores = all_scores
        self.keeps_dropped = keeps_dropped
        self.frame_shown: tuple[Any, str, Columns] | None = None
        self.polars_shown: Any = None

    def __reduce__(self) -> tuple[Any, ...]:
        # What was recorded about a batch has been collected before it leaves the process.
        return RowTracking, (self.rows,)

    def entering(self, *, all_scores: bool = False, keeps_dropped: bool = False) -> RowTracking:
        """The same rows as the input of a new call."""
        return RowTracking(self.rows, in_call=True, all_scores=all_scores, keeps_dropped=keeps_dropped)

    def taken(self, indices: Indices | slice, length: int) -> RowTracking:
        """The rows at `indices` of these, which are `length` in number."""
        positions = np.arange(length) if self.positions is None else self.positions
        return self._with(None if self.rows is None else self.rows[indices], positions[indices])

    def same(self) -> RowTracking:
        """The same rows, for a batch with other columns."""
        return self._with(self.rows, self.positions)

    def _with(self, rows: Rows | None, positions: Indices | None) -> RowTracking:
        return RowTracking(
            rows,
            trail=self.trail,
            positions=positions,
            in_call=self.in_call,
            all_scores=self.all_scores,
            keeps_dropped=self.keeps_dropped,
        )
