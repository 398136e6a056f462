"""`Score`, `Filter` and `ScoreFilter`: what they keep, what they write, and what they refuse."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from gristmill.errors import StageDefinitionError, UsageError
from gristmill.ledger.ask.ledger import Ledger
from gristmill.pipeline import Pipeline
from gristmill.stages.text.filters import (
    DocumentFilter,
    Filter,
    Score,
    ScoreFilter,
    SlowFilterWarning,
    WordCountFilter,
    score_filter,
)
from gristmill.stages.text.io import JsonlReader, JsonlWriter
from gristmill.tasks import DocumentBatch
from tests.unit.pipeline.jobs import here, write_lines

TEXTS = ["one", "one two", "one two three", "", None]
WORDS = WordCountFilter(min_words=2)


class Length(DocumentFilter):
    """Keeps texts of more than four characters."""

    def score_document(self, text: str) -> int:
        return len(text)

    def keep_document(self, score: int) -> bool:
        return score > 4


def batch() -> DocumentBatch:
    return DocumentBatch(data=pa.table({"text": TEXTS, "other": ["a b c", "a", "a b", "a b", "a b"]}))


def rows(stage: Any) -> list[dict[str, Any]]:
    return list(stage.process(batch()).to_pyarrow().to_pylist())


def texts(stage: Any) -> list[str | None]:
    return [row["text"] for row in rows(stage)]


@pytest.mark.parametrize("one", [WORDS, Length()])
def test_a_score_filter_drops_what_does_not_pass_and_inverted_the_rest(one: DocumentFilter) -> None:
    assert texts(ScoreFilter(one)) == ["one two", "one two three"]
    assert texts(ScoreFilter(one, invert=True)) == ["one", "", None]


def test_several_filters_have_fields_of_their_own() -> None:
    stage = ScoreFilter([WORDS, Length(), WORDS], ["text", "text", "other"], ["words", None, "others"])
    assert stage.name == "score_filter_of_WordCountFilter_Length_WordCountFilter"
    assert rows(stage) == [{"text": "one two three", "other": "a b", "words": 3, "others": 2}]


def test_scores_are_added_and_nothing_is_dropped() -> None:
    stage = Score([WORDS, len], ["words", "length"])
    assert [(row["words"], row["length"]) for row in rows(stage)] == [(1, 3), (2, 7), (3, 13), (0, 0), (0, 0)]


@pytest.mark.parametrize("decide", [WORDS, lambda words: words >= 2])
def test_a_filter_decides_on_a_column_that_is_there(decide: Any) -> None:
    scored = Score(WORDS, "words").process(batch())
    assert Filter(decide, "words").process(scored).to_pyarrow()["text"].to_pylist() == ["one two", "one two three"]
    inverted = Filter(decide, "words", invert=True).process(scored)
    assert inverted.to_pyarrow()["text"].to_pylist() == ["one", "", None]


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: ScoreFilter(WORDS, score_field="text"), "score_field='text' is the column with the text"),
        (lambda: Score(WORDS, "body", text_field="body"), "such as 'body_score'"),
        (lambda: ScoreFilter([WORDS, WORDS], score_field="n"), "2 filters, but 1 values for score_field"),
        (lambda: ScoreFilter([]), "the list is empty"),
        (lambda: ScoreFilter(WORDS, text_field=None), "text_field must name a column"),
        (lambda: ScoreFilter(WORDS, invert="no"), "must be True or False"),  # type: ignore[arg-type]
        (lambda: Score(WORDS, None), "score_field must name a column"),
        (lambda: WordCountFilter(max_words=2), "from 50 up to 2, so nothing at all"),
    ],
)
def test_fields_that_cannot_work_are_refused(make: Callable[[], Any], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        make()


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: ScoreFilter(WordCountFilter), "not the class WordCountFilter"),  # type: ignore[arg-type]
        (lambda: ScoreFilter(len), "not builtin_function"),  # type: ignore[arg-type]
        (lambda: Score(3, "n"), "a DocumentFilter or a function, not int"),  # type: ignore[arg-type]
        (lambda: Filter("x", "n"), "a DocumentFilter or a function, not str"),  # type: ignore[arg-type]
    ],
)
def test_only_filters_and_functions_are_taken(make: Callable[[], Any], words: str) -> None:
    with pytest.raises(StageDefinitionError, match=words):
        make()


def test_a_slow_filter_in_python_is_told_of_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(score_filter, "_SLOW_SHARE_S", 0.0)
    stage = ScoreFilter(Length())
    with pytest.warns(SlowFilterWarning, match=r"'Length' is called once per document.*write-a-fast-filter"):
        stage.process(batch())
    stage.process(batch())  # a second warning would be an error


def test_adjacent_built_in_filters_on_one_column_become_one_pass() -> None:
    first, second = ScoreFilter(WORDS, score_field="words"), ScoreFilter(WordCountFilter(min_words=0, max_words=2))
    fused = first.fuse([second, ScoreFilter(Length()), second])
    assert fused is not None
    assert list(fused.members) == [first, second]
    assert rows(fused) == [{"text": "one two", "other": "a", "words": 2}]
    assert first.fuse([ScoreFilter(WORDS, text_field="words")]) is None
    assert first.fuse([ScoreFilter(WORDS, text_field="other")]) is None
    assert ScoreFilter([WORDS, WORDS]).fuse([second]) is None


FOUR_WORDS = "one two three four"
PASSES = WordCountFilter(min_words=0)


@pytest.mark.parametrize(
    ("stages", "expected"),
    [
        # Built-in, alone and fused with others.
        ([ScoreFilter(WordCountFilter())], ("WordCountFilter", "too_few_words", 4.0, 50.0)),
        ([ScoreFilter(WordCountFilter(1, 3))], ("WordCountFilter", "too_many_words", 4.0, 3.0)),
        ([ScoreFilter(WORDS, invert=True)], ("WordCountFilter", "inverted_WordCountFilter", 4.0, 2.0)),
        (
            [ScoreFilter(PASSES), ScoreFilter(WORDS, invert=True).with_(name="short")],
            ("short", "inverted_WordCountFilter", 4.0, 2.0),
        ),
        (
            [ScoreFilter([PASSES, WORDS], invert=[False, True]).with_(name="both")],
            ("both", "WordCountFilter:inverted_WordCountFilter", 4.0, 2.0),
        ),
        # Written in Python.
        ([ScoreFilter(Length(), invert=True)], ("Length", "inverted_Length", 18.0, None)),
        (
            [ScoreFilter([PASSES, Length()], invert=[False, True]).with_(name="both")],
            ("both", "Length:inverted_Length", 18.0, None),
        ),
        # By a column.
        (
            [Score(WORDS, "words"), Filter(WORDS, "words", invert=True).with_(name="by")],
            ("by", "inverted_WordCountFilter", 4.0, None),
        ),
        (
            [Score(WORDS, "words"), Filter(lambda words: words < 2, "words").with_(name="by")],
            ("by", "filter", 4.0, None),
        ),
    ],
)
def test_the_ledger_has_the_reason_of_every_kind_of_filter(
    tmp_path: Path, stages: list[Any], expected: tuple[str, str, float, float | None]
) -> None:
    write_lines(tmp_path / "in.jsonl", [{"id": "d", "text": FOUR_WORDS}])
    job = [JsonlReader(str(tmp_path / "in.jsonl")), *stages, JsonlWriter(str(tmp_path / "out"))]
    Pipeline("job", stages=job).run(here())
    (verdict,) = Ledger(str(tmp_path / "out")).why("d").documents[0].decisions
    assert (verdict.stage, verdict.reason, verdict.score, verdict.threshold) == expected
