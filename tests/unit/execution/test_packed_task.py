"""Tasks on their way between processes."""

from __future__ import annotations

import copy
import pickle
import sys
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa

from gristmill.execution.packed_task import pack, unpack
from gristmill.tasks import DocumentBatch, FileGroupTask
from gristmill.tasks.base import Task
from gristmill.tracking.origins import Lineage, Step, with_lineage


def sent(task: Task[Any]) -> Task[Any]:
    task._lineage = Lineage(3, "part-3", (Step(1, last=True),))
    task.task_id = task._lineage.task_id
    packed = pickle.loads(pickle.dumps(pack(task)))
    assert (packed.task_id, packed.partition, packed.path) == ("part-3/1", 3, (Step(1, last=True),))
    got = unpack(packed)
    assert got._lineage == task._lineage
    return got


def test_documents_and_files_arrive() -> None:
    table = pa.table({"text": ["a", "b"]})
    batch = DocumentBatch(dataset_name="set", data=table, _metadata={"a": 1})
    batch._tracking.rows = np.array([4, 7])
    got = sent(batch)
    assert isinstance(got, DocumentBatch)
    assert (got.data, got.dataset_name, got._metadata, got.rows.tolist()) == (table, "set", {"a": 1}, [4, 7])
    assert sent(DocumentBatch(data=pd.DataFrame({"text": ["a"]}))).data.to_pylist() == [{"text": "a"}]
    assert sent(FileGroupTask(data=["a.jsonl"])).data == ["a.jsonl"]


def test_only_the_documents_travel_apart() -> None:
    packed = pack(with_lineage(DocumentBatch(data=pa.table({"text": ["x" * 100_000]})), Lineage(0, "p")))
    assert len(packed.body) < 5_000
    assert sys.getsizeof(packed) >= packed.nbytes > 100_000
    assert copy.deepcopy(packed) is packed


class Scored(DocumentBatch):
    """A batch with something of its own."""

    def __init__(self, score: float, **options: Any) -> None:
        super().__init__(**options)
        self.score = score


def test_a_batch_of_a_subclass_keeps_its_class_and_its_attributes() -> None:
    got = sent(Scored(0.5, data=pa.table({"text": ["a"]})))
    assert isinstance(got, Scored)
    assert (got.score, got.data) == (0.5, pa.table({"text": ["a"]}))


def test_tasks_of_classes_in_the_users_script_arrive() -> None:
    namespace: dict[str, Any] = {"__name__": "__main__", "Task": Task, "DocumentBatch": DocumentBatch}
    exec(
        "class Box(Task):\n    num_items = property(lambda self: len(self.data))\nclass Own(DocumentBatch): pass\n",
        namespace,
    )
    assert not hasattr(sys.modules["__main__"], "Box"), "as in a worker, whose __main__ is another"
    box = namespace["Box"](data=["x", "y"])
    box.note = namespace["Own"](data=pa.table({"text": ["a"]}))
    got = sent(box)
    assert (type(got), got.num_items, type(got.note)) == (type(box), 2, namespace["Own"])  # type: ignore[attr-defined]
    own = namespace["Own"](data=pa.table({"text": ["a"]}))
    assert type(sent(own)) is type(own)
