"""What the stages that read documents share: a column that only some files have is missing in the others, no fault."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from gristmill.stages.base import ProcessingStage, Spec
from gristmill.tasks.base import Task
from gristmill.tasks.document import DocumentBatch


class DocumentStage(ProcessingStage[DocumentBatch, DocumentBatch]):
    """The base of these stages: their columns are looked for before a run begins, not in every single batch."""

    def input_spec_for_task(self, task: Task[Any]) -> Spec:
        return ["data"], []


def texts_of(batch: DocumentBatch, text_field: str) -> pa.Array:
    """The text of every document; missing for all of them where the files at hand have no such column."""
    if batch.columns.has(text_field):
        return batch.text(text_field)
    return pa.nulls(batch.num_items, pa.large_string())
