"""The job that the tests of trust run, kill and run again: it drops, changes, quarantines and splits."""

from __future__ import annotations

import json
import os
import signal
import time
from functools import partial
from pathlib import Path
from typing import Any

from gristmill.backends.local import LocalExecutor
from gristmill.pipeline import Pipeline
from gristmill.pipeline.run import RunReport
from gristmill.stages.base import ProcessingStage
from gristmill.stages.text.filters import ScoreFilter, WordCountFilter
from gristmill.stages.text.io import JsonlReader, JsonlWriter, ParquetWriter
from gristmill.stages.text.io.writer import TokenWriter
from gristmill.stages.text.modifiers import Modify
from gristmill.tasks import DocumentBatch

HOLD = "GRISTMILL_TEST_HOLD"
"""The variable that says, as in `picky:7`, from which file on a stage lets no document through; no part of the plan."""


def _let_through(stage: str, task: DocumentBatch) -> None:
    """Return, or never do if the task is held."""
    name, _, first = os.environ.get(HOLD, "none:0").partition(":")
    files = [int(document.split("-")[0]) for document in task.column("id").to_pylist()]
    while name == stage and files and max(files) >= int(first):
        time.sleep(1)


class Picky(ProcessingStage[DocumentBatch, DocumentBatch]):
    """Cannot process documents that say so."""

    name = "picky"

    def process(self, task: DocumentBatch) -> DocumentBatch:
        _let_through(self.name, task)
        for text in task.column("text").to_pylist():
            if "spoiled" in text:
                raise ValueError(f"cannot digest {text!r}")
        return task


class Apart(ProcessingStage[DocumentBatch, DocumentBatch]):
    """Runs in a worker of its own, so that a partition crosses processes in pieces."""

    name = "apart"
    needs_own_worker = True

    def process(self, task: DocumentBatch) -> list[DocumentBatch]:
        _let_through(self.name, task)
        half = task.num_items // 2
        return [task.slice(0, half), task.slice(half, task.num_items - half)]


class Deadly(ProcessingStage[DocumentBatch, DocumentBatch]):
    """Kills its process on one document, while a file lies there."""

    name = "deadly"

    def __init__(self, trouble: str) -> None:
        self._trouble = trouble

    def process(self, task: DocumentBatch) -> DocumentBatch:
        if "1-20" in task.column("id").to_pylist() and os.path.exists(self._trouble):
            os.kill(os.getpid(), signal.SIGKILL)
        return task


def trimmed(text: str) -> str:
    """The text without trailing marks."""
    return text.rstrip("!")


def make_input(folder: Path, *, files: int, rows: int = 30) -> Path:
    """JSONL files with something for every stage, and a line that is not a record."""
    folder.mkdir(parents=True)
    for file in range(files):
        lines = []
        for row in range(rows):
            text = " ".join(["word"] * (row % 7 + 1)) + "!" * (row % 3)
            if row == 11:
                text += " spoiled"
            lines.append(json.dumps({"id": f"{file}-{row}", "url": f"https://example.org/{file}/{row}", "text": text}))
        lines[5] = '{"id": "broken'
        (folder / f"part-{file:03}.jsonl").write_text("\n".join(lines) + "\n")
    return folder


def job(
    source: str,
    output: str,
    *,
    workers: int,
    format: str = "jsonl",
    segments: int = 1,
    tokens: dict[str, Any] | None = None,
) -> RunReport:
    """Run it; `tokens` are the options of a `TokenWriter`."""
    writer: Any = JsonlWriter if format == "jsonl" else ParquetWriter
    if tokens is not None:
        writer = partial(TokenWriter, **tokens)
    middle: list[Any] = [ScoreFilter(WordCountFilter(min_words=3)), Modify(trimmed, input_fields="text"), Picky()]
    if segments > 1:
        middle.append(Apart())
    pipeline = Pipeline("trust", stages=[JsonlReader(source, files_per_partition=1), *middle, writer(output)])
    executor = LocalExecutor(config={"num_cpus": workers})
    return pipeline.run(executor=executor, ignore_failures=True, error_budget=None, progress=False).report
