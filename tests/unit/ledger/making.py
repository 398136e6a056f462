"""Small runs made by hand: trails that add up, and output folders with committed partitions."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from gristmill.kernels.hashing import hash_column
from gristmill.ledger.record.commit import commit_partition
from gristmill.ledger.record.layout import RunFolder
from gristmill.ledger.record.manifest import ManifestEntry
from gristmill.ledger.record.plan_record import plan_digest, write_plan
from gristmill.ledger.record.run_record import RunRecorder
from gristmill.ledger.record.trail import Changes, Decisions, Identity, QuarantinedRecord, StageCount, Trail
from gristmill.observe.events import RunFinished, RunStarted, SegmentPlan
from gristmill.storage.atomic import AtomicFile, WrittenFile
from gristmill.storage.partitions import FileRange, Partition

STAGES = ("read", "clean", "words", "dedup", "write")
PLAN: dict[str, Any] = {
    "name": "small",
    "version": "0.1.0",
    "stages": [{"name": name, "type": name.title(), "parameters": {}} for name in STAGES],
}


def make_partition(name: str = "part-0", index: int = 0, *, stamp: str = "1", size: int = 100) -> Partition:
    path = f"/data/{name}.jsonl"
    return Partition(index, name, (FileRange(path, f"{name}.jsonl", size, stamp, 0, size, True),))


def make_trail(rows: int = 12, *, prefix: str = "doc", url: bool = True) -> Trail:
    """`rows` read: 0 is quarantined, 1 to 3 are too short, 4 is a duplicate of 5, the rest is written; 6 is changed."""
    trail = Trail(output_rows=rows - 5)
    ids = pa.array([None if row == 0 else f"{prefix}-{row}" for row in range(rows)], pa.large_string())
    urls = pa.array([None if row == 0 else f"http://x/{prefix}/{row}" for row in range(rows)], pa.large_string())
    numbers = np.arange(rows)
    trail.identities.append(Identity(numbers, hash_column(ids), hash_column(urls) if url else None, ids))
    trail.counts = {
        "read": StageCount(rows_out=rows - 1, created=rows, quarantined={"malformed_json": 1}),
        "clean": StageCount(rows_in=rows - 1, rows_out=rows - 1, changed=1),
        "words": StageCount(rows_in=rows - 1, rows_out=rows - 4, dropped={"too_few_words": 3}),
        "dedup": StageCount(rows_in=rows - 4, rows_out=rows - 5, dropped={"near_duplicate": 1}),
        "write": StageCount(rows_in=rows - 5, rows_out=rows - 5),
    }
    trail.decisions = [
        Decisions("words", "dropped", "too_few_words", numbers[1:4], np.array([3.0, 1.0, 2.0]), 50.0),
        Decisions("dedup", "duplicate", "near_duplicate", numbers[4:5], None, 0.8, [f"{prefix}-5"], np.array([0.93])),
    ]
    trail.changes = [Changes("clean", "text", numbers[6:7], np.array([-4]))]
    trail.quarantine = [
        QuarantinedRecord(0, "read", "malformed_json", "unexpected end", "/data/a.jsonl", 0, 4, b'{"x\xff')
    ]
    return trail


def make_file(folder: RunFolder, partition: Partition, rows: int, *, extension: str = ".jsonl") -> WrittenFile:
    file = AtomicFile(f"{folder.new_staging()}/{partition.id}{extension}", storage_options=folder.storage_options)
    for row in range(rows):
        file.write(json.dumps({"id": f"{partition.id}/{row}"}).encode() + b"\n")
    return file.publish(rows=rows)


def commit(folder: RunFolder, partition: Partition, trail: Trail | None = None) -> ManifestEntry:
    trail = trail or make_trail(prefix=partition.id)
    staged = make_file(folder, partition, trail.output_rows)
    return commit_partition(
        folder, partition, staged_files=[staged], trail=trail, plan_digest=plan_digest(PLAN), stage_order=STAGES
    )


def make_run(path: Path | str, partitions: int = 2) -> RunFolder:
    """A finished run with a plan, committed partitions and nothing in staging."""
    folder = RunFolder(path)
    write_plan(folder, PLAN)
    for index in range(partitions):
        commit(folder, make_partition(f"part-{index}", index))
    folder.remove_tree(folder.record_path("staging"))
    return folder


def make_finished_run(path: Path | str, partitions: int = 2) -> RunFolder:
    """As `make_run`, with a `run.json` that says done."""
    folder = make_run(path, partitions)
    record(folder, partitions)
    return folder


def record(folder: RunFolder, partitions: int, *, input_bytes: int = 200) -> dict[str, Any]:
    """Let a run over `partitions` begin and end; returns its record."""
    recorder = RunRecorder(folder)
    segment = SegmentPlan(0, STAGES, 1.0, 0.0, 1, 1)
    recorder(RunStarted("small", "local", STAGES, (segment,), partitions, 0, input_bytes, folder.path, at=100.0))
    recorder(RunFinished("done", at=103.5))
    return recorder.record()
