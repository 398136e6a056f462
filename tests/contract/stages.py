"""Stages that the executor suite runs; importable by workers in other processes."""

from __future__ import annotations

import json
import os
import signal
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa

from gristmill.stages.base import CompositeStage, ProcessingStage
from gristmill.stages.resources import Resources
from gristmill.tasks import DocumentBatch, FailedTask, FileGroupTask

PATIENCE_S = 60.0
"""How long a stage waits for what must happen, on a machine however busy."""


class Shout(ProcessingStage[DocumentBatch, DocumentBatch]):
    """Changes a column."""

    name = "shout"

    def inputs(self) -> tuple[list[str], list[str]]:
        return ["data"], ["text"]

    def process(self, task: DocumentBatch) -> DocumentBatch:
        frame = task.to_polars()
        import polars as pl

        return DocumentBatch(data=frame.with_columns(pl.col("text").str.to_uppercase()))


class DropEveryThird(ProcessingStage[DocumentBatch, DocumentBatch]):
    """Drops rows without saying so, in a worker of its own."""

    name = "third"
    needs_own_worker = True

    def process(self, task: DocumentBatch) -> DocumentBatch:
        import polars as pl

        return DocumentBatch(data=task.to_polars().filter(pl.col("n") % 3 != 0))


class DropAll(ProcessingStage[DocumentBatch, DocumentBatch]):
    name = "nothing"

    def process(self, task: DocumentBatch) -> None:
        return None


class Split(ProcessingStage[DocumentBatch, DocumentBatch]):
    """Returns several tasks for one."""

    name = "split"

    def process(self, task: DocumentBatch) -> list[DocumentBatch]:
        half = task.num_items // 2
        return [task.slice(0, half), task.slice(half, task.num_items - half)]


class Stream(ProcessingStage[DocumentBatch, DocumentBatch]):
    """Returns an iterator of tasks."""

    name = "stream"

    def process(self, task: DocumentBatch) -> Iterator[DocumentBatch]:
        for start in range(0, task.num_items, 7):
            yield task.slice(start, min(7, task.num_items - start))


class Tidy(CompositeStage[DocumentBatch, DocumentBatch]):
    """A composite in a composite."""

    name = "tidy"

    def decompose(self) -> list[ProcessingStage[Any, Any]]:
        return [Shout(), _Inner()]


class _Inner(CompositeStage[DocumentBatch, DocumentBatch]):
    name = "inner"

    def decompose(self) -> list[ProcessingStage[Any, Any]]:
        return [DropEveryThird()]


class Fails(ProcessingStage[DocumentBatch, DocumentBatch]):
    """Raises on some documents."""

    name = "fails"

    def __init__(self, numbers: tuple[int, ...] = (5,)) -> None:
        self.numbers = numbers

    def process(self, task: DocumentBatch) -> DocumentBatch:
        for number in task.column("n").to_pylist():
            self._look_at(number)
        return task

    def _look_at(self, number: int) -> None:
        if number in self.numbers:
            raise KeyError(f"no entry for document {number}")


class Dies(ProcessingStage[DocumentBatch, DocumentBatch]):
    """Ends its process on one document: once, or every time."""

    name = "dies"

    def __init__(self, folder: Path, *, number: int, always: bool) -> None:
        self.folder = folder
        self.number = number
        self.always = always

    def process(self, task: DocumentBatch) -> DocumentBatch:
        if self.number in task.column("n").to_pylist():
            died_before = bool(list(self.folder.glob("death-*")))
            if self.always or not died_before:
                (self.folder / f"death-{uuid.uuid4().hex}").touch()
                os.kill(os.getpid(), signal.SIGKILL)
        return task


class Recorded(ProcessingStage[DocumentBatch, DocumentBatch]):
    """Writes down when its hooks are called, and what for."""

    name = "recorded"
    needs_own_worker = True

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def _note(self, what: str) -> None:
        (self.folder / f"{what}.{os.getpid()}.{uuid.uuid4().hex[:8]}").touch()

    def setup_on_node(self, node_info: Any = None, worker_metadata: Any = None) -> None:
        assert node_info.node_id
        self._note("node")

    def setup(self, worker_metadata: Any = None) -> None:
        assert worker_metadata.worker_id
        self._note("setup")

    def teardown(self) -> None:
        self._note("teardown")

    def process(self, task: DocumentBatch) -> DocumentBatch:
        return task


class TakesMany(ProcessingStage[DocumentBatch, DocumentBatch]):
    """Works on several tasks at once and notes how many it got."""

    name = "many"
    batch_size = 3

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def process(self, task: DocumentBatch) -> DocumentBatch:
        raise AssertionError("process_batch is called instead")

    def process_batch(self, tasks: list[DocumentBatch]) -> list[DocumentBatch]:
        (self.folder / f"{self.name}.{len(tasks)}.{uuid.uuid4().hex[:8]}").touch()
        return tasks


class SetupFails(ProcessingStage[DocumentBatch, DocumentBatch]):
    name = "unready"

    def setup(self, worker_metadata: Any = None) -> None:
        raise OSError("the weights are not there")

    def process(self, task: DocumentBatch) -> DocumentBatch:
        return task


class Sleeps(ProcessingStage[DocumentBatch, DocumentBatch]):
    """Takes its time over every task."""

    name = "sleeps"

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def process(self, task: DocumentBatch) -> DocumentBatch:
        time.sleep(self.seconds)
        return task


class GivesTables(ProcessingStage[DocumentBatch, DocumentBatch]):
    """Returns something that is not a task: the table itself, or a list with one in it."""

    name = "tables"

    def __init__(self, *, listed: bool = False) -> None:
        self.listed = listed

    def process(self, task: DocumentBatch) -> Any:
        table = task.to_pyarrow()
        return [task, table] if self.listed else table


class PutAway(ProcessingStage[DocumentBatch, FileGroupTask]):
    """Writes documents to a file and hands its path on, in a worker of its own."""

    name = "put_away"
    needs_own_worker = True

    def __init__(self, folder: Path, *, drop: int | None = None) -> None:
        self.folder = folder
        self.drop = drop

    def process(self, task: DocumentBatch) -> FileGroupTask:
        if self.drop is not None:
            task = task.drop(np.array(task.column("n").to_pylist()) % 10 == self.drop, reason="unwanted")
        path = self.folder / f"{task.task_id.replace('/', '_')}.json"
        path.write_text(json.dumps(task.to_pyarrow().to_pylist()))
        return FileGroupTask(data=[str(path)])


class Untouched(ProcessingStage[FileGroupTask, FileGroupTask]):
    """Makes a new task of the same files."""

    name = "untouched"

    def process(self, task: FileGroupTask) -> FileGroupTask:
        return FileGroupTask(data=list(task.data))


class TakeOut(ProcessingStage[FileGroupTask, DocumentBatch]):
    """Reads the documents again, but for some, in two batches and in another order; adds one that is new."""

    name = "take_out"

    def __init__(self, *, without: tuple[int, ...] = (), add: bool = False, anonymous: bool = False) -> None:
        self.without = without
        self.add = add
        self.anonymous = anonymous

    def process(self, task: FileGroupTask) -> Iterator[DocumentBatch]:
        rows = [row for row in json.loads(Path(task.data[0]).read_text()) if row["n"] % 10 not in self.without]
        if self.anonymous:
            rows = [{"text": row["text"], "n": row["n"]} for row in rows]
        rows = rows[::-1]
        half = len(rows) // 2
        yield DocumentBatch(data=pa.Table.from_pylist(rows[:half]))
        added = [{**rows[-1], "id": "new"}] if self.add else []
        yield DocumentBatch(data=pa.Table.from_pylist([*rows[half:], *added]))


class FailsOnce(ProcessingStage[DocumentBatch, DocumentBatch]):
    """Returns a FailedTask for one document until a file exists."""

    name = "fails_once"

    def __init__(self, folder: Path, number: int) -> None:
        self.folder = folder
        self.number = number

    def process(self, task: DocumentBatch) -> Any:
        if self.number in task.column("n").to_pylist() and not (self.folder / "mended").exists():
            return FailedTask()
        return task


class Diary(ProcessingStage[DocumentBatch, DocumentBatch]):
    """Writes down in which process it works on what, with what it was given, and takes its time.

    Args:
        folder: Where it writes.
        name: Its name.
        seconds: How long it works on a task.
        gpus: How many it gets.
        crew: After its first task, a worker waits until so many workers of the stage are set up.
        ahead: After its first task, a worker waits until this other stage has done a task.
    """

    seen: ClassVar[list[str]] = []

    def __init__(
        self,
        folder: Path,
        *,
        name: str,
        seconds: float = 0.0,
        gpus: float = 0.0,
        crew: int = 1,
        ahead: str | None = None,
    ) -> None:
        self.folder = folder
        self.name = name
        self.seconds = seconds
        self.crew = crew
        self.ahead = ahead
        self.resources = Resources(cpus=1.0, gpus=gpus)
        self.needs_own_worker = True

    def _write(self, what: str, **facts: Any) -> None:
        line = {"stage": self.name, "what": what, "pid": os.getpid(), "time": time.time(), **facts}
        with (self.folder / f"{self.name}-{os.getpid()}.jsonl").open("a") as file:
            file.write(json.dumps(line) + "\n")

    def setup(self, worker_metadata: Any = None) -> None:
        self._write("setup", gpus=worker_metadata.allocation["gpus"], seen=len(Diary.seen))

    def teardown(self) -> None:
        self._write("teardown", seen=len(Diary.seen))

    def _all_are_there(self) -> bool:
        there = len(list(self.folder.glob(f"{self.name}-*.jsonl"))) >= self.crew
        others = self.folder.glob(f"{self.ahead}-*.jsonl") if self.ahead is not None else ()
        return there and (self.ahead is None or any('"process"' in path.read_text() for path in others))

    def process(self, task: DocumentBatch) -> DocumentBatch:
        give_up = time.monotonic() + PATIENCE_S
        while Diary.seen and not self._all_are_there() and time.monotonic() < give_up:
            time.sleep(0.005)
        begun = time.time()
        time.sleep(self.seconds)
        Diary.seen.append(task.task_id)
        self._write("process", begun=begun, seen=len(Diary.seen), task=task.task_id)
        return task
