"""Deduplication against other documents: these stay where they are, and what equals them goes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gristmill.errors import InputChangedError, MissingColumnError, UsageError
from gristmill.ledger.prove.verify import verify
from gristmill.pipeline import Pipeline
from gristmill.stages.deduplication import ExactDeduplication, SemanticDeduplicationWorkflow
from gristmill.stages.text.io.reader import JsonlReader
from gristmill.stages.text.io.writer import JsonlWriter
from tests.unit.pipeline.jobs import here, write_lines
from tests.unit.stages.deduplication.jobs import deduplicate, documents, kept_ids, survivor_of, write_files

LONG = "the mill on the river grinds wheat and rye for the whole valley from early autumn until the ice comes"
OTHER = "nobody in the village could say who had first brought the bell up to the tower on that hill"


def other(tmp_path: Path, rows: list[dict[str, Any]], name: str = "old.jsonl") -> str:
    return str(write_lines(tmp_path / "other" / name, rows).parent)


@pytest.mark.parametrize("kind", ["exact", "fuzzy"])
def test_the_other_documents_stay_and_their_duplicates_go(tmp_path: Path, kind: str) -> None:
    kept = other(tmp_path, [{"id": "o1", "text": LONG}, {"text": LONG.upper()}, {"text": OTHER}])
    texts = [LONG, "something else entirely", "something else entirely", OTHER]
    write_files(tmp_path, {"a.jsonl": documents(texts[:2]), "b.jsonl": documents(texts[2:], first=2)})
    facts = deduplicate(tmp_path, kind, against=kept).metadata
    assert kept_ids(tmp_path) == ["d1"]
    assert survivor_of(tmp_path, "d0") == ("o1", 1.0)
    assert survivor_of(tmp_path, "d2") == ("d1", 1.0)
    assert survivor_of(tmp_path, "d3") == ("against:old#2", 1.0)
    assert (facts["documents"], facts["num_removed"]) == (4, 3)
    assert verify(str(tmp_path / "out")).problems == []


@pytest.mark.parametrize("kind", ["exact", "fuzzy"])
@pytest.mark.parametrize("survivor", ["first", "longest", "best"])
def test_they_are_preferred_whatever_the_rule(tmp_path: Path, kind: str, survivor: str) -> None:
    kept = other(tmp_path, [{"id": "o1", "text": LONG}])
    write_files(tmp_path, {"a.jsonl": [{"id": "d0", "text": LONG, "score": 9}, {"id": "d1", "text": "x", "score": 1}]})
    score = {"score_field": "score"} if survivor == "best" else {}
    deduplicate(tmp_path, kind, against=kept, survivor=survivor, **score)
    assert kept_ids(tmp_path) == ["d1"]


def test_embeddings_are_compared_across_sets(tmp_path: Path) -> None:
    rng = np.random.default_rng(3)
    vectors = rng.normal(size=(4, 16))
    kept = other(tmp_path, [{"id": f"o{n}", "text": "x", "embeddings": vectors[n].tolist()} for n in range(2)])
    near = vectors[0] + rng.normal(size=16) * 1e-3
    rows = [
        {"id": f"d{n}", "text": "x", "embeddings": vector.tolist()}
        for n, vector in enumerate([near, vectors[2], vectors[1], vectors[2], vectors[3]])
    ]
    write_files(tmp_path, {"a.jsonl": rows})
    workflow = SemanticDeduplicationWorkflow(
        str(tmp_path / "in"), str(tmp_path / "out"), eps=0.01, perform_removal=True, against=kept
    )
    workflow.run(executor=here(), progress=False)
    assert kept_ids(tmp_path) == ["d1", "d4"]
    assert survivor_of(tmp_path, "d0")[0] == "o0"
    assert survivor_of(tmp_path, "d2")[0] == "o1"


def test_it_works_in_a_pipeline(tmp_path: Path) -> None:
    kept = other(tmp_path, [{"text": "one"}])
    write_files(tmp_path, {"a.jsonl": documents(["one", "two", "two"])})
    stages = [JsonlReader(str(tmp_path / "in")), ExactDeduplication(against=kept), JsonlWriter(str(tmp_path / "out"))]
    Pipeline("unique", stages=stages).run(executor=here(), progress=False)
    assert kept_ids(tmp_path) == ["d1"]
    assert survivor_of(tmp_path, "d0")[0] == "against:old#0"


def test_documents_are_not_compared_with_themselves(tmp_path: Path) -> None:
    folder = write_files(tmp_path, {"a.jsonl": documents(["one", "two"])})
    with pytest.raises(UsageError, match=r"a\.jsonl is both input and --against"):
        deduplicate(tmp_path, against=str(folder))


def test_other_documents_without_the_text_are_refused(tmp_path: Path) -> None:
    kept = other(tmp_path, [{"content": "one"}])
    write_files(tmp_path, {"a.jsonl": documents(["one"])})
    with pytest.raises(MissingColumnError, match="these documents lack the column 'text'"):
        deduplicate(tmp_path, against=kept)


def test_other_documents_that_changed_are_noticed(tmp_path: Path) -> None:
    kept = other(tmp_path, [{"text": "one"}])
    write_files(tmp_path, {"a.jsonl": documents(["one", "two"])})
    deduplicate(tmp_path, against=kept)
    other(tmp_path, [{"text": "two"}, {"text": "three"}])
    with pytest.raises(InputChangedError, match="fresh"):
        deduplicate(tmp_path, against=kept)
    deduplicate(tmp_path, against=kept, fresh=True)
    assert kept_ids(tmp_path) == ["d0"]
