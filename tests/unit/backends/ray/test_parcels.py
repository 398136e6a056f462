"""Parcels keep what they carry, and results are delivered once."""

from __future__ import annotations

import pickle
import sys
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pytest

from gristmill.backends.ray.delivery import Delivery
from gristmill.backends.ray.parcels import Receipt, pack, pack_leaf, task_id, unpack
from gristmill.errors import StageFailedError
from gristmill.execution.partition_output import Leaf
from gristmill.ledger.record.trail import Trail
from gristmill.observe.events import EventStream
from gristmill.tasks.document import DocumentBatch
from gristmill.tasks.file_group import FileGroupTask
from gristmill.tracking.origins import Lineage, Step


def _batch() -> DocumentBatch:
    batch = DocumentBatch("set", pa.table({"text": ["a", "b"]}), _metadata={"source_file": "f"})
    batch._tracking.rows = np.array([4, 7])
    batch._lineage = Lineage(3, "part-3", (Step(0, last=True),))
    batch.task_id = batch._lineage.task_id
    return batch


def test_a_batch_survives_the_way() -> None:
    parcel = pickle.loads(pickle.dumps(pack(_batch(), 1)))
    batch = unpack(parcel)
    assert isinstance(batch, DocumentBatch)
    assert batch.to_pyarrow() == _batch().to_pyarrow()
    assert batch.rows.tolist() == [4, 7]
    assert (batch.dataset_name, batch._metadata) == ("set", {"source_file": "f"})
    assert batch._lineage is not None
    assert (batch.task_id, batch._lineage.path) == ("part-3/0", (Step(0, last=True),))
    assert task_id(parcel) == "part-3/0"
    assert parcel.segment == 1


def test_other_tasks_travel_as_they_are() -> None:
    task = unpack(pickle.loads(pickle.dumps(pack(FileGroupTask(data=["x"], task_id="t"), 0))))
    assert isinstance(task, FileGroupTask)
    assert task.data == ["x"]


def test_weight_follows_the_documents() -> None:
    large = DocumentBatch(data=pa.table({"text": ["x" * 1_000_000]}))
    large._lineage = Lineage(0, "p")
    assert sys.getsizeof(pack(large, 0)) > 1_000_000
    leaf = Leaf(0, "p", (), Trail(), task=large)
    assert sys.getsizeof(Receipt(leaves=[pack_leaf(leaf)])) > 1_000_000


class _Work:
    """Counts leaves; a partition is done after its second one."""

    def __init__(self) -> None:
        self.leaves: list[Leaf] = []
        self.events = EventStream()
        self.plan = SimpleNamespace(segments=[None])

    def deliver(self, leaf: Leaf) -> None:
        self.leaves.append(leaf)

    def is_done(self, partition: int) -> bool:
        return len(self.leaves) == 2


def _leaf(index: int) -> Leaf:
    return Leaf(0, "p", (Step(index, last=index == 1),), Trail())


def test_an_end_that_comes_twice_is_taken_once() -> None:
    work = _Work()
    delivery = Delivery(work)  # type: ignore[arg-type]
    for index in (0, 0, 1, 0, 1):
        delivery.take(Receipt(leaves=[pack_leaf(_leaf(index))]))
    assert [leaf.order for leaf in work.leaves] == [(0,), (1,)]


def test_an_error_is_raised_after_what_came_with_it() -> None:
    work = _Work()
    error = StageFailedError("no", stage="s")
    with pytest.raises(StageFailedError):
        Delivery(work).take(Receipt(leaves=[pack_leaf(_leaf(0))], error=error))  # type: ignore[arg-type]
    assert len(work.leaves) == 1
