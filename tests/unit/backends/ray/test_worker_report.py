"""What a worker on Ray reports weighs what it carries."""

from __future__ import annotations

import sys

import pyarrow as pa

from gristmill.backends.ray.worker import WorkerReport
from gristmill.execution.packed_task import pack_end
from gristmill.execution.partition_output import TaskEnd
from gristmill.tasks.document import DocumentBatch
from gristmill.tracking.origins import Lineage


def test_weight_follows_the_documents() -> None:
    large = DocumentBatch(data=pa.table({"text": ["x" * 1_000_000]}))
    large._lineage = Lineage(0, "p")
    end = TaskEnd(Lineage(0, "p"), task=large)
    assert sys.getsizeof(WorkerReport(ends=[pack_end(end)])) > 1_000_000
