"""Reading partitions of formats other than JSONL and Parquet as blocks of rows."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial

import numpy as np
import pyarrow as pa

from gristmill.errors import InputError, UsageError
from gristmill.figures import format_size
from gristmill.storage.compression import SALVAGE_HINT, DamagedArchiveError
from gristmill.storage.files import StorageOptions
from gristmill.storage.formats import format_of
from gristmill.storage.jsonl_blocks import DEFAULT_BLOCK_BYTES, DEFAULT_MAX_RECORD_BYTES
from gristmill.storage.parquet_blocks import TableBlock, checked_block
from gristmill.storage.parquet_decoding import decoded_bytes, row_sizes
from gristmill.storage.partitions import (
    MAX_RAW_BYTES,
    BadRecord,
    FileRange,
    Partition,
    SourceFile,
    estimated_records,
    join_small,
)
from gristmill.storage.row_formats import Broken, Rows, Skipped, reading_of, rows_of
from gristmill.storage.schemas import conform, merge_schemas
from gristmill.storage.valid_text import TextErrors


def read_row_blocks(
    partition: Partition,
    *,
    fields: Sequence[str] | None = None,
    block_bytes: int = DEFAULT_BLOCK_BYTES,
    max_record_bytes: int = DEFAULT_MAX_RECORD_BYTES,
    storage_options: StorageOptions = None,
    strict: bool = False,
    left_out: Mapping[str, BadRecord] | None = None,
    errors: TextErrors = "quarantine",
    rows_from: Callable[..., Rows] = rows_of,
) -> Iterator[TableBlock]:
    """The rows of `partition`, block by block, file by file; small files share a block.

    Args:
        partition: The partition; every range defines how to read it.
        fields: Columns to read, in this order; all by default. A column that is missing from a file is null.
        block_bytes: Approximate size of a block.
        max_record_bytes: Maximum size of a row.
        storage_options: File system options for URLs.
        strict: Raise if a file is damaged; rows read from it before must then be discarded.
        left_out: Damaged files by path; they are skipped, and each is one bad record.
        errors: Whether rows with text that is not UTF-8 are bad records or repaired.
        rows_from: Returns the rows of a range, if code rather than the range defines how to read them.

    Raises:
        DamagedArchiveError: A file is damaged, and `strict` is set.
    """
    for name, value in (("block_bytes", block_bytes), ("max_record_bytes", max_record_bytes)):
        if value < 1:
            raise UsageError(f"{name}={value} must be at least 1.", value=value)
    open_file = partial(
        _FileReader,
        fields=fields,
        block_bytes=block_bytes,
        max_record_bytes=max_record_bytes,
        storage_options=storage_options,
        strict=strict,
        left_out=left_out or {},
        errors=errors,
        rows_from=rows_from,
    )
    if len(partition.ranges) == 1:
        return open_file(partition.ranges[0], 0).blocks()
    return join_small(partition.ranges, open_file, block_bytes, _joined)


def _joined(blocks: list[TableBlock]) -> TableBlock:
    return TableBlock(
        np.concatenate([block.rows for block in blocks]),
        _one_table([(block.sources[0][1].relative, block.table) for block in blocks]),
        [source for block in blocks for source in block.sources],
        [bad for block in blocks for bad in block.bad],
        [repair for block in blocks for repair in block.repaired],
        sum((Counter(block.skipped) for block in blocks), Counter()),
    )


def _one_table(tables: list[tuple[str, pa.Table]]) -> pa.Table:
    """Concatenate tables, each with its file; missing columns are null.

    Raises:
        SchemaConflictError: A column has incompatible types; the error names both files.
    """
    some = [(name, table) for name, table in tables if table.num_columns] or tables[:1]
    schema = some[0][1].schema
    if any(not table.schema.equals(schema, check_metadata=True) for _, table in some):
        schema = merge_schemas((name, table.schema) for name, table in some)
        some = [(name, conform(table, schema)) for name, table in some]
    return pa.concat_tables([table for _, table in some]).combine_chunks()


class _FileReader:
    """One pass over the rows of one range; `row` is the next row number afterwards."""

    def __init__(
        self,
        part: FileRange,
        row: int,
        *,
        fields: Sequence[str] | None,
        block_bytes: int,
        max_record_bytes: int,
        storage_options: StorageOptions,
        strict: bool,
        left_out: Mapping[str, BadRecord],
        errors: TextErrors,
        rows_from: Callable[..., Rows],
    ) -> None:
        self.row = self._first_row = row
        self._part = part
        self._file = SourceFile(part.path, part.relative)
        self._fields = fields
        self._block_bytes = block_bytes
        self._max_record_bytes = max_record_bytes
        self._storage_options = storage_options
        self._strict = strict
        self._left_out = left_out.get(part.path)
        self._errors = errors
        self._rows_from = rows_from
        self._tables: list[pa.Table] = []
        self._rows: list[int] = []
        self._bad: list[BadRecord] = []
        self._skipped: Counter[str] = Counter()
        self._size = 0

    def blocks(self) -> Iterator[TableBlock]:
        if self._left_out is not None:
            self._bad.append(replace(self._left_out, row=self.row))
            self.row += 1
            yield from self._flush()
            return
        rows = self._rows_from(self._part, storage_options=self._storage_options)
        while True:
            try:
                found = next(rows, None)
            except DamagedArchiveError as error:
                if self._strict:
                    raise
                found = Broken(error.cause, str(error), rest=True)
            if found is None:
                break
            if isinstance(found, Broken):
                self._note(found)
                if found.rest:
                    break
            elif isinstance(found, Skipped):
                self._skipped.update(found.counts)
            else:
                yield from self._add(self._chosen(found))
        yield from self._flush()

    def _note(self, broken: Broken) -> None:
        lost, salvaged = 0, None
        if broken.rest:
            if self._strict:
                told = f"{self._part.path} is damaged: {broken.detail}. {SALVAGE_HINT}"
                raise DamagedArchiveError(told, cause=broken.cause, path=self._part.path, consumed=0)
            salvaged = self.row - self._first_row
            lost = estimated_records(salvaged, max(0, broken.offset), self._part.size) - salvaged
        raw = broken.raw[:MAX_RAW_BYTES]
        self._bad.append(
            BadRecord(
                self.row, self._file, broken.offset, broken.cause, raw, broken.size, broken.detail, lost, salvaged
            )
        )
        self.row += 1

    def _chosen(self, table: pa.Table) -> pa.Table:
        if self._fields is None:
            return table
        columns = [
            table.column(name) if name in table.column_names else pa.nulls(table.num_rows) for name in self._fields
        ]
        return pa.table(columns, names=list(self._fields))

    def _add(self, table: pa.Table) -> Iterator[TableBlock]:
        """Add rows to the current block; rows that are too large are bad."""
        size = decoded_bytes(table)
        if self._block_bytes < self._size + size and self._block_bytes <= 2 * self._size:
            yield from self._flush()  # full enough: filling it up would copy a part of this table
        if self._size + size <= self._block_bytes and size <= self._max_record_bytes:
            self._wait(table, size)
            return
        sizes = row_sizes(table).tolist()
        first = taken = 0
        for at, size in enumerate(sizes):
            if size > self._max_record_bytes:
                self._wait(table.slice(first, at - first), taken)
                limit = self._max_record_bytes
                told = f"the row has {size} bytes, over max_record_bytes={limit} ({format_size(limit)})"
                self._bad.append(BadRecord(self.row, self._file, -1, "record_too_large", b"", size, told))
                self.row += 1
                first, taken = at + 1, 0
            elif (self._size + taken + size > self._block_bytes) and (self._size or taken):
                self._wait(table.slice(first, at - first), taken)
                yield from self._flush()
                first, taken = at, size
            else:
                taken += size
        self._wait(table.slice(first), taken)

    def _wait(self, table: pa.Table, size: int) -> None:
        if table.num_rows:
            self._tables.append(table)
            self._rows.extend(range(self.row, self.row + table.num_rows))
            self.row += table.num_rows
            self._size += size

    def _flush(self) -> Iterator[TableBlock]:
        if not self._tables and not self._bad and not self._skipped:
            return
        table = pa.table({})
        if self._tables:
            table = _one_table([(self._part.relative, table) for table in self._tables])
        rows = np.array(self._rows, np.int64)
        numbers = itertools.chain(self._rows[:1], (bad.row for bad in self._bad[:1]))
        first = min(numbers, default=self.row)
        block = checked_block(TableBlock(rows, table, [(first, self._file)], self._bad), self._file, self._errors)
        block.skipped = self._skipped
        self._tables, self._rows, self._bad, self._skipped, self._size = [], [], [], Counter(), 0
        yield block


def count_rows(path: str, *, size: int, storage_options: StorageOptions = None) -> int:
    """The number of rows of a data file that is neither JSONL nor Parquet, found by reading it.

    Raises:
        InputError: Its name does not indicate a known format.
    """
    kind = format_of(path)
    if kind is None:
        raise InputError(f"{path!r} does not have the extension of a known format.", path=path)
    part = FileRange(path, path, size, "", 0, -1, True, reading_of(kind, {}))
    blocks = read_row_blocks(Partition(0, "count", (part,)), storage_options=storage_options)
    return sum(block.table.num_rows + len(block.bad) for block in blocks)
