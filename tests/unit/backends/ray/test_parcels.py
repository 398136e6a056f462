"""Packed tasks keep what they carry."""

from __future__ import annotations

import pickle
import sys

import numpy as np
import pyarrow as pa

from gristmill.backends.ray.parcels import pack, pack_end, unpack
from gristmill.backends.ray.worker import WorkerReport
from gristmill.execution.partition_output import Leaf
from gristmill.ledger.record.trail import Trail
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
    packed = pickle.loads(pickle.dumps(pack(_batch())))
    batch = unpack(packed)
    assert isinstance(batch, DocumentBatch)
    assert batch.to_pyarrow() == _batch().to_pyarrow()
    assert batch.rows.tolist() == [4, 7]
    assert (batch.dataset_name, batch._metadata) == ("set", {"source_file": "f"})
    assert batch._lineage is not None
    assert (batch.task_id, batch._lineage.path) == ("part-3/0", (Step(0, last=True),))
    assert packed.task_id == "part-3/0"


def test_other_tasks_travel_as_they_are() -> None:
    task = unpack(pickle.loads(pickle.dumps(pack(FileGroupTask(data=["x"], task_id="t")))))
    assert isinstance(task, FileGroupTask)
    assert task.data == ["x"]


def test_weight_follows_the_documents() -> None:
    large = DocumentBatch(data=pa.table({"text": ["x" * 1_000_000]}))
    large._lineage = Lineage(0, "p")
    assert sys.getsizeof(pack(large)) > 1_000_000
    end = Leaf(0, "p", (), Trail(), task=large)
    assert sys.getsizeof(WorkerReport(ends=[pack_end(end)])) > 1_000_000
