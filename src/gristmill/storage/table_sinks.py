"""Writing CSV and Arrow parts; joining pieces yields the same bytes as writing one file."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.csv as pa_csv

from gristmill.storage.atomic import AtomicFile, WrittenFile, output_errors
from gristmill.storage.compression import SourceFileObject, compress_member, open_raw, open_source
from gristmill.storage.files import StorageOptions
from gristmill.storage.formats import codec_of
from gristmill.storage.parquet_sink import ParquetSink
from gristmill.storage.schemas import as_json_text

_HEAD_BYTES = 1 << 16


class CsvSink:
    """A CSV file under construction; the header and every append are separate compressed members.

    Args:
        path: Final path; its suffix sets the compression.
        names: Its columns.
        delimiter: Separator of values.
        storage_options: File system options for URLs.
    """

    def __init__(self, path: str, names: Sequence[str], delimiter: str, *, storage_options: StorageOptions) -> None:
        self._codec = codec_of(path)
        self._delimiter = delimiter
        self._file = AtomicFile(path, storage_options=storage_options)
        self._file.write(compress_member(header_line(names, delimiter), self._codec))
        self._rows = 0

    def append(self, table: pa.Table) -> None:
        """Add rows."""
        if table.num_rows:
            self._file.write(compress_member(csv_lines(table, self._delimiter), self._codec))
            self._rows += table.num_rows

    def close(self) -> WrittenFile:
        """Publish the file."""
        return self._file.publish(rows=self._rows)

    def abort(self) -> None:
        """Discard appended rows."""
        self._file.discard()


def header_line(names: Sequence[str], delimiter: str) -> bytes:
    """The first line of a file."""
    target = io.StringIO()
    csv.writer(target, delimiter=delimiter, quoting=csv.QUOTE_ALL, lineterminator="\n").writerow(names)
    return target.getvalue().encode()


def csv_lines(table: pa.Table, delimiter: str) -> memoryview:
    """Rows as CSV: texts are quoted, a null is empty without quotes, lists and objects are JSON."""
    for at, field in enumerate(table.schema):
        if pa.types.is_nested(field.type) or pa.types.is_dictionary(field.type):
            column = table.column(at)
            flat = as_json_text(column) if pa.types.is_nested(field.type) else column.cast(field.type.value_type)
            table = table.set_column(at, field.name, flat)
    target = pa.BufferOutputStream()
    pa_csv.write_csv(table, target, pa_csv.WriteOptions(include_header=False, delimiter=delimiter))
    return memoryview(target.getvalue())


def csv_names(path: str, delimiter: str, *, storage_options: StorageOptions) -> list[str]:
    """The columns of a file that `CsvSink` wrote."""
    with io.TextIOWrapper(
        io.BufferedReader(SourceFileObject(open_source(path, storage_options=storage_options)), _HEAD_BYTES),
        encoding="utf-8",
        newline="",
    ) as lines:
        return next(csv.reader(lines, delimiter=delimiter), [])


def concatenate_csv(
    pieces: Sequence[WrittenFile], path: str, delimiter: str, *, storage_options: StorageOptions
) -> WrittenFile:
    """Join pieces with the same columns: their bytes, with only the first header."""
    names = csv_names(pieces[0].path, delimiter, storage_options=storage_options)
    header = len(compress_member(header_line(names, delimiter), codec_of(path)))
    target = AtomicFile(path, storage_options=storage_options)
    try:
        for number, piece in enumerate(pieces):
            with open_raw(piece.path, storage_options=storage_options) as source:
                if number:
                    source.seek(header)
                target.copy(source)
        return target.publish(rows=sum(piece.rows for piece in pieces))
    except BaseException:
        target.discard()
        raise


class ArrowSink:
    """An Arrow file (IPC file format, also called Feather) under construction; every append is a record batch.

    Args:
        path: Final path.
        schema: Schema of every table.
        compression: `zstd`, `lz4` or None.
        storage_options: File system options for URLs.
    """

    def __init__(
        self, path: str, schema: pa.Schema, compression: str | None, *, storage_options: StorageOptions
    ) -> None:
        self._file = AtomicFile(path, storage_options=storage_options)
        # One thread: how buffers are cut for compression must not depend on the machine.
        options = pa.ipc.IpcWriteOptions(compression=compression, use_threads=False)
        with output_errors(path):
            self._writer = pa.ipc.new_file(pa.PythonFile(self._file, mode="w"), schema, options=options)
        self._rows = 0

    def append(self, table: pa.Table) -> None:
        """Add rows as one record batch."""
        for batch in table.combine_chunks().to_batches():
            with output_errors(self._file.path):
                self._writer.write_batch(batch)
            self._rows += batch.num_rows

    def close(self) -> WrittenFile:
        """Publish the file."""
        with output_errors(self._file.path):
            self._writer.close()
        return self._file.publish(rows=self._rows)

    def abort(self) -> None:
        """Discard appended rows."""
        self._file.discard()


def arrow_schema(path: str, *, storage_options: StorageOptions) -> pa.Schema:
    """The schema of a file that `ArrowSink` wrote."""
    with open_raw(path, storage_options=storage_options) as source:
        return pa.ipc.open_file(pa.PythonFile(source, mode="r")).schema


def concatenate_arrow(
    pieces: Sequence[WrittenFile], path: str, compression: str | None, *, storage_options: StorageOptions
) -> WrittenFile:
    """Join pieces with the same schema: their record batches in order."""
    schema = arrow_schema(pieces[0].path, storage_options=storage_options)
    target = ArrowSink(path, schema, compression, storage_options=storage_options)
    try:
        for piece in pieces:
            with open_raw(piece.path, storage_options=storage_options) as source:
                opened = pa.ipc.open_file(pa.PythonFile(source, mode="r"))
                for number in range(opened.num_record_batches):
                    target.append(pa.Table.from_batches([opened.get_batch(number)]))
        return target.close()
    except BaseException:
        target.abort()
        raise


Sink = CsvSink | ArrowSink | ParquetSink


class TablePart:
    """The output of one partition: if a later batch has other columns, a new file begins.

    Args:
        path: The first file.
        ending: Suffix of file names; the number of a later file precedes it.
        key: Returns the key that all tables of a file must share.
        open_sink: Returns the sink of a file, from its first table.
    """

    def __init__(
        self, path: str, ending: str, key: Callable[[pa.Table], Any], open_sink: Callable[[str, pa.Table], Sink]
    ) -> None:
        self._path = path
        self._ending = ending
        self._key = key
        self._open_sink = open_sink
        self._now: Any = None
        self._sink: Sink | None = None
        self._done: list[WrittenFile] = []

    def append(self, payload: pa.Table, /, *, rows: int | None = None) -> None:
        """Add one batch."""
        key = self._key(payload)
        if self._sink is None or key != self._now:
            if self._sink is not None:
                self._done.append(self._sink.close())
            self._now = key
            self._sink = self._open_sink(numbered(self._path, len(self._done), self._ending), payload)
        self._sink.append(payload)

    def close(self) -> list[WrittenFile]:
        """Finish, and return the written files; empty if there was no batch."""
        if self._sink is not None:
            self._done.append(self._sink.close())
            self._sink = None
        return self._done

    def abort(self) -> None:
        """Discard unfinished files."""
        if self._sink is not None:
            self._sink.abort()


def numbered(path: str, number: int, ending: str) -> str:
    """The path of the file number `number` of a partition; `~` does not occur in partition ids."""
    return path if number == 0 else f"{path.removesuffix(ending)}~{number}{ending}"
