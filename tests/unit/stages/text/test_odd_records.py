"""One document whose text is not a string: the stages treat all others as they would without it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from gristmill.stages.deduplication.survivor_rule import SurvivorRule
from gristmill.stages.text.classifiers import LinearClassifier
from gristmill.stages.text.filters import DocumentFilter, Filter, Score, ScoreFilter, WordCountFilter
from gristmill.stages.text.modifiers import Modify, PiiRedactor
from gristmill.stages.text.modules import AddId, DocumentJoiner, DocumentSplitter
from gristmill.tasks import DocumentBatch
from gristmill.tasks.columns import RecordColumns, records_of_lines
from tests.unit.stages.deduplication import jobs
from tests.unit.stages.text.test_extremes import NAMES, make

WORDS = "the of to and in is it that for was on are with as his they at be this from have or by one had not but what"
ODD_ROW = 2
ODD = {"text": 5, "id": "odd", "part": 9}
TEXTS = [
    "ab",
    'He said "it is", and then\nnothing. Write to ann@example.com!\n',
    "Ünïcödé and 漢字\t\\ and a line.\nA second line of it, with a few more words than the first one has.\n" * 3,
    "",
    "one|two|three",
    WORDS,
    *(WORDS[start:] for start in range(0, 60, 5)),
]
DOCUMENTS: list[dict[str, Any]] = [{"text": t, "id": f"d{n}", "part": n} for n, t in enumerate(TEXTS)]


class Length(DocumentFilter):
    def score_document(self, text: str) -> float:
        return float(len(text))

    def keep_document(self, scores: float) -> bool:
        return scores > 2


def as_lines(documents: list[dict[str, Any]], folder: Path) -> Any:
    lines = "".join(json.dumps(document, ensure_ascii=False) + "\n" for document in documents)
    return RecordColumns(records_of_lines(np.frombuffer(lines.encode(), np.uint8)))


def as_frame(documents: list[dict[str, Any]], folder: Path) -> Any:
    return DocumentBatch(data=pd.DataFrame(documents)).columns


def as_parquet(documents: list[dict[str, Any]], folder: Path) -> Any:
    pq.write_table(as_lines(documents, folder).table(), folder / "a.parquet")
    return DocumentBatch(data=pq.read_table(folder / "a.parquet")).columns


def results(stages: list[Any], columns: Any, rows: list[int]) -> dict[int, Any]:
    """By row: the lines that are left of it, the verdicts, the changes."""
    batch = DocumentBatch.from_columns(columns, rows=np.array(rows))
    note = batch._tracking.trail
    left = batch
    for stage in stages:
        stage.setup_on_node()
        stage.setup()
        left = stage.process(left)
        stage.teardown()
    found: dict[int, Any] = {row: [] for row in rows}
    for row, line in zip(left.rows.tolist(), left.columns.encode_jsonl().tobytes().splitlines(), strict=True):
        found[row].append(line)
    for decision in note.decisions:
        scores = decision.scores if decision.scores is not None else np.zeros(len(decision.rows))
        for row, score in zip(decision.rows.tolist(), scores.tolist(), strict=True):
            found[row].append((decision.reason, repr(score)))
    for change in note.changes:
        for row, grown in zip(change.rows.tolist(), change.characters.tolist(), strict=True):
            found[row].append((change.field, grown))
    return found


def check(stages: list[Any], folder: Path, kind: Any = as_lines) -> Any:
    """What happened to the odd document, after checking that all others are treated as without it."""
    rows = [row for row in range(len(DOCUMENTS) + 1) if row != ODD_ROW]
    without = results(stages, kind(DOCUMENTS, folder), rows)
    documents = [*DOCUMENTS[:ODD_ROW], ODD, *DOCUMENTS[ODD_ROW:]]
    beside = results(stages, kind(documents, folder), list(range(len(documents))))
    odd = beside.pop(ODD_ROW)
    assert beside == without
    return odd


@pytest.fixture(params=[as_lines, as_frame, as_parquet])
def kind(request: pytest.FixtureRequest) -> Any:
    return request.param


@pytest.mark.parametrize("name", NAMES)
def test_all_filters_and_modifiers(name: str, tmp_path: Path) -> None:
    check([make(name)], tmp_path)


STAGES: dict[str, Any] = {
    "filter": lambda: ScoreFilter(WordCountFilter(min_words=2), score_field="words"),
    "score": lambda: Score(lambda text: len(str(text)), "length"),
    "score of a filter": lambda: Score(WordCountFilter(), "words"),
    "filter in python": lambda: ScoreFilter(Length(), score_field="length"),
    "filter of values": lambda: Filter(lambda value: value != "ab", "text"),
    "modifier": lambda: make("UrlRemover"),
    "redaction": lambda: Modify(PiiRedactor()),
    "function": lambda: Modify(lambda value: value.upper() if isinstance(value, str) else value),
    "function of several": lambda: Modify(lambda text, part: f"{part}: {text}é", [["text", "part"]], "text"),
    "published": lambda: make("C4Quality"),
    "splitter": lambda: DocumentSplitter("|"),
    "ids": lambda: AddId("new_id"),
    "linear": lambda: LinearClassifier(model_path="shipped:text_kind", score_field="scores"),
}


@pytest.mark.parametrize("name", STAGES)
def test_one_stage_of_each_family_for_every_kind_of_input(name: str, kind: Any, tmp_path: Path) -> None:
    stage = STAGES[name]()
    check(list(getattr(stage, "decompose", lambda: [stage])()), tmp_path, kind)


def test_a_language_model(tmp_path: Path) -> None:
    from gristmill.stages.text.filters.fasttext import FastTextQualityFilter
    from tests.unit.stages.text.filters.test_fasttext import write_model

    model = write_model(tmp_path / "m.bin")
    check([ScoreFilter(FastTextQualityFilter(model, label="__label__hq"), score_field="score")], tmp_path)


def test_the_odd_document_is_read_as_its_json_and_written_with_its_own_bytes(tmp_path: Path) -> None:
    (line,) = check([Score(lambda text: text, "seen")], tmp_path)
    assert json.loads(line) == {**ODD, "seen": "5"}
    (line,) = check([Modify(PiiRedactor()), DocumentSplitter("|")], tmp_path)
    assert json.loads(line) == {**ODD, "segment_id": 0}


@pytest.mark.parametrize("odd", ["x", 5.5])
def test_segments_are_joined_in_the_order_of_their_numbers(odd: Any, tmp_path: Path) -> None:
    parts = [{"text": f"{n} é", "id": "a", "part": n} for n in (10, 9, 2, 11)]
    other = {"text": "alone", "id": 7, "part": odd}
    stage = DocumentJoiner(separator="|", segment_id_field="part", document_id_field="id")
    alone, both = (
        results([stage], as_lines(docs, tmp_path), list(range(len(docs)))) for docs in (parts, [*parts, other])
    )
    assert {row: found for row, found in both.items() if row < 4} == alone
    assert json.loads(alone[2][0]) == {"text": "2 é|9 é|10 é|11 é", "id": "a"}


@pytest.mark.parametrize("workflow", ["exact", "fuzzy"])
def test_duplicates_in_files_of_which_one_has_an_odd_record(workflow: str, tmp_path: Path) -> None:
    text = 'The same "text" with\nseveral lines, and words enough to make some shingles of: ' + WORDS
    files = {"a.jsonl": jobs.documents([text, "x y"]), "b.jsonl": [*jobs.documents([text], first=2), ODD]}
    jobs.write_files(tmp_path, files)
    jobs.deduplicate(tmp_path, workflow, id_field="id")
    assert jobs.kept_ids(tmp_path) == ["d0", "d1", "odd"]
    assert jobs.survivor_of(tmp_path, "d2")[0] == "d0"


def test_the_best_document_where_one_score_is_a_text(tmp_path: Path) -> None:
    batch = DocumentBatch.from_columns(as_lines([{"text": "a", "s": 1}, {"text": "a", "s": "2.5"}], tmp_path))
    assert SurvivorRule("best", score_field="s").ranks(batch, pa.nulls(2, pa.large_string())).tolist() == [-1, -2.5]
