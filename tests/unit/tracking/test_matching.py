"""Which row a row without a tag continues, when only some of its columns are left as they were."""

from __future__ import annotations

import pyarrow as pa

from gristmill.tasks.columns import TableColumns
from gristmill.tracking.matching import match_rows

BEFORE = TableColumns(pa.table({"text": ["a", "b", "c"], "id": [0, 1, 2]}))


def matched(**columns: list[object]) -> list[int]:
    return match_rows(BEFORE, pa.table(columns)).tolist()


def test_an_id_that_nobody_touched_tells_where_changed_texts_come_from() -> None:
    assert matched(text=["C", "A"], id=[2, 0]) == [2, 0]


def test_pieces_of_several_documents_are_told_by_their_ids() -> None:
    assert matched(text=["a1", "a2", "b1", "b2"], id=[0, 0, 1, 1]) == [0, 0, 1, 1]


def test_a_column_filled_with_a_constant_identifies_nothing() -> None:
    assert matched(text=["A", "B", "C"], id=[0, 0, 0]) == [-1, -1, -1]


def test_of_one_document_all_pieces_come_from_it() -> None:
    one = TableColumns(pa.table({"text": ["a b"], "id": [7]}))
    assert match_rows(one, pa.table({"text": ["a", "b"], "id": [7, 7]})).tolist() == [0, 0]
