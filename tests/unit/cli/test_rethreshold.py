"""`gristmill rethreshold`: in the names of the user's parameters, which filters declare."""

from __future__ import annotations

import inspect
import json
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from click.testing import CliRunner, Result

from gristmill.cli.main import cli
from gristmill.errors import GristmillError
from gristmill.ledger.ask.ledger import Ledger
from gristmill.pipeline import Pipeline
from gristmill.recipes.names import FILTER
from gristmill.recipes.registry import all_registered
from gristmill.stages.deduplication import ExactDeduplication
from gristmill.stages.text.filters import DocumentFilter, MeanWordLengthFilter, ScoreFilter, WordCountFilter
from gristmill.stages.text.filters.rule import ColumnFilter
from gristmill.stages.text.io import JsonlReader, JsonlWriter
from tests.unit.pipeline.jobs import here, write_lines


class Vowels(DocumentFilter):
    lower_parameter = "least"

    def __init__(self, least: float = 2) -> None:
        super().__init__()
        self.least = least

    def score_document(self, text: str) -> float:
        return float(sum(text.count(letter) for letter in "aeiou"))

    def keep_document(self, score: float) -> bool:
        return score >= self.least


def run(folder: Path, *stages: Any, scores: str = "all") -> str:
    rows = [{"id": str(number), "text": "a word " * (number % 12)} for number in range(60)]
    write_lines(folder / "in" / "a.jsonl", rows)
    output = str(folder / f"out-{len(list(folder.glob('out-*')))}")
    pipeline = Pipeline("p", stages=[JsonlReader(str(folder / "in")), *stages, JsonlWriter(output)])
    pipeline.run(here(), scores=scores, progress=False)
    return output


def rethreshold(output: str, *arguments: str) -> Result:
    return CliRunner().invoke(cli, ["rethreshold", output, *arguments])


def test_the_decisions_are_those_of_a_run_with_the_same_parameters(tmp_path: Path) -> None:
    output = run(tmp_path, ScoreFilter(WordCountFilter(min_words=5, max_words=20)))
    found = rethreshold(
        output, "--set", "WordCountFilter.min_words=9", "--set", "WordCountFilter.max_words=14", "--json"
    )
    assert found.exit_code == 0, found.output
    answer = json.loads(found.output)
    again = Ledger(run(tmp_path, ScoreFilter(WordCountFilter(min_words=9, max_words=14))))
    assert answer["kept"] == (again.documents()["status"] == "kept").sum()
    assert answer["kept_before"] == (Ledger(output).documents()["status"] == "kept").sum() != answer["kept"]
    assert answer["stages"]["WordCountFilter"]["now"] == 60 - answer["kept"]
    text = rethreshold(output, "--set", "WordCountFilter.min_words=9").output
    assert "fewer" in text
    assert rethreshold(output, "--set", "word_count.min_words=9").output == text  # the name of earlier versions
    assert "no change" in rethreshold(output, "--set", "WordCountFilter.min_words=5").output
    assert "more" in rethreshold(output, "--set", "WordCountFilter.min_words=null").output


def test_without_a_setting_it_lists_what_can_be_set(tmp_path: Path) -> None:
    several = ScoreFilter([MeanWordLengthFilter(min_mean_word_length=1), WordCountFilter(min_words=3)])
    output = run(tmp_path, several.with_(name="both"), ScoreFilter(Vowels(least=3)))
    lines = rethreshold(output).output.splitlines()
    assert lines == [
        "both:MeanWordLengthFilter: min_mean_word_length=1, max_mean_word_length=10",
        "both:WordCountFilter: min_words=3, max_words=100000",
        "Vowels: least=3",
    ]
    answer = json.loads(rethreshold(output, "--set", "Vowels.least=9", "--json").output)
    assert answer["kept"] == 5 * 7  # two vowels in each of 5 to 11 repetitions
    other = json.loads(rethreshold(output, "--set", "both:WordCountFilter.min_words=7", "--json").output)
    assert other["kept"] == 5 * 8


def test_all_decisions_can_be_written(tmp_path: Path) -> None:
    output = run(tmp_path, ScoreFilter(WordCountFilter(min_words=5)))
    path = tmp_path / "cut.parquet"
    assert rethreshold(output, "--set", "WordCountFilter.min_words=9", "--write", str(path)).exit_code == 0
    assert len(pl.read_parquet(path)) == 60
    assert rethreshold(output, "--write", "cut.txt").exit_code == 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--set", "WordCountFilter.minwords=9"], "Did you mean 'min_words'?"),
        (["--set", "WordCount.min_words=9"], "Did you mean 'WordCountFilter'?"),
        (["--set", "min_words=9"], "expected FILTER.PARAMETER=VALUE"),
        (["--set", "WordCountFilter.min_words=many"], "must be a number"),
        (["--set", "WordCountFilter.min_words=1", "--set", "WordCountFilter.min_words=2"], "is set twice"),
    ],
)
def test_mistakes_are_explained(tmp_path: Path, arguments: list[str], message: str) -> None:
    output = run(tmp_path, ScoreFilter(WordCountFilter(min_words=5)))
    found = rethreshold(output, *arguments)
    assert found.exit_code == 2
    assert message in found.output


def test_scores_must_have_been_recorded(tmp_path: Path) -> None:
    output = run(tmp_path, ScoreFilter(WordCountFilter(min_words=5)), scores="decisive")
    found = rethreshold(output, "--set", "WordCountFilter.min_words=9")
    assert found.exit_code == 2
    assert "--scores all" in found.output


def test_duplicates_of_what_would_be_dropped_are_undecided(tmp_path: Path) -> None:
    output = run(tmp_path, ScoreFilter(WordCountFilter(min_words=5)), ExactDeduplication())
    same = json.loads(rethreshold(output, "--set", "WordCountFilter.min_words=5", "--json").output)
    assert same["kept"] == same["kept_before"] == 9
    assert "undecided" not in same["counts"]
    found = rethreshold(output, "--set", "WordCountFilter.min_words=9")
    assert "undecided" in found.output
    assert "only a run can decide" in found.output


NEED_FILES = (
    "FastTextQualityFilter",
    "HistogramFilter",
    "PerExtensionFilter",
    "TokenCountFilter",
    "TokenizerFertilityFilter",
)
FILTERS = [entry.name for entry in all_registered() if entry.kind == FILTER]


@pytest.mark.parametrize("name", FILTERS)
def test_filters_declare_the_parameters_that_set_their_bounds(name: str) -> None:
    """A declared parameter sets its bound, and no other parameter sets one."""
    cls: Any = next(entry for entry in all_registered() if entry.name == name).load()
    if not issubclass(cls, ColumnFilter):
        assert cls.lower_parameter is cls.upper_parameter is None
        return
    parameters = inspect.signature(cls).parameters
    declared = {"lower": cls.lower_parameter, "upper": cls.upper_parameter}
    needed = {
        key: {"n": 3, "substring": "x", "lang": "en", "language": "text/x-python", "position": "any"}.get(key, "x")
        for key, parameter in parameters.items()
        if parameter.default is parameter.empty
    }
    assert {value for value in declared.values() if value} <= set(parameters)
    try:
        made = cls(**needed)
    except (GristmillError, OSError):
        assert name in NEED_FILES
        return
    for side, parameter in declared.items():
        if parameter is not None:
            bound = getattr(made, side)
            other = bound / 2 if bound else 1
            assert getattr(cls(**{**needed, parameter: other}), side) == other
    numbers = [
        key for key, parameter in parameters.items() if isinstance(parameter.default, int | float) and key not in needed
    ]
    for key in numbers:
        if key not in declared.values() and not isinstance(parameters[key].default, bool):
            again = cls(**{**needed, key: parameters[key].default / 2})
            assert (again.lower, again.upper) == (made.lower, made.upper), key
