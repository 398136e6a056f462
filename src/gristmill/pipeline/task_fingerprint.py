"""What identifies tasks that were given by hand, so that a later run can tell whether they are still the same."""

from __future__ import annotations

import json
import os
from typing import Any

import pyarrow as pa
import xxhash

from gristmill.storage.files import is_local, local_path
from gristmill.storage.partitions import FileRange
from gristmill.tasks.base import EmptyTask, Task
from gristmill.tasks.document import DocumentBatch
from gristmill.tasks.file_group import FileGroupTask


def initial_ranges(task: Task[Any], number: int) -> tuple[FileRange, ...]:
    """What stands for the content of `task` in the manifest; nothing for a source that begins by itself."""
    if isinstance(task, EmptyTask):
        return ()
    if isinstance(task, FileGroupTask):
        return tuple(_file(path) for path in task.data)
    name = f"initial_tasks[{number}]"
    if isinstance(task, DocumentBatch):
        return (FileRange(name, name, task.columns.nbytes, _table_digest(task.columns.transport()), 0, -1, True),)
    text = json.dumps(task.data, sort_keys=True, default=repr)
    return (FileRange(name, name, len(text), xxhash.xxh3_128_hexdigest(text.encode()), 0, -1, True),)


def _file(path: str) -> FileRange:
    size, stamp = -1, ""
    if is_local(path) and os.path.exists(local_path(path)):
        facts = os.stat(local_path(path))
        size, stamp = facts.st_size, str(facts.st_mtime_ns)
    return FileRange(path, path, size, stamp, 0, -1, True)


class _Digest:
    """A file to write to that keeps nothing but a hash."""

    closed = False

    def __init__(self) -> None:
        self.hash = xxhash.xxh3_128()

    def write(self, data: Any) -> int:
        self.hash.update(data)
        return memoryview(data).nbytes

    def flush(self) -> None:
        pass


def _table_digest(table: pa.Table) -> str:
    digest = _Digest()
    # In one chunk, because equal tables may be cut differently.
    table = table.combine_chunks()
    with pa.ipc.new_stream(pa.PythonFile(digest, mode="w"), table.schema) as stream:
        stream.write_table(table)
    return digest.hash.hexdigest()
