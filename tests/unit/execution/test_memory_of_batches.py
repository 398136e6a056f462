"""What a run holds of the batches that it has dealt with: nothing."""

from __future__ import annotations

import json
import weakref
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

from gristmill.pipeline import Pipeline
from gristmill.stages.base import ProcessingStage
from gristmill.stages.text.io import JsonlReader, JsonlWriter, ParquetReader, ParquetWriter
from gristmill.storage import block_memory
from gristmill.tasks import DocumentBatch
from tests.unit.pipeline.jobs import here


class Watch(ProcessingStage[DocumentBatch, DocumentBatch]):
    """Counts the earlier batches that are still there when the next one comes."""

    name = "watch"

    # Of the class, because a pipeline works with a copy of the stage.
    seen: ClassVar[list[weakref.ref[Any]]] = []
    alive: ClassVar[list[int]] = []

    def inputs(self) -> tuple[list[str], list[str]]:
        return ["data"], ["text"]

    def outputs(self) -> tuple[list[str], list[str]]:
        return ["data"], []

    def process(self, task: DocumentBatch) -> DocumentBatch:
        self.alive.append(sum(one() is not None for one in self.seen))
        self.seen.append(weakref.ref(task.columns.column("text")))
        return task


@pytest.mark.parametrize("format", ["jsonl", "parquet"])
def test_nothing_is_held_of_a_batch_when_the_next_one_is_worked_on(tmp_path: Path, format: str) -> None:
    lines = [json.dumps({"text": f"grain {number}"}) for number in range(200)]
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.jsonl").write_text("\n".join(lines))
    source = str(tmp_path / "in")
    if format == "parquet":
        stages = [JsonlReader(source, read_kwargs={"batch_bytes": 500}), ParquetWriter(str(tmp_path / "tables"))]
        Pipeline("tables", stages=stages).run(executor=here())
    Watch.seen.clear()
    Watch.alive.clear()
    reader = (
        JsonlReader(source, read_kwargs={"batch_bytes": 500})
        if format == "jsonl"
        else ParquetReader(str(tmp_path / "tables"), read_kwargs={"batch_bytes": 500})
    )
    Pipeline("watch", stages=[reader, Watch(), JsonlWriter(str(tmp_path / "out"))]).run(executor=here())
    assert len(Watch.alive) > 5
    assert set(Watch.alive) == {0}


def test_the_memory_of_a_block_serves_the_next_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(block_memory, "_rooms", [])
    size = block_memory._LEAST_ROOM + 10
    one = block_memory.room_for(size)
    other = block_memory.room_for(size)
    assert (len(one), len(other)) == (size, size)
    assert not np.shares_memory(one, other)
    one[:] = 1
    part, address = one[5:9], one.ctypes.data
    del one
    assert block_memory.room_for(size).ctypes.data != address  # a part of it is still in use
    assert part.tolist() == [1, 1, 1, 1]
    del part
    assert block_memory.room_for(size - 5).ctypes.data == address
    rooms = [block_memory.room_for(size) for _ in range(9)]
    assert len({room.ctypes.data for room in rooms}) == 9
    del rooms, other
    larger = block_memory.room_for(3 * size)
    assert len(larger) == 3 * size
    assert len(block_memory._rooms) <= block_memory._MOST_ROOMS
