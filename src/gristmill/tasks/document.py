"""The batch of documents: the task that text stages work on.

Inside are immutable `Columns`; `to_pyarrow`, `to_polars` and `to_pandas` convert them for user code. Built-in stages
use `column`, `with_column`, `take` and `drop`, which keep every row's origin; `gristmill.tracking` matches what user
code returns with its input, and owns the other half of a batch: which rows it holds.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from copy import copy
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import pyarrow as pa

from gristmill import notebook
from gristmill.errors import StageDefinitionError
from gristmill.ledger.record.trail import (
    DROPPED,
    Changes,
    Cuts,
    Decisions,
    Floats,
    QuarantinedRecord,
    Rows,
    Scores,
    StageCount,
)
from gristmill.storage.valid_text import require_valid_text
from gristmill.tasks.arrow_io import arrow_values, table_of_polars
from gristmill.tasks.base import Task
from gristmill.tasks.columns import Array, Columns, Indices, Mask, TableColumns, as_text
from gristmill.tracking.origins import RowTracking

if TYPE_CHECKING:
    import pandas as pd
    import polars as pl

T = TypeVar("T")


class DocumentBatch(Task[Any]):
    """Documents as rows of named columns.

    Args:
        dataset_name: The name of the data set.
        data: An Arrow table, a Polars frame or a pandas frame.

    Example:
        >>> batch = DocumentBatch(data=pa.table({"text": ["one", "two words"]}))
        >>> batch.num_items, batch.get_columns()
        (2, ['text'])
    """

    _repr_html_ = notebook.of_batch
    shows_pandas = False
    _tracking: RowTracking

    def __init__(
        self,
        dataset_name: str = "",
        data: Any = None,
        _stage_perf: list[Any] | None = None,
        _metadata: dict[str, Any] | None = None,
        *,
        task_id: str = "",
    ) -> None:
        self._tracking = RowTracking()
        super().__init__(dataset_name, data, _stage_perf, _metadata, task_id=task_id)

    @classmethod
    def from_columns(cls, columns: Columns, *, rows: Rows | None = None, dataset_name: str = "") -> DocumentBatch:
        """A batch over `columns`; `rows` are the row numbers within the partition."""
        batch = cls.__new__(cls)
        batch.dataset_name = dataset_name
        batch.task_id = ""
        batch._stage_perf, batch._metadata, batch._lineage = [], {}, None
        batch._columns, batch._frame, batch._polars = columns, None, None
        batch._tracking = RowTracking(rows)
        return batch

    # --- what user code sees ---

    @property
    def data(self) -> Any:
        """The pandas frame if the batch was made from one, else an Arrow table; can be set to either kind or Polars.

        With `gristmill.compat` it is always a pandas frame, as in NeMo Curator.
        """
        if self._frame is not None:
            return self._frame
        return self.to_pandas() if self.shows_pandas else self.to_pyarrow()

    @data.setter
    def data(self, value: Any) -> None:
        self._columns: Columns | None = None
        self._frame: Any = None
        self._polars: Any = None
        if "_tracking" not in vars(self):  # made by the constructor of a dataclass
            self._tracking = RowTracking()
        self._tracking.in_call = False
        kind = type(value).__module__.split(".")[0]
        if value is None:
            self._columns = TableColumns(pa.table({}))
        elif isinstance(value, pa.Table | pa.RecordBatch):
            table = value if isinstance(value, pa.Table) else pa.Table.from_batches([value])
            self._columns = TableColumns(require_valid_text(table))
        elif kind == "polars" and hasattr(value, "collect"):
            raise StageDefinitionError("A Polars LazyFrame is not data yet: call .collect() on it first.")
        elif kind == "polars" and hasattr(value, "to_arrow"):
            self._columns = TableColumns(require_valid_text(table_of_polars(value)))
            self._polars = value
        elif kind == "pandas" and hasattr(value, "columns"):
            self._frame = value
        else:
            raise StageDefinitionError(
                f"A DocumentBatch is made from an Arrow table, a Polars frame or a pandas frame, not from "
                f"{type(value).__module__}.{type(value).__name__}.",
                found=type(value).__name__,
            )

    @property
    def num_items(self) -> int:
        return len(self._frame) if self._frame is not None else self.columns.num_rows

    def get_columns(self) -> list[str]:
        """The names of the columns."""
        return [str(name) for name in self._frame.columns] if self._frame is not None else list(self.columns.names)

    def to_pyarrow(self) -> pa.Table:
        """All documents as an Arrow table."""
        return self.columns.table()

    def to_polars(self) -> pl.DataFrame:
        """All documents as a Polars frame."""
        import polars as pl

        frame = pl.from_arrow(self.columns.table())
        assert isinstance(frame, pl.DataFrame)
        self._tracking.polars_shown = frame
        return frame

    def to_pandas(self) -> pd.DataFrame:
        """All documents as a pandas frame (needs pandas).

        The frame is live: changes made in place count if the stage returns this batch.
        """
        if self._frame is not None:
            frame: pd.DataFrame = self._frame
            return frame
        shown = self._tracking.frame_shown
        if shown is None or shown[2] is not self.columns:
            from gristmill.tasks.pandas_io import index_tag, to_frame

            made = to_frame(self.columns)
            shown = self._tracking.frame_shown = (made, index_tag(made) or "", self.columns)
        return shown[0]

    # --- what stages of the framework use ---

    @property
    def columns(self) -> Columns:
        """The columns, whatever the batch was made from."""
        if self._columns is None:
            from gristmill.tasks.pandas_io import to_table

            self._columns = TableColumns(to_table(self._frame))
        return self._columns

    def column(self, name: str) -> Array:
        """The values of one column."""
        return self.columns.column(name)

    def text(self, name: str) -> pa.Array:
        """The values of one column as contiguous large strings, as the kernels read them.

        Strings are unchanged, null stays null, and any other value becomes its JSON text, regardless of the rest of the
        batch.

        Example:
            >>> frame = pd.DataFrame({"text": ["a", 5, None]})
            >>> DocumentBatch(data=frame).text("text").to_pylist()
            ['a', '5', None]
        """
        return self.columns.text(name)

    def strings(self, name: str) -> pa.Array:
        """Like `text`, but null if the value is not a string."""
        found = self.text(name)
        if not self.columns.is_json(name):
            return found
        import pyarrow.compute as pc

        return pc.if_else(pc.starts_with(as_text(self.column(name)), '"'), found, pa.scalar(None, pa.large_string()))

    @property
    def rows(self) -> Rows:
        """The row number of each document within its partition; -1 if unknown."""
        rows = self._tracking.rows
        return np.full(self.num_items, -1, np.int64) if rows is None else rows

    def with_column(
        self, name: str, values: Array | Sequence[Any] | Any, *, changed: Mask | None = None, is_json: bool = False
    ) -> DocumentBatch:
        """A copy in which column `name` has the given values.

        Args:
            name: The column; it is appended when new.
            values: One value per row: an Arrow or NumPy array, a Polars or pandas series, or a list.
            changed: Marks the rows whose value differs, if the caller knows; others keep their original bytes.
            is_json: The values are JSON texts, to be written as JSON and not as strings.
        """
        if not isinstance(values, pa.Array | pa.ChunkedArray):
            values = arrow_values(name, values)
        if len(values) != self.num_items:
            raise StageDefinitionError(
                f"Column {name!r} has {len(values)} values, but the batch has {self.num_items} rows."
            )
        plain = require_valid_text(pa.table({name: values})).column(0)
        values = values if plain.type.equals(values.type) else plain
        return self.with_columns(self.columns.with_column(name, values, changed=changed, is_json=is_json))

    def with_text(self, name: str, texts: pa.Array, *, changed: Mask) -> DocumentBatch:
        """A copy in which the rows of column `name` that are `changed` have the given texts.

        All other rows keep their values, including those that are not strings.
        """
        require_valid_text(pa.table({name: texts}))
        return self.with_columns(self.columns.with_text(name, texts, changed=changed))

    def select(self, names: Sequence[str]) -> DocumentBatch:
        """A copy with only the named columns."""
        return self.with_columns(self.columns.select(names))

    def without(self, names: Collection[str]) -> DocumentBatch:
        """A copy without the named columns."""
        return self.with_columns(self.columns.without(names))

    def take(self, indices: Indices) -> DocumentBatch:
        """A copy with the rows at `indices`; a row may be taken several times, each keeps its origin."""
        indices = np.asarray(indices, np.int64)
        return self.with_columns(self.columns.take(indices), self._tracking.taken(indices, self.num_items))

    def slice(self, start: int, length: int) -> DocumentBatch:
        """A view of `length` rows from `start`."""
        tracking = self._tracking.taken(slice(start, start + length), self.num_items)
        return self.with_columns(self.columns.slice(start, length), tracking)

    def drop(
        self,
        mask: Mask,
        *,
        reason: str,
        score: Floats | None = None,
        threshold: float | None = None,
        stage: str = "",
        outcome: str = DROPPED,
        survivors: Sequence[str] | None = None,
        similarity: Floats | None = None,
        clusters: Rows | None = None,
    ) -> DocumentBatch:
        """A copy without the rows where `mask` is True, which are recorded in the ledger with `reason`.

        Args:
            mask: One boolean per row.
            reason: Names the failure, such as `too_few_words`.
            score: The decisive score of every row (not only of the dropped ones).
            threshold: What the score was compared with.
            stage: The stage that decided, if it is not the running one (a fused stage acts for its members).
            outcome: `dropped` or `duplicate`.
            survivors: For duplicates, the document that each row lost to.
            similarity: For duplicates, their similarity.
            clusters: For duplicates, a number that all documents of a cluster share.
        """
        mask = np.asarray(mask, bool)
        if len(mask) != self.num_items:
            raise StageDefinitionError(f"The mask has {len(mask)} values, but the batch has {self.num_items} rows.")
        decision = Decisions(
            stage=stage,
            outcome=outcome,
            reason=reason,
            rows=self.rows[mask],
            scores=None if score is None else np.asarray(score, np.float64)[mask],
            threshold=None if threshold is None else float(threshold),
            survivors=None if survivors is None else [survivors[int(i)] for i in np.flatnonzero(mask)],
            similarities=None if similarity is None else np.asarray(similarity, np.float64)[mask],
            clusters=None if clusters is None else np.asarray(clusters, np.int64)[mask],
        )
        return self.drop_decided(mask, [decision])

    def drop_decided(self, mask: Mask, decisions: Sequence[Decisions]) -> DocumentBatch:
        """A copy without the rows where `mask` is True, for each of which there is one decision.

        One copy for several reasons, where `drop` would make one each.
        """
        if not mask.any() or self._tracking.keeps_dropped:
            return self
        self._tracking.trail.decisions.extend(decisions)
        return self.take(np.flatnonzero(~mask))

    def note_change(self, field: str, mask: Mask, characters: Rows, *, stage: str = "") -> None:
        """Record that `field` of the rows where `mask` is True grew by `characters` (negative: shrank)."""
        hit = np.flatnonzero(np.asarray(mask, bool))
        if len(hit):
            self._tracking.trail.changes.append(
                Changes(stage, field, self.rows[hit], np.asarray(characters, np.int64)[hit])
            )

    def note_cuts(self, field: str, places: Indices, starts: Rows, ends: Rows, *, reason: str, stage: str = "") -> None:
        """Record passages that were cut from (or marked in) `field`, for one reason.

        Args:
            field: The column with the text.
            places: For each passage the position of its document in this batch.
            starts: Where it begins, in characters of the text that the stage received.
            ends: Where it ends.
            reason: Names the rule, such as `repeated_line`.
            stage: The stage that decided, if it is not the running one.
        """
        if len(places):
            self._tracking.trail.cuts.append(Cuts(stage, field, reason, self.rows[places], starts, ends))

    @property
    def wants_all_scores(self) -> bool:
        """Whether the run records every score of every document (`scores="all"`), so that none may be skipped."""
        return self._tracking.all_scores

    @property
    def keeps_dropped(self) -> bool:
        """Whether these are documents that were dropped before and are only scored: `drop` then keeps them."""
        return self._tracking.keeps_dropped

    def scored(self, work: Callable[[DocumentBatch], Any]) -> DocumentBatch:
        """This batch, with every score that `work` records without dropping; the batch itself records no more."""
        batch = self.slice(0, self.num_items)
        batch._tracking = self._tracking.entering(all_scores=True, keeps_dropped=True)
        work(batch)
        self._tracking.trail.scores.extend(batch._tracking.trail.scores)
        self._tracking.all_scores = False
        return self

    def decided_by(self, stage: str, work: Callable[[DocumentBatch], T]) -> T:
        """The result of `work` on the batch; drops without a stage are attributed to `stage`."""
        decisions = self._tracking.trail.decisions
        before = len(decisions)
        result = work(self)
        for decision in decisions[before:]:
            decision.stage = decision.stage or stage
        return result

    @property
    def is_tracked(self) -> bool:
        """Whether a running pipeline tracks the rows of this batch."""
        return self._tracking.in_call

    def note_scores(self, score: str, values: Floats, *, stage: str = "") -> None:
        """Record one score of every row (kept if the run records all scores)."""
        self._tracking.trail.scores.append(Scores(stage, score, self.rows.copy(), np.asarray(values, np.float64)))

    def sources(self) -> tuple[list[str], Indices]:
        """The files that the rows were read from, as far as known, and which of them each row comes from."""
        spans = self._metadata.get("source_rows") or [(0, str(self._metadata.get("source_file", "")))]
        places = np.searchsorted([first for first, _ in spans], self.rows, side="right") - 1
        return [path for _, path in spans], np.maximum(places, 0)

    def note_quarantine(self, record: QuarantinedRecord) -> None:
        """Record that a document could not be processed; it must not be among the rows that are passed on."""
        self._tracking.trail.quarantine.append(record)

    @property
    def quarantined(self) -> Sequence[QuarantinedRecord]:
        """The documents that could not be processed, as recorded so far."""
        return self._tracking.trail.quarantine

    def note_skipped(self, stage: str, counts: Mapping[str, int]) -> None:
        """Count what a reader found beside these documents that is not a document, by kind."""
        self._tracking.trail.counts[stage].add(StageCount(skipped=dict(counts)))

    def with_columns(self, columns: Columns, tracking: RowTracking | None = None) -> DocumentBatch:
        """A copy with other columns; its rows are the same unless `tracking` says otherwise."""
        batch = copy(self)
        batch._columns, batch._frame, batch._polars = columns, None, None
        batch._tracking = self._tracking.same() if tracking is None else tracking
        return batch
