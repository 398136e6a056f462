"""The same bytes, the same ledger and the same counts for any number of workers, streaming and batch."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from gristmill.backends.local import LocalExecutor
from gristmill.ledger.prove.verify import verify
from gristmill.ledger.record.manifest import Manifest
from gristmill.pipeline import Pipeline
from gristmill.stages.text.filters import MeanWordLengthFilter, ScoreFilter, WordCountFilter
from gristmill.stages.text.io import JsonlReader, JsonlWriter, ParquetReader, ParquetWriter
from gristmill.stages.text.modifiers import Modify, UrlRemover
from tests.contract import equality_stages as mine
from tests.outputs import contents_of
from tests.unit.pipeline.jobs import write_lines

FILES, ROWS = 5, 30


def _row(number: int) -> dict[str, Any]:
    words = " ".join(f"word{number % 3}" for _ in range(number % 9 + 1))
    text = f"{words} https://example.org/{number}" if number % 4 == 0 else words
    return {"id": f"doc-{number}", "url": f"https://example.org/{number}", "n": number, "text": text}


@pytest.fixture(scope="module")
def lines(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("lines")
    for file in range(FILES):
        rows: list[Any] = [_row(file * ROWS + row) for row in range(ROWS)]
        if file % 2:
            rows[7] = '{"id": "broken'
        write_lines(folder / f"part-{file}.jsonl", rows)
    (folder / "empty.jsonl").write_bytes(b"")
    return folder


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tables")
    for file in range(FILES):
        table = pa.Table.from_pylist([_row(file * ROWS + row) for row in range(ROWS)])
        pq.write_table(table, folder / f"part-{file}.parquet", row_group_size=11)
    return folder


def _filters() -> list[Any]:
    words, length = ScoreFilter(WordCountFilter(min_words=3)), ScoreFilter(MeanWordLengthFilter(max_mean_word_length=8))
    return [words, length]


JOBS: dict[str, Callable[[], list[Any]]] = {
    "filters": _filters,
    "modifiers": lambda: [Modify(UrlRemover()), *_filters(), Modify(mine.shout, input_fields="text")],
    "frames": lambda: [mine.Frames(), *_filters()],
    "fan_out": lambda: [*_filters(), mine.Halves(), mine.Apart(), mine.Pieces()],
    "drops_everything": lambda: [*_filters(), mine.DropAll()],
    "quarantines": lambda: [*_filters(), mine.Picky(), mine.Apart()],
}


def _run(kind: str, job: str, source: Path, output: Path, config: dict[str, Any]) -> Any:
    reader: Any = JsonlReader if kind.startswith("jsonl") else ParquetReader
    writer: Any = JsonlWriter if kind.endswith("jsonl") else ParquetWriter
    stages = [reader(str(source), files_per_partition=1), *JOBS[job](), writer(str(output))]
    pipeline = Pipeline("equality", stages=stages)
    report = pipeline.run(
        executor=LocalExecutor(config=config), ignore_failures=True, error_budget=None, scores="all", progress=False
    ).report
    checked = verify(str(output))
    assert checked.ok, checked
    return report


def _counts(report: Any) -> list[Any]:
    return [
        (s.name, s.rows_in, s.rows_out, s.created, dict(s.dropped), dict(s.quarantined), s.untracked, s.changed)
        for s in report.stages
    ]


KINDS = ["jsonl-jsonl", "parquet-parquet", "jsonl-parquet", "parquet-jsonl"]
ENGINES = [(1, "streaming"), (2, "streaming"), (2, "batch"), (4, "streaming")]
ALL_ENGINES = [(workers, mode) for workers in (1, 2, 4) for mode in ("streaming", "batch")]
CASES = [(kind, job) for job in JOBS for kind in (KINDS if job == "modifiers" else KINDS[:2])]


@pytest.mark.parametrize(("kind", "job"), CASES)
def test_equality(kind: str, job: str, lines: Path, tables: Path, tmp_path: Path) -> None:
    source = lines if kind.startswith("jsonl") else tables
    first = _run(kind, job, source, tmp_path / "here", {"num_cpus": 0})
    expected = contents_of(tmp_path / "here")
    assert len(Manifest(str(tmp_path / "here")).load()) == len(list(source.iterdir()))
    # Fast ones everywhere; all of them where pieces of partitions cross between workers.
    engines = ENGINES if kind == "jsonl-jsonl" else ENGINES[2:]
    everywhere = kind == "jsonl-jsonl" and job in ("fan_out", "quarantines")
    for workers, mode in ALL_ENGINES if everywhere else engines:
        output = tmp_path / f"{mode}-{workers}"
        report = _run(kind, job, source, output, {"num_cpus": workers, "execution_mode": mode})
        found = contents_of(output)
        assert sorted(found) == sorted(expected), (workers, mode)
        for name, data in expected.items():
            assert found[name] == data, (workers, mode, name)
        assert _counts(report) == _counts(first), (workers, mode)


@pytest.mark.parametrize("kind", KINDS[:2])
def test_equality_of_replays(kind: str, lines: Path, tables: Path, tmp_path: Path) -> None:
    """What a replay on any engine leaves is what a run in one process leaves that never failed."""
    mended = tmp_path / "mended"

    def job(output: Path) -> Pipeline:
        reader: Any = JsonlReader if kind.startswith("jsonl") else ParquetReader
        writer: Any = JsonlWriter if kind.endswith("jsonl") else ParquetWriter
        source = reader(str(lines if kind.startswith("jsonl") else tables), files_per_partition=1)
        middle = [*_filters(), mine.Picky(str(mended)), mine.Apart(), Modify(UrlRemover())]
        return Pipeline("equality", stages=[source, *middle, writer(str(output))])

    options: Any = {"ignore_failures": True, "error_budget": None, "progress": False}
    engines = [(0, "streaming"), (1, "batch"), (2, "streaming"), (4, "batch")]
    executors = {f"{workers}-{mode}": {"num_cpus": workers, "execution_mode": mode} for workers, mode in engines}
    for name, config in executors.items():
        report = job(tmp_path / name).run(executor=LocalExecutor(config=config), **options).report
        assert report.quarantined > 5
    mended.touch()
    job(tmp_path / "whole").run(executor=LocalExecutor(config={"num_cpus": 0}), **options)
    expected = contents_of(tmp_path / "whole")
    for name, config in executors.items():
        replayed = job(tmp_path / name).replay(LocalExecutor(config=config))
        assert replayed.still_quarantined == (2 if kind == "jsonl-jsonl" else 0)
        found = contents_of(tmp_path / name)
        assert sorted(found) == sorted(expected), name
        assert [file for file in expected if found[file] != expected[file]] == [], name
        checked = verify(str(tmp_path / name))
        assert checked.ok, checked


def test_the_jobs_do_what_they_are_there_for(lines: Path, tmp_path: Path) -> None:
    """Each job exercises its case, or the comparison would prove nothing."""
    reports = {job: _run("jsonl-jsonl", job, lines, tmp_path / job, {"num_cpus": 0}) for job in JOBS}
    stages = {job: {stage.name: stage for stage in report.stages} for job, report in reports.items()}
    assert reports["filters"].dropped > 0
    assert stages["modifiers"]["shout"].changed > 0
    assert stages["frames"]["frames"].dropped
    assert stages["fan_out"]["pieces"].created > 0
    assert reports["drops_everything"].rows_written == 0
    assert sum(stages["quarantines"]["picky"].quarantined.values()) > 0
    assert all(report.quarantined >= 2 for report in reports.values())
