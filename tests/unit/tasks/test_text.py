"""The text of a document: what it is must not depend on the other documents of the batch, nor on where it came from."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gristmill.storage.json_columns import string_texts, texts_of_json
from gristmill.storage.json_records import JsonRecords
from gristmill.tasks import DocumentBatch
from gristmill.tasks.columns import JSON_TYPE, RecordColumns, from_transport, records_of_lines

VALUES = [
    "ab",
    'say "hi"\n',
    "é漢\U0001f600",
    "",
    "null",
    "5",
    '"',
    '"quoted"',
    "\\",
    None,
    5,
    1.5,
    True,
    [1, "a"],
    {"k": "v"},
]
TEXTS = [*VALUES[:10], "5", "1.5", "true", '[1, "a"]', '{"k": "v"}']


def of_lines(values: list[Any]) -> DocumentBatch:
    lines = "".join(json.dumps({"text": value}) + "\n" for value in values)
    return DocumentBatch.from_columns(RecordColumns(records_of_lines(np.frombuffer(lines.encode(), np.uint8))))


def of_frame(values: list[Any]) -> DocumentBatch:
    return DocumentBatch(data=pd.DataFrame({"text": pd.Series(values, dtype=object)}))


def of_parquet(values: list[Any], folder: Path) -> DocumentBatch:
    pq.write_table(of_lines(values).to_pyarrow(), folder / "a.parquet")
    return DocumentBatch(data=pq.read_table(folder / "a.parquet"))


@pytest.fixture(params=["lines", "frame", "parquet"])
def made(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    return {"lines": of_lines, "frame": of_frame, "parquet": lambda values: of_parquet(values, tmp_path)}[request.param]


def test_strings_are_given_as_they_are_and_only_other_values_as_json(made: Any) -> None:
    assert made(VALUES).text("text").to_pylist() == TEXTS


def test_the_part_of_a_batch_has_the_texts_of_the_whole(made: Any) -> None:
    batch = made(VALUES)
    assert batch.slice(3, 9).text("text").to_pylist() == TEXTS[3:12]
    assert batch.take(np.array([9, 1, 10])).text("text").to_pylist() == [None, TEXTS[1], "5"]
    assert from_transport(batch.columns.transport()).text("text").to_pylist() == TEXTS


def test_strings_alone_are_not_looked_at() -> None:
    batch = of_lines(["a", None, "b"])
    assert batch.text("text") is batch.column("text")


@pytest.mark.parametrize("missing", [None, np.nan, pd.NA, pd.NaT, np.float32("nan")])
def test_what_pandas_calls_missing_is_no_text(missing: Any) -> None:
    for others in (["a"], ["a", 5]):
        batch = of_frame([missing, *others])
        assert batch.text("text").to_pylist() == [None, *map(str, others)]
        assert json.loads(batch.columns.encode_jsonl().tobytes().splitlines()[0]) == {"text": None}


def test_new_texts_leave_other_values_as_they_were(made: Any) -> None:
    batch = made(["a", 5, None, 'b"'])
    new = pa.array(['A"é', "x", "x", "x"], pa.large_string())
    after = batch.with_text("text", new, changed=np.array([True, False, False, False]))
    assert after.text("text").to_pylist() == ['A"é', "5", None, 'b"']
    lines = after.columns.encode_jsonl().tobytes().decode().splitlines()
    assert [json.loads(line)["text"] for line in lines] == ['A"é', 5, None, 'b"']
    assert after.columns.python_values("text") == ['A"é', 5, None, 'b"']


def test_a_plain_column_keeps_its_type_with_new_texts() -> None:
    batch = DocumentBatch(data=pa.table({"text": pa.array(["a", "b"], pa.string())}))
    after = batch.with_text("text", pa.array(["c", "b"], pa.large_string()), changed=np.array([True, False]))
    assert after.column("text").type == pa.string()
    assert after.text("text").to_pylist() == ["c", "b"]


@given(st.lists(st.none() | st.text() | st.integers() | st.booleans() | st.lists(st.text(max_size=3), max_size=2)))
def test_any_values_in_json_texts_give_what_python_reads(values: list[Any]) -> None:
    written = [None if value is None else json.dumps(value) for value in values]
    expected = [value if value is None or isinstance(value, str) else json.dumps(value) for value in values]
    for before in range(2):
        column = pa.array([*['"x\\n"'] * before, *written], pa.large_string()).slice(before)
        assert texts_of_json(column).to_pylist() == expected


@given(st.lists(st.none() | st.text()))
def test_strings_written_as_json_are_read_back(values: list[str | None]) -> None:
    column = string_texts(pa.array([None, *values], pa.large_string()).slice(1))
    assert [None if text is None else json.loads(text) for text in column.to_pylist()] == values


@pytest.mark.parametrize("text", ['"', '"\\"', '"\\u00"', '"\\ud8', '"a" "\\x"', "nul", ""])
def test_what_is_marked_as_json_and_is_none_stays_as_it_is(text: str) -> None:
    field = pa.field("text", pa.large_string(), metadata=JSON_TYPE)
    batch = DocumentBatch(data=pa.table([pa.array([text, '"a"'], pa.large_string())], schema=pa.schema([field])))
    assert batch.text("text").to_pylist() == [text, "a"]


def test_half_of_a_surrogate_pair_is_the_replacement_character_beside_numbers_too() -> None:
    line = b'{"text": "a\\ud800"}\n{"text": 5}\n'
    records = records_of_lines(np.frombuffer(line, np.uint8))
    assert isinstance(records, JsonRecords)
    assert DocumentBatch.from_columns(RecordColumns(records)).text("text").to_pylist() == ["a\ufffd", "5"]
