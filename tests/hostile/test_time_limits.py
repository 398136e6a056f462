"""Stages that do not return: the document is found and quarantined, the others come through, nothing hangs."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import Any

import pytest

from gristmill.backends.local import LocalExecutor
from gristmill.ledger.record.quarantine import read_quarantine
from gristmill.observe.events import WorkerStopped
from gristmill.pipeline import Pipeline
from gristmill.stages.base import ProcessingStage
from gristmill.stages.text.io.reader import JsonlReader
from gristmill.stages.text.io.writer import JsonlWriter
from gristmill.tasks.document import DocumentBatch
from tests.hostile.attempt import FULL, attempt

ROWS = 400 if FULL else 60
HOSTILE = "a" * 60
EXPONENTIAL = re.compile(r"(a|aa)+$")


class Matches(ProcessingStage):
    """A filter of a user, with a regular expression that takes exponential time for some texts."""

    name = "matches"

    def process(self, task: DocumentBatch) -> DocumentBatch:
        for text in task.column("text").to_pylist():
            EXPONENTIAL.match(text + "!")
        return task


class Together(Matches):
    """The same, for all tasks at once."""

    name = "together"
    batch_size = 2

    def process_batch(self, tasks: list[DocumentBatch]) -> list[DocumentBatch]:
        return [self.process(task) for task in tasks]


class Lazy(Matches):
    """The same, as it is asked for."""

    name = "lazy"

    def process(self, task: DocumentBatch) -> Any:
        yield super().process(task)


class Stuck(ProcessingStage):
    """Holds the interpreter, as a loop in native code does; nothing but the end of the process stops that."""

    name = "stuck"

    def process(self, task: DocumentBatch) -> DocumentBatch:
        if HOSTILE in task.column("text").to_pylist():
            import ctypes

            ctypes.PyDLL(None).sleep(3600)
        return task


class Steady(ProcessingStage):
    """Takes its time for every document, and longer than the limit for a batch."""

    name = "steady"

    def process(self, task: DocumentBatch) -> DocumentBatch:
        time.sleep(0.05 * task.num_items)
        return task


STAGES: list[ProcessingStage] = [Matches(), Together(), Lazy()] if FULL else [Matches()]


def run(
    folder: Path, stage: ProcessingStage, *, rows: int = ROWS, listeners: Any = (), **config: Any
) -> dict[str, str]:
    """What is quarantined and why; everything else must be written."""
    source, out = folder / "in", folder / "out"
    source.mkdir()
    for file in range(2):
        texts = [HOSTILE if (file, row) == (1, 41) else f"ordinary words {row}" for row in range(rows)]
        records = ({"id": f"{file}-{row}", "text": text} for row, text in enumerate(texts))
        (source / f"{file}.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    stages = [JsonlReader(str(source)), stage, JsonlWriter(str(out))]
    Pipeline("slow", stages=stages).run(LocalExecutor(config), listeners=listeners, error_budget=None)
    kept = {json.loads(line)["id"] for file in out.glob("*.jsonl") for line in file.read_text().splitlines()}
    aside = {json.loads(entry.record.raw)["id"]: entry.record.cause for entry in read_quarantine(str(out))}
    assert kept == {f"{file}-{row}" for file in range(2) for row in range(rows)} - set(aside)
    return aside


def run_here(folder: Path, stage: ProcessingStage, limit_s: float, **options: Any) -> dict[str, str]:
    """In the calling process, which has taken over a handler from this one that would be left alone."""
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    return run(folder, stage, num_cpus=0, time_limit_s=limit_s, **options)


@pytest.mark.parametrize("stage", STAGES, ids=lambda one: one.name)
def test_exponential_expressions_in_a_worker(stage: ProcessingStage, tmp_path: Path, record_property: Any) -> None:
    """A regular expression that takes exponential time, in a worker: the document is found and quarantined."""
    record_property("tried", 1)
    assert run(tmp_path, stage, num_cpus=1, time_limit_s=1.0) == {"1-41": "time limit"}


@pytest.mark.parametrize("stage", STAGES, ids=lambda one: one.name)
def test_exponential_expressions_here(stage: ProcessingStage, tmp_path: Path, record_property: Any) -> None:
    """The same in the calling process (--workers 0): interrupted, found and quarantined."""
    record_property("tried", 1)
    outcome = attempt(lambda: run_here(tmp_path, stage, 0.5), seconds=60)
    assert outcome == ("done", "{'1-41': 'time limit'}")


@pytest.mark.skipif(not FULL, reason="takes half a minute; made by make test-hostile")
def test_a_native_loop_in_a_worker(tmp_path: Path, record_property: Any) -> None:
    """Native code that never returns and holds the interpreter lock: its worker is killed, the document quarantined."""
    record_property("tried", 1)
    assert run(tmp_path, Stuck(), num_cpus=1, time_limit_s=1.0) == {"1-41": "time limit"}


@pytest.mark.skipif(not FULL, reason="replaces workers; made by make test-hostile")
def test_stages_that_are_merely_slow(tmp_path: Path, record_property: Any) -> None:
    """A batch that takes longer than the limit per document: nothing is quarantined."""
    record_property("tried", 2)
    stopped: list[str] = []

    def watch(event: Any) -> None:
        if isinstance(event, WorkerStopped):
            stopped.append(event.cause)

    assert run(tmp_path, Steady(), rows=60, listeners=[watch], num_cpus=1, time_limit_s=1.2) == {}
    assert "time limit" in stopped
    (tmp_path / "here").mkdir()
    outcome = attempt(lambda: run_here(tmp_path / "here", Steady(), 1.2, rows=60), seconds=200)
    assert outcome == ("done", "{}")


@pytest.mark.skipif(not FULL, reason="starts a program; made by make test-hostile")
def test_the_signal_is_given_back(tmp_path: Path, record_property: Any) -> None:
    """A program with its own SIGALRM handler: the handler is kept, and without one none is left behind."""
    record_property("tried", 2)
    script = """
        import signal, sys
        from pathlib import Path
        from tests.hostile.test_time_limits import Steady, run
        mine = lambda *_: None
        assert run(Path(sys.argv[1]), Steady(), rows=5, num_cpus=0) == {}
        assert signal.getsignal(signal.SIGALRM) == signal.SIG_DFL
        signal.signal(signal.SIGALRM, mine)
        assert run(Path(sys.argv[2]), Steady(), rows=5, num_cpus=0, time_limit_s=0.01) == {}
        assert signal.getsignal(signal.SIGALRM) is mine and signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)
    """
    folders = [str(tmp_path / name) for name in "ab"]
    for folder in folders:
        Path(folder).mkdir()
    root = Path(__file__).resolve().parents[2]
    environment = {**os.environ, "PYTHONPATH": f"{root / 'src'}:{root}"}
    command = [sys.executable, "-c", textwrap.dedent(script), *folders]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
