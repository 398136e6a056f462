"""Small jobs for the tests: files in, a pipeline in this process, files out."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from gristmill.pipeline import Pipeline
from gristmill.stages.text.io import JsonlReader, JsonlWriter
from tests.other_engine import plain_executor
from tests.outputs import record_of


def here() -> Any:
    """An executor that runs in this process; the one that GRISTMILL_TEST_EXECUTOR names, if it does."""
    return plain_executor()


def write_lines(path: Path, lines: Iterable[str | dict[str, Any]]) -> Path:
    """A JSONL file with these lines, texts as they are."""
    path.parent.mkdir(parents=True, exist_ok=True)
    texts = [line if isinstance(line, str) else json.dumps(line, ensure_ascii=False) for line in lines]
    path.write_bytes("".join(text + "\n" for text in texts).encode("utf-8"))
    return path


def read_lines(folder: Path) -> list[str]:
    """The lines of all JSONL files of an output folder, file by file."""
    return [line for path in sorted(folder.glob("*.jsonl")) for line in path.read_bytes().decode().split("\n")[:-1]]


def read_rows(folder: Path) -> list[dict[str, Any]]:
    """The records of an output folder."""
    return [json.loads(line) for line in read_lines(folder)]


def run_lines(folder: Path, lines: Iterable[str | dict[str, Any]], stages: Sequence[Any] = (), **options: Any) -> Any:
    """Run the stages on these lines from `folder`/in to `folder`/out."""
    write_lines(folder / "in" / "a.jsonl", lines)
    pipeline = Pipeline("job", stages=[JsonlReader(str(folder / "in")), *stages, JsonlWriter(str(folder / "out"))])
    return pipeline.run(executor=here(), **options)


def run_json(folder: Path) -> dict[str, Any]:
    """The record of the run in an output folder."""
    record: dict[str, Any] = json.loads((record_of(folder) / "run.json").read_text())
    return record
