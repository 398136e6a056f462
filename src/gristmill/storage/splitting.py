"""Splitting one large file into several of a target size: JSONL at line ends, Parquet at row groups."""

from __future__ import annotations

import itertools
import os
from typing import Protocol

import numpy as np
import pyarrow as pa

from gristmill.errors import InputError, InputNotFoundError, UsageError
from gristmill.figures import parse_size
from gristmill.storage.atomic import AtomicFile, WrittenFile
from gristmill.storage.compression import DamagedArchiveError, StreamEncoder, kinds_of, open_source
from gristmill.storage.files import StorageOptions, is_local, local_path
from gristmill.storage.formats import COMPRESSED_SUFFIXES, codec_of, has_extension
from gristmill.storage.jsonl_blocks import newline_positions
from gristmill.storage.parquet_blocks import open_parquet, row_group_cuts
from gristmill.storage.parquet_sink import ParquetSink
from gristmill.storage.schemas import clean_schema

DEFAULT_TARGET = "128MB"
_READ_BYTES = 1 << 20


def split_file(
    path: str | os.PathLike[str],
    output: str | os.PathLike[str],
    *,
    target_size: str | int = DEFAULT_TARGET,
    storage_options: StorageOptions = None,
) -> list[WrittenFile]:
    """Write `path` as several files into the folder `output` and return them in order.

    The parts are named ``<name>-00000<extension>`` and so on; compressed input produces compressed parts. Together the
    parts have the content of the input: the same bytes for JSONL, the same rows for Parquet. They appear together at
    the end.

    Args:
        path: The file to split.
        output: A folder, created if needed.
        target_size: Size of each part, uncompressed for JSONL and as stored for Parquet; a longer line or row group is
            still one part.
        storage_options: File system options for URLs.

    Raises:
        InputNotFoundError: There is no such file.
        InputError: The file is damaged; no part is left behind.
    """
    source = os.fspath(path)
    target = parse_size(target_size, name="target_size")
    if target < 1:
        raise UsageError("target_size=0 cannot hold anything. Use a size such as '128MB'.", value=target_size)
    if is_local(source) and not os.path.isfile(local_path(source)):
        what = "is a folder; pass a single file" if os.path.isdir(local_path(source)) else "does not exist"
        raise InputNotFoundError(f"The file to split, {source!r}, {what}.", path=source)
    name = source.rstrip("/").rpartition("/")[2]
    if kinds_of([source], storage_options=storage_options).get(source) == "json_array":
        raise InputError(
            f"{source} is one JSON array, which has no lines to split at. Convert it to JSONL first: jq -c '.[]'",
            path=source,
        )
    splitter = _split_parquet if has_extension(name, (".parquet",)) else _split_jsonl
    parts = _Parts(os.fspath(output), name, storage_options)
    try:
        splitter(source, parts, target, storage_options)
        return parts.publish()
    except BaseException:
        parts.discard()
        raise


class _Part(Protocol):
    def close(self) -> WrittenFile: ...
    def abort(self) -> None: ...


class _Parts:
    """The files of one split: numbered, and not visible until all are complete."""

    def __init__(self, folder: str, name: str, storage_options: StorageOptions) -> None:
        suffix = next((name[-len(end) :] for end in COMPRESSED_SUFFIXES if name.lower().endswith(end)), "")
        stem, extension = os.path.splitext(name.removesuffix(suffix))
        self._pattern = f"{folder.rstrip('/')}/{stem}-{{:05d}}{extension}{suffix}"
        self._storage_options = storage_options
        self._parts: list[_Part] = []

    def open_lines(self) -> _LinePart:
        part = _LinePart(self._pattern.format(len(self._parts)), self._storage_options)
        self._parts.append(part)
        return part

    def open_rows(self, schema: pa.Schema) -> ParquetSink:
        part = ParquetSink(self._pattern.format(len(self._parts)), schema=schema, storage_options=self._storage_options)
        self._parts.append(part)
        return part

    def publish(self) -> list[WrittenFile]:
        return [part.close() for part in self._parts]

    def discard(self) -> None:
        for part in self._parts:
            part.abort()


class _LinePart:
    """Lines in one compressed stream, as in the source."""

    def __init__(self, path: str, storage_options: StorageOptions) -> None:
        self._file = AtomicFile(path, storage_options=storage_options)
        self._encoder = StreamEncoder(codec_of(path))
        self._open_line = False
        self._finished = False
        self.size = 0
        self.rows = 0

    def append(self, data: memoryview, newlines: int) -> None:
        self._file.write(self._encoder.encode(data))
        self.size += len(data)
        self.rows += newlines
        self._open_line = data[-1] != 10

    def finish(self) -> None:
        if not self._finished:
            self._finished = True
            self._file.write(self._encoder.finish())
            self._file.finish()
            self.rows += self._open_line

    def close(self) -> WrittenFile:
        self.finish()
        return self._file.publish(rows=self.rows)

    def abort(self) -> None:
        self._file.discard()


def _split_jsonl(path: str, parts: _Parts, target: int, storage_options: StorageOptions) -> None:
    source = open_source(path, storage_options=storage_options)
    buffer = np.empty(_READ_BYTES, np.uint8)
    part = parts.open_lines()
    full = False
    try:
        while count := source.readinto(buffer.data):
            newlines = newline_positions(buffer, 0, count)
            begin = 0
            while begin < count:
                if full:
                    part.finish()
                    part = parts.open_lines()
                # The first line end at or after the target closes the part; the next opens only when data follows.
                first, cut = np.searchsorted(newlines, [begin, max(begin, begin + target - part.size - 1)])
                full = bool(cut < len(newlines))
                end = int(newlines[cut]) + 1 if full else count
                part.append(buffer.data[begin:end], int(np.searchsorted(newlines, end) - first))
                begin = end
    except DamagedArchiveError as error:
        raise InputError(
            f"{path!r} cannot be split: {error}. Repair it, or read it unsplit: a run with --salvage keeps everything "
            "before the damage.",
            path=path,
            cause=error.cause,
        ) from error
    finally:
        source.close()


def _split_parquet(path: str, parts: _Parts, target: int, storage_options: StorageOptions) -> None:
    cuts = row_group_cuts(path, block_bytes=target, storage_options=storage_options)
    try:
        with open_parquet(path, storage_options=storage_options) as opened:
            schema = clean_schema(opened.schema_arrow)
            for start, end in itertools.pairwise(cuts):
                part = parts.open_rows(schema)
                for number in range(start, end):
                    part.append(opened.read_row_group(number, use_threads=False).cast(schema))
                part.finish()
            if len(cuts) < 2:
                parts.open_rows(schema).finish()
    except pa.ArrowException as error:
        raise InputError(
            f"{path!r} cannot be split: {error}. Check that it is a complete Parquet file.", path=path
        ) from error
