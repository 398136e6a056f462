"""Decontamination: what is found, what happens to it, what the report says, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from gristmill import Pipeline
from gristmill.errors import GristmillError
from gristmill.ledger.ask.ledger import Ledger
from gristmill.ledger.prove.verify import verify
from gristmill.ledger.record.contamination import read_contamination
from gristmill.ledger.record.layout import RunFolder
from gristmill.stages.deduplication import Decontamination, DecontaminationWorkflow
from gristmill.stages.text.io.reader import JsonlReader
from gristmill.stages.text.io.writer import JsonlWriter
from tests.unit.pipeline.jobs import here, read_rows
from tests.unit.stages.deduplication.jobs import documents, kept_ids, write_files

QUESTION = "Which of the two rivers that meet in the old town of Passau is the longer one by far?"
OTHER = "Name the author of the novel in which a whale is hunted across all of the oceans of the world."
FILLER = "The committee met on Tuesday and agreed that nothing had changed since spring. " * 12


def benchmark(tmp_path: Path, **files: list[dict[str, Any]]) -> str:
    folder = tmp_path / "benchmarks"
    folder.mkdir(exist_ok=True)
    for name, items in files.items():
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(item) + "\n" for item in items))
    return str(folder)


def decontaminate(tmp_path: Path, *, fresh: bool = False, **options: Any) -> dict[str, Any]:
    workflow = DecontaminationWorkflow(
        str(tmp_path / "in"), str(tmp_path / "out"), str(tmp_path / "benchmarks"), **options
    )
    return workflow.run(executor=here(), fresh=fresh, progress=False).metadata


def found_in(tmp_path: Path) -> dict[str, Any]:
    found = read_contamination(RunFolder(str(tmp_path / "out")))
    assert found is not None
    return found


def test_a_document_with_a_question_in_other_case_and_punctuation_is_dropped(tmp_path: Path) -> None:
    benchmark(tmp_path, trivia=[{"id": "q1", "question": QUESTION, "answer": "The Inn"}, {"question": OTHER}])
    copied = f"{FILLER} {QUESTION.upper().replace('?', ' !')} {FILLER}"
    write_files(tmp_path, {"a.jsonl": documents([FILLER, copied]), "b.jsonl": [{"text": QUESTION}]})
    facts = decontaminate(tmp_path)
    assert kept_ids(tmp_path) == ["d0"]
    assert (facts["documents"], facts["contaminated"], facts["num_removed"]) == (3, 2, 2)
    (decision,) = Ledger(str(tmp_path / "out")).why("d1").documents[0].decisions
    assert (decision.reason, decision.survivor, decision.score) == ("contaminated", "trivia#0", 1.0)
    assert "it contains text of 'trivia#0'" in str(decision)
    report = found_in(tmp_path)
    (trivia,) = report["benchmarks"]
    assert (trivia["items"], trivia["searched"], trivia["contaminated"]) == (2, 2, 1)
    (item,) = report["items"]
    assert (item["item"], item["id"], item["documents"]) == ("trivia#0", "q1", 2)
    assert [one["document"] for one in item["found_in"]] == ["d1", "b#0"]
    assert item["found_in"][0]["passage"].startswith("WHICH OF THE TWO RIVERS")
    assert verify(str(tmp_path / "out")).problems == []


def test_cutting_takes_the_passage_and_its_surroundings(tmp_path: Path) -> None:
    benchmark(tmp_path, trivia=[{"question": QUESTION}])
    text = FILLER + QUESTION + " " + FILLER
    write_files(tmp_path, {"a.jsonl": documents([text, QUESTION, FILLER])})
    decontaminate(tmp_path, action="cut", window_chars=3, min_piece_chars=10)
    rows = read_rows(tmp_path / "out")
    assert [row["id"] for row in rows] == ["d0", "d2"]
    # The question mark is no part of the passage, and the first of three characters after it.
    assert rows[0]["text"] == f"{FILLER[:-3]}\n\n{text[len(FILLER) + len(QUESTION) + 2 :]}"
    why = Ledger(str(tmp_path / "out")).why("d1").documents[0]
    assert why.decisions[0].reason == "nothing_left_after_cutting"
    changed = Ledger(str(tmp_path / "out")).why("d0").documents[0].changes
    assert changed[0].characters == len(rows[0]["text"]) - len(text)


def test_a_document_in_too_many_pieces_is_dropped(tmp_path: Path) -> None:
    benchmark(tmp_path, trivia=[{"question": QUESTION}])
    write_files(tmp_path, {"a.jsonl": documents([(FILLER + QUESTION + " ") * 3])})
    decontaminate(tmp_path, action="cut", max_pieces=2)
    (decision,) = Ledger(str(tmp_path / "out")).why("d0").documents[0].decisions
    assert decision.reason == "contaminated_in_too_many_places"


def test_marking_adds_a_column_and_keeps_all(tmp_path: Path) -> None:
    benchmark(tmp_path, trivia=[{"question": QUESTION}, {"question": OTHER}])
    write_files(tmp_path, {"a.jsonl": documents([f"{QUESTION} {OTHER}", FILLER]), "b.jsonl": documents(["x"], first=2)})
    decontaminate(tmp_path, action="mark")
    marks = [row["contamination"] for row in read_rows(tmp_path / "out")]
    assert marks == [[{"item": "trivia#0", "share": 1.0}, {"item": "trivia#1", "share": 1.0}], None, None]


def test_eight_grams_need_more_than_half_of_the_words_of_an_item(tmp_path: Path) -> None:
    words = QUESTION.split()[:16]
    benchmark(tmp_path, trivia=[{"question": " ".join(words)}])
    write_files(tmp_path, {"a.jsonl": documents([" ".join(words[:8]), " ".join(words[:9])])})
    decontaminate(tmp_path, match="8gram")
    assert kept_ids(tmp_path) == ["d0"]
    assert found_in(tmp_path)["min_share"] == 0.5
    decontaminate(tmp_path, match="8gram", min_share=0.5, fresh=True)
    assert kept_ids(tmp_path) == []


def test_eight_grams_count_words_of_one_document(tmp_path: Path) -> None:
    words = QUESTION.split()
    benchmark(tmp_path, trivia=[{"question": QUESTION}])
    write_files(tmp_path, {"a.jsonl": documents([" ".join(words[:8]), " ".join(words[:10])])})
    decontaminate(tmp_path, match="8gram")
    assert kept_ids(tmp_path) == ["d0"]
    assert found_in(tmp_path)["items"][0]["share"] == pytest.approx(10 / len(words), abs=1e-3)


def test_fuzzy_finds_an_item_with_a_word_replaced(tmp_path: Path) -> None:
    benchmark(tmp_path, trivia=[{"question": QUESTION}])
    write_files(tmp_path, {"a.jsonl": documents([QUESTION.replace("town", "city"), FILLER])})
    decontaminate(tmp_path)
    assert kept_ids(tmp_path) == ["d0", "d1"]
    decontaminate(tmp_path, match="fuzzy", fresh=True)
    assert kept_ids(tmp_path) == ["d1"]


def test_short_texts_are_searched_as_a_whole_or_counted(tmp_path: Path) -> None:
    ten = "one two three four five six seven eight nine ten"
    benchmark(tmp_path, short=[{"question": ten}, {"question": "How many?", "answer": ""}, {"question": None}])
    write_files(tmp_path, {"a.jsonl": documents([f"zero {ten} eleven", "How many?", ten.replace("five", "5")])})
    decontaminate(tmp_path)
    assert kept_ids(tmp_path) == ["d1", "d2"]
    (short,) = found_in(tmp_path)["benchmarks"]
    assert (short["items"], short["searched"], short["too_short"], short["not_searched"]) == (3, 1, 2, [1, 2])


def test_ngrams_that_many_documents_hold_are_ignored_when_asked(tmp_path: Path) -> None:
    benchmark(tmp_path, trivia=[{"question": QUESTION}, {"question": OTHER}])
    write_files(tmp_path, {"a.jsonl": documents([QUESTION] * 3 + [OTHER])})
    facts = decontaminate(tmp_path, max_documents=2)
    assert kept_ids(tmp_path) == ["d0", "d1", "d2"]
    assert facts["common_ngrams"] == len(QUESTION.split()) - 12


def test_the_corpus_may_be_the_benchmark_itself(tmp_path: Path) -> None:
    items = [
        {"id": f"d{n}", "question": f"{QUESTION} {n} {n * 7}", "text": f"{QUESTION} {n} {n * 7}"} for n in range(50)
    ]
    benchmark(tmp_path, trivia=items)
    write_files(tmp_path, {"a.jsonl": items})
    facts = decontaminate(tmp_path)
    assert (facts["contaminated"], facts["num_removed"]) == (50, 50)
    assert kept_ids(tmp_path) == []


def test_folders_lists_and_parquet_are_benchmarks(tmp_path: Path) -> None:
    folder = tmp_path / "benchmarks" / "hf" / "data"
    folder.mkdir(parents=True)
    choices = {"text": [OTHER, "no"], "label": ["A", "B"]}
    pq.write_table(pa.Table.from_pylist([{"stem": QUESTION, "choices": choices}]), folder / "test-00000.parquet")
    (tmp_path / "benchmarks" / "array.json").write_text(json.dumps([{"question": FILLER[:80]}]))
    write_files(tmp_path, {"a.jsonl": documents([OTHER, QUESTION])})
    decontaminate(tmp_path, fields=["hf:choices", "question"])
    assert kept_ids(tmp_path) == ["d1"]
    assert [one["benchmark"] for one in found_in(tmp_path)["benchmarks"]] == ["array", "hf"]


def test_it_is_a_stage_of_a_pipeline(tmp_path: Path) -> None:
    folder = benchmark(tmp_path, trivia=[{"question": QUESTION}])
    write_files(tmp_path, {"a.jsonl": documents([FILLER, QUESTION])})
    pipeline = Pipeline("clean", stages=[JsonlReader(str(tmp_path / "in")), Decontamination(folder)])
    pipeline.add_stage(JsonlWriter(str(tmp_path / "out")))
    pipeline.run(executor=here(), progress=False)
    assert kept_ids(tmp_path) == ["d0"]
    assert found_in(tmp_path)["contaminated"] == 1
    assert verify(str(tmp_path / "out")).problems == []


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"fields": ["quesion"]}, r"has none of the fields 'quesion' \(found: 'answer', 'question'\). Did you mean"),
        ({"fields": ["trivial:question"]}, "there is no benchmark 'trivial'"),
        ({"match": "12gram"}, "must be one of 13gram, 8gram, fuzzy, semantic"),
        ({"action": "delete"}, "must be one of drop, cut, mark"),
        ({"min_share": 1.5}, "between 0 and 1"),
        ({"ngram": 0}, "a whole number of words"),
        ({"max_pieces": 0}, "at least 1"),
        ({"match": "semantic", "action": "cut"}, "there is no passage to cut"),
        ({"match": "semantic", "eps": 1.0}, "must be at least 0 and below 1"),
        ({"match": "semantic", "ngram": 8}, "ngram=8 does not apply to match='semantic'"),
        ({"match": "fuzzy", "eps": 0.1}, "eps=0.1 does not apply to match='fuzzy'"),
    ],
)
def test_what_cannot_work_is_refused(tmp_path: Path, options: dict[str, Any], message: str) -> None:
    benchmark(tmp_path, trivia=[{"question": QUESTION, "answer": "x"}])
    write_files(tmp_path, {"a.jsonl": documents([FILLER])})
    with pytest.raises(GristmillError, match=message.replace("[", r"\[")):
        decontaminate(tmp_path, **options)


def test_a_plan_reads_the_benchmarks_and_writes_nothing(tmp_path: Path) -> None:
    folder = benchmark(tmp_path, trivia=[{"question": QUESTION}])
    write_files(tmp_path, {"a.jsonl": documents([FILLER, QUESTION])})
    plan = DecontaminationWorkflow(str(tmp_path / "in"), str(tmp_path / "out"), folder).plan(here())
    assert plan.partitions == 1
    assert plan.documents >= 1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["benchmarks", "in"]


def test_a_damaged_benchmark_is_refused(tmp_path: Path) -> None:
    folder = benchmark(tmp_path, trivia=[{"question": QUESTION}])
    with (Path(folder) / "trivia.jsonl").open("a") as file:
        file.write("{half a rec\n")
    write_files(tmp_path, {"a.jsonl": documents([FILLER])})
    with pytest.raises(GristmillError, match=r"Line 2 of the benchmark file .* is not JSON"):
        decontaminate(tmp_path)


def test_changed_benchmarks_are_noticed(tmp_path: Path) -> None:
    benchmark(tmp_path, trivia=[{"question": QUESTION}])
    write_files(tmp_path, {"a.jsonl": documents([FILLER, OTHER])})
    decontaminate(tmp_path)
    benchmark(tmp_path, trivia=[{"question": QUESTION}, {"question": OTHER}])
    with pytest.raises(GristmillError, match=r"fresh"):
        decontaminate(tmp_path)
    decontaminate(tmp_path, fresh=True)
    assert kept_ids(tmp_path) == ["d0"]


def test_an_edited_report_is_noticed(tmp_path: Path) -> None:
    benchmark(tmp_path, trivia=[{"question": QUESTION}])
    write_files(tmp_path, {"a.jsonl": documents([QUESTION])})
    decontaminate(tmp_path)
    place = tmp_path / "out.gristmill" / "contamination.json"
    place.write_text(place.read_text().replace('"contaminated": 1', '"contaminated": 0'))
    assert "contamination.json was edited or damaged" in verify(str(tmp_path / "out")).problems[0]
