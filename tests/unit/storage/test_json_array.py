"""JSON arrays are read like lines: every element a record at its own offset, whatever the layout and the cut."""

from __future__ import annotations

import gzip
import json
import lzma
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gristmill.storage.compression import DamagedArchiveError
from gristmill.storage.json_array import ArraySource
from gristmill.storage.jsonl_blocks import read_blocks
from gristmill.storage.partitions import BadRecord, FileRange, Partition


def read(
    path: Path, data: bytes, block_bytes: int = 1 << 20, **options
) -> tuple[list[tuple[int, bytes]], list[BadRecord]]:
    """(offset, bytes) of each record, and the bad ones."""
    path.write_bytes(data)
    part = FileRange(str(path), path.name, len(data), "0", 0, len(data), True)
    found, bad = [], []
    for block in read_blocks(Partition(0, "a", (part,)), block_bytes=block_bytes, **options):
        spans = zip(block.starts, block.ends, block.offsets, strict=True)
        found += [(int(offset), block.buffer[start:end].tobytes()) for start, end, offset in spans]
        bad += block.bad
    return found, bad


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(alphabet='ab"\\\n\t{}[],:é😀', max_size=50),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=8,
)
objects = st.dictionaries(st.text(max_size=8), values, max_size=5)
layouts = st.sampled_from(
    [
        {},
        {"indent": 2},
        {"indent": "\t", "ensure_ascii": False},
        {"indent": 0},
        {"separators": (",", ":")},
        {"separators": (" ,\r\n ", " : ")},
    ]
)


@settings(max_examples=300, deadline=None)
@given(
    elements=st.lists(objects, min_size=1, max_size=12),
    layout=layouts,
    around=st.sampled_from([(b"", b""), (b"\xef\xbb\xbf", b"\n"), (b" \n", b"\r\n\n"), (b"\t", b"  ")]),
    block_bytes=st.integers(1, 300),
)
def test_every_element_is_a_record_at_its_offset(tmp_path_factory, elements, layout, around, block_bytes):
    data = around[0] + json.dumps(elements, **layout).encode() + around[1]
    found, bad = read(tmp_path_factory.mktemp("array") / "a.json", data, block_bytes)
    assert not bad
    assert [json.loads(text) for _, text in found] == elements
    assert all(data[offset : offset + 1] == b"{" for offset, _ in found)
    assert all(b"\n" not in text for _, text in found)
    if not layout:
        assert all(data[offset : offset + len(text)] == text for offset, text in found)  # not a byte is changed


class Pieces:
    """Bytes that come in pieces of any length."""

    def __init__(self, data: bytes, steps: list[int]) -> None:
        self.data, self.steps = data, steps

    def readinto(self, target: memoryview, /) -> int:
        step = min(self.steps[0] if self.steps else 7, len(target), len(self.data))
        self.steps = self.steps[1:]
        target[:step], self.data = self.data[:step], self.data[step:]
        return step

    def close(self) -> None:
        pass


def lines_of(data: bytes, steps: list[int], first: int = 0) -> bytes:
    source = ArraySource(Pieces(data[first:], steps), np.frombuffer(data[:first], np.uint8).copy(), path="a.json")
    read, target = bytearray(), memoryview(bytearray(50))
    while count := source.readinto(target):
        read += target[:count]
    return bytes(read)


@settings(max_examples=200, deadline=None)
@given(
    elements=st.lists(objects | st.integers() | st.text(max_size=40), max_size=8),
    layout=layouts,
    steps=st.lists(st.integers(1, 60), max_size=30),
    first=st.integers(0, 40),
)
def test_the_cut_of_the_input_changes_nothing(elements, layout, steps, first):
    data = json.dumps(elements, **layout).encode() + b" \n"
    whole = lines_of(data, [len(data)])
    assert lines_of(data, steps, min(first, len(data))) == whole
    assert [json.loads(line) for line in whole.split(b"\n") if line.strip()] == elements


@pytest.mark.parametrize("suffix", [".gz", ".xz"])
def test_compressed_arrays_are_read(tmp_path, suffix):
    elements = [{"id": number, "text": "word " * 50} for number in range(500)]
    data = {".gz": gzip.compress, ".xz": lzma.compress}[suffix](json.dumps(elements, indent=2).encode())
    found, bad = read(tmp_path / f"a.json{suffix}", data, 4000)
    assert not bad
    assert [json.loads(text) for _, text in found] == elements


def test_a_bad_element_costs_itself_alone(tmp_path):
    data = b'[{"a": 1}, {"a": oops}, 7, "text", [1, {"b": 2}], {"text": "two\nlines"}, {"a": 2},\n{"a": 3]\n, {"a": 4}]'
    found, bad = read(tmp_path / "a.json", data)
    assert not bad
    assert [text for _, text in found] == [
        b'{"a": 1}',
        b'{"a": oops}',
        b"7",
        b'"text"',
        b'[1, {"b": 2}]',
        b'{"text": "two\rlines"}',
        b'{"a": 2}',
        b'{"a": 3]',
        b'{"a": 4}',
    ]


@pytest.mark.parametrize("end", [b"", b",", b", ", b', {"a": 2, "text": "cut'])
def test_an_array_that_is_not_closed_is_damaged(tmp_path, end):
    # Like the last line before damage, an element counts once something follows it.
    found, bad = read(tmp_path / "a.json", b'[\n{"a": 1}, {"a": 2}' + end, 20)
    assert [text for _, text in found] == [b'{"a": 1}', *([b'{"a": 2}'] if end else [])]
    assert [(item.cause, item.row) for item in bad] == [("truncated_file", len(found))]
    assert "not closed" in bad[0].detail
    with pytest.raises(DamagedArchiveError):
        lines_of(b'[{"a": 1}', [3])


def test_what_follows_an_array_is_read_as_lines(tmp_path):
    data = b'[{"a": 1},\n{"a": 2}]\n{"a": 3}\n\n{"a": 4}'
    found, _ = read(tmp_path / "a.json", data)
    assert [json.loads(text)["a"] for _, text in found] == [1, 2, 3, 4]
    assert read(tmp_path / "b.json", b"[]\n") == ([], [])


def test_an_oversized_element_is_set_aside(tmp_path):
    elements = [{"a": "x" * size} for size in (10, 5000, 10)]
    data = json.dumps(elements, indent=1).encode()
    found, bad = read(tmp_path / "a.json", data, 64, max_record_bytes=1000)
    assert [len(json.loads(text)["a"]) for _, text in found] == [10, 10]
    assert [(item.cause, item.row) for item in bad] == [("record_too_large", 1)]


def test_memory_does_not_grow_with_the_file(tmp_path):
    def peak(count: int) -> int:
        data = json.dumps([{"id": number, "text": "word " * 40} for number in range(count)], indent=4).encode()
        path = tmp_path / f"{count}.json"
        path.write_bytes(data)
        part = FileRange(str(path), path.name, len(data), "0", 0, len(data), True)
        tracemalloc.start()
        rows = sum(len(block.rows) for block in read_blocks(Partition(0, "a", (part,)), block_bytes=1 << 20))
        memory = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert rows == count
        return memory

    peak(10)
    assert peak(60_000) < 2 * peak(8_000)


def test_a_file_that_planning_did_not_look_at_is_set_aside_as_a_whole(tmp_path):
    found, bad = read(tmp_path / "a.jsonl", b"id,text\n1,one\n2,two\n")
    assert not found
    assert [(item.cause, item.row) for item in bad] == [("other_format", 0)]
    assert bad[0].detail == "cannot be read as JSONL: it is CSV"
