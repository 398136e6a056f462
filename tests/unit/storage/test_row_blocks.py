"""Files of formats besides JSONL and Parquet as blocks of rows: numbers, limits, damage, and one table of many."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gristmill.errors import InputError, SchemaConflictError, UsageError
from gristmill.storage.compression import DamagedArchiveError, open_source
from gristmill.storage.files import InputFile, list_files
from gristmill.storage.formats import EXTENSIONS, Format
from gristmill.storage.partitions import DEFAULT_BLOCKSIZE, Partition, find_damage, make_partitions
from gristmill.storage.row_blocks import read_row_blocks
from gristmill.storage.row_formats import csv_rows, reading_of, text_rows


def partition_of(folder: Path, format: Format, **options: Any) -> Partition:
    files = list_files(folder, extensions=EXTENSIONS[format])
    reading = reading_of(format, options)
    (partition,) = make_partitions(files, format=format, files_per_partition=len(files), reading=reading)
    return partition


def write(folder: Path, **files: bytes) -> Path:
    for name, content in files.items():
        (folder / name.replace("_", ".")).write_bytes(content)
    return folder


def rows_by_number(blocks: Any, column: str = "text") -> dict[int, Any]:
    """Everything that was read, by its number; of what is bad the cause."""
    found: dict[int, Any] = {}
    for block in blocks:
        values = block.table.column(column).to_pylist() if column in block.table.column_names else []
        for row, value in [
            *zip(block.rows.tolist(), values, strict=True),
            *((bad.row, bad.cause) for bad in block.bad),
        ]:
            assert row not in found
            found[row] = value
    return dict(sorted(found.items()))


def test_rows_have_the_same_numbers_whatever_the_block(tmp_path: Path) -> None:
    lines = [f"{number},{'x' * (number % 50)}\n" for number in range(500)]
    lines[7::50] = ["too,many,values\n"] * 10
    write(tmp_path, a_csv=f"id,text\n{''.join(lines)}".encode(), b_csv=b"id,text\n\n7,last\n")
    partition = partition_of(tmp_path, "csv")
    whole = rows_by_number(read_row_blocks(partition), "id")
    assert list(whole) == list(range(501))
    assert [row for row, value in whole.items() if value == "corrupt_csv"] == list(range(7, 500, 50))
    assert (whole[6], whole[8], whole[500]) == ("6", "8", "7")
    for size in (1, 100, 5000):
        blocks = list(read_row_blocks(partition, block_bytes=size))
        assert rows_by_number(blocks, "id") == whole
        assert size == 5000 or len(blocks) > 50
        assert all(np.all(np.diff(block.rows) > 0) for block in blocks)


def test_bad_lines_stand_where_they_were_however_far_ahead_they_are_parsed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(csv_rows, "_BLOCK_BYTES", (1 << 14,))
    lines = [f"{n},x,y\n" if n % 7 == 0 else f"{n},x\n" for n in range(20_000)]
    write(tmp_path, a_csv=("id,text\n" + "\n".join(lines)).encode())
    found = rows_by_number(read_row_blocks(partition_of(tmp_path, "csv")), "id")
    assert found == {n: str(n) if n % 7 else "corrupt_csv" for n in range(20_000)}


def test_a_row_that_is_longer_than_a_block_is_read_in_larger_ones(tmp_path: Path) -> None:
    lines = [f'{n},"{"long text, " * (400_000 if n == 700 else 30)}"\n' for n in range(9000)]
    lines[3] = lines[8000] = "too,many,values\n"
    write(tmp_path, a_csv=("id,text\n" + "".join(lines)).encode())
    found = rows_by_number(read_row_blocks(partition_of(tmp_path, "csv")), "id")
    assert found == {n: "corrupt_csv" if n in (3, 8000) else str(n) for n in range(9000)}


def test_a_file_that_lacks_a_column_has_null_there(tmp_path: Path) -> None:
    write(tmp_path, a_csv=b"id,text\n1,one\n", b_csv=b"text,url\ntwo,u\n", c_csv=b"id,text\n")
    (block,) = read_row_blocks(partition_of(tmp_path, "csv"))
    assert block.table.to_pylist() == [
        {"id": "1", "text": "one", "url": None},
        {"id": None, "text": "two", "url": "u"},
    ]
    assert [(first, file.relative) for first, file in block.sources] == [(0, "a.csv"), (1, "b.csv")]
    (chosen,) = read_row_blocks(partition_of(tmp_path, "csv"), fields=["url", "text"])
    assert chosen.table.to_pylist() == [{"url": None, "text": "one"}, {"url": "u", "text": "two"}]


def arrow_file(path: Path, **columns: Any) -> None:
    with pa.OSFile(str(path), "wb") as target:
        table = pa.table(columns)
        with pa.ipc.new_file(target, table.schema) as file:
            file.write_table(table, max_chunksize=2)


def test_types_widen_where_nothing_is_lost_and_are_refused_where_not(tmp_path: Path) -> None:
    arrow_file(tmp_path / "a.arrow", id=pa.array([1, 2, 3], pa.int32()), text=["a", "b", "c"])
    arrow_file(tmp_path / "b.arrow", id=pa.array([4], pa.int64()), text=pa.array(["d"], pa.large_string()))
    (block,) = read_row_blocks(partition_of(tmp_path, "arrow"))
    assert block.table.column("id").to_pylist() == [1, 2, 3, 4]
    arrow_file(tmp_path / "c.arrow", id=["five"], text=["e"])
    with pytest.raises(SchemaConflictError, match=r"(?s)'id'.*b\.arrow.*c\.arrow|'id'.*a\.arrow.*c\.arrow"):
        list(read_row_blocks(partition_of(tmp_path, "arrow")))


def test_too_large_rows_are_bad_and_the_rest_goes_on(tmp_path: Path) -> None:
    write(tmp_path, a_txt=f"small\n{'x' * 5000}\nlast\n".encode())
    blocks = list(read_row_blocks(partition_of(tmp_path, "text", document="line"), max_record_bytes=1000))
    assert rows_by_number(blocks) == {0: "small", 1: "record_too_large", 2: "last"}
    (bad,) = [bad for block in blocks for bad in block.bad]
    assert bad.size > 5000
    assert "over max_record_bytes=1000" in bad.told


@pytest.mark.parametrize("unit", ["line", "paragraph"])
def test_a_document_over_the_limit_is_never_held(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, unit: str) -> None:
    monkeypatch.setattr(text_rows, "_PIECE", 1000)
    end = "\n" if unit == "line" else "\n \n"
    long = "x" * 50_000 if unit == "line" else "y\n" * 25_000
    source = write(tmp_path, a_txt=end.join(["first", long, "last", long]).encode())
    part = partition_of(source, "text").ranges[0]
    rows = text_rows.documents_of(
        text_rows.TextSource(open_source(part.path)), "a.txt", document=unit, text_field="text", most=10_000
    )
    found = [row.column("text").to_pylist() if isinstance(row, pa.Table) else (row.cause, row.size) for row in rows]
    sizes = [one[1] for one in found if isinstance(one, tuple)]
    assert [text for one in found if isinstance(one, list) for text in one] == ["first", "last"]
    assert [one[0] for one in found if isinstance(one, tuple)] == ["record_too_large"] * 2
    assert all(abs(size - 50_000) <= 3 for size in sizes)


def test_damage_is_one_error_or_one_bad_record_behind_what_was_salvaged(tmp_path: Path) -> None:
    content = b"id,text\n" + b"".join(b"%d,%d some text\n" % (n, n * n) for n in range(20_000))
    write(tmp_path, a_csv_gz=gzip.compress(content)[:-3000], b_csv=b"id,text\n-1,whole\n")
    partition = partition_of(tmp_path, "csv")
    with pytest.raises(DamagedArchiveError) as caught:
        list(read_row_blocks(partition, strict=True))
    assert caught.value.cause == "truncated_file"
    blocks = list(read_row_blocks(partition))
    found = rows_by_number(blocks, "id")
    (bad,) = [bad for block in blocks for bad in block.bad]
    assert found == {**{n: str(n) for n in range(bad.row)}, bad.row: "truncated_file", bad.row + 1: "-1"}
    assert (bad.salvaged, bad.lost >= 1) == (bad.row, True)
    assert 15_000 < bad.row < 20_000
    assert rows_by_number(read_row_blocks(partition, block_bytes=10_000), "id") == found
    damage = find_damage(partition, read_row_blocks)
    assert [Path(path).name for path in damage] == ["a.csv.gz"]
    left = list(read_row_blocks(partition, strict=True, left_out=damage))
    assert rows_by_number(left, "id") == {0: "truncated_file", 1: "-1"}
    assert "nothing of it was kept" in left[0].bad[0].told


def test_an_arrow_file_that_breaks_in_the_middle(tmp_path: Path) -> None:
    sink = pa.BufferOutputStream()
    table = pa.table({"text": [f"text {n}" for n in range(100)]})
    with pa.ipc.new_stream(sink, table.schema) as stream:
        stream.write_table(table, max_chunksize=10)
    write(tmp_path, a_arrow=sink.getvalue().to_pybytes()[:-500], b_arrow=b"no such thing")
    blocks = list(read_row_blocks(partition_of(tmp_path, "arrow")))
    causes = [bad.cause for block in blocks for bad in block.bad]
    assert causes == ["corrupt_arrow"] * 2
    assert 0 < sum(block.table.num_rows for block in blocks) < 100
    with pytest.raises(DamagedArchiveError, match="is damaged"):
        list(read_row_blocks(partition_of(tmp_path, "arrow"), strict=True))


def test_arrow_files_of_polars_with_views_and_categories(tmp_path: Path) -> None:
    rows = [
        {"id": "a", "text": "x" * 50, "kind": "u", "tags": ["p", None]},
        {"id": "b", "text": None, "kind": "v", "tags": []},
    ]
    frame = pl.DataFrame(rows).with_columns(pl.col("kind").cast(pl.Categorical), who=pl.struct("id"))
    frame.write_ipc(tmp_path / "a.arrow", compression="zstd")
    (block,) = read_row_blocks(partition_of(tmp_path, "arrow"))
    assert block.table.to_pylist() == [{**row, "who": {"id": row["id"]}} for row in rows]
    assert block.table.schema.field("text").type == block.table.schema.field("kind").type == pa.large_string()
    (tmp_path / "a.arrow").rename(tmp_path / "a.arrow.gz")
    with pytest.raises(InputError, match="compressed as a whole"):
        list(read_row_blocks(partition_of(tmp_path, "arrow")))


def test_text_that_is_not_utf_8_is_quarantined_or_repaired(tmp_path: Path) -> None:
    write(tmp_path, a_csv=b"id,text\n1,good\n2,caf\xe9\n3,end\n", b_txt=b"na\xefve", c_txt=b"fine")
    partition = partition_of(tmp_path, "csv")
    assert rows_by_number(read_row_blocks(partition)) == {0: "good", 1: "invalid_utf8", 2: "end"}
    (repaired,) = read_row_blocks(partition, errors="replace")
    assert repaired.table.column("text").to_pylist() == ["good", "caf�", "end"]
    assert [(repair.row, repair.column, repair.marks) for repair in repaired.repaired] == [(1, "text", 1)]
    assert rows_by_number(read_row_blocks(partition_of(tmp_path, "text"))) == {0: "invalid_utf8", 1: "fine"}
    decoded = partition_of(tmp_path, "csv", encoding="latin-1")
    assert rows_by_number(read_row_blocks(decoded))[1] == "café"
    wrong = partition_of(tmp_path, "csv", encoding="ascii")
    assert rows_by_number(read_row_blocks(wrong)) == {0: "good", 1: "invalid_utf8", 2: "end"}


def test_a_byte_order_mark_tells_utf_16_and_is_no_text(tmp_path: Path) -> None:
    write(
        tmp_path,
        a_txt="größer".encode("utf-16"),
        b_txt="größer".encode("utf-8-sig"),
        c_csv="id;text\n1;größer".encode("utf-16"),
    )
    assert rows_by_number(read_row_blocks(partition_of(tmp_path, "text"))) == {0: "größer", 1: "größer"}
    assert rows_by_number(read_row_blocks(partition_of(tmp_path, "csv"))) == {0: "größer"}


@pytest.mark.parametrize(
    ("content", "rows"),
    [
        (b"", []),
        (b"a,b", []),
        (b"\n\na,b\n1,2", [["1", "2"]]),
        (b'a,"b\nc"\n1,"x ""q"""\n,""\n', [["1", 'x "q"'], [None, ""]]),
        (b"a|b\r\n1|2\r\n", [["1", "2"]]),
    ],
)
def test_csv_as_people_write_it(tmp_path: Path, content: bytes, rows: list[Any]) -> None:
    write(tmp_path, a_csv=content, b_csv=b"x\n1\n")
    files = list_files(tmp_path / "a.csv", extensions=".csv")
    (partition,) = make_partitions(files, format="csv", reading=reading_of("csv", {}))
    assert [list(row.values()) for block in read_row_blocks(partition) for row in block.table.to_pylist()] == rows


@pytest.mark.parametrize("end", ["", "\n", "\r\n"])
@given(
    st.lists(st.text(st.sampled_from('ab",;\t\n '), max_size=6), max_size=4),
    st.text(st.sampled_from('a",\n '), min_size=1, max_size=6) | st.just('a "quoted"\nvalue, ' * 1000),
    st.sampled_from(",;\t"),
)
@settings(deadline=None, max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_csv_that_ends_inside_quotes(tmp_path: Path, end: str, values: list[str], last: str, delimiter: str) -> None:
    quoted = [value.replace('"', '""') for value in (*values, last)]
    text = f"id{delimiter}text\n" + "\n".join(f'1{delimiter}"{value}"' for value in quoted)
    for closed in (text + end, text[:-1] + end):
        write(tmp_path, a_csv=closed.encode())
        blocks = list(read_row_blocks(partition_of(tmp_path, "csv", delimiter=delimiter)))
        read = [value for block in blocks for value in block.table.to_pydict().get("text", [])]
        bad = [bad.told for block in blocks for bad in block.bad]
        if closed == text + end:
            assert (read, bad) == ([*values, last], [])
        else:
            assert (read, len(bad)) == (values, 1)
            assert "the file ends inside quotes" in bad[0]


def test_two_columns_of_one_name_and_rows_without_end_are_damage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(csv_rows, "_BLOCK_BYTES", (1 << 12,))
    write(tmp_path, a_csv=b"a,a\n1,2\n", b_csv=b'a,b\n1,2\n3,"' + b"x" * 10_000)
    bad = [bad for block in read_row_blocks(partition_of(tmp_path, "csv")) for bad in block.bad]
    assert [one.cause for one in bad] == ["corrupt_csv"] * 2
    assert "two columns are named 'a'" in bad[0].told
    assert "possibly an unclosed quote" in bad[1].told


def test_paragraphs_and_lines_are_numbered_in_their_ids(tmp_path: Path) -> None:
    write(tmp_path, a_md=b"# One\ntext\n\n\n  \nTwo\r\n\r\nthree", b_md=b"\n\n")
    (block,) = read_row_blocks(partition_of(tmp_path, "text", document="paragraph"))
    assert block.table.column("text").to_pylist() == ["# One\ntext", "Two", "three"]
    assert block.table.column("id").to_pylist() == ["a.md#0", "a.md#1", "a.md#2"]


def test_100_000_small_files_are_few_partitions_with_names_of_their_own() -> None:
    files = [InputFile(f"/in/{n:06d}.txt", f"{n:06d}.txt", 5000, "1") for n in range(100_000)]
    reading = reading_of("text", {"document": "file"})
    made = make_partitions(files, format="text", blocksize=DEFAULT_BLOCKSIZE, reading=reading)
    assert sum(len(one.ranges) for one in made) == 100_000
    assert len(made) == -(-100_000 * 5000 // DEFAULT_BLOCKSIZE)
    assert len({one.id for one in made}) == len(made)
    assert {part.reading for one in made for part in one.ranges} == {reading}
    assert Partition.from_dict(made[0].to_dict()) == made[0]


def test_only_known_formats_and_options_are_read(tmp_path: Path) -> None:
    write(tmp_path, a_txt=b"x")
    for reading in ('{"format": "os"}', "[]", "not json", '{"format": "text", "no": 1}', '{"format": "../x"}'):
        (partition,) = make_partitions(list_files(tmp_path, extensions=".txt"), format="text", reading=reading)
        with pytest.raises(InputError, match="should be read as"):
            list(read_row_blocks(partition))
    with pytest.raises(UsageError, match="block_bytes=0"):
        read_row_blocks(partition_of(tmp_path, "text"), block_bytes=0)
