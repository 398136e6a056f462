"""Finds the texts that a ledger speaks of, in the input and in the output, and shows what differs between two."""

from __future__ import annotations

import difflib
import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from gristmill.errors import GristmillError
from gristmill.ledger.ask.why import KEPT, DocumentHistory
from gristmill.ledger.record.plan_record import read_plan
from gristmill.ledger.record.trail import DUPLICATE, TOO_MANY
from gristmill.storage.jsonl_blocks import read_blocks
from gristmill.storage.parquet_blocks import read_parquet_blocks
from gristmill.storage.partitions import BadRecord, FileRange, Partition, SourceFile
from gristmill.storage.schemas import is_json_field

if TYPE_CHECKING:
    from gristmill.ledger.ask.ledger import Ledger
    from gristmill.ledger.record.manifest import ManifestEntry

Record = dict[str, Any]


@dataclass(slots=True)
class TextDiff:
    """Two texts held against each other.

    Attributes:
        before: Where the first text comes from.
        after: Where the second one comes from.
        lines: The differences in the form of a unified diff; empty if the texts are equal.
        equal: Whether the texts are the same.
        notes: Why a text could not be found, or what limits the comparison.
    """

    before: str
    after: str
    lines: list[str] = field(default_factory=list)
    equal: bool = False
    notes: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        if self.notes:
            return "\n".join(self.notes)
        if self.equal:
            return f"{self.before} and {self.after} are the same text"
        return "\n".join(self.lines)


def text_diff(ledger: Ledger, history: DocumentHistory, *, text_field: str = "text") -> TextDiff | None:
    """What differs between a document and its survivor, or between a changed document and what came out of it.

    A document that was removed is looked up in its input file, by partition and row; a survivor in the output.

    Args:
        ledger: The ledger that was asked.
        history: A duplicate, or a kept document that stages changed; others have nothing to compare with.
        text_field: The field with the text.
    """
    survivor = next((decision.survivor for decision in history.decisions if decision.outcome == DUPLICATE), None)
    here = f"{history.partition}#{history.row} in the input"
    if survivor is not None:
        diff = TextDiff(here, f"survivor {survivor}")
        other = _survivor_text(ledger, survivor, text_field, diff)
    elif history.status == KEPT and history.changes:
        diff = TextDiff(here, "the output")
        record = _output_record(ledger, history)
        other = None if record is None else _text(record, text_field, diff, diff.after)
        if record is None:
            diff.notes.append("The document was not found in the output: it needs an id to be looked up there.")
    else:
        return None
    entry = ledger.entries().get(history.partition)
    own = None
    if entry is not None:
        try:
            found = source_record(entry, history.row)
            if found is None:
                diff.notes.append(f"Row {history.row} of partition {history.partition} is not in the input any more.")
            else:
                own = _text(found, text_field, diff, diff.before)
        except (OSError, GristmillError) as error:
            diff.notes.append(f"The input cannot be read any more: {error}")
    if own is not None and other is not None:
        diff.equal = own == other
        diff.lines = _unified(own, other, diff)
    return diff


def source_record(entry: ManifestEntry, row: int) -> Record | None:
    """The record with this row number in the input of a partition, read from the file again; None if it is gone."""
    partition = Partition(entry.index, entry.partition, tuple(FileRange(**part) for part in entry.source))
    lost = {file.file: file for file in entry.damaged or () if file.salvaged is None and file.cause != TOO_MANY}
    left_out = {
        part.path: BadRecord(0, SourceFile(part.path, part.relative), -1, lost[part.relative].cause, b"", 0, "")
        for part in partition.ranges
        if part.relative in lost
    }
    if any(".parquet" in part.relative.lower() for part in partition.ranges):
        for table in read_parquet_blocks(partition, left_out=left_out):
            places = (table.rows == row).nonzero()[0]
            if len(places):
                return _row(table.table, int(places[0]))
        return None
    for block in read_blocks(partition, left_out=left_out):
        places = (block.rows == row).nonzero()[0]
        if len(places):
            start, end = int(block.starts[places[0]]), int(block.ends[places[0]])
            return _object(block.buffer[start:end].tobytes())
    return None


def _row(table: pa.Table, at: int) -> Record:
    one = table.slice(at, 1)
    return {name: _values(one, name)[0] for name in one.column_names}


def _values(table: pa.Table, name: str) -> list[Any]:
    """The values of a column; where it holds JSON because they are of several kinds, what the JSON stands for."""
    values: list[Any] = table.column(name).to_pylist()
    if not is_json_field(table.schema.field(name)):
        return values
    return [None if value is None else json.loads(value) for value in values]


def _object(data: bytes) -> Record | None:
    try:
        record = json.loads(data)
    except ValueError:
        return None
    return record if isinstance(record, dict) else None


def _survivor_text(ledger: Ledger, survivor: str, text_field: str, diff: TextDiff) -> str | None:
    documents = ledger.why(survivor).documents
    kept = [history for history in documents if history.status == KEPT] or documents
    if not kept:
        diff.notes.append(f"The survivor {survivor!r} is not a document of this run, so its text cannot be found.")
        return None
    record = _output_record(ledger, kept[0], name=survivor) if kept[0].status == KEPT else None
    diff.after += " in the output"
    if record is None:
        diff.after = f"survivor {survivor} in the input"
        entry = ledger.entries().get(kept[0].partition)
        try:
            record = None if entry is None else source_record(entry, kept[0].row)
        except (OSError, GristmillError) as error:
            diff.notes.append(f"The input of the survivor cannot be read any more: {error}")
            return None
    if record is None:
        diff.notes.append(f"The text of the survivor {survivor!r} was found neither in the output nor in the input.")
        return None
    return _text(record, text_field, diff, diff.after)


def _output_record(ledger: Ledger, history: DocumentHistory, *, name: str | None = None) -> Record | None:
    """The record of a kept document in the output files of its partition, found by its id."""
    plan = read_plan(ledger.folder) or {}
    id_field = (plan.get("settings") or {}).get("id_field") or "id"
    entry = ledger.entries().get(history.partition)
    if entry is None:
        return None
    wanted = history.id or name
    if wanted is None or "#" in wanted:
        original = source_record(entry, history.row)
        wanted = None if original is None or original.get(id_field) is None else str(original[id_field])
    if wanted is None:
        return None
    sizes = [FileRange(ledger.folder.join(file.path), file.path, file.size, "", 0, -1, True) for file in entry.files]
    partition = Partition(0, entry.partition, tuple(sizes))
    if any(file.path.endswith(".parquet") for file in entry.files):
        for table in read_parquet_blocks(partition, storage_options=ledger.folder.storage_options):
            ids = [str(value) for value in _values(table.table, id_field)]
            if wanted in ids:
                return _row(table.table, ids.index(wanted))
        return None
    for block in read_blocks(partition, storage_options=ledger.folder.storage_options):
        data = block.buffer.tobytes()
        needle = json.dumps(wanted, ensure_ascii=False)[1:-1].encode()
        for start, end in zip(block.starts.tolist(), block.ends.tolist(), strict=True):
            # Most records are told by their bytes not to hold the id.
            if data.find(needle, start, end) >= 0 or b"\\" in data[start:end]:
                record = _object(data[start:end])
                if record is not None and str(record.get(id_field)) == wanted:
                    return record
    return None


def _text(record: Record, text_field: str, diff: TextDiff, where: str) -> str | None:
    value = record.get(text_field)
    if value is not None:
        # What is no string has been read as its JSON, here as in every stage.
        return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
    there = ", ".join(sorted(record))
    diff.notes.append(f"{where} has no text in the field {text_field!r}; it has {there}. Name the field.")
    return None


def _unified(own: str, other: str, diff: TextDiff) -> list[str]:
    # Without line ends a text would be one line, and the whole of it different; sentences show more.
    left, right = _pieces(own), _pieces(other)
    return list(difflib.unified_diff(left, right, diff.before, diff.after, lineterm="", n=1))


def _pieces(text: str) -> list[str]:
    return [piece for line in text.split("\n") for piece in line.replace(". ", ".\n").split("\n")]
