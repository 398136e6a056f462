"""Other thresholds lead to the same decisions as a run with them; texts are found again and compared."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from click.testing import CliRunner

from gristmill.cli.main import cli
from gristmill.errors import UnknownNameError, UsageError
from gristmill.ledger.ask.ledger import Ledger
from gristmill.pipeline import Pipeline
from gristmill.stages.base import ProcessingStage
from gristmill.stages.text.filters import (
    DocumentFilter,
    MeanWordLengthFilter,
    NonAlphaNumericFilter,
    ScoreFilter,
    WordCountFilter,
)
from gristmill.stages.text.io import JsonlReader, JsonlWriter, ParquetWriter
from gristmill.stages.text.modifiers import Modify
from gristmill.tasks import DocumentBatch
from tests.unit.pipeline.jobs import here, read_rows, write_lines


class Vowels(DocumentFilter):
    """A filter in Python."""

    def __init__(self, least: float) -> None:
        super().__init__()
        self._name = "vowels"
        self.least = least

    def score_document(self, text: str) -> float:
        return sum(text.count(letter) for letter in "aeiou") / max(len(text), 1)

    def keep_document(self, score: float) -> bool:
        return score >= self.least


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory, shared_data: Path) -> Path:
    """Real documents in two files."""
    folder = tmp_path_factory.mktemp("recut") / "in"
    rows = []
    for name in ("c4", "dict_devil", "dict_jargon"):
        with gzip.open(shared_data / "texts" / f"{name}.jsonl.gz", "rt", encoding="utf-8") as file:
            for number, line in zip(range(250), file, strict=False):
                rows.append({"id": f"{name}-{number}", "text": json.loads(line)["text"]})
    write_lines(folder / "a.jsonl", rows[:400])
    write_lines(folder / "b.jsonl", rows[400:])
    return folder


def _run(
    source: Path, output: Path, *, words: int, length: float, symbols: float, vowels: float, **options: Any
) -> Ledger:
    stages = [
        ScoreFilter(WordCountFilter(min_words=words, max_words=2000)),
        ScoreFilter(MeanWordLengthFilter(min_mean_word_length=length)),
        ScoreFilter(NonAlphaNumericFilter(max_non_alpha_numeric_to_text_ratio=symbols)),
        ScoreFilter(Vowels(vowels)),
    ]
    pipeline = Pipeline("cut", stages=[JsonlReader(str(source)), *stages, JsonlWriter(str(output))])
    pipeline.run(executor=here(), **options)
    return Ledger(output)


def _decided(ledger: Ledger) -> pl.DataFrame:
    """What a real run decided, as the frame of a recut."""
    frame = ledger.frame().select("partition", "row", "outcome", "stage", "score", "threshold")
    return frame.sort("partition", "row")


FIRST = {"words": 30, "length": 3.0, "symbols": 0.25, "vowels": 0.2}


@pytest.fixture(scope="module")
def ledger(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Ledger:
    return _run(source, tmp_path_factory.mktemp("all") / "out", **FIRST, scores="all")


def test_every_score_of_every_document_is_there(ledger: Ledger) -> None:
    scores = ledger.scores()
    read = sum(entry.rows_read for entry in ledger.entries().values())
    by_stage = dict(scores.group_by("stage").len().iter_rows())
    assert (
        by_stage["WordCountFilter"]
        == by_stage["MeanWordLengthFilter"]
        == by_stage["NonAlphaNumericFilter"]
        == read
        > 500
    )
    # Also the filter written in Python, behind those that dropped most of them.
    assert by_stage["vowels"] == read
    # The decisive scores are among them.
    joined = ledger.frame().join(scores, on=["partition", "row", "stage"], suffix="_all")
    assert len(joined) == len(ledger.frame())
    np.testing.assert_array_equal(joined["score"].to_numpy(), joined["value"].to_numpy())


def test_the_bounds_of_the_run_give_the_run(ledger: Ledger) -> None:
    recut = ledger.rethreshold({"vowels": {"lower": 0.2}})
    assert len(recut.changed) == 0
    assert recut.counts()["kept"] == sum(entry.rows_written for entry in ledger.entries().values())


@pytest.mark.parametrize(
    ("thresholds", "new"),
    [
        ({"WordCountFilter": {"lower": 60}}, {"words": 60}),
        ({"MeanWordLengthFilter": {"lower": 4.2}, "NonAlphaNumericFilter": 0.22}, {"length": 4.2, "symbols": 0.22}),
        ({"vowels": {"lower": 0.27}}, {"vowels": 0.27}),
        ({"WordCountFilter": {"lower": 80}, "vowels": {"lower": 0.3}}, {"words": 80, "vowels": 0.3}),
    ],
)
def test_stricter_thresholds_equal_a_run(
    ledger: Ledger, source: Path, tmp_path: Path, thresholds: dict[str, Any], new: dict[str, float]
) -> None:
    recut = ledger.rethreshold(thresholds)
    real = _run(source, tmp_path / "out", **{**FIRST, **new})  # type: ignore[arg-type]
    assert "undecided" not in recut.counts()
    assert len(recut.changed) > 0
    gone = recut.frame.filter(pl.col("status") != "kept").sort("partition", "row")
    expected = _decided(real)
    assert gone.select("partition", "row", "stage", "score").equals(
        expected.select("partition", "row", "stage", "score")
    )
    told = gone.filter(pl.col("stage") != "vowels")["threshold"].to_list()
    assert told == expected.filter(pl.col("stage") != "vowels")["threshold"].to_list()


def test_looser_thresholds_equal_a_run(ledger: Ledger, source: Path, tmp_path: Path) -> None:
    """A document that passes now was scored by the later filters too, built in or written in Python."""
    recut = ledger.rethreshold({"WordCountFilter": {"lower": 10}, "vowels": {"lower": 0.2}})
    real = _decided(_run(source, tmp_path / "out", **{**FIRST, "words": 10}))  # type: ignore[arg-type]
    assert set(recut.counts()) == {"kept", "dropped"}
    gone = recut.frame.filter(pl.col("status") == "dropped").sort("partition", "row")
    assert gone.select("partition", "row", "stage", "score").equals(real.select("partition", "row", "stage", "score"))
    assert "kept" in set(recut.changed["status"])


def test_built_in_filters_alone_can_be_recut_both_ways(source: Path, tmp_path: Path) -> None:
    def run(name: str, words: int, length: float, **options: Any) -> Ledger:
        filters = [ScoreFilter(WordCountFilter(min_words=words)), ScoreFilter(MeanWordLengthFilter(length))]
        pipeline = Pipeline("cut", stages=[JsonlReader(str(source)), *filters, JsonlWriter(str(tmp_path / name))])
        pipeline.run(executor=here(), **options)
        return Ledger(tmp_path / name)

    recut = run("a", 50, 4.5, scores="all").rethreshold(
        {"WordCountFilter": {"lower": 5}, "MeanWordLengthFilter": {"lower": 4.0}}
    )
    real = _decided(run("b", 5, 4.0))
    assert set(recut.counts()) == {"kept", "dropped"}
    gone = recut.frame.filter(pl.col("status") == "dropped").sort("partition", "row")
    assert gone.select("partition", "row", "stage", "score").equals(real.select("partition", "row", "stage", "score"))
    assert set(recut.changed["status_before"]) == {"dropped"}


def test_what_cannot_be_recut_is_refused(ledger: Ledger, source: Path, tmp_path: Path) -> None:
    with pytest.raises(UnknownNameError, match="Did you mean 'WordCountFilter'"):
        ledger.rethreshold({"WordCount": 3})
    with pytest.raises(UsageError, match="two bounds"):
        ledger.rethreshold({"WordCountFilter": 3})
    with pytest.raises(UsageError, match="no bounds that are recorded"):
        ledger.rethreshold({"vowels": 3})
    with pytest.raises(UsageError, match="'least'"):
        ledger.rethreshold({"vowels": {"least": 3}})
    with pytest.raises(UsageError, match="--scores all"):
        _run(source, tmp_path / "out", **FIRST).rethreshold({"vowels": {"lower": 1}})


# --- texts ---


class Twins(ProcessingStage[DocumentBatch, DocumentBatch]):
    """Drops documents that begin as an earlier one does."""

    name = "twins"

    def process(self, task: DocumentBatch) -> DocumentBatch:
        first: dict[str, str] = {}
        survivors, gone = [], []
        names = task.text("id").to_pylist()
        for name, text in zip(names, task.column("text").to_pylist(), strict=True):
            known = first.setdefault(text[:8], name)
            gone.append(known != name)
            survivors.append(known)
        alike = np.full(len(gone), 0.9)
        return task.drop(
            np.array(gone), reason="near_duplicate", outcome="duplicate", survivors=survivors, similarity=alike
        )


def trimmed(text: str) -> str:
    return text.rstrip("!")


TEXTS = [
    {"id": "a", "text": "The same beginning. And the first end.!!"},
    {"id": "b", "text": "The same beginning. And another end."},
    {"id": "c", "text": "Something else"},
]


@pytest.mark.parametrize("writer", [JsonlWriter, ParquetWriter])
def test_a_duplicate_is_shown_beside_its_survivor(tmp_path: Path, writer: Any) -> None:
    write_lines(tmp_path / "in" / "a.jsonl", TEXTS)
    stages = [Modify(trimmed, input_fields="text"), Twins()]
    reader = JsonlReader(str(tmp_path / "in"))
    Pipeline("twins", stages=[reader, *stages, writer(str(tmp_path / "out"))]).run(executor=here())
    ledger = Ledger(tmp_path / "out")
    answer = ledger.why("b")
    assert answer.status == "duplicate"
    assert answer.documents[0].decisions[0].survivor == "a"
    diff = ledger.text_diff(answer.documents[0])
    assert diff is not None
    assert [line for line in diff.lines if line[0] in "+-"][2:] == ["-And another end.", "+And the first end."]
    shown = CliRunner().invoke(cli, ["why", str(tmp_path / "out"), "b"])
    assert shown.exit_code == 0, shown.output
    assert "the survivor is 'a', similarity 0.9" in shown.output
    assert "-And another end." in shown.output
    assert "+And the first end." in shown.output
    short = CliRunner().invoke(cli, ["why", str(tmp_path / "out"), "b", "--no-diff"])
    assert "similarity 0.9" in short.output
    assert "another end" not in short.output
    # A kept document that was changed is shown beside what came out, if asked for.
    assert "-And" not in CliRunner().invoke(cli, ["why", str(tmp_path / "out"), "a"]).output
    changed = CliRunner().invoke(cli, ["why", str(tmp_path / "out"), "a", "--diff"])
    assert "removed 2 characters in 'text'" in changed.output
    assert "-And the first end.!!" in changed.output
    assert "+And the first end." in changed.output
    told = json.loads(CliRunner().invoke(cli, ["why", str(tmp_path / "out"), "b", "--diff", "--json"]).stdout)
    assert told["diffs"][0]["equal"] is False
    assert ledger.text_diff(ledger.why("c").documents[0]) is None
    (tmp_path / "in" / "a.jsonl").unlink()
    gone = CliRunner().invoke(cli, ["why", str(tmp_path / "out"), "b"])
    assert gone.exit_code == 0
    assert "can no longer be read" in gone.output


# --- two runs ---


def test_two_runs_on_the_command_line(source: Path, tmp_path: Path, ledger: Ledger) -> None:
    other = _run(source, tmp_path / "other", **{**FIRST, "words": 60})  # type: ignore[arg-type]
    found = ledger.diff(other)
    shown = CliRunner().invoke(cli, ["diff", ledger.folder.path, str(tmp_path / "other"), "--limit", "3"])
    assert shown.exit_code == 1
    assert f"{found.counts()['left']} removed" in shown.output
    assert "→ dropped by WordCountFilter: too_few_words" in shown.output
    assert "more (--limit)" in shown.output
    told = json.loads(CliRunner().invoke(cli, ["diff", ledger.folder.path, str(tmp_path / "other"), "--json"]).stdout)
    assert told["changes"] == found.counts()
    assert told["same"] + sum(told["changes"].values()) == sum(entry.rows_read for entry in ledger.entries().values())
    left = len(read_rows(Path(ledger.folder.path))) - len(read_rows(tmp_path / "other"))
    assert found.counts()["left"] == left
    same = CliRunner().invoke(cli, ["diff", ledger.folder.path, ledger.folder.path])
    assert same.exit_code == 0
    assert "unchanged (matched by" in same.output


@pytest.mark.parametrize("writer", [JsonlWriter, ParquetWriter])
def test_a_text_is_shown_as_it_is_beside_records_of_other_kinds(tmp_path: Path, writer: Any) -> None:
    write_lines(tmp_path / "in" / "a.jsonl", [*TEXTS, {"id": 7, "text": 5}, {"id": '"q"', "text": "ends so!"}])
    clean = Modify(lambda value: trimmed(value) if isinstance(value, str) else value * 10)
    stages = [JsonlReader(str(tmp_path / "in")), clean, writer(str(tmp_path / "out"))]
    Pipeline("odd", stages=stages).run(executor=here())
    ledger = Ledger(tmp_path / "out")
    for name, expected in (
        ("a", ["-And the first end.!!", "+And the first end."]),
        ('"q"', ["-ends so!", "+ends so"]),
    ):
        (document,) = ledger.why(name).documents
        assert [(change.stage, change.field) for change in document.changes] == [(clean.name, "text")]
        diff = ledger.text_diff(document)
        assert diff is not None
        assert not diff.notes
        assert [line for line in diff.lines if line[0] in "+-"][2:] == expected
    assert ledger.why("7").kept
