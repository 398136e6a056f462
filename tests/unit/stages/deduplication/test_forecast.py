"""Forecasts: correct for the input, however it is stored, and a refusal of what cannot fit."""

from __future__ import annotations

import gzip
import json
from collections import namedtuple
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from gristmill.backends.local import LocalExecutor
from gristmill.errors import OutputError, PlanningError
from gristmill.stages.deduplication import (
    ExactDeduplicationWorkflow,
    FuzzyDeduplicationWorkflow,
    SemanticDeduplicationWorkflow,
)
from gristmill.stages.deduplication import forecast as forecasts
from gristmill.stages.deduplication.forecast import SPOTS, expansion
from tests.unit.pipeline.jobs import here
from tests.unit.stages.deduplication.jobs import deduplicate

DOCUMENTS = 3000


def rows() -> list[dict[str, Any]]:
    rng = np.random.default_rng(1)
    words = [f"word{number}" for number in range(500)]
    return [{"id": f"d{row}", "text": " ".join(rng.choice(words, 60))} for row in range(DOCUMENTS)]


def write(folder: Path, kind: str) -> Path:
    source = folder / "in"
    source.mkdir()
    lines = "".join(json.dumps(row) + "\n" for row in rows()).encode()
    if kind == "jsonl":
        (source / "a.jsonl").write_bytes(lines)
    elif kind == "jsonl.gz":
        (source / "a.jsonl.gz").write_bytes(gzip.compress(lines))
    else:
        pq.write_table(pa.Table.from_pylist(rows()), source / "a.parquet", row_group_size=200)
    return source


@pytest.mark.parametrize("kind", ["jsonl", "jsonl.gz", "parquet"])
@pytest.mark.parametrize("blocksize", [None, "100KB"])
def test_a_part_of_the_input_tells_about_the_whole(tmp_path: Path, kind: str, blocksize: str | None) -> None:
    source = write(tmp_path, kind)
    workflow = ExactDeduplicationWorkflow(str(tmp_path / "out"), str(source), input_blocksize=blocksize)
    workflow.sample_bytes = 100_000
    found = workflow.plan(here())
    stored = sum(path.stat().st_size for path in source.iterdir())
    assert found.input_bytes == pytest.approx(stored, rel=0.01)
    assert found.documents == pytest.approx(DOCUMENTS, rel=0.15)
    if kind != "parquet":
        plain = sum(len(json.dumps(row)) + 1 for row in rows())
        assert found.output_bytes == pytest.approx(plain, rel=0.15), "JSONL is written without compression"
    assert not (tmp_path / "out").exists()


def test_files_that_are_unlike_each_other_count_by_their_size(tmp_path: Path) -> None:
    source = tmp_path / "in"
    source.mkdir()
    documents, rng = 0, np.random.default_rng(2)
    for number in range(2 * SPOTS):
        # Every third file has many short documents, as dictionaries do; every other one is compressed.
        count, words = (400, 3) if number % 3 == 0 else (5, 400)
        texts = [" ".join(map(str, rng.integers(0, 10**6, words))) for _ in range(count)]
        lines = "".join(json.dumps({"text": text}) + "\n" for text in texts)
        name, content = f"{number:03}.jsonl", lines.encode()
        packed = number % 2 == 0
        (source / (name + ".gz" if packed else name)).write_bytes(gzip.compress(content) if packed else content)
        documents += count
    found = ExactDeduplicationWorkflow(str(tmp_path / "out"), str(source), input_blocksize="1KB").plan(here())
    assert found.partitions > SPOTS
    assert found.documents == pytest.approx(documents, rel=0.3)


def test_intermediate_files_are_forecast(tmp_path: Path) -> None:
    source = write(tmp_path, "jsonl")
    for kind, workflow in (("exact", ExactDeduplicationWorkflow), ("fuzzy", FuzzyDeduplicationWorkflow)):
        found = workflow(input_path=str(source), output_path=str(tmp_path / kind / "out")).plan(here())
        (tmp_path / kind).mkdir(exist_ok=True)
        (tmp_path / kind / "in").symlink_to(source)
        deduplicate(tmp_path / kind, kind)
        steps = tmp_path / kind / "out.gristmill" / "steps"
        written = sum(path.stat().st_size for path in steps.rglob("*.arrow"))
        assert 0.5 * written < found.steps_bytes < 2.5 * written


def test_how_far_a_file_expands(tmp_path: Path) -> None:
    write(tmp_path, "jsonl.gz")
    path = tmp_path / "in" / "a.jsonl.gz"
    true = len(gzip.decompress(path.read_bytes())) / path.stat().st_size
    assert expansion(str(path)) == pytest.approx(true, rel=0.02)
    assert expansion("a.jsonl") == 1.0
    path.write_bytes(path.read_bytes()[:2000] + b"damage")
    assert expansion(str(path)) > 1


Usage = namedtuple("Usage", "total used free")


def test_what_does_not_fit_on_the_disk_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = write(tmp_path, "jsonl")
    size = (source / "a.jsonl").stat().st_size
    monkeypatch.setattr(forecasts.shutil, "disk_usage", lambda path: Usage(0, 0, size + 1000))
    with pytest.raises(OutputError, match=r"intermediate\) to .*out, but that disk has"):
        ExactDeduplicationWorkflow(str(tmp_path / "out"), str(source)).plan(here())
    monkeypatch.setattr(forecasts.shutil, "disk_usage", lambda path: Usage(0, 0, 10 * size))
    assert "free disk" in str(ExactDeduplicationWorkflow(str(tmp_path / "out"), str(source)).plan(here()))


def test_each_disk_is_asked_for_what_goes_there() -> None:
    found = forecasts.Forecast(100, 10, 500, 100, 10, 0, 1.0, None, 1)
    small, large = forecasts.FreeSpace("small", 1, 200), forecasts.FreeSpace("large", 2, 1000)
    found.check(large, small, None)
    with pytest.raises(OutputError, match="to small, but"):
        found.check(small, large, None)
    with pytest.raises(OutputError, match="of it intermediate"):
        found.check(small, small, None)
    found.check(forecasts.FreeSpace("s3://bucket"), forecasts.FreeSpace("s3://bucket"), None)


def test_what_does_not_fit_into_memory_is_refused(tmp_path: Path) -> None:
    source = write(tmp_path, "jsonl")
    executor = LocalExecutor({"num_cpus": 0, "memory_budget": "400MB"})
    workflow = FuzzyDeduplicationWorkflow(input_path=str(source), output_path=str(tmp_path / "out"))
    assert workflow.plan(executor).growing_bytes < 10**6
    workflow.memory_per_document = 10**6
    with pytest.raises(PlanningError, match=r"needs at least 3\.\d GB of memory .* but has 400\.0 MB"):
        workflow.plan(executor)


def test_semantic_forecasts_count_the_search(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    vectors = np.random.default_rng(1).standard_normal((400, 16))
    table = pa.table({"id": [f"d{row}" for row in range(400)], "embeddings": vectors.tolist()})
    pq.write_table(table, tmp_path / "in" / "a.parquet")
    workflow = SemanticDeduplicationWorkflow(str(tmp_path / "in"), str(tmp_path / "out"), eps=0.05)
    found = workflow.plan(here())
    assert found.documents == 400
    assert "search: 20 clusters" in str(found)
