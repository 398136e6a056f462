"""Reading Parquet partitions as bounded tables, and planning from footers alone.

Block boundaries depend on footers and `block_bytes`, unless values are far larger than footers claim (a dictionary can
represent a thousand times its size): then the values themselves end a block. Data that does not fit into memory at once
is decoded again in smaller steps.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from operator import attrgetter
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from gristmill.errors import GristmillError, InputError, UsageError, did_you_mean, first_line
from gristmill.figures import format_size
from gristmill.storage.compression import SALVAGE_HINT, DamagedArchiveError, open_raw
from gristmill.storage.files import InputFile, StorageOptions, is_local, local_path
from gristmill.storage.parquet_decoding import decoded, decoded_bytes, fits_its_footer, row_sizes
from gristmill.storage.partitions import BadRecord, FileRange, Partition, SourceFile, estimated_records, join_small
from gristmill.storage.schemas import clean_schema, conform, merge_schemas
from gristmill.storage.valid_text import TextErrors, find_invalid_text

if TYPE_CHECKING:
    from gristmill.storage.text_repair import Repair

DEFAULT_BLOCK_BYTES = 16 * 1024 * 1024
DEFAULT_MAX_RECORD_BYTES = 256 * 1024 * 1024

_STREAM_BYTES = 1 << 20
_REMOTE_FOOTER_THREADS = 16
_DAMAGE = (pa.ArrowException, OSError, EOFError, UnicodeDecodeError)

_LARGEST_BLOCK = 4
"""Maximum number of blocks by which the values of a block may exceed the size in the footer."""
_DECODING_BYTES = 256 << 20
"""Minimum memory allowed for decoding a batch; ordinary batches need a tenth of it."""
_PIECE_ROWS = 1 << 16


@dataclass(slots=True)
class TableBlock:
    """Rows of a Parquet file, or of several small ones.

    Attributes:
        rows: Row number in the partition of each row of the table.
        table: The rows; empty if only a damaged file is reported.
        sources: The files in order, each with the row number of its first row here.
        bad: Damaged files, each with the row number after its rows.
        repaired: Rows whose text was repaired.
        skipped: Number of skipped records that are not documents, by kind.
    """

    rows: NDArray[np.int64]
    table: pa.Table
    sources: list[tuple[int, SourceFile]]
    bad: list[BadRecord] = field(default_factory=list)
    repaired: list[Repair] = field(default_factory=list)
    skipped: Mapping[str, int] = field(default_factory=dict)

    @property
    def nbytes(self) -> int:
        """The size of the table in memory."""
        return int(self.table.nbytes)

    def take(self, chosen: NDArray[np.bool_]) -> TableBlock:
        """The block with only these rows."""
        table = self.table.filter(chosen)
        return TableBlock(self.rows[chosen], table, self.sources, self.bad, self.repaired, self.skipped)


@contextlib.contextmanager
def open_parquet(path: str, *, storage_options: StorageOptions = None) -> Iterator[pq.ParquetFile]:
    """The file with its footer read; its pages are streamed, and checksums are verified if present."""
    with open_raw(path, storage_options=storage_options) as raw:
        source: Any = local_path(path) if is_local(path) else raw
        options = {"pre_buffer": False, "buffer_size": _STREAM_BYTES, "page_checksum_verification": True}
        with pq.ParquetFile(source, **options) as opened:
            opened.file_bytes = raw.seek(0, os.SEEK_END)
            yield opened


@dataclass(frozen=True, slots=True)
class _Footer:
    """The parts of a footer needed for planning; whole footers are large for files with many row groups."""

    schema: pa.Schema
    stored_bytes: tuple[int, ...]
    rows: tuple[int, ...]


class Footers:
    """Footers of many files, each read once, however often planning asks for it."""

    def __init__(self, *, storage_options: StorageOptions = None) -> None:
        self.storage_options = storage_options
        self._read: dict[str, _Footer | Exception] = {}
        self._schemas: dict[bytes, pa.Schema] = {}
        self._unified: tuple[list[str], pa.Schema] | None = None

    def read(self, path: str) -> _Footer | Exception:
        """The footer of the file, or the problem with it."""
        found = self._read.get(path)
        if found is None:
            try:
                with open_parquet(path, storage_options=self.storage_options) as opened:
                    metadata = opened.metadata
                    groups = [metadata.row_group(at) for at in range(metadata.num_row_groups)]
                    # Most files have the same schema: one of them is kept for all. Schemas are equal for PyArrow when
                    # only their metadata differ, which here says what is JSON: their bytes distinguish them.
                    schema = opened.schema_arrow
                    schema = self._schemas.setdefault(schema.serialize().to_pybytes(), schema)
                    rows = tuple(map(attrgetter("num_rows"), groups))
                    found = _Footer(schema, _stored_bytes(groups, opened.file_bytes), rows)
            except _DAMAGE as error:
                _raise_unless_damage(error)
                found = error
            self._read[path] = found
        return found

    def rows(self, partition: Partition) -> int:
        """The number of rows of the partition; a file with a damaged footer counts as one."""
        rows = 0
        for part in partition.ranges:
            footer = self.read(part.path)
            if isinstance(footer, Exception):
                rows += 1
            else:
                rows += sum(footer.rows[part.start : part.end if part.end >= 0 else None])
        return rows

    def unified(self, files: Iterable[InputFile | FileRange]) -> pa.Schema:
        """See `unified_schema`."""
        ordered = sorted({file.path: file for file in files}.values(), key=lambda file: file.relative)
        paths = [file.path for file in ordered]
        if self._unified is None or self._unified[0] != paths:
            self._unified = paths, _unified(paths, self)
        return self._unified[1]


def unified_schema(files: Iterable[InputFile | FileRange], *, storage_options: StorageOptions = None) -> pa.Schema:
    """The schema that all `files` can be read as, from their footers alone.

    Files with a damaged footer are ignored; reading reports them. A footer is read a second time only if a column holds
    integers in one file and floats in another.

    Raises:
        SchemaConflictError: Two files have types for a column that no common type holds exactly.
        InputError: No footer can be read.
    """
    return Footers(storage_options=storage_options).unified(files)


def _unified(paths: Sequence[str], footers: Footers) -> pa.Schema:
    threads = 1 if all(is_local(path) for path in paths) else _REMOTE_FOOTER_THREADS
    problem: tuple[str, Exception] | None = None
    schemas: list[tuple[str, pa.Schema]] = []
    with ThreadPoolExecutor(threads) as pool:
        for path, result in zip(paths, pool.map(footers.read, paths), strict=True):
            if isinstance(result, Exception):
                problem = problem or (path, result)
            else:
                schemas.append((path, result.schema))
    if not schemas and problem is not None:
        raise InputError(
            f"None of the {len(paths)} Parquet inputs has a footer that can be read; the first, {problem[0]!r}: "
            f"{first_line(problem[1])} Check that these are Parquet files.",
            path=problem[0],
        )
    return merge_schemas(schemas, exact=lambda path, column: _exact_as_floats(path, column, footers.storage_options))


def _exact_as_floats(path: str, column: str, storage_options: StorageOptions) -> bool:
    """Whether the footer proves that no integer in the column is longer than the 53 bits that a float64 holds."""
    with open_parquet(path, storage_options=storage_options) as opened:
        metadata = opened.metadata
        for number in range(metadata.num_row_groups):
            group = metadata.row_group(number)
            # PyArrow ends the process where the footer contradicts itself, unless it is by reading that it notices.
            if not fits_its_footer(opened, number):
                return False
            for at in range(group.num_columns):
                chunk = group.column(at)
                if chunk.path_in_schema.split(".", 1)[0] != column or chunk.physical_type != "INT64":
                    continue
                facts = chunk.statistics
                if facts is not None and facts.has_null_count and facts.null_count == chunk.num_values:
                    continue
                if facts is None or not facts.has_min_max:
                    return False
                if not -(2**53) <= facts.min <= facts.max <= 2**53:
                    return False
    return True


def row_group_cuts(
    path: str, *, block_bytes: int, storage_options: StorageOptions = None, footers: Footers | None = None
) -> list[int]:
    """Row group numbers at which the file is split into parts of about `block_bytes` stored bytes.

    The first is 0 and the last the number of row groups; empty if the footer is damaged.
    """
    footer = (footers or Footers(storage_options=storage_options)).read(path)
    if isinstance(footer, Exception):
        return []
    cuts, filled = [0], 0
    for at, size in enumerate(footer.stored_bytes):
        if filled and filled + size > block_bytes:
            cuts.append(at)
            filled = 0
        filled += size
    return [*cuts, len(footer.stored_bytes)] if footer.stored_bytes else []


def _stored_bytes(groups: Sequence[Any], file_bytes: int) -> tuple[int, ...]:
    """The approximate stored size of each row group.

    The footer states it exactly, by column; but PyArrow crashes if the footer of a column is inconsistent.
    """
    sizes = [max(0, group.total_byte_size) for group in groups]
    share = file_bytes / max(1, sum(sizes))
    return tuple(round(size * share) for size in sizes)


def read_parquet_blocks(
    partition: Partition,
    *,
    schema: pa.Schema | None = None,
    fields: Sequence[str] | None = None,
    block_bytes: int = DEFAULT_BLOCK_BYTES,
    max_record_bytes: int = DEFAULT_MAX_RECORD_BYTES,
    storage_options: StorageOptions = None,
    strict: bool = False,
    left_out: Mapping[str, BadRecord] | None = None,
    errors: TextErrors = "quarantine",
) -> Iterator[TableBlock]:
    """The rows of `partition`, block by block, file by file, all with one schema; small files share a block.

    Row groups that cannot be read are skipped and reported as one bad record after the rows of their file. So are
    rows that would take more memory to decode than several blocks; larger ones than `max_record_bytes` are bad records.

    Args:
        partition: What to read.
        schema: The result of `unified_schema`; defaults to the schema of the partition's own files.
        fields: Columns to read, in this order; all by default.
        block_bytes: Uncompressed bytes per block, by the footers' estimate.
        max_record_bytes: Maximum size of a row.
        storage_options: File system options for URLs.
        strict: Raise if a file is damaged; rows read from it before must then be discarded.
        left_out: Damaged files by path; they are skipped, and each is one bad record.
        errors: Whether rows with text that is not UTF-8 are bad records or repaired.

    Raises:
        UsageError: A field is not in the schema.
        DamagedArchiveError: A file is damaged, and `strict` is set.
    """
    for name, value in (("block_bytes", block_bytes), ("max_record_bytes", max_record_bytes)):
        if value < 1:
            raise UsageError(f"{name}={value} must be at least 1.", value=value)
    if schema is None:
        schema = unified_schema(partition.ranges, storage_options=storage_options)
    if fields is not None:
        if not fields:
            raise UsageError("fields=[] leaves no column. Name at least one, or omit it to read all.")
        for name in fields:
            if name not in schema.names:
                known = ", ".join(schema.names)
                raise UsageError(
                    f"The column {name!r} of fields is not in the input.{did_you_mean(name, schema.names)} "
                    f"There are: {known}.",
                    column=name,
                )
        schema = pa.schema([schema.field(name) for name in dict.fromkeys(fields)], metadata=schema.metadata)
    open_file = partial(
        _FileReader,
        schema=schema,
        block_bytes=block_bytes,
        max_record_bytes=max_record_bytes,
        storage_options=storage_options,
        strict=strict,
        left_out=left_out or {},
        errors=errors,
    )
    if len(partition.ranges) == 1:
        return open_file(partition.ranges[0], 0).blocks()
    return join_small(partition.ranges, open_file, block_bytes, _joined)


def _joined(blocks: list[TableBlock]) -> TableBlock:
    return TableBlock(
        np.concatenate([block.rows for block in blocks]),
        pa.concat_tables([block.table for block in blocks]).combine_chunks(),
        [source for block in blocks for source in block.sources],
        [bad for block in blocks for bad in block.bad],
        [repair for block in blocks for repair in block.repaired],
    )


class _FileReader:
    """One pass over the row groups of one range."""

    def __init__(
        self,
        part: FileRange,
        row: int,
        *,
        schema: pa.Schema,
        block_bytes: int,
        max_record_bytes: int,
        storage_options: StorageOptions,
        strict: bool,
        left_out: Mapping[str, BadRecord],
        errors: TextErrors,
    ) -> None:
        self.row = self._first_row = row
        self._part = part
        self._file = SourceFile(part.path, part.relative)
        self._schema = schema
        self._block_bytes = block_bytes
        self._max_record_bytes = max_record_bytes
        self._storage_options = storage_options
        self._strict = strict
        self._left_out = left_out.get(part.path)
        self._errors = errors
        self._pending: list[pa.Table] = []
        self._pending_rows = 0
        self._pending_bytes = 0.0
        self._decoded_bytes = 0
        self._lost = 0
        self._cause = "corrupt_parquet"
        self._problem = ""

    def blocks(self) -> Iterator[TableBlock]:
        """Blocks in file order; `row` is the next row number afterwards."""
        if self._left_out is not None:
            yield from self._flush(replace(self._left_out, row=self.row))
            self.row += 1
            return
        with contextlib.ExitStack() as stack:
            try:
                opened = stack.enter_context(open_parquet(self._part.path, storage_options=self._storage_options))
            except _DAMAGE as error:
                _raise_unless_damage(error)
                self._report(error, "the footer cannot be read", estimated_records(0, 0, self._part.size))
            else:
                end = self._part.end if self._part.end >= 0 else opened.metadata.num_row_groups
                there = clean_schema(opened.schema_arrow)
                names = [name for name in self._schema.names if name in there.names]
                for number in range(self._part.start, min(end, opened.metadata.num_row_groups)):
                    yield from self._row_group(opened, number, names)
        if not self._lost:
            yield from self._flush()
            return
        kept = self.row - self._first_row
        yield from self._flush(
            BadRecord(self.row, self._file, -1, self._cause, b"", 0, self._problem, self._lost, salvaged=kept)
        )
        self.row += 1

    def _row_group(self, opened: pq.ParquetFile, number: int, names: list[str]) -> Iterator[TableBlock]:
        group = opened.metadata.row_group(number)
        left = group.num_rows
        if not left:
            return
        row_bytes = max(group.total_byte_size, 1) / left
        batch_rows = max(1, min(left, int(self._block_bytes / row_bytes)))
        room = max(_DECODING_BYTES, 16 * self._block_bytes)
        try:
            tables = decoded(opened, number, names, batch_rows, room) if names else self._null_rows(left)
            for table in tables:
                # Smaller steps must not move borders, so that only the first step of a batch can end a block.
                ahead = min(batch_rows, left) * row_bytes if names else table.num_rows * row_bytes
                begins = not names or (group.num_rows - left) % batch_rows == 0
                if begins and self._pending and self._pending_bytes + ahead > self._block_bytes:
                    yield from self._flush()
                left -= table.num_rows
                yield from self._add(table, row_bytes)
                del table
        except MemoryError:
            self._cause, row = "record_too_large", group.num_rows - left
            self._report(None, f"row {row} of row group {number} needs over {format_size(room)} to decode", left)
        except _DAMAGE as error:
            _raise_unless_damage(error)
            self._report(error, f"{left} of the {group.num_rows} rows of row group {number} cannot be read", left)
        else:
            if left > 0:
                self._report(None, f"row group {number} holds {left} rows fewer than its footer says", left)

    def _add(self, table: pa.Table, row_bytes: float) -> Iterator[TableBlock]:
        """Add rows to the current block, which ends before it gets too large; rows that are too large are bad."""
        most = _LARGEST_BLOCK * self._block_bytes
        size = decoded_bytes(table)
        if size <= min(most - self._decoded_bytes, self._max_record_bytes):
            self._wait(table, size, row_bytes)
            return
        for start in range(0, table.num_rows, _PIECE_ROWS):
            piece = table.slice(start, _PIECE_ROWS)
            size = decoded_bytes(piece)
            if size <= min(most - self._decoded_bytes, self._max_record_bytes):
                self._wait(piece, size, row_bytes)
                continue
            first = taken = 0
            for at, size in enumerate(row_sizes(piece).tolist()):
                if self._decoded_bytes + taken + size > most or size > self._max_record_bytes:
                    self._wait(piece.slice(first, at - first), taken, row_bytes)
                    yield from self._flush()
                    first, taken = at, 0
                if size > self._max_record_bytes:
                    limit = self._max_record_bytes
                    told = f"the row has {size} bytes, over max_record_bytes={limit} ({format_size(limit)})"
                    yield from self._flush(BadRecord(self.row, self._file, -1, "record_too_large", b"", size, told))
                    self.row += 1
                    first = at + 1
                    continue
                taken += size
            self._wait(piece.slice(first), taken, row_bytes)

    def _null_rows(self, rows: int) -> Iterator[pa.Table]:
        """Rows of a file that has none of the columns: nothing is decoded, but the rows count."""
        for start in range(0, rows, _PIECE_ROWS):
            nulls = [pa.nulls(min(_PIECE_ROWS, rows - start), field.type) for field in self._schema]
            yield pa.table(nulls, schema=self._schema)

    def _wait(self, table: pa.Table, nbytes: int, row_bytes: float) -> None:
        if not table.num_rows:
            return
        self._pending.append(conform(table, self._schema))
        self._pending_rows += table.num_rows
        self._pending_bytes += table.num_rows * row_bytes
        self._decoded_bytes += nbytes
        self.row += table.num_rows

    def _report(self, error: Exception | None, what: str, rows: int) -> None:
        """Report unreadable rows; the first ones determine the problem with the file."""
        detail = what if error is None else f"{what}: {first_line(error)}"
        if self._strict:
            told = f"{self._part.path} is damaged: {detail}. {SALVAGE_HINT}"
            raise DamagedArchiveError(told, cause=self._cause, path=self._part.path, consumed=0) from error
        self._problem = self._problem or detail
        self._lost += rows

    def _flush(self, bad: BadRecord | None = None) -> Iterator[TableBlock]:
        if not self._pending and bad is None:
            return
        table = self._schema.empty_table()
        if self._pending:
            table = pa.concat_tables(self._pending)
            if len(self._pending) > 1:
                table = table.combine_chunks()
        first = self.row - self._pending_rows
        self._pending, self._pending_rows, self._pending_bytes, self._decoded_bytes = [], 0, 0.0, 0
        rows = np.arange(first, self.row, dtype=np.int64)
        block = TableBlock(rows, table, [(first, self._file)], [] if bad is None else [bad])
        yield checked_block(block, self._file, self._errors)


def checked_block(block: TableBlock, file: SourceFile, errors: TextErrors) -> TableBlock:
    """A block of one file whose texts are all UTF-8: rows with other bytes are bad records or repaired."""
    table, rows = block.table, block.rows
    found = find_invalid_text(table)
    repaired: list[Repair] = []
    if found is not None and errors == "replace":
        from gristmill.storage.text_repair import repair_table

        table, repaired = repair_table(table, rows)
        found = find_invalid_text(table)
    problems = block.bad
    if found is not None:
        invalid, column = found
        told = f"the bytes in column {column!r} are not UTF-8"
        wrong = [BadRecord(int(row), file, -1, "invalid_utf8", b"", 0, told) for row in rows[invalid]]
        problems = [*wrong, *problems]
        rows, table = rows[~invalid], table.filter(~invalid)
    return TableBlock(rows, table, block.sources, problems, repaired)


def _raise_unless_damage(error: Exception) -> None:
    """Raise errors that are not about the data: a missing file, or a failing disk or network."""
    if isinstance(error, GristmillError) or (isinstance(error, OSError) and error.errno is not None):
        raise error
