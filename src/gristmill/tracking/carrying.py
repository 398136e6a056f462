"""Documents that travel inside tasks of other kinds (files, say) and may become documents again.

Their rows stay accounted for: the task carries their numbers, and every stage that handles it has so many rows in and
out. When documents come out again they are recognised by their ids; what cannot be recognised is counted as dropped and
created and marked `untracked`, as it is for documents that user code returns.

Where a batch becomes several tasks, nobody can know which of them holds which document. All of them know the documents,
the first one answers for them, and those that come back by another are set right when the partition is complete.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from gristmill.ledger.record.identity import make_identity
from gristmill.ledger.record.trail import DROPPED, RETURNED, UNTRACKED, Decisions, Rows, StageCount, Trail
from gristmill.stages.base import ProcessingStage
from gristmill.tasks.base import Carried, FailedTask, NoneTask, Task
from gristmill.tasks.columns import Columns
from gristmill.tasks.document import DocumentBatch

Stage = ProcessingStage[Any, Any]


def carries(task: Task[Any]) -> bool:
    """Whether documents can be inside `task` in another form."""
    return not isinstance(task, DocumentBatch | NoneTask | FailedTask)


def load(tasks: Sequence[Task[Any]], columns: Columns, rows: Rows, positions: Rows, *, id_field: str | None) -> None:
    """Let `tasks` carry the documents at these positions of a batch."""
    batch = DocumentBatch.from_columns(columns, rows=rows)
    hashes = make_identity(batch, id_field=id_field, url_field=None).id_hashes
    mine = None if hashes is None else hashes[positions]
    for place, task in enumerate(tasks):
        task._carried = Carried(rows[positions], mine, len(tasks) > 1, answers=place == 0)


class Return:
    """One call of a stage that gets a task which carries documents: what comes out of it, piece by piece.

    Args:
        stage: The stage.
        carried: The documents inside the task.
        id_field: The column with ids.
    """

    def __init__(self, stage: Stage, carried: Carried, *, id_field: str | None) -> None:
        self._stage = stage
        self._carried = carried
        self._id_field = id_field
        self._seen = np.zeros(len(carried.rows), bool)
        self._handed_on = False
        self._untracked = 0

    def take(self, task: Task[Any]) -> None:
        """Give the rows of documents their numbers again; another task carries on what this one carried."""
        if not isinstance(task, DocumentBatch):
            if carries(task):
                again = replace(self._carried, shared=True, answers=False)
                task._carried = again if self._handed_on else self._carried
                self._handed_on = True
            return
        rows = np.full(task.num_items, -1, np.int64)
        positions = self._positions(task)
        known = positions >= 0
        rows[known] = self._carried.rows[positions[known]]
        task._rows = rows

    def account(self, task: Task[Any] | None, trail: Trail, *, last: bool) -> None:
        """Count what came out: one task, or None where there was nothing; the last one settles the rest."""
        counts = StageCount()
        if isinstance(task, DocumentBatch):
            positions = self._positions(task)
            fresh = np.unique(positions[positions >= 0])
            fresh = fresh[~self._seen[fresh]]
            self._seen[fresh] = True
            if not self._carried.answers:
                back = self._carried.rows[fresh]
                trail.decisions.append(Decisions(self._stage.name, RETURNED, UNTRACKED, back))
                fresh = fresh[:0]
            self._untracked += int((positions < 0).sum())
            counts.rows_in += len(fresh)
            counts.rows_out += task.num_items
            counts.created += task.num_items - len(fresh)
            counts.untracked += int((positions < 0).sum())
        if last and self._carried.answers:
            left = self._carried.rows[~self._seen]
            counts.rows_in += len(left)
            if self._handed_on:
                counts.rows_out += len(left)
            elif len(left):
                reason = UNTRACKED if self._untracked or self._carried.shared else self._stage.name
                counts.dropped[reason] = len(left)
                trail.decisions.append(Decisions(self._stage.name, DROPPED, reason, np.sort(left)))
        trail.count(self._stage.name).add(counts)

    def _positions(self, batch: DocumentBatch) -> Rows:
        """For each row the document that it continues: the one with its id, where there is exactly one."""
        found = np.full(batch.num_items, -1, np.int64)
        theirs = make_identity(_plain(batch), id_field=self._id_field, url_field=None).id_hashes
        ours = self._carried.id_hashes
        if theirs is None or ours is None or not len(ours):
            return found
        values, first, times = np.unique(ours, return_index=True, return_counts=True)
        at = np.minimum(np.searchsorted(values, theirs), len(values) - 1)
        sure = (values[at] == theirs) & (times[at] == 1) & (theirs != 0)
        found[sure] = first[at[sure]]
        return found


def _plain(batch: DocumentBatch) -> DocumentBatch:
    """The batch with row numbers of any kind, which an identity needs."""
    if batch._rows is None:
        batch._rows = np.full(batch.num_items, -1, np.int64)
    return batch
