"""Decontamination and snapshots with real processes: any number of workers and any kill lead to the same bytes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.integration.test_dedup import contents

JOB = """
import os, sys
from gristmill.backends.local import LocalExecutor
from gristmill.observe.events import PartitionCommitted
from gristmill.stages.deduplication import DecontaminationWorkflow, FuzzyDeduplicationWorkflow

kind, source, output, other, workers, deadly = sys.argv[1:]
seen = 0
def watch(event):
    global seen
    seen += isinstance(event, PartitionCommitted)
    if seen == int(deadly) > 0:
        os.kill(os.getpid(), 9)

if kind == "decontaminate":
    workflow = DecontaminationWorkflow(source, output, other, action="cut", window_chars=5, min_piece_chars=1)
else:
    workflow = FuzzyDeduplicationWorkflow(input_path=source, output_path=output, against=other, perform_removal=True)
workflow.run(LocalExecutor({"num_cpus": int(workers)}), listeners=[watch], progress=False)
"""
QUESTION = "which of the two rivers that meet below the old bridge carries more water in spring number"


def write(folder: Path) -> tuple[str, str]:
    """A corpus of four files in which every fifth document holds an item; the benchmark."""
    (folder / "in").mkdir()
    (folder / "benchmarks").mkdir()
    items = [{"question": f"{QUESTION} {number}"} for number in range(20)]
    (folder / "benchmarks" / "rivers.jsonl").write_text("".join(json.dumps(item) + "\n" for item in items))
    for file in range(4):
        rows = []
        for number in range(50):
            text = " ".join(f"word{(number * 7 + place * file) % 97}" for place in range(30))
            if number % 5 == 0:
                text = f"{text} {items[number % 20]['question']} {text}"
            rows.append({"id": f"d{file}-{number}", "text": text})
        (folder / "in" / f"part-{file}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(folder / "in"), str(folder / "benchmarks")


def run(kind: str, source: str, output: Path, other: str, workers: int, deadly: int = 0) -> int:
    arguments = [sys.executable, "-c", JOB, kind, source, str(output), other, str(workers), str(deadly)]
    return subprocess.run(arguments, check=False, capture_output=True, env=dict(os.environ), timeout=300).returncode


@pytest.mark.parametrize("deadly", [1, 3, 8])
def test_a_killed_decontamination_resumes_to_the_same_bytes(tmp_path: Path, deadly: int) -> None:
    source, benchmarks = write(tmp_path)
    assert run("decontaminate", source, tmp_path / "whole", benchmarks, workers=2) == 0
    assert run("decontaminate", source, tmp_path / "killed", benchmarks, workers=0, deadly=deadly) == -9
    assert run("decontaminate", source, tmp_path / "killed", benchmarks, workers=0) == 0
    assert contents(tmp_path / "killed") == contents(tmp_path / "whole")


def test_a_killed_run_against_an_index_adds_its_snapshot_once(tmp_path: Path) -> None:
    from gristmill.stages.deduplication import FuzzyDeduplicationWorkflow
    from gristmill.stages.deduplication.fuzzy.index import FuzzyIndex

    source, _ = write(tmp_path)
    settings = FuzzyDeduplicationWorkflow(output_path="x").index_settings()
    for name in ("a", "b"):
        FuzzyIndex.create(tmp_path / name, settings)
    assert run("fuzzy", source, tmp_path / "whole", str(tmp_path / "a"), workers=2) == 0
    for deadly in (2, 4):
        assert run("fuzzy", source, tmp_path / "killed", str(tmp_path / "b"), workers=0, deadly=deadly) == -9
    assert run("fuzzy", source, tmp_path / "killed", str(tmp_path / "b"), workers=0) == 0
    assert contents(tmp_path / "killed") == contents(tmp_path / "whole")
    one, other = FuzzyIndex.load(tmp_path / "a"), FuzzyIndex.load(tmp_path / "b")
    assert len(other.sources) == 1
    assert one.removed.digest == other.removed.digest
