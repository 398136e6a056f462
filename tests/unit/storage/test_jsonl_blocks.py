"""Blocks of JSONL partitions: every record once, whatever the cut, the block size and the compression."""

from __future__ import annotations

import bz2
import gzip
import tracemalloc
from pathlib import Path

import fsspec
import numpy as np
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from gristmill.storage.files import InputFile, list_files
from gristmill.storage.formats import recognise
from gristmill.storage.jsonl_blocks import RecordBlock, read_blocks
from gristmill.storage.partitions import FileRange, Partition, make_partitions

COMPRESS = {"": lambda data: data, ".gz": gzip.compress, ".zst": zstandard.compress, ".bz2": bz2.compress}


def whole(path: Path | str, size: int, relative: str = "a.jsonl") -> Partition:
    return Partition(0, "a", (FileRange(str(path), relative, size, "0", 0, size, True),))


def records(blocks: list[RecordBlock]) -> list[tuple[int, bytes]]:
    """(offset, bytes) of each record, after checking what every block promises."""
    found = []
    for block in blocks:
        assert block.starts.dtype == block.ends.dtype == block.rows.dtype == block.offsets.dtype == np.int64
        assert len(block.starts) == len(block.ends) == len(block.rows) == len(block.offsets)
        if len(block.rows):
            assert block.sources[0][0] <= block.rows[0]
        for start, end, offset in zip(block.starts, block.ends, block.offsets, strict=True):
            found.append((int(offset), block.buffer[start:end].tobytes()))
    return found


def expected(data: bytes) -> list[tuple[int, bytes]]:
    """The plain slow reference."""
    if data.startswith(b"\xef\xbb\xbf"):
        data = b"   " + data[3:]
    found, at = [], 0
    for line in data.split(b"\n"):
        text = line.strip(b" \t\r")
        if text:
            found.append((at + len(line) - len(line.lstrip(b" \t\r")), text))
        at += len(line) + 1
    return found


lines = st.lists(
    st.tuples(
        st.sampled_from([b"", b" ", b"\t", b" " * 20]),
        st.binary(max_size=40).map(lambda data: data.replace(b"\n", b"x")),
        st.sampled_from([b"\n", b"\r\n", b"\n\n", b" \r\n\r\n", b" " * 30 + b"\n"]),
    ).map(b"".join),
    max_size=25,
).map(b"".join)
contents = (
    st.tuples(st.sampled_from([b"", b"\xef\xbb\xbf"]), lines, st.sampled_from([b"", b"{}", b"1 \r"]))
    .map(b"".join)
    .filter(
        lambda data: recognise(data) in (None, "jsonl") and not data.lstrip(b" \t\r\n\xef\xbb\xbf").startswith(b"[")
    )
)


@settings(max_examples=300, deadline=None)
@given(data=contents, block_bytes=st.integers(1, 200), blocksize=st.integers(1, 300))
def test_any_split_gives_the_records_of_the_whole(tmp_path_factory, data, block_bytes, blocksize):
    path = tmp_path_factory.mktemp("split") / "a.jsonl"
    path.write_bytes(data)
    reference = expected(data)
    assert records(list(read_blocks(whole(path, len(data)), block_bytes=block_bytes))) == reference
    file = InputFile(str(path), "a.jsonl", len(data), "0")
    found, rows = [], 0
    for partition in make_partitions([file], format="jsonl", blocksize=blocksize):
        blocks = list(read_blocks(partition, block_bytes=block_bytes))
        assert not any(block.bad for block in blocks)
        numbers = [int(row) for block in blocks for row in block.rows]
        assert numbers == list(range(len(numbers)))
        rows += len(numbers)
        found += records(blocks)
    assert found == reference
    assert rows == len(reference)


@settings(max_examples=100, deadline=None)
@given(
    data=contents, block_bytes=st.integers(1, 100), suffix=st.sampled_from(sorted(COMPRESS)), cut=st.integers(0, 400)
)
def test_compression_and_members_change_nothing(tmp_path_factory, data, block_bytes, suffix, cut):
    path = tmp_path_factory.mktemp("zip") / f"a.jsonl{suffix}"
    stored = COMPRESS[suffix](data[:cut]) + COMPRESS[suffix](data[cut:])
    path.write_bytes(stored)
    assert records(list(read_blocks(whole(path, len(stored)), block_bytes=block_bytes))) == expected(data)


@settings(max_examples=200, deadline=None)
@given(data=contents, block_bytes=st.integers(1, 100), limit=st.integers(1, 60))
def test_oversized_records_are_set_aside_whatever_the_block_size(tmp_path_factory, data, block_bytes, limit):
    path = tmp_path_factory.mktemp("large") / "a.jsonl"
    path.write_bytes(data)
    kept, bad, at, row = [], [], 0, 0
    spaced = b"   " + data[3:] if data.startswith(b"\xef\xbb\xbf") else data
    for line in spaced.split(b"\n"):
        text = line.strip(b" \t\r")
        if text and len(line) > limit:
            bad.append((row, at, len(line)))
        elif text:
            kept.append((row, text))
        row += bool(text)
        at += len(line) + 1
    blocks = list(read_blocks(whole(path, len(data)), block_bytes=block_bytes, max_record_bytes=limit))
    got = [(int(r), b.buffer[s:e].tobytes()) for b in blocks for r, s, e in zip(b.rows, b.starts, b.ends, strict=True)]
    assert got == kept
    assert [(item.row, item.offset, item.size) for block in blocks for item in block.bad] == bad
    assert all(item.cause == "record_too_large" for block in blocks for item in block.bad)


def test_blocks_own_their_memory_and_do_not_depend_on_short_reads(tmp_path):
    data = b"".join(b'{"n": %d}\n' % n for n in range(5000))
    path = tmp_path / "a.jsonl"
    path.write_bytes(data)
    blocks = list(read_blocks(whole(path, len(data)), block_bytes=1000))
    assert len(blocks) > 50
    assert [text for _, text in records(blocks)] == data.split(b"\n")[:-1]
    (tmp_path / "b.jsonl.zst").write_bytes(zstandard.compress(data))
    packed = list(read_blocks(whole(tmp_path / "b.jsonl.zst", 1), block_bytes=1000))
    assert [len(block.rows) for block in packed] == [len(block.rows) for block in blocks]


@pytest.mark.parametrize("suffix", [".gz", ".zst", ".bz2"])
def test_a_truncated_archive_delivers_what_came_before(tmp_path, suffix):
    rng = np.random.default_rng(7)
    data = b"".join(b'{"n": %d, "t": "%s"}\n' % (n, rng.bytes(60).hex().encode()) for n in range(20_000))
    stored = COMPRESS[suffix](data)
    path = tmp_path / f"a.jsonl{suffix}"
    path.write_bytes(stored[: len(stored) * 2 // 3])
    follower = tmp_path / "b.jsonl"
    follower.write_bytes(b"{}\n")
    ranges = whole(path, 1).ranges + whole(follower, 3, "b.jsonl").ranges
    blocks = list(read_blocks(Partition(0, "a", ranges), block_bytes=100_000))
    (bad,) = [item for block in blocks for item in block.bad]
    assert bad.cause == "truncated_file"
    texts = [text for _, text in records(blocks)]
    assert texts.pop() == b"{}"
    assert texts == data.split(b"\n")[: len(texts)]
    assert len(texts) > 5_000
    assert bad.row == len(texts)
    assert bad.offset == sum(len(text) + 1 for text in texts)
    assert data[bad.offset :].startswith(bad.raw)
    assert int(blocks[-1].rows[-1]) == len(texts) + 1


@pytest.mark.parametrize("suffix", [".gz", ".zst", ".bz2"])
def test_a_corrupt_archive_is_reported_and_reading_goes_on(tmp_path, suffix):
    good = b"".join(b'{"good": %d}\n' % n for n in range(1000))
    stored = COMPRESS[suffix](good) + b"this is no archive"
    path = tmp_path / f"a.jsonl{suffix}"
    path.write_bytes(stored)
    blocks = list(read_blocks(whole(path, len(stored))))
    (bad,) = [item for block in blocks for item in block.bad]
    assert bad.cause == "corrupt_archive"
    assert bad.offset == len(good)
    assert [text for _, text in records(blocks)] == good.split(b"\n")[:-1]


def test_zero_padding_after_gzip_is_fine(tmp_path):
    path = tmp_path / "a.jsonl.gz"
    path.write_bytes(gzip.compress(b"1\n") + b"\0" * 512 + gzip.compress(b"2\n") + b"\0" * 100)
    blocks = list(read_blocks(whole(path, 1)))
    assert [text for _, text in records(blocks)] == [b"1", b"2"]
    assert not any(block.bad for block in blocks)


def test_a_huge_line_is_skipped_without_holding_it(tmp_path):
    path = tmp_path / "a.jsonl"
    data = b"1\n" + b"x" * 3_000_000 + b"\n2\n"
    path.write_bytes(data)
    blocks = list(read_blocks(whole(path, len(data)), block_bytes=10_000, max_record_bytes=100_000))
    (bad,) = [item for block in blocks for item in block.bad]
    assert (bad.row, bad.offset, bad.size, bad.cause) == (1, 2, 3_000_000, "record_too_large")
    assert bad.raw == b"x" * 65536
    assert [
        (int(row), text) for block in blocks for row, (_, text) in zip(block.rows, records([block]), strict=True)
    ] == [
        (0, b"1"),
        (2, b"2"),
    ]
    assert max(len(block.buffer) for block in blocks) <= 100_001


def test_one_record_larger_than_the_block_is_read(tmp_path):
    path = tmp_path / "a.jsonl"
    data = b"1\n" + b"x" * 3_000_000 + b"\n2"
    path.write_bytes(data)
    blocks = list(read_blocks(whole(path, len(data)), block_bytes=1000))
    assert [len(text) for _, text in records(blocks)] == [1, 3_000_000, 1]


def test_a_file_that_shrank_is_reported(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_bytes(b"1\n2\n3")
    blocks = list(read_blocks(whole(path, 100)))
    (bad,) = [item for block in blocks for item in block.bad]
    assert (bad.cause, bad.row, bad.offset, bad.raw) == ("truncated_file", 2, 4, b"3")
    assert [text for _, text in records(blocks)] == [b"1", b"2"]


def test_what_was_appended_since_planning_is_not_read(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_bytes(b"1\n2\n3\n4\n")
    assert [text for _, text in records(list(read_blocks(whole(path, 4))))] == [b"1", b"2"]


def test_memory_filesystem_splits_too():
    fs = fsspec.filesystem("memory")
    data = b"".join(b'{"n": %d}\r\n' % n for n in range(1000))
    fs.pipe("/blocks/a.jsonl", data)
    fs.pipe("/blocks/sub/b.jsonl.gz", gzip.compress(data))
    files = list_files("memory://blocks", extensions=".jsonl")
    assert [file.relative for file in files] == ["a.jsonl", "sub/b.jsonl.gz"]
    partitions = make_partitions(files, format="jsonl", blocksize=3000)
    assert [part.id for part in partitions][-2:] == ["a.b0003", "sub__b~gz"]
    found = [text for part in partitions for _, text in records(list(read_blocks(part, block_bytes=500)))]
    assert found == 2 * data.split(b"\r\n")[:-1]


def test_empty_and_blank_files_have_no_blocks(tmp_path):
    for data in (b"", b"\n\n \r\n", b"\xef\xbb\xbf", b"\xef\xbb\xbf\n"):
        path = tmp_path / "a.jsonl"
        path.write_bytes(data)
        assert list(read_blocks(whole(path, len(data)))) == []


@pytest.mark.parametrize("suffix", ["", ".gz", ".zst"])
def test_memory_stays_at_a_few_blocks(tmp_path, suffix):
    line = b'{"text": "' + b"lorem ipsum " * 40 + b'"}\n'
    stored = COMPRESS[suffix](line * 40_000)
    path = tmp_path / f"a.jsonl{suffix}"
    path.write_bytes(stored)
    partition = whole(path, len(stored))
    del stored
    tracemalloc.start()
    rows = sum(len(block.rows) for block in read_blocks(partition, block_bytes=1 << 20))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert rows == 40_000
    assert peak < 8 << 20
