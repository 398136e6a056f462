"""Turns stage failures into an error that names stage, file and row, or into a quarantined record."""

from __future__ import annotations

import sysconfig
import traceback
from pathlib import Path
from typing import Any

from gristmill.errors import (
    GristmillError,
    MissingColumnError,
    StageFailedError,
    explained_import,
    is_of_environment,
)
from gristmill.ledger.record.trail import QuarantinedRecord
from gristmill.stages.base import ProcessingStage
from gristmill.storage.partitions import is_whole_file
from gristmill.tasks.base import Task
from gristmill.tasks.document import DocumentBatch

_HERE = str(Path(__file__).resolve().parents[1])
_PYTHON = sysconfig.get_paths()["stdlib"]
_OTHER_COLUMN = (
    " Set the stage's field parameter to the right column; if only some documents have it, list it in the reader's "
    "fields, along with all others that you need."
)


def user_traceback(error: BaseException) -> str:
    """The traceback of `error` without the frames of Gristmill's own machinery around user code.

    A Gristmill error explains itself, so its frames end where user code called us.
    """
    frames: list[traceback.FrameSummary] = list(traceback.extract_tb(error.__traceback__))
    if isinstance(error, GristmillError):
        while frames and not _is_users(frames[-1]):
            frames.pop()
    ours = tuple(
        f"{_HERE}/{place}"
        for place in ("backends", "execution", "pipeline", "tracking", "stages/function_decorators.py")
    )
    own = [not str(Path(frame.filename)).startswith(ours) for frame in frames]
    shown = [frame for frame, keep in zip(frames, own, strict=True) if keep]
    lines = ["Traceback (most recent call last):\n", *traceback.format_list(shown)]
    return "".join([*(lines if shown else []), *traceback.format_exception_only(error)]).rstrip()


def _is_users(frame: traceback.FrameSummary) -> bool:
    """Whether a frame belongs to code that is neither ours nor Python's own."""
    file = str(Path(frame.filename))
    of_python = file.startswith(_PYTHON) and "-packages" not in file  # site-packages may be inside it
    return not of_python and not file.startswith((_HERE, "<frozen"))


def _told(stage: ProcessingStage[Any, Any], error: BaseException) -> tuple[str, str | None]:
    """The message for an error, and its traceback; no traceback for a Gristmill error from built-in code."""
    error = explained_import(error)
    if isinstance(error, GristmillError) and not any(map(_is_users, traceback.extract_tb(error.__traceback__))):
        return str(error), None
    trace = user_traceback(error)
    return f"{_without_cuda(stage, error) or f'{type(error).__name__}: {error}'}\n\n{trace}", trace


def _without_cuda(stage: ProcessingStage[Any, Any], error: BaseException) -> str | None:
    """The fix for code that requires CUDA on a machine without it; None for any other error."""
    frames = traceback.extract_tb(error.__traceback__)
    if not any(frame.name == "_lazy_init" and "torch" in Path(frame.filename).parts for frame in frames):
        return None
    asking = [frame for frame in frames if _is_users(frame) and "-packages" not in frame.filename]
    line = f"{asking[-1].filename}:{asking[-1].lineno}: {asking[-1].line}" if asking else "the stage"
    device = "self.device" if hasattr(type(stage), "device") else '"cuda" if torch.cuda.is_available() else "cpu"'
    return (
        f"no GPU can be used here ({str(error).splitlines()[0].rstrip('.')}), and this line requires one:\n"
        f"    {line}\n"
        f"Write .to({device}) instead, and the stage runs on the GPU assigned to its worker, or else on the CPU. A "
        "worker gets a GPU if there is one and the stage requests it: .with_(resources=Resources(gpus=1))."
    )


def raised_in(stage: ProcessingStage[Any, Any], error: BaseException, *, doing: str = "process()") -> StageFailedError:
    """The error for an exception that `stage` raised outside any particular document."""
    told, trace = _told(stage, error)
    return StageFailedError(
        f"Stage {stage.name!r} failed in {doing}: {told}", stage=stage.name, file=None, row=None, traceback=trace
    )


def failed_stage(
    stage: ProcessingStage[Any, Any], task: Task[Any], error: BaseException, *, row: int | None = None
) -> StageFailedError:
    """The error for an exception that `stage` raised while processing `task`.

    Its `can_be_ignored` says whether `ignore_failures` would have quarantined documents instead.
    """
    if isinstance(error, StageFailedError):
        return error
    file, number = _origin(task, row)
    place = f" on row {number} of {_counted_from(task, file)}" if number is not None else f" on {file}"
    told, trace = _told(stage, error)
    if isinstance(error, MissingColumnError):
        told += _OTHER_COLUMN
    return StageFailedError(
        f"Stage {stage.name!r} failed{place}: {told}\n\n"
        f"Committed output is intact: fix the cause and run the same command again to resume.",
        stage=stage.name,
        file=file,
        row=number,
        traceback=trace,
        # An unreadable file is not a document that could be quarantined, and no document causes a missing GPU or
        # package.
        can_be_ignored=isinstance(task, DocumentBatch)
        and _without_cuda(stage, error) is None
        and not is_of_environment(error),
    )


def _origin(task: Task[Any], row: int | None) -> tuple[str, int | None]:
    file = str(
        task._metadata.get("source_file") or ", ".join(task._metadata.get("source_files", [])[:3]) or task.task_id
    )
    if row is None or not isinstance(task, DocumentBatch) or row >= task.num_items:
        return file, None
    number = int(task.rows[row])
    if number < 0:
        return file, None
    if "source_rows" in task._metadata:
        paths, places = task.sources()
        file = paths[places[row]]
    return file, number


def _counted_from(task: Task[Any], file: str) -> str:
    """The file, with its partition if rows are not counted from the beginning of the file."""
    part = task.partition_id
    return file if is_whole_file(part) else f"{file} (counted from the beginning of partition {part})"


def quarantined_row(task: DocumentBatch, row: int, *, stage: str, cause: str, detail: str) -> QuarantinedRecord:
    """The record of one row of `task` for the quarantine, with the document as it was at that point."""
    raw = task.slice(row, 1).columns.encode_jsonl().tobytes().rstrip(b"\n")
    file, _ = _origin(task, row)
    return QuarantinedRecord(
        row=int(task.rows[row]), stage=stage, cause=cause, detail=detail, file=file, size=len(raw), raw=raw
    )
