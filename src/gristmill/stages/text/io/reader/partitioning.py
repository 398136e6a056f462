"""The source of file-based pipelines: finds the input files, inspects their columns and makes partitions."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import replace
from functools import partial
from itertools import filterfalse
from operator import attrgetter
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyarrow import types

from gristmill.errors import InputError, MissingColumnError, UsageError, did_you_mean
from gristmill.figures import parse_size, plural
from gristmill.stages.base import ProcessingStage
from gristmill.stages.resources import Resources
from gristmill.stages.source_sink import ReaderStage, SourceColumns, SourceStage, field_names
from gristmill.storage.compression import HEADS, kinds_of
from gristmill.storage.files import InputFile, LeftOut, SourceFiles, Survey, is_local, list_files, local_path, survey
from gristmill.storage.formats import (
    EXTENSIONS,
    FORMATS,
    RECORD_FORMATS,
    Format,
    codec_of,
    format_of,
    mismatch,
)
from gristmill.storage.jsonl_blocks import RecordBlock, read_blocks
from gristmill.storage.parquet_blocks import Footers
from gristmill.storage.partitions import DEFAULT_BLOCKSIZE, Block, Partition, make_partitions
from gristmill.storage.row_blocks import read_row_blocks
from gristmill.storage.row_formats import cuts_of, reading_of
from gristmill.storage.schemas import merge_schemas
from gristmill.storage.selection import Selection
from gristmill.tasks.base import EmptyTask
from gristmill.tasks.file_group import FileGroupTask

Paths = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]
# How many files are inspected before a run, and how many bytes of them in total.
_MOST_CHECKED = 2000
_MOST_CHECKED_REMOTE = 200
_MOST_CHECKED_BYTES = 64 << 20
_TEXT = "text"
_KINDS = {str: _TEXT, list: "lists", dict: "objects", int: "numbers", float: "numbers", bool: "truth values"}
"""Names of value types, as in `json_records.KINDS`."""
_PEEK_BYTES = 1 << 20
_PEEK_FILES = 3
_PEEK_ROW_FILES = 8
_TEXT_FORMATS = ("csv", "text")
_NOT_TEXT = (types.is_nested, types.is_integer, types.is_floating, types.is_decimal, types.is_boolean)
_SEARCH_BYTES = 64 << 20
"""Number of bytes to search for a key that is missing from the first records. A limit in bytes rather than time: the
result must not depend on the speed of the machine.
"""


class FilePartitioningStage(SourceStage):
    """Finds files and groups or splits them; the first part of every reader.

    Only built-in readers receive parts of files. For any other stage, which opens the paths that it receives, files
    stay whole, and JSONL and Parquet files are found unless `file_extensions` is set.

    Args:
        file_paths: A file, folder (searched recursively), glob or fsspec URL, or a list of these.
        files_per_partition: Number of whole files per partition.
        blocksize: Approximate partition size ("128MB"): small files are combined, large ones split.
        file_extensions: Extensions of the files to read in a folder; a compression suffix may follow.
        storage_options: File system options for URLs.
        limit: Read at most this many partitions.
        format: Format of the files, which decides where they can be split.
        fields: The columns that the reader will return, if not all.
        selection: The documents to read, if not all.
        options: Options of formats other than JSONL and Parquet.

    Attributes:
        found: The survey of the input, if one was just made to detect its format; removed when used, so that no copy of
            the stage uses it again later.
    """

    name = "file_partitioning"
    fork_safe = True
    resources = Resources(cpus=0.5)
    found: list[Survey] | None = None
    _whole_files = False

    def __init__(
        self,
        file_paths: Paths,
        files_per_partition: int | None = None,
        blocksize: int | str | None = None,
        file_extensions: Sequence[str] | None = None,
        storage_options: Mapping[str, Any] | None = None,
        limit: int | None = None,
        *,
        format: Format | None = None,
        fields: Sequence[str] | None = None,
        selection: Selection | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        if files_per_partition is not None and blocksize is not None:
            raise UsageError(
                f"files_per_partition={files_per_partition!r} and blocksize={blocksize!r} are mutually exclusive: set "
                "one, or neither for one partition per file."
            )
        self.file_paths = plain_paths(file_paths)
        self.files_per_partition = files_per_partition
        self.blocksize = blocksize
        self._takes_all = file_extensions is None  # of the format's names, so that other formats are no one's choice
        if file_extensions is None and format is not None:
            file_extensions = EXTENSIONS[format]
        self.file_extensions = None if file_extensions is None else tuple(file_extensions)
        self.storage_options = None if storage_options is None else dict(storage_options)
        self.limit = limit
        self._format_is_open = format is None and file_extensions is None
        self.format = format or _format_of(self.file_extensions)
        self.fields = field_names(fields)
        self.selection = self._selected = selection
        self._footers = Footers(storage_options=self.storage_options) if self.format == "parquet" else None
        if self.format not in RECORD_FORMATS:  # otherwise not part of the plan, as in outputs of earlier versions
            self.options = dict(options or {})

    def num_workers(self) -> int | None:
        return 1

    def serve(self, stage: ProcessingStage[Any, Any]) -> None:
        reader = stage if isinstance(stage, ReaderStage) else None
        self._whole_files = reader is None or not reader.reads_ranges
        if reader is not None and self._format_is_open and reader.only_format is not None:
            self.format = reader.only_format

    def process(self, task: EmptyTask) -> list[FileGroupTask]:
        """All partitions as tasks of whole files, for use without a pipeline."""
        alone = copy(self)
        alone._whole_files = True
        partitions = alone.partitions()
        return [self.task(partition, total=len(partitions)) for partition in partitions]

    def partitions(self) -> list[Partition]:
        given = [self.file_paths] if isinstance(self.file_paths, str) else self.file_paths
        paths = [*map(local_path, filter(is_local, given)), *filterfalse(is_local, given)]
        if self._whole_files:
            return self._groups_of_files(paths)
        self._footers = Footers(storage_options=self.storage_options) if self.format == "parquet" else None
        extensions = self.file_extensions or EXTENSIONS[self.format]
        if self.found:
            found = self.found.pop()
        else:
            found = survey(self.file_paths, extensions=extensions, storage_options=self.storage_options)
        blocksize, kinds, reading, left_out = self.blocksize, {}, "", found.left_out
        if self.format in RECORD_FORMATS:
            left_out = self._without_other_formats(found) if found.left_out else []
            kinds = self._kinds(found.files)
        else:
            if self.format in _TEXT_FORMATS:
                self._kinds(found.files)
            reading = reading_of(self.format, self.options)
            if blocksize is None and self.files_per_partition is None and FORMATS[self.format].packed:
                blocksize = DEFAULT_BLOCKSIZE
        partitions = make_partitions(
            found.files,
            format=self.format,
            files_per_partition=self.files_per_partition,
            blocksize=blocksize,
            limit=self.limit,
            storage_options=self.storage_options,
            footers=self._footers,
            whole=kinds,
            reading=reading,
            find_cuts=partial(self._cuts, reading) if reading else None,
        )
        if self.selection is not None:
            partitions, self._selected = self.selection.first_of(partitions, self._row_numbers)
        if self.limit is not None or self.selection is not None:
            read = {piece.path for partition in partitions for piece in partition.ranges}
            over = [LeftOut(file.path, file.relative, "limit") for file in found.files if file.path not in read]
            left_out = sorted([*left_out, *over], key=attrgetter("relative"))
            found = Survey([file for file in found.files if file.path in read], left_out)
        self.surveyed = SourceFiles(paths, list(extensions), len(found.files), left_out, FORMATS[self.format].label)
        return partitions

    def _groups_of_files(self, paths: list[str]) -> list[Partition]:
        """Partitions of whole files of any format, for a stage that opens them itself."""
        extensions = self.file_extensions or (*EXTENSIONS["jsonl"], *EXTENSIONS["parquet"])
        found = survey(self.file_paths, extensions=extensions, storage_options=self.storage_options)
        partitions = make_partitions(
            found.files,
            format=self.format,
            files_per_partition=self.files_per_partition,
            blocksize=self.blocksize,
            limit=self.limit,
            storage_options=self.storage_options,
            whole={file.path for file in found.files},
            reading="" if self.format in RECORD_FORMATS else reading_of(self.format, self.options),
        )
        read = {piece.path for partition in partitions for piece in partition.ranges}
        over = [LeftOut(file.path, file.relative, "limit") for file in found.files if file.path not in read]
        self.surveyed = SourceFiles(paths, list(extensions), len(read), [*found.left_out, *over], "files of any kind")
        return partitions

    def _cuts(self, reading: str, file: InputFile, block_bytes: int) -> list[int]:
        return cuts_of(file.path, file.size, reading, block_bytes=block_bytes, storage_options=self.storage_options)

    def _row_numbers(self, partition: Partition) -> Iterator[npt.NDArray[np.int64]]:
        """The rows of a partition as its reader will number them."""
        if self._footers is not None:
            yield np.arange(self._footers.rows(partition))
            return
        for block in _read(partition, self.storage_options):
            yield np.sort(np.append(block.rows, [bad.row for bad in block.bad]).astype(np.int64))

    def _without_other_formats(self, found: Survey) -> list[LeftOut]:
        """The files of the input that are not read, after checking that skipping other formats was requested.

        Raises:
            UsageError: There are such files, and no format was chosen.
        """
        ready = {kind for kind in RECORD_FORMATS if kind != self.format}
        others = {
            item.path: kind
            for item in found.left_out
            if item.reason == "extension" and (kind := format_of(item.relative)) in ready
        }
        if others and self._takes_all:
            some = list(others)[:_MOST_CHECKED_REMOTE]
            kinds = kinds_of(some, storage_options=self.storage_options)
            # A file beside the data that only has such a name, like the description of a dataset, is not data.
            real = [path for path in some if mismatch(path, kinds.get(path), others[path] or "jsonl") is None]
            if real:
                raise self._mixture(found, real, others)
        return [replace(item, reason="other_format") if item.path in others else item for item in found.left_out]

    def _mixture(self, found: Survey, others: Sequence[str], kinds: Mapping[str, Format | None]) -> UsageError:
        other = kinds[others[0]] or "jsonl"
        named = next(item.relative for item in found.left_out if item.path == others[0])
        choices = " or ".join(
            f"{FORMATS[kind].reader}({self.file_paths!r}, file_extensions={list(EXTENSIONS[kind])!r})"
            for kind in (self.format, other)
        )
        return UsageError(
            f"{self.file_paths} holds {FORMATS[self.format].label} files ({found.files[0].relative}) and "
            f"{FORMATS[other].label} files ({named}), but {FORMATS[self.format].reader} reads only "
            f"{FORMATS[self.format].label}. Choose what to read: {choices} (on the command line: --input-filetype "
            f"{self.format} or --input-filetype {other}); to read all of them, run once for each.",
            paths=self.file_paths,
        )

    def _kinds(self, files: Sequence[InputFile]) -> dict[str, str]:
        """The JSON arrays among the files, after checking that files have the format that their names imply.

        Checks a limited number of files, spread over all; the others are checked when they are opened. Files that would
        be split are always checked, because an array cannot be split.

        Raises:
            InputError: A file has another format.
        """
        most = _MOST_CHECKED if is_local(files[0].path) else _MOST_CHECKED_REMOTE
        most = max(1, min(most, _MOST_CHECKED_BYTES // HEADS[codec_of(files[0].path)]))
        paths = dict.fromkeys(map(attrgetter("path"), files[:: -(-len(files) // most)]))
        if self.format == "jsonl" and self.files_per_partition is None:
            largest = DEFAULT_BLOCKSIZE if self.blocksize is None else parse_size(self.blocksize, name="blocksize")
            for file in files:
                if file.size > largest and codec_of(file.path) == "none":
                    paths[file.path] = None
        kinds = kinds_of(paths, storage_options=self.storage_options)
        wrong: list[str] = []
        arrays: dict[str, str] = {}
        for path, kind in kinds.items():
            problem = None if kind == self.format else mismatch(path, kind, self.format)
            if problem is not None:
                wrong.append(problem)
            elif kind == "json_array":
                arrays[path] = kind
        if wrong:
            others = " To skip it, move it away or begin its name with '_'." if len(files) > 1 else ""
            if len(wrong) > 1:
                others += (
                    f" {len(wrong) - 1} more of the {len(kinds)} files inspected have another format than their "
                    "names imply."
                )
            raise InputError(f"{wrong[0]}{others}", problems=wrong)
        return arrays

    def keep_files_whole(self) -> None:
        self.blocksize = None

    def gather_files(self) -> None:
        self.blocksize, self.files_per_partition = None, 1 << 62

    def searched_folders(self) -> list[str]:
        paths = [self.file_paths] if isinstance(self.file_paths, str) else self.file_paths
        return list(filter(os.path.isdir, map(local_path, filter(is_local, paths))))

    def columns(self, partitions: Sequence[Partition], wanted: Sequence[str]) -> SourceColumns | None:
        if not partitions or self._whole_files:
            return None
        found: SourceColumns | None
        if self.format == "parquet":
            files = {piece.path: piece for partition in partitions for piece in partition.ranges}
            assert self._footers is not None
            schema = self._footers.unified(list(files.values()))
            not_text = {
                column.name: str(column.type) for column in schema if any(test(column.type) for test in _NOT_TEXT)
            }
            looked_at = f"the footers of {len(files)} files"
            found = SourceColumns(tuple(schema.names), complete=True, looked_at=looked_at, not_text=not_text)
        elif self.format not in RECORD_FORMATS:
            uniform = FORMATS[self.format].uniform
            found = _row_columns(partitions, uniform=uniform, storage_options=self.storage_options)
        else:
            looked_for = wanted if self.fields is None else self.fields
            found = _jsonl_columns(partitions, looked_for, storage_options=self.storage_options)
        if found is not None and self.surveyed is not None and self.surveyed.left_out:
            found = replace(found, beside=self._beside(self.surveyed))
        if self.fields is None or found is None:
            return found
        for name in self.fields:
            # A key that is too rare for planning to see may still appear; one that cannot appear is a mistake.
            if name not in found.names and found.complete:
                raise MissingColumnError(
                    f"fields={list(self.fields)!r} of the reader contains {name!r}, which is missing (found: "
                    f"{', '.join(map(repr, found.names)) or 'none'}, from "
                    f"{found.looked_at}).{did_you_mean(name, found.names)}",
                    stage=self.name,
                    column=name,
                    available=list(found.names),
                )
        return SourceColumns(self.fields, complete=True, looked_at="the fields of the reader", not_text=found.not_text)

    def _beside(self, surveyed: SourceFiles) -> str:
        """A sentence about data of other formats beside the input; empty if there is none."""
        others: dict[Format, str] = {}
        for item in surveyed.left_out:
            kind = format_of(item.relative)
            if kind not in (None, self.format) and not FORMATS[kind].companion:
                others.setdefault(kind, item.relative)
        if not others:
            return ""
        choices = " or ".join(
            f"--input-filetype {kind} ({FORMATS[kind].reader}) for {FORMATS[kind].label} files such as {name}"
            for kind, name in others.items()
        )
        was = "was" if surveyed.read == 1 else "were"
        read = f"{surveyed.read:,} {FORMATS[self.format].label} {'file' if was == 'was' else 'files'}"
        return f" Only {read} {was} considered; to read others, use {choices}."

    def prepare(self, reader: ProcessingStage[Any, Any], partitions: Sequence[Partition]) -> None:
        if self._whole_files:
            return
        if self._selected is not None and isinstance(reader, ReaderStage):
            reader.select(self._selected)
        if self.format == "parquet" and hasattr(reader, "schema") and partitions:
            pieces = list({piece.path: piece for partition in partitions for piece in partition.ranges}.values())
            assert self._footers is not None
            reader.schema = self._footers.unified(pieces)


def _format_of(extensions: Sequence[str] | None) -> Format:
    parquet = bool(extensions) and all(".parquet" in extension for extension in extensions or ())
    return "parquet" if parquet else "jsonl"


class ReaderOptions(Protocol):
    """What the readers of files are given alike."""

    file_paths: Any
    files_per_partition: int | None
    blocksize: int | str | None
    fields: Sequence[str] | None
    file_extensions: Sequence[str] | None
    limit: int | None
    max_documents: int | None
    sample: float | None
    seed: int
    storage_options: Mapping[str, Any] | None


def partitioned(
    given: ReaderOptions, reader: ReaderStage, format: Format, options: Mapping[str, Any] | None = None
) -> tuple[FilePartitioningStage, ReaderStage]:
    """The stage that finds the files of a reader, and the stage that reads them."""
    selection = None
    if given.sample is not None or given.max_documents is not None:
        selection = Selection(given.sample, given.seed, given.max_documents)
        reader.select(selection)
    source = FilePartitioningStage(
        given.file_paths,
        given.files_per_partition,
        given.blocksize,
        given.file_extensions,
        given.storage_options,
        given.limit,
        format=format,
        fields=given.fields,
        selection=selection,
        options=options,
    )
    return source, reader


def whole_files(
    task: FileGroupTask,
    format: Format,
    storage_options: Mapping[str, Any] | None,
    options: Mapping[str, Any] | None = None,
) -> Partition:
    """The partition of a hand-made task: its files as a whole."""
    files = list_files(list(task.data), extensions=EXTENSIONS[format], storage_options=storage_options)
    reading = "" if options is None else reading_of(format, options)
    return make_partitions(files, format=format, files_per_partition=max(1, len(files)), reading=reading)[0]


def plain_paths(file_paths: Paths) -> str | list[str]:
    """Paths as text; recipes and plans hold only plain values.

    Raises:
        UsageError: It is neither a path nor a list of paths.
    """
    if isinstance(file_paths, str | os.PathLike):
        return os.fspath(file_paths)
    if not isinstance(file_paths, Iterable):
        raise UsageError(f"file_paths={file_paths!r}: must be a file, folder, glob or URL, or a list of these.")
    return [os.fspath(path) if isinstance(path, os.PathLike) else path for path in file_paths]


def _read(partition: Partition, storage_options: Mapping[str, Any] | None) -> Iterator[Any]:
    """The blocks of a partition of any format except Parquet."""
    read: Callable[..., Iterator[Block]] = read_row_blocks if partition.ranges[0].reading else read_blocks
    return read(partition, storage_options=storage_options)


def _row_columns(
    partitions: Sequence[Partition], *, uniform: bool, storage_options: Mapping[str, Any] | None
) -> SourceColumns | None:
    """The columns of the first row of some files; others may appear later, unless the files are `uniform`."""
    parts = {part.path: (partition, part) for partition in partitions for part in partition.ranges}
    some = list(parts.values())[: 1 if uniform else _PEEK_ROW_FILES]
    schemas: list[tuple[str, pa.Schema]] = []
    for partition, part in some:
        alone = replace(partition, ranges=(part,))
        for block in read_row_blocks(alone, block_bytes=1, storage_options=storage_options):
            if block.table.num_columns:
                schemas.append((part.relative, block.table.schema))
                break
    if not schemas:
        return None
    schema = merge_schemas(schemas)
    complete = uniform or len(some) == len(parts) == len(schemas)
    not_text = {column.name: str(column.type) for column in schema if any(test(column.type) for test in _NOT_TEXT)}
    return SourceColumns(
        tuple(schema.names), complete=complete, looked_at=plural(len(schemas), "file"), not_text=not_text
    )


def _jsonl_columns(
    partitions: Sequence[Partition], wanted: Sequence[str], *, storage_options: Mapping[str, Any] | None
) -> SourceColumns | None:
    """The keys of the first records; missing keys in `wanted` are searched for in later records.

    A key may be rare, or only in files of another source, so the search samples every part of the input until it has
    found all wanted keys or reached the limit of bytes. The result is complete if every record was seen.
    """
    names: dict[str, set[str]] = {}
    looked_for = set(wanted)
    records = whole = 0
    for partition in partitions[:_PEEK_FILES]:
        count, _, read_all = _take_keys(partition, names, looked_for, _PEEK_BYTES, storage_options)
        records, whole = records + count, whole + read_all
    if whole < len(partitions) and not names.keys() >= looked_for:
        stored = 0
        for partition in partitions:
            for piece in partition.ranges:
                stored += piece.size if piece.whole or piece.end < 0 else piece.end - piece.start
        # A large input is sampled in many places, a small one is read completely.
        share = max(_PEEK_BYTES, _SEARCH_BYTES // len(partitions)) if stored > _SEARCH_BYTES else _SEARCH_BYTES
        records = whole = seen = 0
        for number in _spread(len(partitions)):
            room = min(share, _SEARCH_BYTES - seen)
            count, size, read_all = _take_keys(partitions[number], names, looked_for, room, storage_options)
            records, whole, seen = records + count, whole + read_all, seen + size
            if names.keys() >= looked_for or seen >= _SEARCH_BYTES:
                break
    if not records:
        return None
    complete = whole == len(partitions)
    looked_at = f"all {records} records" if complete else f"{records} records"
    not_text = {}
    for name, kinds in names.items():
        if kinds and _TEXT not in kinds:
            not_text[name] = " and ".join(sorted(kinds))
    return SourceColumns(tuple(names), complete=complete, looked_at=looked_at, not_text=not_text)


def _take_keys(
    partition: Partition,
    names: dict[str, set[str]],
    wanted: set[str],
    room: int,
    storage_options: Mapping[str, Any] | None,
) -> tuple[int, int, bool]:
    """Add the keys of the partition's records to `names`, until about `room` bytes are seen or all wanted are found.

    Wanted keys get the types of their values.

    Returns:
        The number of records and bytes seen, and whether these are all.
    """
    records = seen = 0
    for block in read_blocks(partition, block_bytes=_PEEK_BYTES, storage_options=storage_options):
        # A process that only distributes work has no kernels; loading them would take much longer than a look without
        # them.
        looked = None if "numba" in sys.modules else _look(block, wanted)
        if looked is not None:
            for name, kinds in looked.items():
                names.setdefault(name, set()).update(kinds)
            records += len(block.starts)
        else:
            from gristmill.storage.json_records import JsonRecords

            good, _, _ = JsonRecords.scan(block.buffer, block.starts, block.ends, fields=list(wanted), most_causes=0)
            for name in good.keys():  # noqa: SIM118 (not a dictionary)
                names.setdefault(name, set()).update(good.kinds(name) if name in wanted else ())
            records += len(good)
        seen += int(block.ends[-1] - block.starts[0]) if len(block.ends) else 0
        if names.keys() >= wanted or room - seen < _PEEK_BYTES // 2:  # less than a block, which ends with a line
            return records, seen, False
    return records, seen, True


def _look(block: RecordBlock, wanted: set[str]) -> dict[str, set[str]] | None:
    """The keys of records, the wanted ones with the types of their values; None if a line is not a plain record."""
    import orjson

    names: dict[str, set[str]] = {}
    view = memoryview(block.buffer.data)
    try:
        for start, end in zip(block.starts.tolist(), block.ends.tolist(), strict=True):
            for name, value in orjson.loads(view[start:end]).items():
                kinds = names.setdefault(name, set())
                if value is not None and name in wanted:
                    kinds.add(_KINDS[type(value)])
    except (AttributeError, orjson.JSONDecodeError):
        return None
    return names


def _spread(count: int) -> Iterator[int]:
    """The numbers below `count`, ordered so that the first ones are far apart."""
    step = 1 << max(0, count - 1).bit_length()
    yield from range(0, count, step)
    while step > 1:
        half = step // 2
        yield from range(half, count, step)
        step = half
