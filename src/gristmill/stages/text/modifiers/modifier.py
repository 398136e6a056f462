"""The stage that applies modifiers to columns and marks the documents that actually changed."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from gristmill.errors import StageDefinitionError, UsageError
from gristmill.stages.base import ProcessingStage, Spec
from gristmill.stages.text.modifiers.doc_modifier import DocumentModifier, ModifiedColumn, has_column_path
from gristmill.tasks.columns import Array, Mask, as_text, one_chunk
from gristmill.tasks.document import DocumentBatch
from gristmill.tasks.pandas_io import json_text
from gristmill.tracking.change_detection import differing_rows

AnyModifier: TypeAlias = "DocumentModifier | Callable[..., Any]"


class Modify(ProcessingStage[DocumentBatch, DocumentBatch]):
    """Applies one modifier, or several in order, to columns of the documents.

    Unchanged documents are written byte for byte as read; for changed ones the ledger records the change in length. A
    missing value stays missing. With several input fields, a document that lacks one of them keeps its value in the
    output field.

    Args:
        modifier_fn: A `DocumentModifier`, a function, or a list of them. With several input fields it receives the
            values as keyword arguments.
        input_fields: One column for all modifiers, a list with one column each, or a list of lists of columns.
        output_fields: Columns for the results: one column, a list with one each (None: in place), or None for in place.

    Raises:
        UsageError: (a ValueError) The numbers of modifiers and fields do not match, or several inputs have no output.
        StageDefinitionError: (a TypeError) An item is neither a modifier nor a function, or not a field name.

    Example:
        >>> Modify([NewlineNormalizer(), UrlRemover()]).name
        'modifier_chain_of_NewlineNormalizer_UrlRemover'
        >>> Modify(lambda title, text: f"{title}: {text}", [["title", "text"]], "text").inputs()
        (['data'], ['text', 'title'])
    """

    for_dropped = "run"
    never_drops = True
    notes_changes = True
    fork_safe = True

    def __init__(
        self,
        modifier_fn: AnyModifier | list[AnyModifier],
        input_fields: str | list[str] | list[list[str]] = "text",
        output_fields: str | list[str | None] | None = None,
    ) -> None:
        self.modifier_fn = _checked_modifiers(modifier_fn)
        self.input_fields = input_fields
        self.output_fields = output_fields
        self._inputs = _input_groups(input_fields, len(self.modifier_fn))
        self._outputs = _output_names(output_fields, self._inputs)
        names = [_name_of(modifier) for modifier in self.modifier_fn]
        self.name = names[0] if len(names) == 1 else "modifier_chain_of_" + "_".join(names)

    def inputs(self) -> Spec:
        needed: set[str] = set()
        made: set[str] = set()
        for fields, output in zip(self._inputs, self._outputs, strict=True):
            needed.update(field for field in fields if field not in made)
            made.add(output)
        return ["data"], sorted(needed)

    def outputs(self) -> Spec:
        extra = [name for modifier in self.modifier_fn for name in _extra_columns(modifier)]
        return ["data"], sorted({*self._outputs, *extra})

    def check_environment(self) -> None:
        for modifier in self.modifier_fn:
            if isinstance(modifier, DocumentModifier):
                modifier.check_environment()

    def process(self, batch: DocumentBatch) -> DocumentBatch:
        """The batch with the modifiers applied, one after the other."""
        for modifier, fields, output in zip(self.modifier_fn, self._inputs, self._outputs, strict=True):
            if len(fields) > 1:
                batch = self._apply_to_several(batch, modifier, fields, output)
            elif isinstance(modifier, DocumentModifier) and has_column_path(modifier):
                batch = self._apply_to_column(batch, modifier, fields[0], output)
            else:
                batch = self._apply_to_each(batch, modifier, fields[0], output)
        return batch

    def _apply_to_column(
        self, batch: DocumentBatch, modifier: DocumentModifier, field: str, output: str
    ) -> DocumentBatch:
        mixed = batch.columns.is_json(field)
        before = batch.strings(field)
        given = modifier.modify_column(before)  # type: ignore[attr-defined]
        result = given if isinstance(given, ModifiedColumn) else ModifiedColumn(given)
        values = one_chunk(result.values)
        if len(values) != batch.num_items:
            raise StageDefinitionError(
                f"{self.name}: modify_column received {batch.num_items} values and returned {len(values)}; return one "
                "per row."
            )
        if mixed and output == field:
            batch = _with_texts(batch, output, values, before)
        elif output == field:
            batch = _with_changes(batch, output, values, before)
        else:
            batch = batch.with_column(output, values)
        for name, column in result.columns.items():
            batch = batch.with_column(name, column)
        if result.metrics:
            self._log_metrics(result.metrics)
        return batch

    def _apply_to_each(self, batch: DocumentBatch, modifier: AnyModifier, field: str, output: str) -> DocumentBatch:
        function = modifier.modify_document if isinstance(modifier, DocumentModifier) else modifier
        seen = batch.columns.python_values(field)
        results = [None if value is None else function(value) for value in seen]
        if output == field and batch.columns.is_json(field):
            return _with_objects(batch, output, results, seen)
        values = self._as_array(results)
        if output == field:
            return _with_changes(batch, output, values, one_chunk(batch.column(field)))
        return batch.with_column(output, values)

    def _apply_to_several(
        self, batch: DocumentBatch, modifier: AnyModifier, fields: Sequence[str], output: str
    ) -> DocumentBatch:
        function = modifier.modify_document if isinstance(modifier, DocumentModifier) else modifier
        seen = [batch.columns.python_values(field) for field in fields]
        there = output in batch.get_columns()
        kept = batch.columns.python_values(output) if there else [None] * batch.num_items
        results = [
            old if any(value is None for value in row) else function(**dict(zip(fields, row, strict=True)))
            for old, *row in zip(kept, *seen, strict=True)
        ]
        if there and batch.columns.is_json(output):
            return _with_objects(batch, output, results, kept)
        values = self._as_array(results)
        return (
            _with_changes(batch, output, values, one_chunk(batch.column(output)))
            if there
            else (batch.with_column(output, values))
        )

    def _as_array(self, values: list[Any]) -> pa.Array:
        """The results of a function as a column; texts as large strings."""
        if any(isinstance(value, str) for value in values):
            try:
                return pa.array(values, pa.large_string())
            except UnicodeEncodeError:
                return pa.array([None if v is None else v.encode("utf-8", "replace") for v in values]).cast(
                    pa.large_string()
                )
            except (pa.ArrowTypeError, pa.ArrowInvalid):
                pass
        try:
            return pa.array(values)
        except (pa.ArrowTypeError, pa.ArrowInvalid) as error:
            kinds = sorted({type(value).__name__ for value in values if value is not None})
            raise UsageError(
                f"{self.name}: the modifier returned values that do not fit into one column "
                f"({', '.join(kinds)}); return one type, or None.",
                found=kinds,
            ) from error


def _with_changes(batch: DocumentBatch, field: str, values: Array, before: Array) -> DocumentBatch:
    """The batch with new values in `field`; only the differing ones count as changed."""
    old = batch.column(field).type
    textual = pa.types.is_string(old) or pa.types.is_large_string(old) or pa.types.is_string_view(old)
    if values.type != old and (textual or pa.types.is_dictionary(old)) and pa.types.is_large_string(values.type):
        # All batches of a run keep one schema, whether a document in them changed or not.
        with contextlib.suppress(pa.ArrowInvalid, pa.ArrowNotImplementedError):
            values = values.cast(old)
    marks = differing_rows(values, before)
    if not marks.any():
        return batch if values.type == old else batch.with_column(field, values, changed=marks)
    if textual and (pa.types.is_string(values.type) or pa.types.is_large_string(values.type)):
        batch.note_change(field, marks, _growth(one_chunk(before), one_chunk(values), marks))
    return batch.with_column(field, values, changed=marks)


def _growth(before: pa.Array, after: pa.Array, marks: Mask) -> Any:
    rows = pa.array(np.flatnonzero(marks))
    grown = np.zeros(len(marks), np.int64)
    sizes = [pc.fill_null(pc.utf8_length(as_text(column.take(rows))), 0).to_numpy() for column in (before, after)]
    grown[marks] = sizes[1].astype(np.int64) - sizes[0]
    return grown


def _with_texts(batch: DocumentBatch, field: str, values: Array, before: Array) -> DocumentBatch:
    """The batch in which the texts among the mixed values of `field` have been modified."""
    marks = differing_rows(values, before)
    if not marks.any():
        return batch
    batch.note_change(field, marks, _growth(one_chunk(before), one_chunk(values), marks))
    return batch.with_text(field, one_chunk(values), changed=marks)


def _with_objects(batch: DocumentBatch, field: str, values: list[Any], before: list[Any]) -> DocumentBatch:
    """The batch with new values of any type in `field`; only the differing ones count as changed."""
    pairs = list(zip(before, values, strict=True))
    marks = np.fromiter((old != new for old, new in pairs), bool, len(pairs))
    if not marks.any():
        return batch
    both = np.fromiter((isinstance(old, str) and isinstance(new, str) for old, new in pairs), bool, len(pairs))
    grown = np.zeros(len(pairs), np.int64)
    grown[both] = [len(new) - len(old) for (old, new), texts in zip(pairs, both, strict=True) if texts]
    batch.note_change(field, marks & both, grown)
    texts = [json_text(new) if mark and new is not None else None for new, mark in zip(values, marks, strict=True)]
    merged = pc.if_else(pa.array(marks), pa.array(texts, pa.large_string()), as_text(batch.column(field)))
    return batch.with_column(field, merged, changed=marks, is_json=True)


def _name_of(modifier: AnyModifier) -> str:
    if isinstance(modifier, DocumentModifier):
        return modifier.name
    return str(getattr(modifier, "__name__", type(modifier).__name__))


def _extra_columns(modifier: AnyModifier) -> list[str]:
    return list(modifier.extra_columns()) if hasattr(modifier, "extra_columns") else []


def _checked_modifiers(given: AnyModifier | list[AnyModifier]) -> list[AnyModifier]:
    modifiers = list(given) if isinstance(given, list | tuple) else [given]
    if not modifiers:
        raise UsageError("Modify got an empty list: pass at least one modifier.")
    for modifier in modifiers:
        if isinstance(modifier, type) and issubclass(modifier, DocumentModifier):
            raise StageDefinitionError(
                f"Modify got the class {modifier.__name__}: pass an object, {modifier.__name__}(…)."
            )
        if not isinstance(modifier, DocumentModifier) and not callable(modifier):
            raise StageDefinitionError(
                f"Modify got {modifier!r}: each modifier is a DocumentModifier or a function.",
                found=type(modifier).__name__,
            )
    return modifiers


def _input_groups(given: str | list[str] | list[list[str]], modifiers: int) -> list[list[str]]:
    """The input fields of each modifier."""
    if given is None:
        raise UsageError("Modify got input_fields=None: name the column to modify.")
    if isinstance(given, str):
        return [[given] for _ in range(modifiers)]
    entries = list(given) if isinstance(given, list | tuple) else []
    if entries and all(isinstance(entry, str) for entry in entries):
        groups = [[str(entry)] for entry in entries]
    elif entries and all(isinstance(entry, list | tuple) and entry for entry in entries):
        groups = [[str(field) for field in entry] for entry in entries]
    else:
        raise StageDefinitionError(
            f"Modify got input_fields={given!r}: must be a column, a list with one per modifier, or a list of lists."
        )
    if len(groups) == 1:
        return [list(groups[0]) for _ in range(modifiers)]
    if len(groups) != modifiers:
        raise UsageError(
            f"Modify got {len(groups)} input fields for {modifiers} modifiers: pass one for all or one each. Several "
            f"fields for one modifier are a list in the list: [{entries!r}]."
        )
    return groups


def _output_names(given: str | list[str | None] | None, inputs: list[list[str]]) -> list[str]:
    """The output field of each modifier."""
    if given is None or isinstance(given, str):
        entries: list[str | None] = [given] * len(inputs)
    elif isinstance(given, list | tuple):
        entries = [given[0]] * len(inputs) if len(given) == 1 else list(given)
    else:
        raise StageDefinitionError(f"Modify got output_fields={given!r}: must be a column, a list of columns, or None.")
    if len(entries) != len(inputs):
        raise UsageError(
            f"Modify got {len(entries)} output fields for {len(inputs)} modifiers: pass one for all or one each."
        )
    names: list[str] = []
    for entry, fields in zip(entries, inputs, strict=True):
        if entry is None and len(fields) > 1:
            raise UsageError(
                f"A modifier of several input fields ({', '.join(fields)}) needs output_fields: name the column for "
                f"its result."
            )
        names.append(fields[0] if entry is None else entry)
    return names
