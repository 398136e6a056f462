"""`scores="all"`: every filter scores every document, whatever was dropped before it, on any number of workers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import polars as pl
import pytest
from polars.testing import assert_frame_equal

from gristmill.backends.local import LocalExecutor
from gristmill.ledger import Ledger
from gristmill.ledger.prove.verify import verify
from gristmill.pipeline import Pipeline
from gristmill.stages.resources import Resources
from gristmill.stages.text.filters import (
    DocumentFilter,
    Filter,
    MeanWordLengthFilter,
    NumbersFilter,
    Score,
    ScoreFilter,
    WordCountFilter,
)
from gristmill.stages.text.filters.heuristic import NonAlphaNumericFilter
from gristmill.stages.text.io import JsonlReader, JsonlWriter
from gristmill.stages.text.modifiers import Modify, UrlRemover
from gristmill.stages.text.modules import AddId
from tests.contract import equality_stages as mine
from tests.outputs import contents_of, files_of
from tests.unit.pipeline.jobs import write_lines

APART = Resources(cpus=0.5)


class Length(DocumentFilter):
    """A filter written in Python."""

    def __init__(self, least: int) -> None:
        super().__init__()
        self._name = "length"
        self.least = least

    def score_document(self, text: str) -> float:
        return float(len(text))

    def keep_document(self, score: float) -> bool:
        return score >= self.least


class Thirds(DocumentFilter):
    def __init__(self) -> None:
        super().__init__()
        self._name = "thirds"

    def score_document(self, text: str) -> float:
        return float(len(text) % 3)

    def keep_document(self, score: float) -> bool:
        return True


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("documents")
    for file in range(3):
        rows = []
        for row in range(40):
            number = file * 40 + row
            words = " ".join("word" * (number % 4 + 1) for _ in range(number % 9 + 1))
            rows.append({"id": f"d{number}", "n": number, "text": f"{words} {number} https://example.org/{number} !?"})
        if file == 1:
            rows = [{**row, "text": "x 1 https://example.org/1"} for row in rows]  # all of it goes at the first filter
        write_lines(folder / f"{file}.jsonl", rows)
    return folder


def _stages(*, strict: bool) -> list[Any]:
    """Filters with modifiers, a writer of columns and a border of workers between them."""
    pair = [MeanWordLengthFilter(min_mean_word_length=5 if strict else 0, max_mean_word_length=99), Length(strict * 60)]
    return [
        ScoreFilter(WordCountFilter(min_words=6 if strict else 0)),
        ScoreFilter(pair).with_(name="pair"),
        Modify(UrlRemover()),
        AddId("own"),
        ScoreFilter(NumbersFilter(max_number_to_text_ratio=0.03 if strict else 1), score_field="digits").with_(
            resources=APART
        ),
        Score(Thirds(), score_field="thirds").with_(resources=APART),
        Filter(lambda value: not strict or value < 0.02, filter_field="digits").with_(name="few_digits"),
        ScoreFilter(NonAlphaNumericFilter(max_non_alpha_numeric_to_text_ratio=0.2 if strict else 1)),
    ]


def _run(source: Path, output: Path, stages: list[Any], **config: Any) -> Any:
    pipeline = Pipeline("scores", stages=[JsonlReader(str(source)), *stages, JsonlWriter(str(output))])
    executor = LocalExecutor(config={"num_cpus": 0, **config})
    report = pipeline.run(executor=executor, scores="all", progress=False).report
    checked = verify(str(output))
    assert checked.ok, checked
    return report


def _scores(output: Path) -> pl.DataFrame:
    order = ["partition", "stage", "score", "row"]
    return Ledger(str(output)).scores().sort(order)


def test_every_document_has_every_score_of_the_text_it_would_have_had(source: Path, tmp_path: Path) -> None:
    strict = _run(source, tmp_path / "strict", _stages(strict=True))
    loose = _run(source, tmp_path / "loose", _stages(strict=False))
    assert loose.dropped == 0
    assert strict.rows_written > 0
    assert all(stage.dropped for stage in strict.stages if stage.name in ("WordCountFilter", "pair", "NumbersFilter"))
    expected = _scores(tmp_path / "loose")
    assert expected["score"].n_unique() == 7
    assert len(expected) == 7 * 120
    assert_frame_equal(_scores(tmp_path / "strict"), expected)


def test_other_thresholds_are_decided_as_a_run_with_them_would(source: Path, tmp_path: Path) -> None:
    def stages(least: int, most: float) -> list[Any]:
        return [
            ScoreFilter(WordCountFilter(min_words=least)),
            Modify(UrlRemover()),
            ScoreFilter(NumbersFilter(max_number_to_text_ratio=most)),
            ScoreFilter(NonAlphaNumericFilter(max_non_alpha_numeric_to_text_ratio=0.2)),
        ]

    _run(source, tmp_path / "strict", stages(8, 0.01))
    _run(source, tmp_path / "other", stages(3, 0.05))
    recut = Ledger(str(tmp_path / "strict")).rethreshold({"WordCountFilter": {"lower": 3}, "NumbersFilter": 0.05})
    again = Ledger(str(tmp_path / "other")).rethreshold({})
    columns = ["partition", "row", "status", "stage", "score", "threshold"]
    assert "undecided" not in recut.counts()
    assert len(recut.counts()) == 2
    assert_frame_equal(recut.frame.select(columns), again.frame.select(columns))


@pytest.mark.parametrize("config", [{"num_cpus": 2}, {"num_cpus": 2, "execution_mode": "batch"}])
def test_the_same_on_workers(source: Path, tmp_path: Path, config: dict[str, Any]) -> None:
    _run(source, tmp_path / "here", _stages(strict=True))
    _run(source, tmp_path / "there", _stages(strict=True), **config)
    assert contents_of(tmp_path / "here") == contents_of(tmp_path / "there")


def test_the_output_is_that_of_a_run_with_decisive_scores(source: Path, tmp_path: Path) -> None:
    _run(source, tmp_path / "all", _stages(strict=True))
    writer = JsonlWriter(str(tmp_path / "decisive"))
    Pipeline("scores", stages=[JsonlReader(str(source)), *_stages(strict=True), writer]).run(
        executor=LocalExecutor(config={"num_cpus": 0}), progress=False
    )
    decisive = files_of(tmp_path / "decisive")
    for name, path in files_of(tmp_path / "all").items():
        if name.startswith("record/ledger/") or "/" not in name:
            assert ".scores." in name or path.read_bytes() == decisive[name].read_bytes(), name


def test_user_code_ends_it_unless_it_says_that_it_takes_documents_one_by_one(source: Path, tmp_path: Path) -> None:
    class Shout(mine.Frames):
        name = "shout"

        def process(self, task: Any) -> Any:
            from gristmill.tasks import DocumentBatch

            frame = task.to_polars()
            assert "d7" not in frame["id"].to_list() or type(self).for_dropped == "run"
            if "d8" in frame["id"].to_list():
                raise ValueError("cannot be scored")
            return DocumentBatch(data=frame.with_columns(pl.col("text") + "!"))

    class RowWise(Shout):
        for_dropped = "run"

    first = ScoreFilter(WordCountFilter(min_words=60)).with_(name="first")
    last = ScoreFilter(WordCountFilter(min_words=0)).with_(name="last")
    stop = _run(source, tmp_path / "stop", [first, Shout(), last])
    run = _run(source, tmp_path / "run", [first, RowWise(), last])
    stopped, followed = (_scores(tmp_path / name).filter(pl.col("stage") == "last") for name in ("stop", "run"))
    assert len(stopped) == 0
    # All but the one that the stage cannot handle; it was dropped, so that the run need not fail for it.
    assert len(followed) == 119
    recut = Ledger(str(tmp_path / "stop")).rethreshold({"first": {"lower": 0}})
    assert recut.counts() == {"undecided": 120}
    # What is missing is said before the run, in its report, by the new decisions and for each document.
    assert "120 undecided" in str(recut)
    assert "only a run can decide at 'shout'" in str(recut)
    note = "scores='all': 'last' cannot score what was dropped before 'shout'"
    assert [text for text in stop.notes if note in text]
    assert run.notes == ()
    why = {name: str(Ledger(str(tmp_path / name)).why("d7")) for name in ("stop", "run")}
    assert "not scored by 'last': stage 'shout' before them does not receive dropped documents" in why["stop"]
    assert "not scored" not in why["run"]
