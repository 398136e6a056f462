"""Every JSON value that no stage changed leaves with the bytes it came with, whatever kind of stage is in between."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import polars as pl
import pyarrow.compute as pc
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gristmill.pipeline import Pipeline
from gristmill.stages.function_decorators import processing_stage
from gristmill.stages.text.io import JsonlReader, JsonlWriter, ParquetReader, ParquetWriter
from gristmill.stages.text.modifiers import Modify
from gristmill.tasks import DocumentBatch
from tests.other_engine import only_in_one_process
from tests.unit.pipeline.jobs import here, read_lines, read_rows, run_lines, write_lines

VALUES = [
    '"00123"', '"2021-01-01"', '"2021-01-01T00:00:00Z"', "12345678901234567890123", "9223372036854775808",
    "9223372036854775807", "-9223372036854775808", "9007199254740993", "1.0", "1", "1e400", "-1e400", "1e-400", "-0.0",
    "-0", "0", "1E5", "0.1", "1.10", "123456789012345678.5", '{"a": 1, "b": [1, 2.50]}', "[]", "{}", '[1,"x",null]',
    "null", "true", "false", '""', r'"\u0000"', r'"\u2028"', '"\u2028"', '"😀"', r'"\ud83d\ude00"', r'"\ud800"',
    r'"a\/b"', r'"\u00e9"', '"é"', r'{"x": "\ud800"}', '{"n": 12345678901234567890}', "[1.0, 2]", "[1e400]",
    "[9007199254740993, 0.5]", '{"t":"2021-01-01"}', '{"k":1,"k":2}', "[[], [[1]], {}]", '{"a": {}}',
]  # fmt: skip


def _lines(value: str, number: int = 0) -> list[str]:
    return [
        f'{{"id": {3 * number}, "v": {value} , "text":"hello"}}',
        f'{{"v":{value},"text" : "world","rare_{number}": {value}, "id":{3 * number + 1}}}',
        f'{{"text":"again", "v"  :{value},"id":{3 * number + 2}}}',
    ]


MIXED = [
    *(line for number, value in enumerate(VALUES) for line in _lines(value, number)),
    '{"id":-1,"text":"no v here"}',
    '{"id":-2,"text":"first","v":1,"v":"2","text":"second"}',
]


@processing_stage(name="pandas_filter")
def pandas_filter(batch: DocumentBatch) -> DocumentBatch:
    frame = batch.to_pandas()
    return DocumentBatch(data=frame[frame["text"] != "world"])


@processing_stage(name="pandas_change")
def pandas_change(batch: DocumentBatch) -> DocumentBatch:
    frame = batch.to_pandas()
    return DocumentBatch(data=frame.assign(text=frame["text"].str.upper()))


@processing_stage(name="pandas_in_place")
def pandas_in_place(batch: DocumentBatch) -> DocumentBatch:
    frame = batch.to_pandas()
    frame["text"] = frame["text"].str.upper()
    return batch


@processing_stage(name="pandas_data")
def pandas_data(batch: DocumentBatch) -> DocumentBatch:
    frame = batch.to_pandas().copy()
    frame["text"] = frame["text"].str.upper()
    batch.data = frame
    return batch


@processing_stage(name="polars_filter_change")
def polars_filter_change(batch: DocumentBatch) -> DocumentBatch:
    frame = batch.to_polars().filter(pl.col("text") != "world")
    return DocumentBatch(data=frame.with_columns(pl.col("text").str.to_uppercase()))


@processing_stage(name="polars_change")
def polars_change(batch: DocumentBatch) -> DocumentBatch:
    return DocumentBatch(data=batch.to_polars().with_columns(pl.col("text").str.to_uppercase()))


@processing_stage(name="arrow_change")
def arrow_change(batch: DocumentBatch) -> DocumentBatch:
    table = batch.to_pyarrow()
    table = table.filter(pc.not_equal(table["text"], "world"))
    place = table.column_names.index("text")
    return DocumentBatch(data=table.set_column(place, "text", pc.utf8_upper(table["text"])))


def _upper(line: str) -> str:
    pattern = r'("text" ?: ?)"([^"]*)"(?!.*"text")'
    return re.sub(pattern, lambda found: f'{found[1]}"{found[2].upper()}"', line)


def _same(line: str) -> str | None:
    return line


def _not_world(line: str) -> str | None:
    return None if '"world"' in line else line


def _upper_not_world(line: str) -> str | None:
    return None if '"world"' in line else _upper(line)


WAYS: dict[str, tuple[list[Any], Callable[[str], str | None]]] = {
    "write": ([], _same),
    "pandas filter": ([pandas_filter], _not_world),
    "pandas change": ([pandas_change], _upper),
    "pandas in place": ([pandas_in_place], _upper),
    "pandas data": ([pandas_data], _upper),
    "polars filter and change": ([polars_filter_change], _upper_not_world),
    "polars change": ([polars_change], _upper),
    "arrow filter and change": ([arrow_change], _upper_not_world),
    "modify": ([Modify(str.upper)], _upper),
    "all of them": ([pandas_in_place, polars_change, pandas_data, Modify(str.upper)], _upper),
}


@pytest.mark.parametrize("way", WAYS)
def test_untouched_values_keep_their_bytes(tmp_path: Path, way: str) -> None:
    stages, expected = WAYS[way]
    result = run_lines(tmp_path, MIXED, stages)
    assert read_lines(tmp_path / "out") == [line for line in map(expected, MIXED) if line is not None]
    assert not any(stage.untracked for stage in result.report.stages)


@pytest.mark.parametrize("way", ["pandas change", "polars filter and change", "arrow filter and change"])
@pytest.mark.parametrize("value", VALUES)
def test_a_column_of_one_kind_keeps_its_bytes(tmp_path: Path, way: str, value: str) -> None:
    stages, expected = WAYS[way]
    run_lines(tmp_path, _lines(value), stages)
    assert read_lines(tmp_path / "out") == [line for line in map(expected, _lines(value)) if line is not None]


def test_polars_changes_are_followed_without_any_id(tmp_path: Path) -> None:
    lines = ['{"source":"x","text":"one"}', '{"source":"x","text":"two"}', '{"source":"x","text":"two"}']
    result = run_lines(tmp_path, lines, [polars_change])
    assert read_lines(tmp_path / "out") == [_upper(line) for line in lines]
    assert result.report.stages[1].untracked == 0
    assert result.report.dropped == 0


def test_converted_values_are_written_as_converted(tmp_path: Path) -> None:
    @processing_stage(name="convert")
    def convert(batch: DocumentBatch) -> DocumentBatch:
        frame = batch.to_pandas()
        return DocumentBatch(data=frame.assign(year=frame["year"].astype(int), flag=frame["flag"].astype(int)))

    run_lines(tmp_path, ['{"year":"2020","flag":true}', '{"year":"1999","flag":false}'], [convert])
    assert read_lines(tmp_path / "out") == ['{"year":2020,"flag":1}', '{"year":1999,"flag":0}']


def test_a_changed_nested_value_is_rewritten_alone(tmp_path: Path) -> None:
    @processing_stage(name="touch")
    def touch(batch: DocumentBatch) -> DocumentBatch:
        frame = batch.to_pandas()
        frame["meta"] = [{**meta, "n": 2} if meta["n"] == 1 else meta for meta in frame["meta"]]
        return DocumentBatch(data=frame)

    run_lines(tmp_path, ['{"id":1,"meta":{"n" : 1}}', '{"id":2,"meta":{"n" : 5.10}}'], [touch])
    assert read_lines(tmp_path / "out") == ['{"id":1,"meta":{"n": 2}}', '{"id":2,"meta":{"n" : 5.10}}']


def _json_values() -> st.SearchStrategy[str]:
    numbers = st.one_of(
        st.integers().map(str),
        st.floats(allow_nan=False, allow_infinity=False).map(repr),
        st.sampled_from(["-0", "1e400", "1E+2", "0.10"]),
    )
    leaves = st.one_of(numbers, st.text(max_size=5).map(json.dumps), st.sampled_from(["null", "true", "false"]))
    return st.recursive(
        leaves,
        lambda inner: st.one_of(
            st.lists(inner, max_size=3).map(lambda items: "[" + " ,".join(items) + "]"),
            st.dictionaries(st.text(max_size=2), inner, max_size=3).map(
                lambda items: "{" + ", ".join(f"{json.dumps(key)}: {value}" for key, value in items.items()) + "}"
            ),
        ),
        max_leaves=6,
    )


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(
    values=st.lists(st.one_of(st.none(), _json_values()), min_size=1, max_size=6),
    way=st.sampled_from(["pandas change", "polars change", "modify", "all of them"]),
)
def test_any_json_value_keeps_its_bytes(
    tmp_path_factory: pytest.TempPathFactory, values: list[str | None], way: str
) -> None:
    lines = [
        f'{{"id":{number},"text":"t{number}"}}'
        if value is None
        else f'{{"id":{number},"v":{value},"text":"t{number}"}}'
        for number, value in enumerate(values)
    ]
    folder = tmp_path_factory.mktemp("job")
    run_lines(folder, lines, WAYS[way][0])
    written = read_lines(folder / "out")
    for before, after in zip(lines, written, strict=True):
        assert after.lower() == before.lower() or json.loads(after)["v"] == json.loads(before)["v"]
        assert before.split('"v":')[-1].rsplit(',"text"', 1)[0] in after


def _plain(value: Any) -> Any:
    """A value as Parquet can keep it: no difference between missing and null, nor between 1 and 1.0."""
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items() if item is not None}
    if isinstance(value, list):
        return [_plain(item) for item in value]
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode().replace("\ufffd", "?")
    return value


PAIRS = [
    ("1", "1.5"), ("9007199254740993", "0.5"), ("1", '"1"'), ("9223372036854775808", "1"), ("[1]", "[0.5]"),
    ("[9007199254740993]", "[0.5]"), ('{"a":1}', '{"a":"x"}'), ('{"a":1}', '{"b":[]}'), ("{}", '{"a":1}'),
    ("[]", "[{}]"),
    ("true", "1"), ("null", '"x"'), ("1e400", "2.5"), (r'"\ud800"', r'{"x":"\ud800"}'), ('"2021-01-01"', "1609459200"),
]  # fmt: skip


@pytest.mark.parametrize(("one", "other"), PAIRS)
def test_parquet_of_changing_types_is_read_back(tmp_path: Path, one: str, other: str) -> None:
    lines = [f'{{"id":1,"text":"a","v":{one}}}', f'{{"id":2,"text":"b","v":{other}}}', '{"id":3,"text":"c"}']
    for number, line in enumerate(lines):
        write_lines(tmp_path / "in" / f"{number}.jsonl", [line])
    names = {name: str(tmp_path / name) for name in ("in", "parquet", "again", "out")}
    for stages in (
        [JsonlReader(names["in"]), ParquetWriter(names["parquet"])],
        [ParquetReader(names["parquet"]), pandas_data, polars_change, ParquetWriter(names["again"])],
        [ParquetReader(names["again"]), pandas_filter, JsonlWriter(names["out"])],
    ):
        Pipeline("round trip", stages=stages).run(executor=here())
    expected = [_plain(json.loads(_upper(line))) for line in lines]
    assert [_plain(row) for row in read_rows(tmp_path / "out")] == expected


@only_in_one_process
def test_pandas_frames_have_ordinary_types(tmp_path: Path) -> None:
    seen: dict[str, str] = {}

    @processing_stage(name="look")
    def look(batch: DocumentBatch) -> DocumentBatch:
        frame = batch.to_pandas()
        seen.update({name: str(kind) for name, kind in frame.dtypes.items()})
        assert list(frame.index) == [0, 1]
        assert isinstance(frame["meta"][0], dict)
        assert pd.isna(frame["some"][1])
        assert frame["some"][0] == 1
        return batch

    lines = [
        '{"n":1,"f":1.5,"b":true,"text":"a","some":1,"meta":{"a":1}}',
        '{"n":2,"f":2,"b":false,"text":"b","meta":{}}',
    ]
    run_lines(tmp_path, lines, [look])
    assert seen == {"n": "int64", "f": "float64", "b": "bool", "text": "str", "some": "Int64", "meta": "object"}
    assert read_lines(tmp_path / "out") == lines
