"""Repeated lines and passages: the same bytes on any number of workers, after any interruption."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from gristmill.backends.local import LocalExecutor
from gristmill.ledger.prove.verify import verify
from gristmill.stages.deduplication import LineDeduplicationWorkflow, SubstringDeduplicationWorkflow
from tests.outputs import contents_of

KINDS: dict[str, Any] = {"lines": LineDeduplicationWorkflow, "substrings": SubstringDeduplicationWorkflow}
STEPS = {"lines": 3, "substrings": 5}
OPTIONS: dict[str, dict[str, Any]] = {"lines": {"min_chars": 5}, "substrings": {"min_length": 20}}


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Six files of documents that share lines and passages with others."""
    folder = tmp_path_factory.mktemp("corpus")
    rng = random.Random(5)
    lines = [" ".join(f"w{rng.randrange(5000)}" for _ in range(rng.randint(3, 40))) for _ in range(400)]
    for file in range(6):
        rows = []
        for number in range(150):
            own = [" ".join(f"v{rng.randrange(10**6)}" for _ in range(12)) for _ in range(6)]
            text = "\n".join(rng.sample([*own, *rng.choices(lines, k=4)], 10))
            rows.append(json.dumps({"id": f"{file}-{number}", "text": text}) + "\n")
        (folder / f"part-{file}.jsonl").write_text("".join(rows))
    return folder


def run(kind: str, corpus: Path, output: Path, executor: Any) -> None:
    KINDS[kind](str(output), str(corpus), **OPTIONS[kind]).run(executor=executor, progress=False)


def contents(output: Path) -> dict[str, bytes]:
    """Everything that must not depend on how a run went: output and ledger."""
    found = contents_of(output)
    return {name: data for name, data in found.items() if name.startswith("record/ledger/") or "/" not in name}


@pytest.fixture(scope="module", params=["lines", "substrings"])
def finished(request: pytest.FixtureRequest, corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Any:
    output = tmp_path_factory.mktemp("finished") / request.param
    run(request.param, corpus, output, LocalExecutor({"num_cpus": 0}))
    assert verify(str(output)).problems == []
    assert any(name.endswith(".cuts.parquet") for name in contents(output))
    return request.param, output


def test_two_workers_give_the_same_bytes(finished: tuple[str, Path], corpus: Path, tmp_path: Path) -> None:
    kind, output = finished
    run(kind, corpus, tmp_path / "out", LocalExecutor({"num_cpus": 2}))
    assert contents(tmp_path / "out") == contents(output)


_KILLED = """
import json, os, sys
from gristmill.backends.local import LocalExecutor
from gristmill.observe.events import PartitionCommitted, RunStarted
from gristmill.stages import deduplication

kind, options, source, output, step, partition = sys.argv[1:]
seen = [0, 0]

def watch(event):
    if isinstance(event, RunStarted):
        seen[0], seen[1] = seen[0] + 1, 0
    if isinstance(event, PartitionCommitted):
        seen[1] += 1
    if seen == [int(step), int(partition)]:
        os.kill(os.getpid(), 9)

workflow = getattr(deduplication, kind)(output, source, **json.loads(options))
workflow.run(executor=LocalExecutor({"num_cpus": 0}), listeners=[watch], progress=False)
"""


def test_killed_in_any_step_it_resumes_with_the_same_bytes(
    finished: tuple[str, Path], corpus: Path, tmp_path: Path
) -> None:
    kind, output = finished
    options = json.dumps(OPTIONS[kind])
    for step, partition in ((1, 2), *((step, 0) for step in range(2, STEPS[kind])), (STEPS[kind], 2)):
        arguments = [KINDS[kind].__name__, options, str(corpus), str(tmp_path / "out"), str(step), str(partition)]
        done = subprocess.run([sys.executable, "-c", _KILLED, *arguments], check=False, capture_output=True)
        assert done.returncode == -signal.SIGKILL, done.stderr.decode()
    run(kind, corpus, tmp_path / "out", LocalExecutor({"num_cpus": 0}))
    assert contents(tmp_path / "out") == contents(output)
    assert verify(str(tmp_path / "out")).problems == []
