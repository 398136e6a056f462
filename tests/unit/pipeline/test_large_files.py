"""Planning says when a large file keeps one worker busy."""

from __future__ import annotations

from pathlib import Path

import pytest

from gristmill import Pipeline
from gristmill.backends.local import LocalExecutor
from gristmill.observe.events import PartitionCommitted
from gristmill.stages.text.io.reader.table_files import CsvReader
from gristmill.stages.text.io.reader.text import TextReader
from gristmill.stages.text.io.writer import JsonlWriter


def explained(reader: CsvReader | TextReader, tmp_path: Path) -> str:
    pipeline = Pipeline("large").add_stage(reader).add_stage(JsonlWriter(str(tmp_path / "out")))
    return pipeline.explain(LocalExecutor({"num_cpus": 2}))


def large(path: Path) -> Path:
    path.write_bytes(b"text\n" + b"a line\n" * 1000)
    with path.open("r+b") as file:
        file.truncate(300_000_000)  # takes no space
    return path


def test_a_large_file_that_cannot_be_split_is_named(tmp_path: Path) -> None:
    told = explained(CsvReader(str(large(tmp_path / "big.csv"))), tmp_path)
    assert "Note: big.csv (300.0 MB) is one partition" in told


def test_lines_of_text_are_split(tmp_path: Path) -> None:
    told = explained(TextReader(str(large(tmp_path / "big.txt")), document="line"), tmp_path)
    assert "is one partition" not in told
    assert "3 partitions" in told


def test_large_files_that_cannot_be_split_come_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """So that at the end no worker is left alone with one; the output is the same in any order."""
    rows = {"a": 1, "b": 3000, "c": 1, "d": 2000, "e": 1}
    (tmp_path / "in").mkdir()
    for name, count in rows.items():
        (tmp_path / "in" / f"{name}.csv").write_text("text\n" + "a line\n" * count)
    monkeypatch.setattr("gristmill.execution.driver._LARGE_BYTES", 10_000)
    committed: list[str] = []
    pipeline = (
        Pipeline("large").add_stage(CsvReader(str(tmp_path / "in"))).add_stage(JsonlWriter(str(tmp_path / "out")))
    )
    pipeline.run(
        LocalExecutor({"num_cpus": 0}),
        progress=False,
        report=False,
        listeners=[
            lambda event: committed.append(event.partition_id) if isinstance(event, PartitionCommitted) else None
        ],
    )
    assert committed == ["b", "d", "a", "c", "e"]
    written = {path.stem: path.read_bytes().count(b"\n") for path in (tmp_path / "out").iterdir()}
    assert written == rows
