"""Finds the records of a ledger again in the input and output files."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterator
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import orjson
import pyarrow as pa
import xxhash

from gristmill.ledger.record.plan_record import read_plan
from gristmill.ledger.record.trail import TOO_MANY
from gristmill.storage.formats import format_of
from gristmill.storage.jsonl_blocks import RecordBlock, read_blocks
from gristmill.storage.parquet_blocks import TableBlock, read_parquet_blocks
from gristmill.storage.partitions import BadRecord, FileRange, Partition, SourceFile
from gristmill.storage.row_blocks import read_row_blocks
from gristmill.storage.row_formats import reading_of
from gristmill.storage.schemas import is_json_field

if TYPE_CHECKING:
    from gristmill.ledger.ask.ledger import Ledger
    from gristmill.ledger.record.manifest import ManifestEntry

Record = dict[str, Any]


def source_of(entry: ManifestEntry) -> tuple[Partition, dict[str, BadRecord]]:
    """The input of a partition as it was read, with placeholders for files that were quarantined."""
    partition = Partition(entry.index, entry.partition, tuple(FileRange(**part) for part in entry.source))
    lost = {file.file: file for file in entry.damaged or () if file.salvaged is None and file.cause != TOO_MANY}
    left_out = {
        part.path: BadRecord(0, SourceFile(part.path, part.relative), -1, lost[part.relative].cause, b"", 0, "")
        for part in partition.ranges
        if part.relative in lost
    }
    return partition, left_out


def source_blocks(entry: ManifestEntry, *, block_bytes: int = 4 << 20) -> Iterator[RecordBlock | TableBlock]:
    """The input of a partition, block by block, with the row numbers of the ledger."""
    partition, left_out = source_of(entry)
    if any(part.reading for part in partition.ranges):
        return read_row_blocks(partition, left_out=left_out, block_bytes=block_bytes, errors="replace")
    if any(".parquet" in part.relative.lower() for part in partition.ranges):
        return read_parquet_blocks(partition, left_out=left_out, block_bytes=block_bytes, errors="replace")
    return read_blocks(partition, left_out=left_out, block_bytes=block_bytes)


def record_at(block: RecordBlock | TableBlock, place: int) -> Record | None:
    """The record at a position in a block; None if it is not a JSON object."""
    if isinstance(block, TableBlock):
        one = block.table.slice(place, 1)
        return {name: values(one, name)[0] for name in one.column_names}
    return parsed(block.buffer[int(block.starts[place]) : int(block.ends[place])].tobytes())


def source_records(entry: ManifestEntry, rows: Collection[int]) -> Iterator[tuple[int, str, Record | None]]:
    """Row, file and record of some rows of a partition, in one pass over its input; missing rows are omitted."""
    wanted = sorted(rows)
    for block in source_blocks(entry):
        if not wanted:
            return
        if len(block.rows):
            last = int(block.rows[-1])
            for row in [row for row in wanted if row <= last]:
                wanted.remove(row)
                places = (block.rows == row).nonzero()[0]
                if len(places):
                    file = next((file for first, file in reversed(block.sources) if first <= row), None)
                    yield row, file.relative if file else "", record_at(block, int(places[0]))


def source_record(entry: ManifestEntry, row: int) -> Record | None:
    """Read the record with this row number from the input of a partition again; None if it is gone."""
    return next((record for _, _, record in source_records(entry, [row])), None)


def output_record(ledger: Ledger, entry: ManifestEntry, row: int, *, name: str | None = None) -> Record | None:
    """The record of a kept document in the output files of its partition; None if it is not found there.

    It is looked up by its id or, if the id is unknown, by its hash in the index.

    Args:
        ledger: The ledger of the run.
        entry: The partition.
        row: The document's row in it.
        name: Its id, if known.
    """
    settings = (read_plan(ledger.folder) or {}).get("settings") or {}
    if name is not None:
        id_field = settings.get("id_field") or "id"
        return _in_output(ledger, entry, id_field, name.__eq__, needle=name)
    for hashes, field in zip(ledger.index(entry), ("id_field", "url_field"), strict=True):
        wanted = int(hashes[row]) if hashes is not None and row < len(hashes) else 0
        if wanted:
            known = settings.get(field) or field.removesuffix("_field")
            return _in_output(ledger, entry, known, partial(_has_hash, wanted))
    return None


def _has_hash(wanted: int, text: str) -> bool:
    """Whether the index holds this hash for a text."""
    return (xxhash.xxh64_intdigest(text.encode("utf-8", "surrogatepass")) or 1) == wanted


def _in_output(
    ledger: Ledger, entry: ManifestEntry, field: str, is_wanted: Callable[[str], Any], *, needle: str | None = None
) -> Record | None:
    """The first output record of a partition with the wanted id (or URL)."""
    sizes = [FileRange(ledger.folder.join(file.path), file.path, file.size, "", 0, -1, True) for file in entry.files]
    partition = Partition(0, entry.partition, tuple(sizes))
    options, blocks = ledger.folder.storage_options, None
    kind = format_of(entry.files[0].path) if entry.files else None
    if kind == "parquet":
        blocks = read_parquet_blocks(partition, storage_options=options)
    elif kind not in (None, "jsonl"):
        ranges = tuple(replace(part, reading=reading_of(kind, {})) for part in sizes)
        blocks = read_row_blocks(replace(partition, ranges=ranges), storage_options=options)
    if blocks is not None:
        for block in blocks:
            names = values(block.table, field) if field in block.table.column_names else []
            place = next((at for at, value in enumerate(names) if is_wanted(str(value))), None)
            if place is not None:
                return record_at(block, place)
        return None
    probe = b"" if needle is None else json.dumps(needle, ensure_ascii=False)[1:-1].encode("utf-8", "surrogatepass")
    for lines in read_blocks(partition, storage_options=options):
        data = lines.buffer.tobytes()
        for start, end in zip(lines.starts.tolist(), lines.ends.tolist(), strict=True):
            # The bytes of most records show that they do not contain the id.
            if data.find(probe, start, end) >= 0 or b"\\" in data[start:end]:
                record = parsed(data[start:end])
                if record is not None and is_wanted(str(record.get(field))):
                    return record
    return None


def values(table: pa.Table, name: str) -> list[Any]:
    """The values of a column; parsed if it holds JSON because the values have several types."""
    found: list[Any] = table.column(name).to_pylist()
    if not is_json_field(table.schema.field(name)):
        return found
    return [None if value is None else json.loads(value) for value in found]


def parsed(data: bytes) -> Record | None:
    """The JSON object in a line; None if it is something else."""
    try:
        record = orjson.loads(data)
    except orjson.JSONDecodeError:  # also for lone surrogates, invalid numbers and bytes that are not UTF-8
        try:
            record = json.loads(data.decode("utf-8", "replace"))
        except (ValueError, RecursionError):
            return None
    return record if isinstance(record, dict) else None


def text_of(record: Record, text_field: str) -> str | None:
    """The text of a record; a value that is not a string is used as JSON, as in every stage."""
    value = record.get(text_field)
    if value is None or isinstance(value, str):
        return value
    return json.dumps(value, ensure_ascii=False, default=str)
