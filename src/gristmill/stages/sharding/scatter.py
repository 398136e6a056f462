"""The first step of a shuffle: every partition writes its documents sorted by a random key.

A run file is an Arrow file: key, origin, size and tokens of each document, then the document: the bytes of its JSONL
record, or its columns if both input and output are Parquet. Later steps map only the key range they need.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from gristmill.stages.base import Spec
from gristmill.stages.deduplication.sorted_runs import (
    EXTENSION,
    RUN_BYTES,
    SortedRunWriter,
    StorageOptions,
    numbered,
    open_run,
    write_run,
)
from gristmill.stages.deduplication.source import make_keys
from gristmill.stages.sharding.keys import Integers, Keys, Placement
from gristmill.stages.source_sink import PartFile
from gristmill.storage.arrow_functions import call_function
from gristmill.storage.atomic import WrittenFile
from gristmill.tasks.document import DocumentBatch

if TYPE_CHECKING:
    from gristmill.storage.json_records import JsonRecords

RECORD = "record"
COLUMN_PREFIX = "column:"
"""Prefix of the documents' own columns in a run file."""


@dataclass(slots=True)
class Scattered:
    """The documents of one batch with their keys.

    Attributes:
        facts: Key, origin, size, tokens and other known facts of each document.
        records: Their JSONL records, or None.
        columns: Their columns, or None.
    """

    facts: pa.Table
    records: JsonRecords | None
    columns: pa.Table | None

    @property
    def nbytes(self) -> int:
        """The bytes of the documents."""
        return int(self.records.nbytes if self.records is not None else self.columns.nbytes)  # type: ignore[union-attr]


class ScatterWriter(SortedRunWriter):
    """Writes documents sorted by the key of their placement.

    Args:
        path: The folder of the step.
        placement: How documents are ordered.
        as_records: Keep documents as JSONL records; otherwise as columns.
        run_bytes: Amount of a partition that is sorted at once.
        storage_options: File system options for URLs.
    """

    name = "scatter"

    def __init__(
        self,
        path: str,
        placement: Placement,
        *,
        as_records: bool,
        run_bytes: int = RUN_BYTES,
        storage_options: StorageOptions = None,
    ) -> None:
        super().__init__(path, storage_options=storage_options, run_bytes=run_bytes)
        self.placement = placement
        self.as_records = as_records
        self._room = Room()

    def inputs(self) -> Spec:
        return ["data"], [name for name in (self.placement.token_field,) if name is not None]

    def encode(self, batch: DocumentBatch) -> Scattered:
        placement = self.placement
        records, table, sizes = _measured(batch, placement.drop_fields, as_records=self.as_records)
        documents = make_keys(batch.partition, batch.rows)
        facts: dict[str, Any] = {
            "key": placement.keys(batch, documents, sizes),
            "document": documents,
            "size": sizes,
            "tokens": _whole_numbers(batch, placement.token_field),
        }
        for name, column in (("id", placement.id_field), ("license", placement.license_field)):
            if column is not None:
                there = batch.columns.has(column)
                facts[name] = batch.text(column) if there else pa.nulls(batch.num_items, pa.large_string())
        return Scattered(pa.table(facts), records, table)

    def open_part(self, path: str) -> PartFile:
        return ScatterPart(path, self.storage_options, self._run_bytes, self._room)

    def concatenate(self, pieces: Sequence[WrittenFile], path: str) -> list[WrittenFile]:
        part = self.open_part(path)
        for piece in pieces:
            part.append(scattered_of(open_run(piece.path, storage_options=self.storage_options)), rows=piece.rows)
        return part.close()


class Room:
    """Memory that is reused for the documents of each run; `take` invalidates its previous contents."""

    def __init__(self) -> None:
        self._bytes = np.empty(0, np.uint8)

    def take(self, size: int) -> npt.NDArray[np.uint8]:
        """This many bytes, uninitialised."""
        if len(self._bytes) < size:
            self._bytes = np.empty(0, np.uint8)  # first: not both at once
            self._bytes = np.empty(size, np.uint8)
        return self._bytes[:size]

    def __reduce__(self) -> tuple[type[Room], tuple[()]]:
        return Room, ()


class ScatterPart:
    """The sorted runs of one partition while they are collected."""

    def __init__(self, path: str, storage_options: StorageOptions, run_bytes: int, room: Room) -> None:
        self._path = path
        self._storage_options = storage_options
        self._run_bytes = run_bytes
        self._room = room
        self._held: list[Scattered] = []
        self._bytes = 0
        self._done: list[WrittenFile] = []

    def append(self, payload: Scattered, /, *, rows: int | None = None) -> None:
        """Add the documents of one batch."""
        if self._bytes and self._bytes + payload.nbytes > self._run_bytes:
            self._flush()
        self._held.append(payload)
        self._bytes += payload.nbytes

    def close(self) -> list[WrittenFile]:
        """Write the remaining documents, and return all written files."""
        if self._held:
            self._flush()
        return self._done

    def abort(self) -> None:
        """Discard documents that are not written yet."""
        self._held = []

    def _flush(self) -> None:
        held, self._held, self._bytes = self._held, [], 0
        facts = pa.concat_tables([one.facts for one in held]).combine_chunks()
        order = _order(facts.column("key").to_numpy())
        indices = pa.array(order)
        facts = call_function("take", [facts, indices])
        if held[0].records is not None:
            spans = [span_addresses(one.records) for one in held if one.records is not None]
            starts, ends = (np.concatenate(part)[order] for part in zip(*spans, strict=True))
            table = facts.append_column(RECORD, _gathered(starts, ends, self._room))
        else:
            # Not all batches need have all columns.
            whole = pa.concat_tables([one.columns for one in held], promote_options="permissive").combine_chunks()
            whole = call_function("take", [whole, indices])
            table = facts
            for place, named in enumerate(whole.schema):
                table = table.append_column(named.with_name(COLUMN_PREFIX + named.name), whole.column(place))
        path = numbered(self._path, EXTENSION, len(self._done))
        self._done.append(write_run(table, path, storage_options=self._storage_options))


def document_sizes(
    batch: DocumentBatch, token_field: str | None, drop_fields: Sequence[str], *, as_records: bool
) -> tuple[Integers, Integers]:
    """The bytes of every document as it will be written, and its tokens; 0 if they are not counted."""
    return _measured(batch, drop_fields, as_records=as_records)[2], _whole_numbers(batch, token_field)


def _measured(
    batch: DocumentBatch, drop_fields: Sequence[str], *, as_records: bool
) -> tuple[JsonRecords | None, pa.Table | None, Integers]:
    """The records or the columns of a batch, and the size of each document."""
    columns = batch.columns.without(drop_fields) if drop_fields else batch.columns
    if as_records:
        records = _records(columns.jsonl_lines())
        return records, None, records.ends - records.starts + 1
    table = columns.table().replace_schema_metadata(None)
    return None, table, _row_sizes(table)


def scattered_of(table: pa.Table) -> Scattered:
    """The contents of a run file, as they were before writing."""
    own = [name for name in table.column_names if name.startswith(COLUMN_PREFIX)]
    facts = table.select([name for name in table.column_names if name not in own and name != RECORD])
    if RECORD in table.column_names:
        from gristmill.storage.json_records import JsonRecords

        return Scattered(facts, JsonRecords.from_arrow(table.column(RECORD)), None)
    return Scattered(facts, None, document_columns(table))


def document_columns(table: pa.Table) -> pa.Table:
    """The documents' own columns of a table of a run file."""
    own = [named for named in table.schema if named.name.startswith(COLUMN_PREFIX)]
    columns = [table.column(named.name) for named in own]
    return pa.table(columns, schema=pa.schema([n.with_name(n.name.removeprefix(COLUMN_PREFIX)) for n in own]))


def span_addresses(records: JsonRecords) -> tuple[Integers, Integers]:
    """Start and end address of each record in memory; keep the records alive while these are used."""
    base = records.buffer.ctypes.data
    return records.starts + base, records.ends + base


def _records(lines: Any) -> JsonRecords:
    from gristmill.storage.jsonl_sink import RecordLines
    from gristmill.tasks.columns import records_of_lines

    return lines.records if isinstance(lines, RecordLines) else records_of_lines(lines)


def _gathered(starts: Integers, ends: Integers, room: Room) -> pa.Array:
    from gristmill.kernels.json_write import gather

    offsets = np.zeros(len(starts) + 1, np.int64)
    np.cumsum(ends - starts, out=offsets[1:])
    out = room.take(int(offsets[-1]))
    gather(0, starts, ends, -1, out)
    return pa.Array.from_buffers(pa.large_binary(), len(starts), [None, pa.py_buffer(offsets), pa.py_buffer(out)])


def _order(keys: Keys) -> Integers:
    from gristmill.kernels.sorting import stable_order

    return stable_order(keys)


def _row_sizes(table: pa.Table) -> npt.NDArray[np.int64]:
    """The approximate bytes of each row: the texts exactly, everything else by its share of the table."""
    sizes = np.zeros(table.num_rows, np.int64)
    rest = 0
    for column in table.columns:
        if pa.types.is_string(column.type) or pa.types.is_large_string(column.type):
            sizes += call_function("binary_length", [column]).fill_null(0).to_numpy().astype(np.int64)
        else:
            rest += column.nbytes
    sizes += -(-rest // max(1, table.num_rows))
    return sizes


def _whole_numbers(batch: DocumentBatch, column: str | None) -> npt.NDArray[np.int64]:
    """The token counts of a batch; zeros if not requested.

    Raises:
        UsageError: A document has no count, or one that is not a non-negative number.
    """
    if column is None:
        return np.zeros(batch.num_items, np.int64)
    from gristmill.stages.sharding.token_counts import token_counts

    return token_counts(batch, column)
