"""Sinks: what is appended can be read back, and joined pieces have the bytes of one file written at once."""

from __future__ import annotations

import errno
import gzip
from pathlib import Path

import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st

from gristmill.errors import InputError, OutputError, UsageError
from gristmill.storage.atomic import WrittenFile
from gristmill.storage.compression import open_source
from gristmill.storage.jsonl_sink import JsonlSink, concatenate_jsonl
from gristmill.storage.parquet_sink import ParquetSink, concatenate_parquet

SUFFIXES = ["", ".gz", ".zst", ".bz2"]


def content(path: str | Path) -> bytes:
    source = open_source(str(path))
    data = bytearray(100_000)
    size = 0
    while count := source.readinto(memoryview(data)[size:]):
        size += count
    source.close()
    return bytes(data[:size])


def stored(file: WrittenFile) -> tuple[int, str]:
    with fsspec.open(file.path) as opened:
        data = opened.read()
    return len(data), "xxh3:" + xxhash.xxh3_128_hexdigest(data)


@settings(max_examples=60, deadline=None)
@given(
    suffix=st.sampled_from(SUFFIXES),
    groups=st.lists(st.lists(st.binary(max_size=30).map(lambda b: b.replace(b"\n", b"")), max_size=4), max_size=5),
)
def test_joined_jsonl_equals_direct_writing(tmp_path_factory, suffix, groups):
    folder = tmp_path_factory.mktemp("join")
    direct = JsonlSink(str(folder / f"direct.jsonl{suffix}"))
    pieces = []
    for number, lines in enumerate(groups):
        piece = JsonlSink(str(folder / f"piece{number}.jsonl{suffix}"))
        for line in lines:
            data = np.frombuffer(line + b"\n", np.uint8)
            direct.append(data)
            piece.append(data)
        direct.append(b"")
        pieces += piece.close()
    (whole,) = direct.close()
    joined = concatenate_jsonl(pieces, str(folder / f"joined.jsonl{suffix}"))
    assert Path(joined.path).read_bytes() == Path(whole.path).read_bytes()
    assert (joined.size, joined.rows, joined.hash) == (whole.size, whole.rows, whole.hash)
    assert stored(whole) == (whole.size, whole.hash)
    assert content(whole.path) == b"".join(line + b"\n" for lines in groups for line in lines)
    assert whole.rows == sum(map(len, groups))
    assert not list(folder.glob(".tmp-*"))


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_an_empty_jsonl_file_is_readable(tmp_path, suffix):
    (written,) = JsonlSink(str(tmp_path / f"a.jsonl{suffix}")).close()
    assert written.rows == 0
    assert content(written.path) == b""
    if suffix == ".gz":
        assert gzip.decompress(Path(written.path).read_bytes()) == b""


def test_a_line_without_its_newline_is_refused(tmp_path):
    sink = JsonlSink(str(tmp_path / "a.jsonl"))
    with pytest.raises(UsageError, match="newline"):
        sink.append(b"{}")
    sink.abort()
    assert list(tmp_path.iterdir()) == []


def test_nothing_is_visible_before_close(tmp_path):
    sink = JsonlSink(str(tmp_path / "sub" / "a.jsonl"))
    sink.append(b"{}\n")
    assert not (tmp_path / "sub" / "a.jsonl").exists()
    sink.close()
    assert (tmp_path / "sub" / "a.jsonl").read_bytes() == b"{}\n"


TABLES = [
    pa.table(
        {
            "text": pa.array([f"row {n} of {seed}" * 20 if n % 7 else None for n in range(rows)], pa.large_string()),
            "n": pa.array(range(rows), pa.int64()),
            "label": pa.array([f"{n % 3}" for n in range(rows)], pa.string()).dictionary_encode(),
            "nested": pa.array([[{"a": n, "b": [1.5] * (n % 4)}] for n in range(rows)]),
            "flag": pa.array([n % 2 == 0 for n in range(rows)]),
        }
    )
    for seed, rows in enumerate([0, 1, 300, 1500, 40])
]
FIELDS = TABLES[-1].schema
TABLES = [table.cast(FIELDS) for table in TABLES]


@settings(max_examples=20, deadline=None)
@given(
    groups=st.lists(st.lists(st.sampled_from(range(len(TABLES))), max_size=4), min_size=1, max_size=20),
    compression=st.sampled_from([None, "zstd", "snappy", "gzip"]),
)
def test_joined_parquet_equals_direct_writing(tmp_path_factory, groups, compression):
    folder = tmp_path_factory.mktemp("join")
    direct = ParquetSink(str(folder / "direct.parquet"), schema=FIELDS, compression=compression)
    pieces = []
    for number, tables in enumerate(groups):
        piece = ParquetSink(str(folder / f"piece{number}.parquet"), schema=FIELDS, compression=compression)
        for at in tables:
            direct.append(TABLES[at])
            piece.append(TABLES[at])
        pieces.append(piece.close())
    whole = direct.close()
    joined = concatenate_parquet(pieces, str(folder / "joined.parquet"))
    assert Path(joined.path).read_bytes() == Path(whole.path).read_bytes()
    assert (joined.size, joined.rows, joined.hash) == (whole.size, whole.rows, whole.hash)
    assert stored(whole) == (whole.size, whole.hash)
    table = pq.ParquetFile(joined.path, page_checksum_verification=True).read()
    assert table.schema.equals(FIELDS)
    wanted = pa.concat_tables([FIELDS.empty_table(), *(TABLES[at] for tables in groups for at in tables)])
    assert table.unify_dictionaries().combine_chunks().equals(wanted.unify_dictionaries().combine_chunks())


def test_parquet_bytes_do_not_depend_on_chunks(tmp_path):
    table = TABLES[3].drop_columns("label")
    chunked = pa.concat_tables([table.slice(0, 1100), table.slice(1100)])
    written = []
    for number, data in enumerate((table, chunked)):
        sink = ParquetSink(str(tmp_path / f"{number}.parquet"))
        sink.append(data)
        written.append(sink.close())
    assert written[0].hash == written[1].hash


def test_each_append_is_one_row_group(tmp_path):
    sink = ParquetSink(str(tmp_path / "a.parquet"))
    for at in (2, 0, 4):
        sink.append(TABLES[at])
    written = sink.close()
    metadata = pq.ParquetFile(written.path).metadata
    assert [metadata.row_group(at).num_rows for at in range(metadata.num_row_groups)] == [300, 40]
    assert written.rows == 340


def test_empty_parquet_keeps_its_schema_and_a_missing_schema_is_said(tmp_path):
    written = ParquetSink(str(tmp_path / "a.parquet"), schema=FIELDS).close()
    assert pq.ParquetFile(written.path).schema_arrow.equals(FIELDS)
    assert pq.read_table(written.path).num_rows == 0
    sink = ParquetSink(str(tmp_path / "b.parquet"))
    with pytest.raises(UsageError, match="schema"):
        sink.close()
    sink.abort()
    assert [path.name for path in tmp_path.iterdir()] == ["a.parquet"]


def test_parquet_refuses_another_schema(tmp_path):
    sink = ParquetSink(str(tmp_path / "a.parquet"), schema=FIELDS)
    with pytest.raises(UsageError, match="other: int64"):
        sink.append(pa.table({"other": [1]}))
    sink.abort()
    assert list(tmp_path.iterdir()) == []


def test_pieces_of_different_schemas_are_not_joined(tmp_path):
    pieces = []
    for name in ("a", "b"):
        sink = ParquetSink(str(tmp_path / f"{name}.parquet"))
        sink.append(pa.table({name: [1]}))
        pieces.append(sink.close())
    with pytest.raises(InputError, match="differ in schema"):
        concatenate_parquet(pieces, str(tmp_path / "c.parquet"))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.parquet", "b.parquet"]


def test_a_full_disk_while_writing_parquet_is_said_and_cleaned_up(tmp_path, monkeypatch):
    sink = ParquetSink(str(tmp_path / "a.parquet"))
    sink.append(TABLES[2])
    real = sink._file._file

    class Full:
        close = real.close

        def write(self, data):
            raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(sink._file, "_file", Full())
    with pytest.raises(OutputError, match="disk is full"):
        sink.append(TABLES[3])
    sink.abort()
    del sink
    assert list(tmp_path.iterdir()) == []


def test_sinks_write_to_other_stores():
    fs = fsspec.filesystem("memory")
    sink = JsonlSink("memory://sinks/a.jsonl.zst")
    sink.append(b"1\n2\n")
    assert not fs.exists("/sinks/a.jsonl.zst")
    (written,) = sink.close()
    assert content(written.path) == b"1\n2\n"
    parquet = ParquetSink("memory://sinks/b.parquet")
    parquet.append(TABLES[2])
    piece = parquet.close()
    joined = concatenate_parquet([piece, piece], "memory://sinks/c.parquet")
    with fs.open("/sinks/c.parquet") as file:
        assert pq.ParquetFile(file).read().num_rows == 600
    assert stored(joined) == (joined.size, joined.hash)
    aborted = JsonlSink("memory://sinks/d.jsonl")
    aborted.append(b"1\n")
    aborted.abort()
    assert not fs.exists("/sinks/d.jsonl")
