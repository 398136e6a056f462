"""Shared by the deduplication stages of old scripts: tables in folders, and a step over all files."""

from __future__ import annotations

import io
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from fsspec.core import url_to_fs

from gristmill.compat.files import create_or_overwrite_dir
from gristmill.stages.base import ProcessingStage, Spec
from gristmill.storage.atomic import write_bytes_atomic
from gristmill.storage.parquet_blocks import open_parquet
from gristmill.tasks.file_group import FileGroupTask

Options = Mapping[str, Any] | None


class FolderStage(ProcessingStage[Any, FileGroupTask]):
    """Writes Parquet files to its own folder, which is emptied when a run begins.

    Attributes:
        folder: Where its files are.
        storage_options: Options of the file system, for URLs.
    """

    folder: str
    storage_options: Options = None

    def process(self, task: Any) -> FileGroupTask:
        raise NotImplementedError

    def inputs(self) -> Spec:
        return ["data"], []

    def outputs(self) -> Spec:
        return ["data"], []

    def begin_run(self) -> None:
        create_or_overwrite_dir(self.folder, storage_options=self.storage_options)

    def write(self, table: pa.Table, name: str, **options: Any) -> str:
        """Write a table to the folder atomically; returns the path."""
        path = f"{self.folder.rstrip('/')}/{name}.parquet"
        fs, place = url_to_fs(path, **dict(self.storage_options or {}))
        fs.makedirs(place.rpartition("/")[0], exist_ok=True)
        buffer = io.BytesIO()
        pq.write_table(table.replace_schema_metadata(None), buffer, **options)
        write_bytes_atomic(path, buffer.getvalue(), storage_options=self.storage_options)
        return path

    def done(self, task: Any, paths: Sequence[str], **metadata: Any) -> FileGroupTask:
        """The task of the files that were written for another task."""
        kept = {key: value for key, value in task._metadata.items() if key != "partition"}
        return FileGroupTask(task.dataset_name, list(paths), list(task._stage_perf), {**kept, **metadata})


class AllFilesStage(FolderStage):
    """A step that needs all files at once: it gets them in a single task, so one worker does it."""

    takes_all_files = True

    def process(self, task: Any) -> FileGroupTask:
        raise NotImplementedError


def read_columns(paths: Iterable[str], columns: Sequence[str] | None, storage_options: Options) -> pa.Table:
    """Columns of several Parquet files as one table."""
    tables = []
    for path in paths:
        with open_parquet(path, storage_options=storage_options) as opened:
            tables.append(opened.read(columns=None if columns is None else list(columns)))
    return pa.concat_tables(tables) if tables else pa.table({name: pa.array([], pa.string()) for name in columns or ()})


def options_of(kwargs: Options) -> Options:
    """The `storage_options` in `read_kwargs` or `write_kwargs`."""
    found: Options = (kwargs or {}).get("storage_options")
    return found
