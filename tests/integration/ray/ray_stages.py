"""Stages for the tests on Ray; importable by workers in other processes."""

from __future__ import annotations

import json
import os
import time
import uuid
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa

from gristmill.stages.base import ProcessingStage
from gristmill.stages.resources import Resources
from gristmill.tasks import DocumentBatch


class Noted(ProcessingStage[DocumentBatch, DocumentBatch]):
    """Writes down where its hooks are called and what the worker holds, and takes its time."""

    def __init__(self, folder: Path, *, name: str = "noted", seconds: float = 0.0) -> None:
        self.folder = folder
        self.name = name
        self.seconds = seconds

    needs_own_worker = True

    def _note(self, what: str, **facts: Any) -> None:
        facts.update(what=what, stage=self.name, pid=os.getpid(), at=time.time())
        (self.folder / uuid.uuid4().hex).write_text(json.dumps(facts))

    def setup_on_node(self, node_info: Any = None, worker_metadata: Any = None) -> None:
        self._note("node", node=node_info.node_id)

    def setup(self, worker_metadata: Any = None) -> None:
        self._note("setup", gpus=worker_metadata.allocation["gpus"], visible=os.environ.get("CUDA_VISIBLE_DEVICES"))

    def teardown(self) -> None:
        self._note("teardown")

    def process(self, task: DocumentBatch) -> DocumentBatch:
        begun = time.time()
        time.sleep(self.seconds)
        self._note("call", begun=begun)
        return task


class Gpu(Noted):
    """The same with a share of a GPU."""

    resources = Resources(cpus=0.1, gpus=0.25)


class Leaks(Noted):
    """Keeps some megabytes of each call."""

    kept: ClassVar[list[bytes]] = []

    def process(self, task: DocumentBatch) -> DocumentBatch:
        Leaks.kept.append(os.urandom(30_000_000))
        return super().process(task)


class LeaksInTasks(ProcessingStage[DocumentBatch, DocumentBatch]):
    """The same in a stage that holds nothing by its own account; writes down its process."""

    name = "leaks"

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def process(self, task: DocumentBatch) -> DocumentBatch:
        Leaks.kept.append(os.urandom(30_000_000))
        (self.folder / f"{os.getpid()}-{uuid.uuid4().hex}").touch()
        time.sleep(0.3)
        return task


class Hangs(ProcessingStage[DocumentBatch, DocumentBatch]):
    """Never comes back from one document."""

    name = "hangs"
    time_limit_s = 1.0

    def __init__(self, number: int) -> None:
        self.number = number

    def process(self, task: DocumentBatch) -> DocumentBatch:
        if self.number in task.column("n").to_pylist():
            time.sleep(600)
        return task


class Swells(ProcessingStage[DocumentBatch, DocumentBatch]):
    """Returns batches of many megabytes."""

    name = "swells"
    needs_own_worker = True

    def __init__(self, megabytes: int) -> None:
        self.megabytes = megabytes

    def outputs(self) -> tuple[list[str], list[str]]:
        return ["data"], ["ballast"]

    def process(self, task: DocumentBatch) -> DocumentBatch:
        table = task.to_pyarrow()
        each = "x" * (self.megabytes * 1_000_000 // max(1, table.num_rows))
        return DocumentBatch(data=table.append_column("ballast", pa.array([each] * table.num_rows)))


class Shrinks(ProcessingStage[DocumentBatch, DocumentBatch]):
    """Takes the ballast out again, after a check that it is whole."""

    name = "shrinks"
    needs_own_worker = True

    def inputs(self) -> tuple[list[str], list[str]]:
        return ["data"], ["ballast"]

    def process(self, task: DocumentBatch) -> DocumentBatch:
        table = task.to_pyarrow()
        assert set(table["ballast"][0].as_py()) == {"x"}
        return DocumentBatch(data=table.drop_columns(["ballast"]))


class SaysVariable(ProcessingStage[DocumentBatch, DocumentBatch]):
    """Adds what an environment variable says in the worker."""

    name = "says"

    def __init__(self, variable: str = "GRISTMILL_TEST_SAYS") -> None:
        self.variable = variable

    def process(self, task: DocumentBatch) -> DocumentBatch:
        table = task.to_pyarrow()
        said = os.environ.get(self.variable, "nothing")
        return DocumentBatch(data=table.append_column("said", pa.array([said] * table.num_rows)))


class SaysNode(ProcessingStage[DocumentBatch, DocumentBatch]):
    """Adds the id of the node that it runs on."""

    name = "says_node"

    def process(self, task: DocumentBatch) -> DocumentBatch:
        import ray

        table = task.to_pyarrow()
        node = ray.get_runtime_context().get_node_id()
        return DocumentBatch(data=table.append_column("node", pa.array([node] * table.num_rows)))


def notes(folder: Path, what: str) -> list[dict[str, Any]]:
    """What was written down about `what`."""
    found = [json.loads(path.read_text()) for path in folder.iterdir()]
    return [fact for fact in found if fact["what"] == what]
