"""Ids, splitting and joining: values, origins, and what goes into the ledger."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gristmill.errors import PlanningError, UsageError
from gristmill.stages.text.modules import AddId, DocumentJoiner, DocumentSplitter
from gristmill.tasks import DocumentBatch
from gristmill.tasks.columns import TableColumns


def batch_of(rows=None, **columns):
    table = pa.table(columns)
    numbers = np.arange(table.num_rows) if rows is None else np.asarray(rows)
    batch = DocumentBatch.from_columns(TableColumns(table), rows=numbers)
    batch.task_id = "3/0"
    return batch


def ids(batch, **options):
    return AddId("id", **options).process(batch).to_pyarrow()["id"].to_pylist()


def test_ids_name_the_task_and_the_row_of_the_partition():
    assert ids(batch_of([4, 7], text=["a", "b"])) == ["3/0_4", "3/0_7"]
    assert ids(batch_of([4, 7], text=["a", "b"]), id_prefix="web", start_index=10) == ["web_3/0_14", "web_3/0_17"]


def test_ids_of_rows_with_one_origin_differ():
    assert ids(batch_of([4, 4, 5, 4], text=list("abcd"))) == ["3/0_4", "3/0_4_1", "3/0_5", "3/0_4_2"]


def test_new_rows_get_ids_of_their_own():
    assert ids(batch_of([0, -1, -1], text=list("abc"))) == ["3/0_0", "3/0_new1", "3/0_new2"]


def test_a_batch_without_origins_counts_its_rows():
    batch = DocumentBatch(data=pa.table({"text": ["a", "b"]}), task_id="t")
    assert ids(batch) == ["t_0", "t_1"]
    assert ids(batch_of([], text=pa.array([], pa.string()))) == []


@settings(max_examples=100, deadline=None)
@given(st.lists(st.integers(-1, 4), max_size=12))
def test_ids_are_unique_for_any_rows(rows):
    values = ids(batch_of(rows, text=pa.array(["x"] * len(rows), pa.string())))
    assert len(set(values)) == len(rows)


def test_an_existing_column_is_only_replaced_when_asked():
    batch = batch_of(id=["x"], text=["a"])
    with pytest.raises(PlanningError, match="overwrite=True"):
        ids(batch)
    with pytest.raises(ValueError, match="already exists"):
        AddId("id").check_columns(["text", "id"])
    assert ids(batch, overwrite=True) == ["3/0_0"]


@pytest.mark.parametrize("options", [{"id_field": ""}, {"id_field": "id", "start_index": -1}])
def test_ids_refuse_arguments_that_cannot_work(options):
    with pytest.raises(UsageError):
        AddId(**options)


# --- splitting ---


def split(separator, texts):
    batch = batch_of(text=pa.array(texts, pa.large_string()), n=list(range(len(texts))))
    result = DocumentSplitter(separator).process(batch)
    table = result.to_pyarrow()
    return list(
        zip(
            result.rows.tolist(),
            table["n"].to_pylist(),
            table["segment_id"].to_pylist(),
            table["text"].to_pylist(),
            strict=True,
        )
    )


def test_segments_keep_the_origin_and_the_columns_of_their_document():
    assert split("||", ["a||b", "c", None, "", "||"]) == [
        (0, 0, 0, "a"), (0, 0, 1, "b"), (1, 1, 0, "c"), (2, 2, 0, None), (3, 3, 0, ""), (4, 4, 0, ""), (4, 4, 1, ""),
    ]  # fmt: skip


@settings(max_examples=150, deadline=None)
@given(
    st.lists(st.one_of(st.none(), st.text(alphabet="ab|é\n", max_size=10)), max_size=6),
    st.sampled_from(["|", "ab", "\n\n", "é", "."]),
)
def test_splitting_equals_that_of_python(texts, separator):
    wanted = []
    for row, text in enumerate(texts):
        for number, part in enumerate([None] if text is None else text.split(separator)):
            wanted.append((row, row, number, part))
    assert split(separator, texts) == wanted


def test_a_batch_in_which_nothing_is_split_keeps_its_texts():
    batch = batch_of(text=["a", None])
    result = DocumentSplitter("|").process(batch)
    assert result.to_pyarrow()["text"].equals(batch.to_pyarrow()["text"])
    assert batch._tracking.trail.changes == []


def test_splitting_notes_by_how_much_each_row_shrank():
    batch = batch_of(text=["abc|d", "e"])
    DocumentSplitter("|").process(batch)
    (change,) = batch._tracking.trail.changes
    assert (change.field, change.rows.tolist(), change.characters.tolist()) == ("text", [0, 0], [-2, -4])


def test_an_empty_separator_is_refused():
    with pytest.raises(UsageError, match="separator"):
        DocumentSplitter("")


# --- joining ---


def test_segments_are_joined_in_their_order_and_counted_as_merged():
    batch = batch_of(id=[2, 1, 2, 1], segment_id=[1, 0, 0, 1], text=["b", "c", "a", "d"], n=[0, 1, 2, 3])
    result = DocumentJoiner().process(batch)
    assert result.to_pyarrow().to_pydict() == {"id": [1, 2], "text": ["c\n\nd", "a\n\nb"], "n": [1, 2]}
    assert result.rows.tolist() == [1, 2]
    (decision,) = batch._tracking.trail.decisions
    assert (decision.reason, decision.outcome, decision.rows.tolist()) == ("joined_into_document", "dropped", [0, 3])
    (change,) = result._tracking.trail.changes
    assert (change.rows.tolist(), change.characters.tolist()) == ([1, 2], [3, 3])


def test_what_was_split_is_joined_again():
    texts = ["a|b|c", None, "", "d", "|"]
    batch = batch_of(id=list("vwxyz"), text=texts)
    result = DocumentJoiner("|").process(DocumentSplitter("|").process(batch))
    assert result.to_pyarrow().to_pydict() == {"id": list("vwxyz"), "text": texts}
    assert result.rows.tolist() == [0, 1, 2, 3, 4]


def test_rows_without_an_id_or_without_text_lose_nothing():
    batch = batch_of(id=[None, None, 1, 1, 1], segment_id=[0, 1, 0, 1, 2], text=["a", "b", None, "c", "d"])
    result = DocumentJoiner("-", drop_segment_id_field=False).process(batch).to_pyarrow().to_pydict()
    assert result == {"id": [None, None, 1], "segment_id": [0, 1, 0], "text": ["a", "b", "c-d"]}


def test_segment_ids_may_be_text():
    batch = batch_of(id=[1, 1], segment_id=["b", "a"], text=["2", "1"])
    assert DocumentJoiner("").process(batch).to_pyarrow()["text"].to_pylist() == ["12"]


def limited(rows, limit, separator):
    """The plain reference: documents in order of their first segment."""
    documents = {}
    for place, (document, segment, text) in enumerate(rows):
        documents.setdefault(document, []).append((segment, place, text))
    joined = []
    for document, parts in documents.items():
        number = -1
        for _, place, text in sorted(parts):
            if number >= 0 and joined[-1][4] + len(separator) + len(text) <= limit:
                head = joined[-1]
                joined[-1] = (
                    head[0],
                    document,
                    number,
                    head[3] + separator + text,
                    head[4] + len(separator) + len(text),
                )
            else:
                number += 1
                joined.append((place, document, number, text, len(text)))
    return sorted(joined)


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 2), st.integers(0, 4), st.text(alphabet="aé", max_size=4)), max_size=12),
    st.integers(0, 12),
)
def test_joining_within_a_length_equals_the_reference(rows, limit):
    batch = batch_of(
        id=pa.array([r[0] for r in rows], pa.int64()), segment_id=pa.array([r[1] for r in rows], pa.int64()),
        text=pa.array([r[2] for r in rows], pa.string()), length=pa.array([len(r[2]) for r in rows], pa.int64()),
    )  # fmt: skip
    joiner = DocumentJoiner("--", drop_segment_id_field=False, max_length=limit, length_field="length")
    result = joiner.process(batch)
    table = result.to_pyarrow().to_pydict()
    got = list(zip(result.rows.tolist(), table["id"], table["segment_id"], table["text"], table["length"], strict=True))
    assert got == limited(rows, limit, "--")


def test_an_empty_batch_loses_only_the_column():
    batch = batch_of(id=pa.array([], pa.int64()), segment_id=pa.array([], pa.int64()), text=pa.array([], pa.string()))
    assert DocumentJoiner().process(batch).get_columns() == ["id", "text"]


@pytest.mark.parametrize("options", [{"max_length": 3}, {"length_field": "length"}])
def test_limit_and_length_belong_together(options):
    with pytest.raises(UsageError, match="set both or neither"):
        DocumentJoiner(**options)


def test_columns_are_declared():
    joiner = DocumentJoiner(max_length=5, length_field="n")
    assert joiner.inputs() == (["data"], ["text", "segment_id", "id", "n"])
    assert joiner.outputs() == (["data"], ["text", "id", "n"])
    assert DocumentSplitter("|").outputs() == (["data"], ["text", "segment_id"])
    assert AddId("key").outputs() == (["data"], ["key"])
