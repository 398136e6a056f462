"""`Score`, `Filter` and `ScoreFilter`: what they keep, what they write, and what they refuse."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from gristmill.backends.local import LocalExecutor
from gristmill.errors import ResumeError, StageDefinitionError, UsageError
from gristmill.ledger.ask.ledger import Ledger
from gristmill.ledger.record.layout import RunFolder
from gristmill.ledger.record.plan_record import read_plan, write_plan
from gristmill.pipeline import Pipeline
from gristmill.stages.text.filters import (
    DocumentFilter,
    Filter,
    LongWordFilter,
    MeanWordLengthFilter,
    NumbersFilter,
    Score,
    ScoreFilter,
    SlowFilterWarning,
    WordCountFilter,
    score_filter,
)
from gristmill.stages.text.io import JsonlReader, JsonlWriter, ParquetWriter
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
        (lambda: ScoreFilter(WORDS, score_field="text"), "score_field='text' is the text column"),
        (lambda: Score(WORDS, "body", text_field="body"), "such as 'body_score'"),
        (lambda: ScoreFilter([WORDS, WORDS], score_field="n"), "2 filters, but 1 values for score_field"),
        (lambda: ScoreFilter([]), "the list is empty"),
        (lambda: ScoreFilter(WORDS, text_field=None), "text_field must name a column"),
        (lambda: ScoreFilter(WORDS, invert="no"), "must be True or False"),  # type: ignore[arg-type]
        (lambda: Score(WORDS, None), "score_field must name a column"),
        (lambda: WordCountFilter(max_words=2), "from 50 up to 2, which is an empty range"),
    ],
)
def test_fields_that_cannot_work_are_refused(make: Callable[[], Any], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        make()


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (
            lambda: ScoreFilter(WordCountFilter),
            r"not the class WordCountFilter. Write: ScoreFilter\(WordCountFilter\(…\)\)",
        ),  # type: ignore[arg-type]
        (lambda: ScoreFilter(len), r"not a function\. To filter by a function .* use: Filter\("),  # type: ignore[arg-type]
        (lambda: Score(3, "n"), "a DocumentFilter or a function, not int"),  # type: ignore[arg-type]
        (lambda: Filter("x", "n"), "a DocumentFilter or a function, not str"),  # type: ignore[arg-type]
    ],
)
def test_only_filters_and_functions_are_taken(make: Callable[[], Any], words: str) -> None:
    with pytest.raises(StageDefinitionError, match=words):
        make()


class Known(DocumentFilter):
    """A filter that gets its words from a file, which only `model_check_or_download` makes."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.path = path

    def model_check_or_download(self) -> None:
        with (self.path.parent / "checks").open("a") as log:
            log.write(f"{os.getpid()}\n")
        self.path.write_text("one two")

    def load_model(self) -> None:
        self.words = set(self.path.read_text().split())

    def load_tokenizer(self) -> None:
        self.split = str.split

    def score_document(self, text: str) -> int:
        return len(self.words.intersection(self.split(text)))

    def keep_document(self, score: int) -> bool:
        return score > 0


@pytest.mark.parametrize(("make", "kept"), [(ScoreFilter, 2), (lambda one: Score(one, "known"), 3)])
def test_a_filter_of_a_user_loads_what_it_needs_before_the_first_document(make: Any, kept: int, tmp_path: Path) -> None:
    data = write_lines(tmp_path / "in.jsonl", [{"text": text} for text in ("one", "none", "two one")])
    stages = [JsonlReader(str(data)), make(Known(tmp_path / "words")), JsonlWriter(str(tmp_path / "out"))]
    Pipeline("p", stages=stages).run(executor=LocalExecutor({"num_cpus": 1}), progress=False)
    (written,) = (tmp_path / "out").iterdir()
    assert written.read_text().count("\n") == kept
    assert str(os.getpid()) in (tmp_path / "checks").read_text().split()  # before workers start


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


class Share(DocumentFilter):
    """A share that happens to be a whole number for some texts."""

    def score_document(self, text: str) -> float:
        return 0 if len(text) < 4 else text.count("o") / len(text)

    def keep_document(self, score: float) -> bool:
        return True


class Plain(Share):
    """Says neither by an annotation nor by an attribute what its scores are."""

    def score_document(self, text):  # type: ignore[no-untyped-def]
        return len(text)


class Declared(Plain):
    score_kind = "number"


def _characters(text: str) -> int:
    return len(text)


@pytest.mark.parametrize(
    ("scored_by", "kind"),
    [
        (WordCountFilter(min_words=0), pa.int64()),
        (LongWordFilter(), pa.int64()),
        (MeanWordLengthFilter(min_mean_word_length=0), pa.float64()),
        (NumbersFilter(), pa.float64()),
        (Length(), pa.int64()),
        (Share(), pa.float64()),
        (Plain(), pa.int64()),
        (Declared(), pa.float64()),
        (_characters, pa.int64()),
    ],
)
def test_a_column_of_scores_has_one_type_in_every_batch(scored_by: Any, kind: pa.DataType) -> None:
    for some in (["one", "a"], ["four words of text", "10"], ["", None], []):
        given = DocumentBatch(data=pa.table({"text": pa.array(some, pa.large_string())}))
        stages = [Score(scored_by, "score")]
        if isinstance(scored_by, DocumentFilter):
            stages.append(ScoreFilter(scored_by, score_field="score"))
        for stage in stages:
            found = stage.process(given).to_pyarrow()["score"]
            assert found.type == kind or (scored_by.__class__ is Plain and not some), (stage, some)


def test_a_filter_that_declares_whole_numbers_and_gives_others_is_told_so() -> None:
    class Half(Length):
        def score_document(self, text: str) -> int:
            return len(text) / 2  # type: ignore[return-value]

    with pytest.raises(StageDefinitionError, match=r"Half declares whole numbers .* Annotate it with -> "):
        Score(Half(), "half").process(batch())


def test_a_count_is_whole_for_one_document_too() -> None:
    assert repr(WORDS.score_document("one two")) == "2"
    assert repr(NumbersFilter().score_document("1")) == "1.0"


@pytest.mark.parametrize("executor", ["local", here()])
def test_whole_numbers_are_written_and_told_as_such(tmp_path: Path, executor: Any) -> None:
    write_lines(tmp_path / "in" / "a.jsonl", [{"id": "a", "text": "one two three"}, {"id": "b", "text": "one"}])
    for writer in (JsonlWriter, ParquetWriter):
        out = tmp_path / writer.__name__
        stages = [
            JsonlReader(str(tmp_path / "in")),
            ScoreFilter(WORDS, score_field="words"),
            Score(MeanWordLengthFilter(), score_field="mean"),
            writer(str(out)),
        ]
        Pipeline("whole", stages=stages).run(executor, scores="all")
        (path,) = out.glob("a.*")
        if writer is JsonlWriter:
            assert path.read_text() == '{"id": "a", "text": "one two three","words":3,"mean":3.6666666666666665}\n'
        else:
            schema = pq.read_schema(path)
            assert (schema.field("words").type, schema.field("mean").type) == (pa.int64(), pa.float64())
        (found,) = Ledger(str(out)).why("b").documents
        assert repr(found.decisions[0].score) == "1"
        assert "(score 1, threshold 2)" in str(found.decisions[0])
        assert [repr(item.value) for item in found.scores] == ["1", "3"]


def test_parquet_of_an_earlier_version_is_not_resumed_with_another_type(tmp_path: Path) -> None:
    write_lines(tmp_path / "in" / "a.jsonl", [{"id": "a", "text": "one two three"}])

    def run(writer: Any) -> Any:
        stages = [JsonlReader(str(tmp_path / "in")), ScoreFilter(WORDS, score_field="words"), writer]
        return Pipeline("whole", stages=stages).run(here())

    for writer, resumed in ((JsonlWriter(str(tmp_path / "a")), True), (ParquetWriter(str(tmp_path / "b")), False)):
        run(writer)
        folder = RunFolder(writer.path)
        plan = read_plan(folder)
        assert plan is not None
        for stage in plan["stages"]:
            stage["parameters"].pop("whole_number_columns", None)
        write_plan(folder, plan)
        if resumed:
            assert run(writer).report.partitions_done_before == 1
        else:
            with pytest.raises(ResumeError, match="whole_number_columns"):
                run(writer)
