"""Tables become JSON lines from which the same values can be read."""

from __future__ import annotations

import base64
import datetime as dt
import json
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gristmill.errors import UsageError
from gristmill.storage.json_columns import encode_table
from tests.unit.kernels import json_reference as reference


def lines_of(**columns: Any) -> list[str]:
    text = encode_table(columns).tobytes().decode()
    assert text.endswith("\n") or not text
    return text.split("\n")[:-1]


def value_texts(array: pa.Array) -> list[str]:
    return [line.removeprefix('{"v":').removesuffix("}") for line in lines_of(v=array)]


leaves = st.one_of(
    st.tuples(st.just(pa.int64()), st.just(st.integers(-(2**63), 2**63 - 1))),
    st.tuples(st.just(pa.uint64()), st.just(st.integers(0, 2**64 - 1))),
    st.tuples(st.just(pa.int8()), st.just(st.integers(-128, 127))),
    st.tuples(st.just(pa.float64()), st.just(st.floats(allow_nan=False, allow_infinity=False))),
    st.tuples(st.just(pa.bool_()), st.just(st.booleans())),
    st.tuples(st.sampled_from([pa.string(), pa.large_string(), pa.string_view()]), st.just(reference.texts)),
    st.tuples(st.just(pa.null()), st.just(st.none())),
)
typed: st.SearchStrategy[Any] = st.recursive(
    leaves,
    lambda inner: st.one_of(
        inner.map(lambda pair: (pa.list_(pair[0]), st.lists(st.none() | pair[1], max_size=3))),
        inner.map(lambda pair: (pa.large_list(pair[0]), st.lists(st.none() | pair[1], max_size=3))),
        st.tuples(inner, inner).map(
            lambda pairs: (
                pa.struct([("x", pairs[0][0]), ("y\n", pairs[1][0])]),
                st.fixed_dictionaries({"x": st.none() | pairs[0][1], "y\n": st.none() | pairs[1][1]}),
            )
        ),
    ),
    max_leaves=4,
)


@settings(max_examples=200)
@given(typed, st.data())
def test_values_survive_the_way_through_json(pair: Any, data: st.DataObject) -> None:
    kind, strategy = pair
    values = data.draw(st.lists(st.none() | strategy, max_size=5))
    skip = data.draw(st.integers(0, len(values)))
    rows = lines_of(v=pa.array(values, kind).slice(skip), n=pa.array(range(len(values) - skip), pa.int32()))
    # Members of a struct come in the order of its type, whatever the order in the dictionary it was made from.
    expected = [json.dumps({"v": value, "n": row}, sort_keys=True) for row, value in enumerate(values[skip:])]
    assert [json.dumps(json.loads(row), sort_keys=True) for row in rows] == expected


def test_the_form_is_compact_and_escapes_only_what_it_must() -> None:
    assert lines_of(a=pa.array([1, None]), b=pa.chunked_array([["é\u2028/\x7f"], ['"\\\n\x01']])) == [
        '{"a":1,"b":"é\u2028/\x7f"}',
        '{"a":null,"b":"\\"\\\\\\n\\u0001"}',
    ]
    assert lines_of() == []
    assert lines_of(a=pa.array([], pa.float64())) == []


def test_floats_are_the_shortest_that_read_back() -> None:
    values = [1.0, 0.1, -0.0, 1e300, 5e-324, float("nan"), float("inf"), -float("inf"), None]
    assert value_texts(pa.array(values)) == ["1.0", "0.1", "-0.0", "1e+300", "5e-324", "null", "null", "null", "null"]
    assert value_texts(pa.array([0.1, 1.0], pa.float32())) == ["0.1", "1.0"]
    assert value_texts(pa.array([1.5, None], pa.float16())) == ["1.5", "null"]


@pytest.mark.parametrize(
    ("array", "texts"),
    [
        (pa.array([dt.date(2020, 2, 29), None]), ['"2020-02-29"', "null"]),
        (pa.array([dt.datetime(2020, 1, 2, 3, 4, 5)], pa.timestamp("s")), ['"2020-01-02T03:04:05"']),  # noqa: DTZ001
        (pa.array([0, None], pa.timestamp("ms", "Europe/Berlin")), ['"1970-01-01T00:00:00.000Z"', "null"]),
        (pa.array([dt.time(1, 2, 3)], pa.time32("s")), ['"01:02:03"']),
        (pa.array([1500, -1, None], pa.duration("ms")), ['"PT1.500S"', '"PT-0.001S"', "null"]),
        (pa.array([7], pa.duration("s")), ['"PT7S"']),
        (pa.array([b"\x00\xff", None]), [f'"{base64.b64encode(bytes([0, 255])).decode()}"', "null"]),
        (pa.array([b"ab"], pa.binary(2)), ['"YWI="']),
        (
            pa.array([Decimal("1.20"), Decimal("-12345678901234567890.12"), None]),
            ["1.20", "-12345678901234567890.12", "null"],
        ),
        (pa.array(["x", None, "x"]).dictionary_encode(), ['"x"', "null", '"x"']),
        (pa.RunEndEncodedArray.from_arrays([2, 3], pa.array(["r", "s"])), ['"r"', '"r"', '"s"']),
        (pa.array([[1, 2], None], pa.list_(pa.int8(), 2)), ["[1,2]", "null"]),
        (
            pa.array([[("k", 1), ("l", None)], [], None], pa.map_(pa.string(), pa.int64())),
            ['{"k":1,"l":null}', "{}", "null"],
        ),
        (pa.array([[(1, "x")], [(2, None)]], pa.map_(pa.int64(), pa.string())), ['{"1":"x"}', '{"2":null}']),
        (pa.array([{}, None], pa.struct([])), ["{}", "null"]),
        (pa.array([None, None]), ["null", "null"]),
    ],
)
def test_other_types(array: pa.Array, texts: list[str]) -> None:
    assert value_texts(array) == texts
    assert value_texts(array.slice(1)) == texts[1:]


def test_columns_must_be_equally_long() -> None:
    with pytest.raises(UsageError, match=r"same number of rows; found \{'a': 1, 'b': 2\}"):
        encode_table({"a": pa.array([1]), "b": pa.array([1, 2])})


def test_a_type_without_a_json_form_is_an_error() -> None:
    with pytest.raises(UsageError, match="month_day_nano_interval cannot be written as JSON"):
        encode_table({"a": pa.array([(1, 2, 3)], pa.month_day_nano_interval())})
