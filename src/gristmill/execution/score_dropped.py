"""Passes dropped documents through the rest of a pipeline when all scores are requested.

With `scores="all"` every filter scores every document, including those that an earlier stage dropped, on the text they
would have had by then. Thresholds can then be changed later without reading any text again. This only produces scores:
no decision, change or output row depends on it.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from gristmill.ledger.record.trail import Rows, Scores, StageTime, Trail
from gristmill.stages.base import ProcessingStage, member_names
from gristmill.tasks.columns import Columns, from_transport
from gristmill.tasks.document import DocumentBatch
from gristmill.tracking.accounting import Entry, Exit, check_given, collect, enter, leave

Stage = ProcessingStage[Any, Any]


class DroppedDocuments:
    """Documents that were dropped from a task, as they would be now. Part of the task's lineage."""

    def __init__(self, parts: list[DocumentBatch] | None = None) -> None:
        self._parts = parts or []
        self._fresh: list[DocumentBatch] = []

    def __bool__(self) -> bool:
        return bool(self._parts or self._fresh)

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, ([(part.columns.transport(), part.rows) for part in (*self._parts, *self._fresh)],)

    def add(self, entry: Entry, exits: list[Exit]) -> None:
        """Record the documents that a call dropped, as they entered it, except quarantined ones."""
        if entry.columns is None or entry.rows is None or any(one.positions is None for one in exits):
            return
        gone = np.ones(entry.items, bool)
        for one in exits:
            assert one.positions is not None
            gone[one.positions[one.positions >= 0]] = False
        held = [record.row for record in entry.trail.quarantine]
        positions = np.flatnonzero(gone & ~np.isin(entry.rows, held))
        if len(positions):
            self._fresh.append(_batch(entry.columns.take(positions), entry.rows[positions]))

    def score(self, stage: Stage, trail: Trail) -> None:
        """Pass documents dropped by earlier stages to `stage`, and keep the scores it records in `trail`."""
        kept: list[DocumentBatch] = []
        way = stage.for_dropped if stage.time_limit_s is None else "stop"
        if way == "pass":
            kept = self._parts
        elif way != "stop":
            start = time.perf_counter()
            for part in self._parts:
                kept.extend(_through(stage, part, trail, keep=way == "score"))
            if self._parts:
                trail.times[member_names(stage)[0]].add(StageTime(0, time.perf_counter() - start, 0))
                stage._consume_custom_metrics()
        self._parts, self._fresh = [*kept, *self._dropped_here(stage, way)], []

    def _dropped_here(self, stage: Stage, way: str) -> list[DocumentBatch]:
        """The documents that `stage` dropped itself, with the columns it adds to those it keeps."""
        if way != "score" or not self._fresh:
            return self._fresh
        given = stage.outputs()[1]
        scored = [part for part in self._fresh if all(part.columns.has(name) for name in given)]
        rest = [part for part in self._fresh if all(part is not one for one in scored)]
        # Its scores for these are already recorded.
        return [*scored, *(one for part in rest for one in _through(stage, part, Trail(), keep=True))]


def _rebuild(parts: list[tuple[Any, Rows]]) -> DroppedDocuments:
    return DroppedDocuments([_batch(from_transport(table), rows) for table, rows in parts])


def _batch(columns: Columns, rows: Rows) -> DocumentBatch:
    return DocumentBatch.from_columns(columns, rows=rows)


def _through(stage: Stage, part: DocumentBatch, trail: Trail, *, keep: bool) -> list[DocumentBatch]:
    """The stage's results for the documents; a document on which it raises is not followed further."""
    if not part.num_items:
        return []
    if not stage.validate_input(part):
        return [part]  # it lacks a column that kept documents got from a stage that these skipped
    batch = part.slice(0, part.num_items)
    entry = enter(batch, all_scores=True, keeps_dropped=keep)
    try:
        given = stage.process_batch([batch]) if stage.supports_batch_processing() else stage.process(batch)
        exits = [leave(entry, one) for one in check_given(stage, given)]
    except Exception:
        if part.num_items == 1:
            return []
        half = part.num_items // 2
        halves = (part.slice(0, half), part.slice(half, part.num_items - half))
        return [one for piece in halves for one in _through(stage, piece, trail, keep=keep)]
    last = member_names(stage)[-1]
    scores = collect(entry, exits).scores
    trail.scores.extend(Scores(one.stage or last, one.score, one.rows, one.values) for one in scores)
    found = [one.task for one in exits if isinstance(one.task, DocumentBatch) and one.task.num_items]
    return [_batch(one.columns, one.rows) for one in found]
