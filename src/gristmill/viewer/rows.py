"""The documents of one partition that match a query, from its ledger alone, a row group at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from gristmill.ledger.ask.ledger import Ledger
from gristmill.ledger.record.manifest import ManifestEntry
from gristmill.ledger.record.shape import open_table
from gristmill.ledger.record.trail import DROPPED, DUPLICATE
from gristmill.storage.selection import Selection
from gristmill.viewer.query import CHANGED, Query

Rows = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

_WORDS = ["stage", "outcome", "reason"]
_STEP = 1 << 18
"""Number of rows without any decision to examine at once."""


@dataclass(frozen=True, slots=True)
class Decided:
    """Rows of a ledger with the last decision on each, from one row group."""

    rows: Rows
    end: int
    """All decisions on rows before this one are known."""
    masks: Callable[[str, str], Mask]
    scores: npt.NDArray[np.float64]


def matching_rows(
    ledger: Ledger, entry: ManifestEntry, query: Query, *, selection: Selection | None = None, first: int = 0
) -> Iterator[tuple[int, Rows]]:
    """The rows from `first` on that meet all conditions on decisions, changes and scores, piece by piece.

    Each piece comes with the row up to which it is complete.

    Raises:
        pa.ArrowException: A file of the ledger is damaged.
    """
    passing = _passing_score(ledger, entry, query)
    changed = _changed(ledger, entry) if query.status == CHANGED else None
    begin = first
    for decided in _decided(ledger, entry, first):
        if query.wants_kept:
            for low in range(begin, decided.end, _STEP):
                high = min(low + _STEP, decided.end)
                yield high, _among(_matching(query, decided, low, high, entry, selection, changed), passing)
        elif query.wants_decided:
            inside = decided.rows[_decided_mask(query, decided) & (decided.rows >= begin)]
            yield decided.end, _among(inside, passing)
        begin = max(begin, decided.end)


def _matching(
    query: Query,
    decided: Decided,
    low: int,
    high: int,
    entry: ManifestEntry,
    selection: Selection | None,
    changed: Rows | None,
) -> Rows:
    """The matching rows in `low … high`, if kept ones can match."""
    here = (decided.rows >= low) & (decided.rows < high)
    wanted = np.ones(high - low, bool) if changed is None else np.isin(np.arange(low, high), changed)
    if selection is not None:
        wanted &= selection.mask(entry.partition, np.arange(low, high))
    wanted[decided.rows[here] - low] = False
    if query.wants_decided:
        wanted[decided.rows[here & _decided_mask(query, decided)] - low] = True
    return np.flatnonzero(wanted) + low


def _decided_mask(query: Query, decided: Decided) -> Mask:
    mask = np.ones(len(decided.rows), bool)
    if query.status == DROPPED:
        mask &= decided.masks("outcome", DROPPED) | decided.masks("outcome", DUPLICATE)
    elif query.status:
        mask &= decided.masks("outcome", query.status)
    for name, value in (("stage", query.stage), ("reason", query.reason)):
        if value:
            mask &= decided.masks(name, value)
    if query.has_bounds and not query.score_name:
        mask &= _within(query, decided.scores)
    return mask


def _within(query: Query, values: npt.NDArray[np.float64]) -> Mask:
    mask = ~np.isnan(values)
    if query.score_min is not None:
        mask &= values >= query.score_min
    if query.score_max is not None:
        mask &= values <= query.score_max
    return mask


def _among(rows: Rows, others: Rows | None) -> Rows:
    return rows if others is None else rows[np.isin(rows, others, assume_unique=True)]


def _decided(ledger: Ledger, entry: ManifestEntry, first: int) -> Iterator[Decided]:
    """The decisions on rows from `first` on; the last piece ends where the partition does."""
    file = entry.records.get("ledger")
    if file is not None and file.rows:
        with ledger.folder.open(ledger.folder.join(file.path)) as stream:
            parquet = open_table(stream, read_dictionary=_WORDS)
            bounds = [parquet.metadata.row_group(at).column(0).statistics for at in range(parquet.num_row_groups)]
            for at, bound in enumerate(bounds):
                if bound is not None and bound.has_min_max and bound.max < first:
                    continue
                table = parquet.read_row_group(at, columns=["row", *_WORDS, "score"], use_threads=False)
                after = bounds[at + 1] if at + 1 < len(bounds) else None
                # Decisions on one row may be in two adjacent groups: the last one counts.
                goes_on = int(after.min) if after is not None and after.has_min_max else None
                yield _last_decisions(table, goes_on)
    none = np.empty(0, np.int64)
    yield Decided(none, entry.row_numbers, lambda name, value: np.empty(0, bool), np.empty(0))


def _last_decisions(table: pa.Table, goes_on: int | None) -> Decided:
    rows = table.column("row").fill_null(-1).to_numpy()
    last = np.append(rows[1:] != rows[:-1], True) if len(rows) else np.empty(0, bool)
    last &= rows >= 0  # rows of unknown origin belong to no document
    if goes_on is not None:
        last &= rows != goes_on
    end = int(rows[last][-1]) + 1 if last.any() else 0

    def masks(name: str, value: str) -> Mask:
        found: Mask = _equal(table.column(name), value)[last]
        return found

    scores = table.column("score").to_numpy()[last]
    return Decided(rows[last], end, masks, scores)


def _equal(column: pa.ChunkedArray, value: str) -> Mask:
    """The positions of this word in a dictionary column."""
    found = [np.empty(0, bool)]
    for chunk in column.chunks:
        words = chunk.dictionary.to_pylist()
        code = words.index(value) if value in words else -1
        found.append(chunk.indices.fill_null(-2).to_numpy(zero_copy_only=False) == code)
    return np.concatenate(found)


def _changed(ledger: Ledger, entry: ManifestEntry) -> Rows:
    """The rows whose text a stage changed."""
    file = entry.records.get("changes")
    if file is None:
        return np.empty(0, np.int64)
    with ledger.folder.open(ledger.folder.join(file.path)) as stream:
        table = open_table(stream).read(columns=["row"], use_threads=False)
    return np.unique(table.column("row").drop_null().to_numpy())


def _passing_score(ledger: Ledger, entry: ManifestEntry, query: Query) -> Rows | None:
    """The rows whose recorded score is within the bounds; None if there is no such condition."""
    if not (query.score_name and query.has_bounds):
        return None
    stage, _, score = query.score_name.partition(":")
    found = [np.empty(0, np.int64)]
    file = entry.records.get("scores")
    if file is not None:
        with ledger.folder.open(ledger.folder.join(file.path)) as stream:
            parquet = open_table(stream, read_dictionary=["stage", "score"])
            for at in range(parquet.num_row_groups):
                table = parquet.read_row_group(at, use_threads=False)
                mask = _within(query, table.column("value").to_numpy())
                mask &= _equal(table.column("stage"), stage) & _equal(table.column("score"), score)
                found.append(table.column("row").to_numpy()[mask])
    return np.unique(np.concatenate(found))
