"""Assigns every document the sequential id that deduplication uses."""

from __future__ import annotations

import pyarrow as pa

from gristmill.stages.base import ProcessingStage, Spec
from gristmill.tasks.document import DocumentBatch

DEDUP_ID_FIELD = "_curator_dedup_id"


class AssignRowIds(ProcessingStage[DocumentBatch, DocumentBatch]):
    """Adds the column `_curator_dedup_id`: partition and row, so that any worker and any run assigns the same id."""

    for_dropped = "pass"
    never_drops = True
    notes_changes = True

    name = "assign_row_ids"
    fork_safe = True
    fills_text = False

    def outputs(self) -> Spec:
        return ["data"], [DEDUP_ID_FIELD]

    def process(self, task: DocumentBatch) -> DocumentBatch:
        partition = task.partition_id
        ids = [f"{partition}:{row}" for row in task.rows.tolist()]
        return task.with_column(DEDUP_ID_FIELD, pa.array(ids, pa.large_string()))
