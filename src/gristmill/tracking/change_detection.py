"""Finds out what a stage changed in the documents it handed on, where it has not said so itself.

Built-in modifiers note their changes. User code just returns other values: its texts are compared with those that went
in, so that `why` can tell who changed a document and no stage that works is taken for one without effect.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from gristmill.ledger.record.trail import Changes, Rows
from gristmill.stages.base import FusedStage, ProcessingStage
from gristmill.tasks.arrow_io import same_memory
from gristmill.tasks.columns import Columns, RecordColumns, as_text, one_chunk
from gristmill.tracking.rebuilding import differing_rows

Stage = ProcessingStage[Any, Any]


def find_changes(
    stage: Stage, before: Columns, after: Columns, positions: Rows, rows: Rows, noted: frozenset[str]
) -> tuple[list[Changes], int]:
    """What is different in `after`: changes of texts, and the number of rows that changed in any other way.

    Args:
        stage: One with `notes_changes` is not compared.
        before: The columns that went in.
        after: The columns that came out.
        positions: For each row of `after` the row of `before` that it continues, or -1.
        rows: The row numbers of `before`.
        noted: Columns whose changes the stage has noted.
    """
    if after is before or not len(positions):
        return [], 0
    members = stage.members if isinstance(stage, FusedStage) else (stage,)
    noted_by_stage = all(member.notes_changes for member in members)
    filled = noted_by_stage and any(before.has(name) for name in stage.filled_columns())
    touched = len(positions) if filled or not _same_names(before, after) else 0
    known = np.flatnonzero(positions >= 0)
    whole = len(positions) == before.num_rows and bool((positions == np.arange(before.num_rows)).all())
    if not len(known) or noted_by_stage:
        return [], touched
    found: list[Changes] = []
    fields = [name for name in after.names if name not in noted and before.has(name)]
    for field in fields:
        if _untouched(before, after, field, whole=whole):
            continue
        old, new = before.table([field]).column(0), after.table([field]).column(0)
        if not whole:
            old, new = old.take(pa.array(positions[known])), new.take(pa.array(known))
        marks = differing_rows(new, old)
        if not marks.any():
            continue
        if _is_text(old.type) and _is_text(new.type):
            hit = np.flatnonzero(marks)
            found.append(Changes("", field, rows[positions[known[hit]]], _growth(old, new, hit)))
        else:
            touched = max(touched, int(marks.sum()))
    return found, touched


def _same_names(before: Columns, after: Columns) -> bool:
    if isinstance(before, RecordColumns) and isinstance(after, RecordColumns):
        return before.same_names(after)
    return set(before.names) == set(after.names)


def _untouched(before: Columns, after: Columns, field: str, *, whole: bool) -> bool:
    """Whether it is certain, without looking at values, that the column is as it was."""
    if isinstance(before, RecordColumns) and isinstance(after, RecordColumns) and after.records is before.records:
        return not after.is_changed(field) or (before.is_changed(field) and after.column(field) is before.column(field))
    if not whole or isinstance(before, RecordColumns) or isinstance(after, RecordColumns):
        return False
    return same_memory(before.table([field]).column(0), after.table([field]).column(0))


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind))


def _growth(before: pa.ChunkedArray, after: pa.ChunkedArray, hit: Rows) -> Rows:
    taken = [as_text(one_chunk(column).take(pa.array(hit))) for column in (before, after)]
    sizes = [pc.fill_null(pc.utf8_length(column), 0).to_numpy().astype(np.int64) for column in taken]
    growth: Rows = sizes[1] - sizes[0]
    return growth
