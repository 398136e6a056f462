"""Splitting one file: the parts joined are the input."""

from __future__ import annotations

import gzip
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gristmill.errors import InputError, UsageError
from gristmill.storage.splitting import split_file


@settings(max_examples=60, deadline=None)
@given(
    lines=st.lists(st.binary(max_size=20).map(lambda b: b.replace(b"\n", b"")), max_size=30),
    target=st.integers(1, 100),
    final=st.booleans(),
)
def test_parts_are_whole_lines_and_join_to_the_input(tmp_path_factory, lines, target, final):
    folder = tmp_path_factory.mktemp("split")
    data = b"\n".join(lines) + (b"\n" if final else b"")
    (folder / "big.jsonl").write_bytes(data)
    parts = split_file(folder / "big.jsonl", folder / "out", target_size=target)
    contents = [Path(part.path).read_bytes() for part in parts]
    assert b"".join(contents) == data
    assert [Path(part.path).name for part in parts] == [f"big-{n:05d}.jsonl" for n in range(len(parts))]
    for content in contents[:-1]:
        assert content.endswith(b"\n")
        assert len(content) >= target
        assert len(content[:-1].rpartition(b"\n")[0]) < target
    assert all(contents) or data == b""
    assert sum(part.rows for part in parts) == data.count(b"\n") + (not data.endswith(b"\n") and bool(data))


def test_long_lines_reach_over_reads(tmp_path):
    data = b"".join(b"%d" % n + b"x" * 700_000 + b"\n" for n in range(10))
    (tmp_path / "big.jsonl").write_bytes(data)
    parts = split_file(tmp_path / "big.jsonl", tmp_path / "out", target_size="1MB")
    assert [part.rows for part in parts] == [2] * 5
    assert b"".join(Path(part.path).read_bytes() for part in parts) == data


def test_compressed_input_gives_compressed_parts(tmp_path):
    data = b"".join(b'{"n": %d}\n' % n for n in range(1000))
    (tmp_path / "big.jsonl.gz").write_bytes(gzip.compress(data))
    parts = split_file(tmp_path / "big.jsonl.gz", tmp_path / "out", target_size=3000)
    assert [Path(part.path).name for part in parts][:2] == ["big-00000.jsonl.gz", "big-00001.jsonl.gz"]
    assert b"".join(gzip.decompress(Path(part.path).read_bytes()) for part in parts) == data


def test_a_damaged_archive_leaves_no_parts(tmp_path):
    data = b"".join(b'{"n": %d}\n' % n for n in range(100_000))
    (tmp_path / "big.jsonl.gz").write_bytes(gzip.compress(data)[:-100])
    with pytest.raises(InputError, match="cannot be split"):
        split_file(tmp_path / "big.jsonl.gz", tmp_path / "out", target_size=3000)
    assert list((tmp_path / "out").iterdir()) == []


def test_parquet_is_cut_at_row_groups(tmp_path):
    table = pa.table({"n": range(1000), "text": [f"text {n}" for n in range(1000)]})
    pq.write_table(table, tmp_path / "big.parquet", row_group_size=100, compression="none")
    parts = split_file(tmp_path / "big.parquet", tmp_path / "out", target_size=6000)
    assert len(parts) > 2
    tables = [pq.read_table(part.path) for part in parts]
    assert all(part.num_rows % 100 == 0 for part in tables)
    assert pa.concat_tables(tables).equals(table)
    assert sum(part.rows for part in parts) == 1000
    assert Path(parts[0].path).name == "big-00000.parquet"


def test_useless_sizes_and_files_are_refused(tmp_path):
    (tmp_path / "a.parquet").write_bytes(b"not parquet")
    with pytest.raises(InputError):
        split_file(tmp_path / "a.parquet", tmp_path / "out")
    with pytest.raises(UsageError):
        split_file(tmp_path / "a.parquet", tmp_path / "out", target_size=0)


@pytest.mark.parametrize("name", ["a.json", "a.jsonl.gz"])
def test_a_json_array_has_no_lines_to_split_at(tmp_path, name):
    data = b'[{"a": 1}, {"a": 2}]'
    (tmp_path / name).write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
    with pytest.raises(InputError, match=f"{name} is one JSON array"):
        split_file(tmp_path / name, tmp_path / "parts")
    assert not (tmp_path / "parts").exists()
