"""Large files of formats that can be split: the ranges together hold what the whole file holds."""

from __future__ import annotations

import gzip
import itertools
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gristmill.errors import InputError
from gristmill.storage.partitions import FileRange
from gristmill.storage.row_formats import Broken, Skipped, cuts_of, reading_of, rows_of
from tests.unit.storage.warc_files import record, response, stored


def cuts(path: Path, reading: str, block_bytes: int) -> list[int]:
    return cuts_of(str(path), path.stat().st_size, reading, block_bytes=block_bytes)


def read(path: Path, reading: str, places: list[int] | None = None) -> tuple[list[dict[str, Any]], list[Any], int]:
    """Rows, broken pieces and the number of skipped ones, from the ranges between places or from the whole file."""
    size = path.stat().st_size
    ranges = list(itertools.pairwise(places)) if places else [(0, -1)]
    rows: list[dict[str, Any]] = []
    broken, skipped = [], 0
    for start, end in ranges:
        part = FileRange(str(path), path.name, size, "", start, end, not places, reading)
        for found in rows_of(part):
            if isinstance(found, pa.Table):
                rows += found.to_pylist()
            elif isinstance(found, Broken):
                broken.append((found.cause, found.offset, found.size))
            elif isinstance(found, Skipped):
                skipped += sum(found.counts.values())
    return rows, broken, skipped


WARC = reading_of("warc", {})
LINES = reading_of("text", {"document": "line"})


@settings(max_examples=60, deadline=None)
@given(
    kinds=st.lists(st.sampled_from(["response", "request", "revisit"]), min_size=3, max_size=12),
    codec=st.sampled_from(["gz", "zst"]),
    block=st.integers(100, 3000),
    harm=st.none() | st.tuples(st.integers(0, 10**6), st.integers(1, 255)),
)
def test_ranges_of_an_archive_give_what_the_whole_gives(tmp_path_factory, kinds, codec, block, harm) -> None:
    path = tmp_path_factory.mktemp("warc") / f"a.warc.{codec}"
    data = bytearray(b"".join(stored([record(number, kind=kind) for number, kind in enumerate(kinds)], codec)))
    if harm is not None:
        data[harm[0] % len(data)] ^= harm[1]
    path.write_bytes(data)
    assert read(path, WARC, cuts(path, WARC, block) or None) == read(path, WARC)


def test_archives_are_split_where_records_begin(tmp_path: Path) -> None:
    path = tmp_path / "a.warc.gz"
    members = stored([record(number) for number in range(50)], "gz")
    path.write_bytes(b"".join(members))
    starts = list(itertools.accumulate(map(len, members), initial=0))
    found = cuts(path, WARC, 1000)
    assert len(found) > 5
    assert set(found) <= set(starts)
    assert found[0] == 0
    assert found[-1] == path.stat().st_size


@pytest.mark.parametrize("name", ["plain.warc", "one.warc.gz"])
def test_archives_without_members_are_read_whole(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    data = b"".join(record(number) for number in range(50))
    path.write_bytes(gzip.compress(data, mtime=0) if name.endswith("gz") else data)
    assert len(cuts(path, WARC, 1000)) <= 2


def test_an_archive_inside_an_archive_is_never_read_as_pages(tmp_path: Path) -> None:
    inner = b"".join(stored([record(number) for number in range(40)], "gz"))
    outer = [record(0), record(1, response(inner, b"Content-Type: application/gzip")), record(2), record(3)]
    path = tmp_path / "a.warc.gz"
    path.write_bytes(b"".join(gzip.compress(one, 0, mtime=0) for one in outer))  # stored as it is, members and all
    whole, _, _ = read(path, WARC)
    assert [row["url"] for row in whole] == [f"http://example.org/{number}" for number in range(4)]
    with pytest.raises(InputError, match="files_per_partition=1"):
        read(path, WARC, cuts(path, WARC, 1500))


@settings(max_examples=150, deadline=None)
@given(
    lines=st.lists(st.sampled_from([b"", b"a", b"two words", "ä€".encode() * 5, b"x" * 300, b" "]), max_size=30),
    block=st.integers(1, 200),
    final=st.booleans(),
    mark=st.booleans(),
)
def test_ranges_of_lines_give_what_the_whole_gives(tmp_path_factory, lines, block, final, mark) -> None:
    path = tmp_path_factory.mktemp("lines") / "a.txt"
    path.write_bytes((b"\xef\xbb\xbf" if mark else b"") + b"\n".join(lines) + (b"\n" if final else b""))
    found, _, _ = read(path, LINES, cuts(path, LINES, block) or None)
    whole, _, _ = read(path, LINES)
    assert [row["text"] for row in found] == [row["text"] for row in whole]
    assert len({row["id"] for row in found}) == len(found)


@pytest.mark.parametrize(
    ("options", "name", "content"),
    [
        ({"document": "file"}, "a.txt", b"a\n" * 100),
        ({"document": "paragraph"}, "a.txt", b"a\n\n" * 100),
        ({"document": "line"}, "a.txt.gz", gzip.compress(b"a\n" * 1000, mtime=0)),
        ({"document": "line", "encoding": "utf-16"}, "a.txt", ("a\n" * 100).encode("utf-16")),
        ({"document": "line"}, "a.txt", ("a\n" * 100).encode("utf-16")),
        ({}, "a.csv", b"text\na\n"),
    ],
)
def test_what_cannot_be_split_safely_is_read_whole(tmp_path: Path, options, name, content) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    assert cuts(path, reading_of("csv" if "csv" in name else "text", options), 10) == []
