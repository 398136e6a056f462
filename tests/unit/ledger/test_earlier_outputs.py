"""Outputs of version 0.1, whose plans have no format number: they can be verified, asked, decided again and resumed.

`tests/data/ledger-0.1` holds the input and what a run of `_job` left, with all scores and with the decisive ones.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from gristmill.errors import ResumeError, UnknownNameError, UsageError
from gristmill.ledger import Ledger
from gristmill.ledger.prove.verify import verify
from gristmill.ledger.record.earlier_names import earlier_name
from gristmill.ledger.record.manifest import Manifest
from gristmill.ledger.record.plan_record import plan_digest
from gristmill.pipeline import Pipeline, describe
from gristmill.recipes.registry import all_registered, registered
from gristmill.stages.text.filters import (
    C4Quality,
    GopherQuality,
    MeanWordLengthFilter,
    Score,
    ScoreFilter,
    WordCountFilter,
)
from gristmill.stages.text.io import JsonlReader, JsonlWriter
from gristmill.stages.text.modifiers import Modify, UrlRemover
from gristmill.stages.text.modules.add_id import AddId
from tests.unit.pipeline.jobs import here

DATA = Path(__file__).resolve().parents[2] / "data" / "ledger-0.1"


@pytest.fixture
def earlier(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the input and the outputs, as that version left them."""
    shutil.copytree(DATA, tmp_path / "0.1")
    entry = json.loads((DATA / "all" / "_gristmill" / "manifest" / "a.json").read_text())
    stamp = int(entry["source"][0]["stamp"])
    for path in (tmp_path / "0.1" / "in").iterdir():
        os.utime(path, ns=(stamp, stamp))
    monkeypatch.setattr(describe, "__version__", "0.1.0")  # another version of the package is another plan
    return tmp_path / "0.1"


def _job(folder: Path, out: str, *, min_words: int = 4) -> Pipeline:
    return Pipeline(
        "example",
        stages=[
            JsonlReader(str(folder / "in"), files_per_partition=1),
            ScoreFilter(WordCountFilter(min_words=min_words)),
            Modify(UrlRemover()),
            Score(WordCountFilter(), score_field="words").with_(name="words"),
            ScoreFilter(MeanWordLengthFilter(min_mean_word_length=3)),
            AddId("number"),
            JsonlWriter(str(folder / out)),
        ],
    )


@pytest.mark.parametrize("scores", ["all", "decisive"])
def test_it_can_be_verified(earlier: Path, scores: str) -> None:
    report = verify(earlier / scores)
    report.raise_for_problems()
    assert (report.rows_read, report.rows_written, report.rows_dropped, report.rows_quarantined) == (13, 7, 5, 1)


@pytest.mark.parametrize("scores", ["all", "decisive"])
def test_it_can_be_asked(earlier: Path, scores: str) -> None:
    ledger = Ledger(earlier / scores)
    assert ledger.why("d7").status == "kept"
    assert "dropped by stage 'word_count': too_few_words (score 1, threshold 4)" in str(ledger.why("d0"))
    assert ledger.why("a#3").status == "quarantined"
    assert ledger.why("nobody").status == "never seen"


def test_it_can_be_decided_again(earlier: Path) -> None:
    found = Ledger(earlier / "all").rethreshold({"word_count": {"lower": 2}})
    assert found.counts() == {"kept": 8, "dropped": 4, "quarantined": 1}
    _job(earlier, "now").run(executor=here(), scores="all")
    for name in ("word_count", "WordCountFilter"):  # either name, whichever the record has
        assert Ledger(earlier / "all").rethreshold({name: {"lower": 2}}).frame.equals(found.frame)
        now = Ledger(earlier / "now").rethreshold({name: {"lower": 2}}).frame
        stages = pl.col("stage", "stage_before").replace(
            {"WordCountFilter": "word_count", "MeanWordLengthFilter": "mean_word_length"}
        )
        assert now.with_columns(stages).equals(found.frame)
    with pytest.raises(UsageError, match="decisive"):
        Ledger(earlier / "decisive").rethreshold({})


@pytest.mark.parametrize("scores", ["all", "decisive"])
def test_it_can_be_resumed(earlier: Path, scores: str) -> None:
    assert _job(earlier, scores).run(executor=here(), scores=scores).report.partitions_done_before == 2
    verify(earlier / scores).raise_for_problems()
    with pytest.raises(ResumeError, match="parameter min_words changed from 4 to 5"):
        _job(earlier, scores, min_words=5).run(executor=here(), scores=scores)


def test_what_is_left_of_it_is_done_by_this_version(earlier: Path) -> None:
    (earlier / "all" / "b.jsonl").unlink()
    assert _job(earlier, "all").run(executor=here(), scores="all").report.partitions_done_before == 1
    verify(earlier / "all").raise_for_problems()
    for name in ("b.jsonl", "_gristmill/ledger/b.parquet", "_gristmill/ledger/b.scores.parquet"):
        before = (DATA / "all" / name).read_bytes()
        if name == "b.jsonl":  # a count was written as a float then
            before = re.sub(rb'"words":(\d+)\.0', rb'"words":\1', before)
        assert (earlier / "all" / name).read_bytes() == before, name


def test_the_names_of_its_filters_are_known(earlier: Path, tmp_path: Path) -> None:
    """A run that resumes it keeps them, so that its record has one name for each; a new output has the classes'."""
    for stage in (earlier / "all" / "b.jsonl", earlier / "decisive" / "b.jsonl"):
        stage.unlink()
    resumed = _job(earlier, "all")
    report = resumed.run(executor=here(), scores="all").report
    assert [stage.name for stage in report.stages][1:4] == ["word_count", "UrlRemover", "words"]
    assert resumed.stages[1].name == "WordCountFilter"  # the pipeline itself stays as it is
    assert resumed.run(executor=here(), scores="all").report.partitions_done_before == 2
    fresh = _job(earlier, "all").run(executor=here(), scores="all", fresh=True).report
    assert [stage.name for stage in fresh.stages][1:4] == ["WordCountFilter", "UrlRemover", "words"]
    assert Ledger(earlier / "decisive").diff(earlier / "all").counts() == {}


def test_every_built_in_filter_is_called_as_its_class_is() -> None:
    needed: dict[str, dict[str, Any]] = {
        "FastTextQualityFilter": {"model_path": "m.bin"},
        "GeneralCommentToCodeFilter": {"language": "text/x-python"},
        "PerExtensionFilter": {"lang": "python", "extension": "py"},
        "SubstringFilter": {"substring": "x", "position": "any"},
        "TokenCountFilter": {"tokenizer": "t.json"},
        "TokenizerFertilityFilter": {"path_to_tokenizer": "t.model"},
    }
    for entry in all_registered():
        if entry.kind == "filter":
            name = entry.load()(**needed.get(entry.name, {})).name
            assert name.partition("_")[0] == entry.name
            # One that is called otherwise than before has an earlier name; two had their class's from the beginning.
            assert (earlier_name(name) == name) == (name in ("PornographicUrlsFilter", "SubstringFilter"))
    assert GopherQuality().name == "GopherQuality"
    assert C4Quality().name == "C4Quality"
    with pytest.raises(UnknownNameError, match=r"named 'word_count'\. Did you mean 'WordCountFilter'\?"):
        registered("word_count")


def test_a_class_may_have_moved_since(earlier: Path) -> None:
    """Entries carry the digest of the plan as it was written, in which classes have the modules of that time."""
    place = earlier / "all" / "_gristmill" / "plan.json"
    text = place.read_text()
    assert "text.filters.score_filter.ScoreFilter" in text
    place.write_text(text.replace("text.filters.score_filter.ScoreFilter", "text.filters.elsewhere.ScoreFilter"))
    plan = json.loads(place.read_text())
    for entry in Manifest(str(earlier / "all")).ordered():
        Manifest(str(earlier / "all")).add(replace(entry, plan=plan_digest(plan)))
    assert "2 of 2" in _job(earlier, "all").explain(executor=here(), scores="all")
    assert _job(earlier, "all").run(executor=here(), scores="all").report.partitions_done_before == 2
    verify(earlier / "all").raise_for_problems()
    with pytest.raises(ResumeError) as caught:
        _job(earlier, "all", min_words=5).run(executor=here(), scores="all")
    assert "ScoreFilter" not in str(caught.value)


def test_a_stage_says_what_it_is() -> None:
    filtering, modifying = ScoreFilter(WordCountFilter()), Modify(UrlRemover())
    told = [describe.describe_stage(stage) for stage in (filtering, modifying)]
    assert [(stage["role"], stage["never_drops"]) for stage in told] == [("score_filter", False), ("", True)]
