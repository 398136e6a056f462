"""Texts put together from pieces are what Python's json writes."""

from __future__ import annotations

import json

import numpy as np
import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from gristmill.kernels import json_write
from gristmill.storage.json_columns import json_texts
from tests.unit.kernels import json_reference as reference


@settings(max_examples=200)
@given(st.lists(st.none() | reference.texts, max_size=6), st.integers(0, 3))
def test_quoted_strings_are_those_of_python(values: list[str | None], skip: int) -> None:
    array = pa.array(values, pa.large_string()).slice(min(skip, len(values)))
    assert json_texts(array).to_pylist() == [json.dumps(value, ensure_ascii=False) for value in values[skip:]]


def test_every_control_character_is_escaped() -> None:
    value = "".join(map(chr, range(0x80))) * 3
    (text,) = json_texts(pa.array([value])).to_pylist()
    assert json.loads(text) == value
    assert text == json.dumps(value, ensure_ascii=False)


@settings(max_examples=100)
@given(st.lists(st.binary(max_size=50), max_size=8), st.data())
def test_gather_copies_spans_in_any_order(pieces: list[bytes], data: st.DataObject) -> None:
    buffer, starts, ends = reference.block(pieces, gap=data.draw(st.sampled_from([b"", b"\n", b"--"])))
    order = np.array(
        data.draw(st.lists(st.integers(0, len(pieces) - 1), max_size=10) if pieces else st.just([])), np.int64
    )
    for separator in (-1, 10):
        tail = b"" if separator < 0 else b"\n"
        expected = b"".join(pieces[index] + tail for index in order)
        out = np.empty(len(expected), np.uint8)
        used = json_write.gather(
            buffer.ctypes.data, np.array(starts, np.int64)[order], np.array(ends, np.int64)[order], separator, out
        )
        assert used == len(expected)
        assert out.tobytes() == expected
