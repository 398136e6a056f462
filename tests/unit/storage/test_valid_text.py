"""Text from outside that is not UTF-8: found row by row, wherever it comes from, and never handed to a kernel."""

from __future__ import annotations

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gristmill.errors import InvalidTextError
from gristmill.kernels.text_column import text_column
from gristmill.storage.valid_text import find_invalid_text, require_valid_text
from gristmill.tasks import DocumentBatch

BAD = [
    b"\xff\xfe",
    b"cut \xe2\x82",
    b"\xf8\x88\x80\x80\x80",
    b"\xc0\xaf",
    b"\xed\xa0\x80",
    b"\xf4\x90\x80\x80",
    b"a\x80b",
]
GOOD = ["", "plain", "grün €𝄞", "日本語" * 30, "x" * 100]


def of_bytes(values: list[bytes | None], kind: pa.DataType | None = None) -> pa.Array:
    """Text made of unchecked bytes, as a careless producer makes it."""
    kind = kind or pa.large_string()
    binary = pa.binary() if pa.types.is_string(kind) else pa.large_binary()
    array = pa.array(values, binary)
    return pa.Array.from_buffers(kind, len(array), array.buffers(), array.null_count)


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string()], ids=str)
@pytest.mark.parametrize("bad", BAD, ids=repr)
@pytest.mark.parametrize("around", [b"", b"x" * 70, "ü".encode() * 40], ids=["alone", "ascii around", "wide around"])
def test_the_rows_are_found(bad: bytes, kind: pa.DataType, around: bytes) -> None:
    values: list[bytes | None] = [text.encode() for text in GOOD] + [around + bad + around, None, b"good", bad]
    table = pa.table({"id": range(len(values)), "text": of_bytes(values, kind)})
    found = find_invalid_text(table)
    assert found is not None
    assert np.flatnonzero(found[0]).tolist() == [len(GOOD), len(values) - 1]
    assert found[1] == "text"
    assert find_invalid_text(table.slice(0, len(GOOD))) is None
    sliced = find_invalid_text(table.slice(len(GOOD) + 1))
    assert sliced is not None
    assert np.flatnonzero(sliced[0]).tolist() == [2]


@given(st.lists(st.one_of(st.none(), st.binary(max_size=90), st.text(max_size=60).map(str.encode)), max_size=12))
def test_what_is_found_is_what_python_cannot_decode(values: list[bytes | None]) -> None:
    def is_bad(value: bytes | None) -> bool:
        try:
            (value or b"").decode()
        except UnicodeDecodeError:
            return True
        return False

    found = find_invalid_text(pa.table({"text": of_bytes(values)}))
    assert (found[0].tolist() if found else [False] * len(values)) == [is_bad(value) for value in values]


def test_nested_columns_and_dictionaries_are_searched() -> None:
    texts = of_bytes([b"a", b"\xff", b"c"])
    lists = pa.LargeListArray.from_arrays([0, 1, 1, 3], texts)
    structs = pa.StructArray.from_arrays([texts], ["inner"])
    coded = pa.DictionaryArray.from_arrays(pa.array([0, 1, 2]), texts)
    for column, expected in ((lists, [2]), (structs, [1]), (coded, [1])):
        found = find_invalid_text(pa.table({"c": column}))
        assert found is not None
        assert np.flatnonzero(found[0]).tolist() == expected


def test_offsets_that_lie_are_found() -> None:
    content = pa.py_buffer(b"some bytes")
    for offsets in ([0, 9, 4], [0, 2**40, 4], [8, -5, 9]):
        array = pa.Array.from_buffers(pa.large_string(), 2, [None, pa.py_buffer(np.array(offsets, np.int64)), content])
        with pytest.raises(InvalidTextError):
            require_valid_text(pa.table({"text": array}))
        with pytest.raises(InvalidTextError):
            text_column(array)


def test_every_way_into_a_batch_is_watched() -> None:
    table = pa.table({"text": of_bytes([b"good", b"\xff\xfe"])})
    batch = DocumentBatch(data=pa.table({"text": pa.array(["one", "two"], pa.large_string())}))
    arrow_frame = pd.DataFrame({"text": pd.Series(pd.arrays.ArrowExtensionArray(table.column("text")))})
    changed = np.array([True, True])
    for way in (
        lambda: DocumentBatch(data=table),
        lambda: DocumentBatch(data=table.to_batches()[0]),
        lambda: DocumentBatch(data=pl.from_arrow(table)),
        lambda: DocumentBatch(data=arrow_frame).columns,
        lambda: batch.with_column("text", table.column("text")),
        lambda: batch.with_text("text", table.column("text").chunk(0), changed=changed),
        lambda: setattr(batch, "data", table),
    ):
        with pytest.raises(InvalidTextError, match=r"Column 'text' holds bytes that are not UTF-8, in row 1 of 2"):
            way()  # type: ignore[no-untyped-call]


def test_a_kernel_never_sees_it() -> None:
    from gristmill.stages.text.filters.heuristic.string import WordCountFilter

    with pytest.raises(InvalidTextError, match="Row 1 of a text column of 2"):
        text_column(of_bytes([b"good", b"cut \xe2\x82"]))
    assert len(text_column(of_bytes([b"good", None, "€".encode()]))) == 3
    assert WordCountFilter(min_words=1).score_document("two words") == 2
