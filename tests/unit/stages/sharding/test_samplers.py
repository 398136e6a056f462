"""Samplers: exact numbers, drawn at random, the same for any cut of the input into batches and workers."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from gristmill.backends.local import LocalExecutor
from gristmill.errors import MissingColumnError, PlanningError, StageDefinitionError, UsageError
from gristmill.ledger.prove.verify import verify
from gristmill.pipeline import Pipeline
from gristmill.recipes import load_recipe
from gristmill.stages.sharding import ReservoirSampler, StratifiedSampler, samplers
from gristmill.stages.text.filters import ScoreFilter, WordCountFilter
from gristmill.stages.text.io.reader import JsonlReader
from gristmill.stages.text.io.writer import JsonlWriter
from gristmill.tasks.document import DocumentBatch
from tests.unit.stages.sharding.jobs import contents, lines_of, records, write


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("source")
    for name in ("a", "b"):
        rows = records(name, 100, lang=lambda at: "en" if at % 10 else ("de" if at % 20 else None))
        write(folder, name, rows)
    return folder


def sample(source: Path, output: Path, *stages: Any, **options: Any) -> Any:
    reader = JsonlReader(str(source), blocksize=options.pop("blocksize", None))
    pipeline = Pipeline("sample", stages=[reader, *stages, JsonlWriter(str(output))])
    return pipeline.run(LocalExecutor({"num_cpus": 0}), progress=False, **options)


def languages(output: Path) -> Counter[str | None]:
    return Counter(json.loads(line)["lang"] for line in lines_of(output))


def test_a_reservoir_holds_exactly_so_many(source: Path, tmp_path: Path) -> None:
    result = sample(source, tmp_path / "out", ReservoirSampler(37))
    assert len(lines_of(tmp_path / "out")) == 37
    assert result.report.dropped == 163
    assert verify(str(tmp_path / "out")).problems == []
    sample(source, tmp_path / "all", ReservoirSampler(1000))
    assert len(lines_of(tmp_path / "all")) == 200


def test_another_seed_gives_another_sample(source: Path, tmp_path: Path) -> None:
    for seed in (1, 2):
        sample(source, tmp_path / str(seed), ReservoirSampler(50, seed=seed))
    sample(source, tmp_path / "again", ReservoirSampler(50, seed=1))
    assert contents(tmp_path / "1") == contents(tmp_path / "again")
    assert contents(tmp_path / "1") != contents(tmp_path / "2")


def test_strata_are_sampled_alike(source: Path, tmp_path: Path) -> None:
    sample(source, tmp_path / "count", StratifiedSampler("lang", count=7))
    assert languages(tmp_path / "count") == {"en": 7, "de": 7, None: 7}
    sample(source, tmp_path / "share", StratifiedSampler("lang", fraction=0.1))
    assert languages(tmp_path / "share") == {"en": 18, "de": 1, None: 1}


def test_samplers_work_between_other_stages(source: Path, tmp_path: Path) -> None:
    long = ScoreFilter(WordCountFilter(min_words=12))
    sample(source, tmp_path / "out", long, ReservoirSampler(20), StratifiedSampler("lang", count=5))
    found = [json.loads(line) for line in lines_of(tmp_path / "out")]
    assert all(len(row["text"].split()) >= 12 for row in found)
    assert max(languages(tmp_path / "out").values()) <= 5


def test_a_sampler_in_a_recipe(source: Path, tmp_path: Path) -> None:
    recipe = tmp_path / "sample.yaml"
    recipe.write_text(
        f"name: sample\nstages:\n- JsonlReader: {{file_paths: {source}}}\n"
        f"- StratifiedSampler: {{field: lang, count: 3}}\n- JsonlWriter: {{path: {tmp_path / 'out'}}}\n"
    )
    load_recipe(str(recipe)).pipeline().run(LocalExecutor({"num_cpus": 0}), progress=False)
    assert languages(tmp_path / "out") == {"en": 3, "de": 3, None: 3}


def test_too_many_strata_are_refused(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(samplers, "_MOST_STRATA", 2)
    with pytest.raises(PlanningError, match="'lang' has more than 2 different values"):
        sample(source, tmp_path / "out", StratifiedSampler("lang", count=7))


def test_what_cannot_work_is_refused(source: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="count=0"):
        ReservoirSampler(0)
    with pytest.raises(UsageError, match="either count or fraction"):
        StratifiedSampler("lang")
    with pytest.raises(UsageError, match="fraction=2"):
        StratifiedSampler("lang", fraction=2)
    with pytest.raises(MissingColumnError):
        sample(source, tmp_path / "out", StratifiedSampler("language", count=7))
    with pytest.raises(StageDefinitionError, match="counts all documents"):
        ReservoirSampler(5).process(DocumentBatch())
