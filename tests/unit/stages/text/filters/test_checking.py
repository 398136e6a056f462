"""`check_filter` finds what is wrong, and every registered filter passes it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from gristmill.recipes.names import FILTER
from gristmill.recipes.registry import all_registered, registered
from gristmill.stages.text.filters import ColumnFilter, DocumentFilter, FilterCheckError, check_filter
from gristmill.tasks import DocumentBatch
from tools.make_stage_reference import NEED_FILES, NEEDED

FILTERS = [entry.name for entry in all_registered() if entry.kind == FILTER and entry.name not in NEED_FILES]


@pytest.mark.parametrize("name", FILTERS)
def test_every_registered_filter_behaves(name: str) -> None:
    check_filter(registered(name).load()(**NEEDED.get(name, {})))


class Raises(DocumentFilter):
    def score_document(self, text: str) -> float:
        return 1 / len(text)

    def keep_document(self, score: float) -> bool:
        return score > 0


class Forgets(DocumentFilter):
    calls = 0

    def score_document(self, text: str) -> float:
        self.calls += 1
        return self.calls

    def keep_document(self, score: float) -> bool:
        return True


class Neighbours(ColumnFilter):
    def __init__(self) -> None:
        super().__init__("neighbours", lower=0.0)

    def score_column(self, statistics: Any) -> Any:
        return np.arange(len(statistics.column), dtype=np.float64)


@pytest.mark.parametrize(("wrong", "message"), [(Raises, "raises ZeroDivisionError"), (Forgets, "second call")])
def test_wrong_filters_are_found(wrong: type[DocumentFilter], message: str) -> None:
    with pytest.raises(FilterCheckError, match=message):
        check_filter(wrong())


def test_a_score_that_depends_on_the_place_is_found() -> None:
    with pytest.raises(FilterCheckError, match="in a column"):
        check_filter(Neighbours())


def test_the_published_sets_are_stages_with_reasons() -> None:
    from gristmill.stages.text.filters import C4Quality, FineWebQuality, GopherQuality, GopherRepetition

    texts = ["Too short.", None, "", "lorem ipsum dolor sit amet. " * 30]
    for stage in (GopherQuality(), GopherRepetition(), FineWebQuality(), C4Quality()):
        batch = DocumentBatch(data=pa.table({"text": pa.array(texts, pa.large_string())}))
        left = stage.process(batch)
        told = sum(len(decision.rows) for decision in batch._tracking.trail.decisions)
        assert left.num_items + told == len(texts)
        assert all(decision.reason for decision in batch._tracking.trail.decisions)


def test_c4_takes_lines_out_and_says_how_much() -> None:
    from gristmill.stages.text.filters import C4Quality

    text = "A line that stays here.\nmenu\nAnother line that stays."
    batch = DocumentBatch(data=pa.table({"text": pa.array([text], pa.large_string()), "id": ["a"]}))
    left = C4Quality(min_num_sentences=1).process(batch)
    assert left.column("text").to_pylist() == ["A line that stays here.\nAnother line that stays."]
    [change] = batch._tracking.trail.changes
    assert change.characters.tolist() == [-5]
