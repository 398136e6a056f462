"""Tasks on their way between processes."""

from __future__ import annotations

import pickle
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from gristmill.backends.local.jobs import lineage_in
from gristmill.backends.local.shared_files import SharedFolder
from gristmill.backends.local.transport import pack, unpack
from gristmill.tasks import DocumentBatch, FileGroupTask
from gristmill.tasks.base import Task
from gristmill.tracking.origins import Lineage


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[SharedFolder]:
    with SharedFolder.create("run-1", base=tmp_path) as made:
        yield made


def sent(task: Task[Any], folder: SharedFolder) -> Task[Any]:
    task._lineage = Lineage(0, "part-0", ())
    parcel = pickle.loads(pickle.dumps(pack(task, folder, "a")))
    assert lineage_in(parcel).task_id == "part-0"
    return unpack(parcel)


def test_documents_and_files_arrive(folder: SharedFolder) -> None:
    table = pa.table({"text": ["a", "b"]})
    assert sent(DocumentBatch(data=table), folder).num_items == 2
    assert sent(FileGroupTask(data=["a.jsonl"]), folder).data == ["a.jsonl"]


def test_a_task_of_a_class_in_the_users_script_arrives(folder: SharedFolder) -> None:
    namespace: dict[str, Any] = {"__name__": "__main__", "Task": Task}
    exec("class Box(Task):\n    num_items = property(lambda self: len(self.data))\n", namespace)
    assert not hasattr(sys.modules["__main__"], "Box"), "as in a worker, whose __main__ is another"
    box = namespace["Box"](data=["x", "y"])
    got = sent(box, folder)
    assert (type(got), got.num_items) == (type(box), 2)
