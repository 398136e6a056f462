"""Describes a plan and the tasks it begins with, so that a later run can detect changes.

Stages are described by their class, their parameters and, for code outside this package, the code itself.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from operator import attrgetter
from typing import Any

import pyarrow as pa
import xxhash

from gristmill import __version__
from gristmill.ledger.record.plan_record import PLAN_FORMAT
from gristmill.pipeline.user_code import attributes, code_of, describe_value, is_user_module
from gristmill.stages.base import ProcessingStage
from gristmill.stages.source_sink import ReaderStage, SinkStage, SourceStage
from gristmill.storage.files import is_local, local_path
from gristmill.storage.partitions import FileRange
from gristmill.tasks.base import EmptyTask, Task
from gristmill.tasks.document import DocumentBatch
from gristmill.tasks.file_group import FileGroupTask

_BOUNDS = attrgetter("lower_parameter", "upper_parameter")


def describe_plan(
    stages: Sequence[ProcessingStage[Any, Any]], *, variables: Mapping[str, Any] | None = None, **settings: Any
) -> dict[str, Any]:
    """The stages (composites expanded, nothing fused) and settings that determine the output.

    `variables` are those of the recipe: they have no effect beyond the stages, but explain why those changed.
    """
    described: dict[str, Any] = {
        "format": PLAN_FORMAT,
        "version": __version__,
        "stages": list(map(describe_stage, stages)),
        "settings": dict(settings),
    }
    last = stages[-1] if stages else None
    if not isinstance(last, SinkStage) or last.extension != ".parquet":  # JSON has one kind of number
        for stage in described["stages"]:
            stage["parameters"].pop("whole_number_columns", None)
    if variables:
        described["variables"] = describe_value(variables)
    return described


def describe_stage(stage: ProcessingStage[Any, Any]) -> dict[str, Any]:
    """One stage: name, class, parameters and, unless it is built in, its code."""
    cls = type(stage)
    # Readers and writers have path parameters; in a user's stage the same names may mean anything. Private attributes
    # of built-in stages are derived from their parameters.
    own, is_end = is_user_module(cls.__module__), isinstance(stage, ReaderStage | SinkStage | SourceStage)
    places = own and not is_end
    parameters = {
        key: describe_value(value)
        for key, value in attributes(stage, private=own, places=places).items()
        if key not in ("name", "resources", "batch_size")
    }
    digest = stage.content_digest()
    if digest is not None:
        parameters["model_files"] = digest
    described: dict[str, Any] = {
        "name": stage.name,
        "type": f"{cls.__module__}.{cls.__qualname__}",
        "parameters": parameters,
        "for_dropped": "stop" if stage.time_limit_s is not None else stage.for_dropped,
        "never_drops": stage.never_drops or is_end,
        "role": stage.role,
    }
    if stage.role == "score_filter":
        described["bounds"] = list(map(_BOUNDS, stage.filter_obj))  # type: ignore[attr-defined]
    code = code_of(cls)
    return described | code if code["code"] is not None else described


def initial_ranges(task: Task[Any], number: int) -> tuple[FileRange, ...]:
    """What represents the content of `task` in the manifest; empty for a source that starts by itself."""
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
    """A writable file object that keeps only a hash."""

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
    # In one chunk, because equal tables may be chunked differently.
    table = table.combine_chunks()
    with pa.ipc.new_stream(pa.PythonFile(digest, mode="w"), table.schema) as stream:
        stream.write_table(table)
    return digest.hash.hexdigest()
