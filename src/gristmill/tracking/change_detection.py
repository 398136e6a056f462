"""Detects what a stage changed in documents, unless the stage records that itself.

Built-in modifiers record their changes. User code just returns other values: its texts are compared with the input, so
that `why` can show which stage changed a document, and no stage is wrongly reported as having no effect.

An unchanged record must be written with its original bytes, even if user code converts columns to frames and back. So
the output is rebuilt from the input: every returned value is compared with the original, and only real changes are
applied to the records.
"""

from __future__ import annotations

import json
from collections.abc import Collection
from operator import attrgetter
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from gristmill.ledger.record.trail import Changes, Rows
from gristmill.stages.base import FusedStage, ProcessingStage
from gristmill.storage.schemas import is_json_field, is_text
from gristmill.tasks.arrow_io import same_memory
from gristmill.tasks.columns import (
    Array,
    Columns,
    Indices,
    Mask,
    RecordColumns,
    TableColumns,
    as_text,
    one_chunk,
    records_of_lines,
    writable,
)

Stage = ProcessingStage[Any, Any]


def find_changes(
    stage: Stage, before: Columns, after: Columns, positions: Rows, rows: Rows, noted: Collection[str]
) -> tuple[list[Changes], int]:
    """The differences in `after`: changed texts, and the number of rows that changed in any other way.

    Args:
        stage: The stage; if it has `notes_changes`, nothing is compared.
        before: The input columns.
        after: The output columns.
        positions: For each row of `after`, the row of `before` that it continues, or -1.
        rows: The row numbers of `before`.
        noted: Columns whose changes the stage has recorded.
    """
    if after is before or not len(positions):
        return [], 0
    members = stage.members if isinstance(stage, FusedStage) else (stage,)
    noted_by_stage = all(map(attrgetter("notes_changes"), members))
    filled = noted_by_stage and any(before.has(name) for name in stage.filled_columns())
    touched = len(positions) if filled or not before.same_names(after) else 0
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
        if is_text(old.type) and is_text(new.type):
            hit = np.flatnonzero(marks)
            found.append(Changes("", field, rows[positions[known[hit]]], _growth(old, new, hit)))
        else:
            touched = max(touched, int(marks.sum()))
    return found, touched


def _untouched(before: Columns, after: Columns, field: str, *, whole: bool) -> bool:
    """Whether the column is certainly unchanged, without comparing values."""
    if isinstance(before, RecordColumns) and isinstance(after, RecordColumns) and after.records is before.records:
        return not after.is_changed(field) or (before.is_changed(field) and after.column(field) is before.column(field))
    if not whole or isinstance(before, RecordColumns) or isinstance(after, RecordColumns):
        return False
    return same_memory(before.table([field]).column(0), after.table([field]).column(0))


def _growth(before: pa.ChunkedArray, after: pa.ChunkedArray, hit: Rows) -> Rows:
    taken = [as_text(one_chunk(column).take(pa.array(hit))) for column in (before, after)]
    sizes = [pc.fill_null(pc.utf8_length(column), 0).to_numpy().astype(np.int64) for column in taken]
    growth: Rows = sizes[1] - sizes[0]
    return growth


def differing_rows(values: Array, before: Array) -> Mask:
    """True where a value differs from the earlier one; nulls equal nulls, NaN equals NaN, 3 equals 3.0 but not "3"."""
    new, old = one_chunk(values), one_chunk(before)
    if new.equals(old):
        return np.zeros(len(new), bool)
    if pa.types.is_nested(new.type) and pa.types.is_nested(old.type):
        return np.fromiter((a != b for a, b in zip(_plain_texts(new), _plain_texts(old), strict=True)), bool, len(new))
    both_null = pc.and_(new.is_null(), old.is_null())
    try:
        if _family(new.type) != _family(old.type):
            raise pa.ArrowInvalid("another type of value, even if it can be cast")
        same = pc.fill_null(pc.equal(new.cast(_plain_type(old.type)), old.cast(_plain_type(old.type))), False)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        return ~np.asarray(both_null.to_numpy(zero_copy_only=False), bool)
    same = pc.or_(same, both_null)
    if pa.types.is_floating(new.type) and pa.types.is_floating(old.type):
        same = pc.or_(same, pc.and_(pc.fill_null(pc.is_nan(new), False), pc.fill_null(pc.is_nan(old), False)))
    return ~np.asarray(same.to_numpy(zero_copy_only=False), dtype=bool)


def _plain_texts(array: pa.Array) -> list[str]:
    return [json.dumps(value, default=str, sort_keys=True) for value in array.to_pylist()]


def _plain_type(kind: pa.DataType) -> pa.DataType:
    return kind.value_type if pa.types.is_dictionary(kind) else kind


def _family(kind: pa.DataType) -> str:
    """The family of a type; types of one family can hold equal values (a digit does not equal its number)."""
    kind = _plain_type(kind)
    if is_text(kind):
        return "text"
    if pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind):
        return "number"
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_binary_view(kind):
        return "bytes"
    return str(kind.id)


def rebuild(before: Columns, after: pa.Table, positions: Indices) -> Columns:
    """The columns of `after` rebuilt from `before`: unchanged values stay as they were read.

    Args:
        before: The input columns of a stage.
        after: Its output, with any columns and rows.
        positions: For each row of `after`, the row of `before` it continues, or -1 for a new one.
    """
    if not isinstance(before, RecordColumns):
        return _rebuild_table(before.table(), after, positions)
    if len(positions) and positions.min() < 0:
        return _with_new_rows(before, after, positions)
    identity = len(positions) == before.num_rows and bool((positions == np.arange(before.num_rows)).all())
    kept: Columns = before if identity else before.take(positions)
    names = after.column_names
    for field in after.schema:
        values = after.column(field.name)
        if kept.has(field.name):
            marks = _differing(before, None if identity else pa.array(positions), field, values)
            if not marks.any():
                continue
            kept = kept.with_column(field.name, one_chunk(values), changed=marks, is_json=is_json_field(field))
        else:
            kept = kept.with_column(field.name, one_chunk(values), is_json=is_json_field(field))
    return kept if list(kept.names) == names else kept.select(names)


def _differing(before: RecordColumns, positions: pa.Array | None, field: pa.Field, values: Array) -> Mask:
    """True where `values` differ from the column as shown to user code, in the rows at `positions` (None for all)."""
    is_json = is_json_field(field) and before.is_json(field.name)
    # Taken from the whole column: the remaining rows may not reveal the type that user code received.
    old = before.column(field.name) if is_json else before.table([field.name]).column(0)
    old = old if positions is None else old.take(positions)
    return _differing_json(one_chunk(values), one_chunk(old)) if is_json else differing_rows(values, old)


def _differing_json(new: pa.Array, old: pa.Array) -> Mask:
    """True where two JSON texts represent different values; spaces and escapes are ignored."""
    marks = differing_rows(new, old)
    for row in np.flatnonzero(marks).tolist():
        one, other = new[row].as_py(), old[row].as_py()
        if one is not None and other is not None:
            marks[row] = json.dumps(json.loads(one)) != json.dumps(json.loads(other))
    return marks


def _with_new_rows(before: RecordColumns, after: pa.Table, positions: Indices) -> Columns:
    """Like `rebuild`, for new rows without a record: one is created from their values."""
    from gristmill.storage.json_columns import encode_table

    fresh = np.flatnonzero(positions < 0)
    known = np.flatnonzero(positions >= 0)
    old = rebuild(before, after.take(pa.array(known)), positions[known])
    new_table = after.take(pa.array(fresh))
    flagged = {field.name for field in after.schema if is_json_field(field)}
    lines = encode_table({name: writable(new_table.column(name), name in flagged) for name in after.column_names})
    old_lines = old.encode_jsonl()
    order = np.empty(len(positions), np.int64)
    order[known] = np.arange(len(known))
    order[fresh] = len(known) + np.arange(len(fresh))
    records = records_of_lines(np.concatenate([old_lines, lines]))
    return RecordColumns(records.take(order), names=tuple(after.column_names))


def _rebuild_table(before: pa.Table, after: pa.Table, positions: Indices) -> Columns:
    """`after` with metadata that frames do not keep, and with original JSON texts where the value is the same."""
    notes = {**(before.schema.metadata or {}), **(after.schema.metadata or {})}
    notes.pop(b"pandas", None)
    known = np.flatnonzero(positions >= 0)
    for place, field in enumerate(after.schema):
        at = before.schema.get_field_index(field.name)
        if at < 0 or not is_json_field(field) or not is_json_field(before.schema.field(at)) or not len(known):
            continue
        rows = np.full(len(positions), len(before), np.int64)
        rows[known] = positions[known]
        old = one_chunk(before.column(at)).take(pa.array(rows, mask=positions < 0))
        new = one_chunk(after.column(place)).cast(old.type)
        changed = _differing_json(new, old) | (positions < 0)
        after = after.set_column(place, field.with_type(old.type), pc.if_else(pa.array(changed), new, old))
    return TableColumns(after.replace_schema_metadata(notes or None))
