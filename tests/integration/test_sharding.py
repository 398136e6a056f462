"""Shuffles and mixtures: the same bytes on any number of workers and after any interruption, within a memory budget."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from gristmill.backends.local import LocalExecutor
from gristmill.ledger.prove.verify import verify
from gristmill.stages.sharding import MixSource, Mixture, MixWorkflow, ShuffleWorkflow
from tests.outputs import record_of

COUNTS = {"web": 3000, "books": 300}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    for name, count in COUNTS.items():
        with (folder / f"{name}.jsonl").open("w", encoding="utf-8") as file:
            for at in range(count):
                row = {"id": f"{name}-{at}", "text": f"{name} {at} " * (1 + at * at % 211), "tokens": 1 + at * at % 211}
                file.write(json.dumps(row) + "\n")
    return folder


SHUFFLE: dict[str, Any] = {
    "shard_size": "200KB", "splits": {"train": 0.9, "validation": None}, "input_blocksize": "300KB", "seed": 11,
}  # fmt: skip
MIX: dict[str, Any] = {"shard_size": "100KB", "input_blocksize": "300KB", "token_count_field": "tokens"}


def make(kind: str, data: Path, output: Path) -> ShuffleWorkflow | MixWorkflow:
    if kind == "shuffle":
        return ShuffleWorkflow(str(output), str(data), **SHUFFLE)
    sources = {
        "web": MixSource(str(data / "web.jsonl"), weight=0.8),
        "books": MixSource(str(data / "books.jsonl"), weight=0.2),
    }
    return MixWorkflow(str(output), Mixture(sources, unit="tokens", budget=250_000), **MIX)


def contents(output: Path) -> dict[str, Any]:
    """Shards and the table of documents; the record holds times and versions besides."""
    found: dict[str, Any] = {path.name: path.read_bytes() for path in sorted(output.iterdir())}
    documents = record_of(output) / "steps" / "documents"
    found |= {f"documents/{path.name}": path.read_bytes() for path in sorted(documents.glob("*.parquet"))}
    return found


@pytest.fixture(scope="module", params=["shuffle", "mix"])
def finished(request: pytest.FixtureRequest, data: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    output = tmp_path_factory.mktemp("finished") / "out"
    make(request.param, data, output).run(LocalExecutor({"num_cpus": 0}), progress=False)
    return request.param, output


_KILLED = """
import os, sys
from pathlib import Path
from gristmill.backends.local import LocalExecutor
from gristmill.observe.events import PartitionCommitted, RunStarted
from tests.integration.test_sharding import make
kind, data, output, step, partition = sys.argv[1:]
seen = [0, 0]

def watch(event):
    if isinstance(event, RunStarted):
        seen[0], seen[1] = seen[0] + 1, 0
    if isinstance(event, PartitionCommitted):
        seen[1] += 1
    if seen == [int(step), int(partition)]:
        os.kill(os.getpid(), 9)

make(kind, Path(data), Path(output)).run(LocalExecutor({"num_cpus": 0}), listeners=[watch], progress=False)
"""
MOMENTS = {
    # scatter, shards, documents
    "shuffle": [(1, 2), (2, 0), (2, 3), (3, 1)],
    # sizes and scatter of two sources, shards, documents
    "mix": [(1, 1), (3, 1), (5, 2), (6, 0)],
}


def test_a_run_killed_anywhere_resumes_to_the_same_bytes(
    finished: tuple[str, Path], data: Path, tmp_path: Path
) -> None:
    kind, output = finished
    for step, partition in MOMENTS[kind]:
        arguments = [kind, str(data), str(tmp_path / "out"), str(step), str(partition)]
        done = subprocess.run([sys.executable, "-c", _KILLED, *arguments], check=False, capture_output=True)
        assert done.returncode == -signal.SIGKILL, done.stderr.decode()
    make(kind, data, tmp_path / "out").run(LocalExecutor({"num_cpus": 2}), progress=False)
    assert contents(tmp_path / "out") == contents(output)
    assert verify(str(tmp_path / "out")).problems == []
    steps = record_of(tmp_path / "out") / "steps"
    assert [path.name for path in steps.iterdir()] == ["documents"]


def test_any_number_of_workers_gives_the_same_bytes(finished: tuple[str, Path], data: Path, tmp_path: Path) -> None:
    kind, output = finished
    for workers, settings in ((1, {}), (2, {"execution_mode": "batch"})):
        executor = LocalExecutor({"num_cpus": workers, **settings})
        make(kind, data, tmp_path / str(workers)).run(executor, progress=False)
        assert contents(tmp_path / str(workers)) == contents(output)


def test_every_document_is_found_again(finished: tuple[str, Path]) -> None:
    kind, output = finished
    table = pq.read_table(record_of(output) / "steps" / "documents").to_pylist()
    lines = sum(path.read_bytes().count(b"\n") for path in output.iterdir())
    assert len(table) == lines
    assert kind == "mix" or lines == sum(COUNTS.values())
    shards = {path.stem: path.read_bytes() for path in output.iterdir()}
    for row in table:
        record = json.loads(shards[row["shard"]][row["offset"] : row["offset"] + row["bytes"]])
        assert record["id"] == row["id"]


@pytest.mark.parametrize("finished", ["shuffle"], indirect=True)
def test_a_command_with_workers_is_killed_and_run_again(data: Path, finished: tuple[str, Path], tmp_path: Path) -> None:
    _, output = finished
    arguments = ["shuffle", str(data), str(tmp_path / "out"), "--shard-size", "200KB", "--blocksize", "300KB"]
    arguments += ["--split", "train=0.9", "--split", "validation", "--seed", "11", "--workers", "2", "-q"]
    running = subprocess.Popen([sys.executable, "-m", "gristmill", *arguments])
    manifest = record_of(tmp_path / "out") / "steps" / "scatter-000" / "_gristmill" / "manifest"
    while running.poll() is None and not (manifest.exists() and any(manifest.iterdir())):
        time.sleep(0.01)
    running.kill()
    running.wait()
    assert subprocess.run([sys.executable, "-m", "gristmill", *arguments], check=False).returncode == 0
    assert contents(tmp_path / "out") == contents(output)
