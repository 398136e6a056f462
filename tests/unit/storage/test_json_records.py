"""Records keep their bytes, decode to exact columns, and take changes without touching the rest of a line."""

from __future__ import annotations

import json
import math
import pickle
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gristmill.errors import UsageError
from gristmill.storage.json_records import JsonRecords
from gristmill.storage.jsonl_sink import RecordLines
from tests.unit.kernels import json_reference as reference

NAMES = ["a", "b", "text", "é", "", "k" * 40]


def scanned(lines: list[bytes], *, fields: tuple[str, ...] = ()) -> JsonRecords:
    records, bad, _ = JsonRecords.scan(*reference.block(lines), fields=fields)
    assert not len(bad)
    return records


def expected_column(values: list[Any]) -> tuple[pa.DataType | None, list[Any]]:
    """The Arrow type (None for JSON text) and the values that the rules of `column` give."""
    kinds = {type(value) for value in values if value is not None}
    if not kinds:
        return pa.null(), values
    if kinds == {str}:
        return pa.large_string(), [reference.replaced(value) for value in values]
    if kinds == {bool}:
        return pa.bool_(), values
    if kinds == {int} and all(value is None or -(2**63) <= value < 2**63 for value in values):
        return pa.int64(), values
    integers = [value for value in values if isinstance(value, int)]
    if any(isinstance(value, float) and math.isinf(value) for value in values):
        return None, values  # written as a float it would become null
    if kinds <= {int, float} and float in kinds and all(abs(value) < 2**53 for value in integers):
        return pa.float64(), [None if value is None else float(value) for value in values]
    return None, values


def check_columns(records: JsonRecords, rows: list[dict[str, Any]]) -> None:
    for name in NAMES:
        values = [row.get(name) for row in rows]
        kind, expected = expected_column(values)
        column = records.column(name)
        column.validate(full=True)
        assert records.is_json(name) == (kind is None)
        assert records.has(name).tolist() == [name in row for row in rows]
        assert repr(records.python_values(name)) == repr(values)
        if kind is None:
            assert column.type == pa.large_string()
            decoded = [None if text is None else json.loads(text) for text in column.to_pylist()]
            assert repr(decoded) == repr(expected)
        else:
            assert column.type == kind
            found = column.to_pylist()
            if kind == pa.float64():
                # Python reads -0 as the integer 0; here it keeps its sign beside floats.
                found, expected = ([value and value + 0.0 for value in values] for values in (found, expected))
            assert repr(found) == repr(expected) or found == expected


lists_of_records = st.lists(reference.records, max_size=5)
# One kind of value per key in most examples, so that every decoder has its turn.
uniform = st.sampled_from([reference.numbers, reference.strings(), st.sampled_from(["true", "false"])]).flatmap(
    lambda kind: st.lists(
        reference.objects(kind | st.just("null"), reference.names).map(str.encode), min_size=1, max_size=5
    )
)


@settings(max_examples=100)
@given(lists_of_records | uniform, st.sets(st.sampled_from(NAMES)))
def test_columns_follow_the_rules(lines: list[bytes], fields: set[str]) -> None:
    records = scanned(lines, fields=tuple(fields))
    check_columns(records, [json.loads(line) for line in lines])


@settings(max_examples=60)
@given(lists_of_records | uniform, st.data())
def test_derived_records_are_the_same_records(lines: list[bytes], data: st.DataObject) -> None:
    records = scanned(lines, fields=("text",))
    order = data.draw(st.lists(st.integers(0, len(lines) - 1), max_size=6)) if lines else []
    indices = np.array(order, np.int64)
    taken = records.take(indices)
    rows = [lines[index] for index in order]
    start = data.draw(st.integers(0, len(order)))
    length = data.draw(st.integers(0, 3))
    for derived, expected in (
        (taken, rows),
        (taken.compact(), rows),
        (JsonRecords.from_arrow(taken.to_arrow()), rows),
        (JsonRecords.from_arrow(taken.compact().to_arrow().slice(start)), rows[start:]),
        (pickle.loads(pickle.dumps(taken)), rows),
        (taken.slice(start, length), rows[start : start + length]),
        (taken.slice(start).take(np.arange(len(rows) - start)[::-1]).compact(), rows[start:][::-1]),
    ):
        assert derived.to_arrow().to_pylist() == expected
        assert derived.nbytes == sum(map(len, expected))
        assert derived.encode().tobytes() == b"".join(row + b"\n" for row in expected)
        shown = list(dict.fromkeys(reference.replaced(key) for row in expected for key in json.loads(row)))
        assert set(shown) <= set(derived.keys()) <= set(records.keys())
        check_columns(derived, [json.loads(row) for row in expected])


def test_a_decoded_column_keeps_its_type_when_rows_are_taken() -> None:
    records = scanned([b'{"a":1}', b'{"a":"x"}', b'{"a":2}', b"{}"])
    assert records.is_json("a")
    taken = records.take(np.array([2, 3, 0])).slice(0, 2).take(np.array([1, 0]))
    assert taken.column("a").to_pylist() == [None, "2"]
    assert taken.is_json("a")
    assert records.slice(0, 1).column("a").to_pylist() == ["1"]


@settings(max_examples=100)
@given(lists_of_records, st.data())
def test_changes_are_a_dictionary_update_and_touch_nothing_else(lines: list[bytes], data: st.DataObject) -> None:
    changes: dict[str, tuple[pa.Array, npt.NDArray[np.bool_] | None]] = {}
    news: dict[str, tuple[list[Any], list[bool]]] = {}
    for name in data.draw(st.lists(st.sampled_from([*NAMES, 'new"\n']), unique=True)):
        kind = data.draw(st.sampled_from([st.none() | reference.texts, st.none() | st.integers(-(2**63), 2**63 - 1)]))
        values = data.draw(st.lists(kind, min_size=len(lines), max_size=len(lines)))
        mask = data.draw(st.none() | st.lists(st.booleans(), min_size=len(lines), max_size=len(lines)))
        changes[name] = pa.array(values), None if mask is None else np.array(mask, np.bool_)
        news[name] = values, mask if mask is not None else [True] * len(lines)
    drop = data.draw(st.sets(st.sampled_from(NAMES), max_size=2))
    fields = data.draw(st.none() | st.lists(st.sampled_from([*NAMES, 'new"\n', "absent"]), unique=True))

    written = scanned(lines).encode(changes=changes, drop=drop, fields=fields).tobytes().split(b"\n")
    assert written.pop() == b""
    assert len(written) == len(lines)
    for row, (line, found) in enumerate(zip(lines, written, strict=True)):
        expected = json.loads(line)
        changed = False
        for name, (values, flags) in news.items():
            if flags[row] and name not in drop:
                expected[name] = values[row]
                changed = True
        removed = drop & set(expected)
        expected = {name: value for name, value in expected.items() if name not in drop}
        if fields is not None:
            expected = {name: expected[name] for name in fields if name in expected}
        assert repr(list(json.loads(found).items())) == repr(list(expected.items()))
        if not changed and not removed and fields is None:
            assert found == line


def test_a_change_replaces_the_last_of_two_equal_keys_where_it_stands() -> None:
    records = scanned([b'{ "a" : 1 , "b":[1, 2], "a":  2 }', b"{ }", b'{"b":"\\u00e9"}'])
    assert records.encode(changes={"a": (pa.array(["x", "y", None]), None)}).tobytes().split(b"\n") == [
        b'{ "a" : 1 , "b":[1, 2], "a":  "x" }',
        b'{ "a":"y"}',
        b'{"b":"\\u00e9","a":null}',
        b"",
    ]


def test_values_marked_as_json_are_written_as_they_are() -> None:
    records = scanned([b'{"a":1}', b'{"a":2}', b'{"a":3}'])
    marked = pa.ExtensionArray.from_storage(
        pa.json_(pa.large_string()), pa.array(['{"x":\n1e5}', None, " [1] "], pa.large_string())
    )
    assert records.encode(changes={"a": (marked, None)}).tobytes() == b'{"a":{"x": 1e5}}\n{"a":null}\n{"a":[1]}\n'
    wrong = pa.ExtensionArray.from_storage(pa.json_(pa.large_string()), pa.array(["1", "1,2", "3"], pa.large_string()))
    with pytest.raises(UsageError, match=r"Row 1 .*'1,2'"):
        records.encode(changes={"a": (wrong, None)})


def test_new_values_need_one_row_per_record() -> None:
    with pytest.raises(UsageError, match="'a' are for 2 rows, but there are 1 records"):
        scanned([b"{}"]).encode(changes={"a": (pa.array([1, 2]), None)})


def test_what_arrow_cannot_hold_comes_back_exactly() -> None:
    big = 10**5000
    deep = "[" * 998 + "]" * 998
    lines = [
        b'{"n":' + str(2**64).encode() + b',"s":"\\ud800","z":"\\u0000","e":"\\ud83d\\ude00"}',
        b'{"n":1,"s":"x","d":' + deep.encode() + b"}",
        b'{"n":1' + b"0" * 5000 + b"}",
    ]
    records = scanned(lines)
    assert records.python_values("n") == [2**64, 1, big]
    assert records.column("n").to_pylist()[0] == str(2**64)
    assert records.column("s").to_pylist() == ["\ufffd", "x", None]
    assert records.python_values("s") == ["\ud800", "x", None]
    assert records.column("z").to_pylist()[0] == "\0"
    assert records.column("e").to_pylist()[0] == "😀"
    assert records.nested("d") is None
    level, depth = records.python_values("d")[1], 1
    while level:
        level, depth = level[0], depth + 1
    assert depth == 998
    assert records.encode().tobytes() == b"\n".join(lines) + b"\n"


def test_nested_is_an_arrow_view_where_the_values_agree() -> None:
    records = scanned(
        [
            b'{"o":{"a":1,"t":"2020-01-01"},"l":[1,2],"m":[1,"x"],"f":[1.5,9007199254740993],"x":1}',
            b'{"o":{"a":2,"b":["x"]},"l":null,"m":[2],"f":[2],"x":{}}',
            b"{}",
        ]
    )
    objects = records.nested("o")
    assert objects is not None
    assert objects.to_pylist() == [{"a": 1, "t": "2020-01-01", "b": None}, {"a": 2, "t": None, "b": ["x"]}, None]
    lists = records.nested("l")
    assert lists is not None
    assert lists.to_pylist() == [[1, 2], None, None]
    assert [records.nested(name) for name in ("m", "f", "x", "absent")] == [None] * 4


def test_empty_blocks_work() -> None:
    records, bad, causes = JsonRecords.scan(np.empty(0, np.uint8), [], [], fields=["a"])
    assert (len(records), len(bad), causes, records.keys(), records.nbytes) == (0, 0, [], [], 0)
    assert len(records.column("a")) == 0
    assert records.python_values("a") == []
    assert len(records.encode()) == 0
    assert len(records.encode(fields=["a"])) == 0
    assert len(records.encode(changes={"a": (pa.array([], pa.int64()), None)}, drop=["b"])) == 0
    assert len(JsonRecords.from_arrow(records.to_arrow())) == 0


def test_bad_records_leave_the_good_ones_with_their_values() -> None:
    lines = [b'{"a":"one"}', b'{"bad":', b'{"a":"t\xff"}', b'\t{"a":"two"} ', b"3", b'{"a":"\x00"}']
    records, bad, causes = JsonRecords.scan(*reference.block(lines), fields=["a"])
    assert bad.tolist() == [1, 2, 4, 5]
    assert causes == ["malformed_json", "invalid_utf8", "not_an_object", "nul_byte"]
    assert records.column("a").to_pylist() == ["one", "two"]
    assert records.keys() == ["a"]
    assert records.encode().tobytes() == b'{"a":"one"}\n{"a":"two"}\n'


def test_untouched_lines_are_written_from_the_buffer_they_were_read_into(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [b'{"a":%d}' % number for number in range(9)]
    buffer, starts, ends = reference.block(rows)
    records, _, _ = JsonRecords.scan(buffer, starts, ends)
    (piece,) = RecordLines(records)
    assert np.shares_memory(piece, buffer)
    assert piece.tobytes() == buffer.tobytes()
    monkeypatch.setattr("gristmill.storage.jsonl_sink._PIECE_BYTES", 20)
    for chosen in ([1, 2], [0, 2], [1, 0], [0, 2, 4, 5, 8], []):
        lines = RecordLines(records.take(np.array(chosen, np.int64)))
        pieces = [piece.tobytes() for piece in lines]
        assert b"".join(pieces) == b"".join(rows[row] + b"\n" for row in chosen)
        assert lines.nbytes == sum(map(len, pieces))
        assert max(map(len, pieces), default=0) <= 20


@pytest.mark.parametrize(
    ("lines", "starts", "ends"),
    [
        (b'{"a":1}\n{"a":2}', [0, 8], [7, 15]),  # no line end behind the last record
        (b'{"a":1}\r{"a":2}\n', [0, 8], [7, 15]),  # another character between two
        (b'{"a":1}\n {"a":2} \n', [0, 8], [7, 17]),  # white space around one
        (b'{"a":1}\r\n{"a":2}\r\n', [0, 9], [7, 16]),
    ],
)
def test_lines_have_nothing_around_records_whatever_they_were_read_with(
    lines: bytes, starts: list[int], ends: list[int]
) -> None:
    records, _, _ = JsonRecords.scan(np.frombuffer(lines, np.uint8), starts, ends)
    assert b"".join(piece.tobytes() for piece in RecordLines(records)) == b'{"a":1}\n{"a":2}\n'
    assert records.encode().tobytes() == b'{"a":1}\n{"a":2}\n'
