"""The source of file-based pipelines: finds the input files and cuts them into partitions."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

from gristmill.errors import MissingColumnError, UsageError, did_you_mean
from gristmill.stages.base import ProcessingStage
from gristmill.stages.resources import Resources
from gristmill.stages.source_sink import SourceColumns, SourceStage
from gristmill.stages.text.io.field_names import field_names
from gristmill.stages.text.io.reader.peek import jsonl_columns, parquet_columns
from gristmill.storage.files import is_local, list_files, local_path
from gristmill.storage.parquet_blocks import Footers
from gristmill.storage.partitions import Partition, make_partitions

Format = Literal["jsonl", "parquet"]
Paths = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]
EXTENSIONS: Mapping[str, tuple[str, ...]] = {"jsonl": (".jsonl", ".json", ".ndjson"), "parquet": (".parquet",)}


class FilePartitioningStage(SourceStage):
    """Finds files and groups or splits them; the first part of every reader.

    Args:
        file_paths: A file, a folder (searched with its sub-folders), a glob, an fsspec URL, or a list of these.
        files_per_partition: So many whole files to a partition.
        blocksize: Partitions of about this size ("128MB"): small files are put together, large ones split.
        file_extensions: Which files of a folder to take; a compression suffix may follow.
        storage_options: Options of the file system, for URLs.
        limit: Only the first so many partitions.
        format: What the files hold, which decides where they can be split.
        fields: The only columns that the reader will give.
    """

    name = "file_partitioning"
    resources = Resources(cpus=0.5)

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
    ) -> None:
        if files_per_partition is not None and blocksize is not None:
            raise UsageError(
                f"files_per_partition={files_per_partition!r} and blocksize={blocksize!r} exclude each other: "
                "give one, or neither for one partition per file."
            )
        self.file_paths = plain_paths(file_paths)
        self.files_per_partition = files_per_partition
        self.blocksize = blocksize
        self.file_extensions = None if file_extensions is None else tuple(file_extensions)
        self.storage_options = None if storage_options is None else dict(storage_options)
        self.limit = limit
        self.format = format or _format_of(self.file_extensions)
        self.fields = field_names(fields)
        self._footers = Footers(storage_options=self.storage_options)

    def num_workers(self) -> int | None:
        return 1

    def partitions(self) -> list[Partition]:
        self._footers = Footers(storage_options=self.storage_options)
        files = list_files(
            self.file_paths,
            extensions=self.file_extensions or EXTENSIONS[self.format],
            storage_options=self.storage_options,
        )
        return make_partitions(
            files,
            format=self.format,
            files_per_partition=self.files_per_partition,
            blocksize=self.blocksize,
            limit=self.limit,
            storage_options=self.storage_options,
            footers=self._footers,
        )

    def searched_folders(self) -> list[str]:
        paths = [self.file_paths] if isinstance(self.file_paths, str) else self.file_paths
        local = [local_path(path) for path in paths if is_local(path)]
        return [path for path in local if os.path.isdir(path)]

    def columns(self, partitions: Sequence[Partition], wanted: Sequence[str]) -> SourceColumns | None:
        if self.format == "parquet":
            found = parquet_columns(partitions, self._footers)
        else:
            looked_for = wanted if self.fields is None else self.fields
            found = jsonl_columns(partitions, looked_for, storage_options=self.storage_options)
        if self.fields is None or found is None:
            return found
        for name in self.fields:
            # A key that is rarer than planning can see may still turn up; one that cannot is a mistake.
            if name not in found.names and found.complete:
                raise MissingColumnError(
                    f"fields={list(self.fields)!r} of the reader names {name!r}, but there are only "
                    f"{', '.join(map(repr, found.names)) or 'none'} (from {found.looked_at})."
                    f"{did_you_mean(name, found.names)}",
                    stage=self.name,
                    column=name,
                    available=list(found.names),
                )
        return SourceColumns(self.fields, complete=True, looked_at="the fields of the reader")

    def prepare(self, reader: ProcessingStage[Any, Any], partitions: Sequence[Partition]) -> None:
        if self.format == "parquet" and hasattr(reader, "schema") and partitions:
            pieces = list({piece.path: piece for partition in partitions for piece in partition.ranges}.values())
            reader.schema = self._footers.unified(pieces)


def _format_of(extensions: Sequence[str] | None) -> Format:
    parquet = bool(extensions) and all(".parquet" in extension for extension in extensions or ())
    return "parquet" if parquet else "jsonl"


def plain_paths(file_paths: Paths) -> str | list[str]:
    """Paths as text; recipes and plans hold plain values only.

    Raises:
        UsageError: It is no path and no list of paths.
    """
    if isinstance(file_paths, str | os.PathLike):
        return os.fspath(file_paths)
    if not isinstance(file_paths, Iterable):
        raise UsageError(f"file_paths={file_paths!r}: give a file, a folder, a glob, a URL, or a list of these.")
    return [os.fspath(path) if isinstance(path, os.PathLike) else path for path in file_paths]
