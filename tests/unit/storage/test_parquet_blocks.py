"""Parquet partitions: one schema, bounded blocks, every row once, damage confined."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gristmill.errors import InputError, InputNotFoundError, SchemaConflictError, UsageError
from gristmill.storage.compression import DamagedArchiveError
from gristmill.storage.files import InputFile, list_files
from gristmill.storage.parquet_blocks import read_parquet_blocks, row_group_cuts, unified_schema
from gristmill.storage.parquet_sink import ParquetSink
from gristmill.storage.partitions import Partition, make_partitions
from gristmill.storage.schemas import JSON_KEY, JSON_VALUE, merge_types


def table_of(rows: int, start: int = 0) -> pa.Table:
    numbers = range(start, start + rows)
    return pa.table({"id": pa.array(numbers, pa.int64()), "text": [f"document {n} " * 10 for n in numbers]})


def partition_of(folder: Path) -> Partition:
    files = list_files(str(folder), extensions=".parquet")
    (partition,) = make_partitions(files, format="parquet", files_per_partition=max(len(files), 1))
    return partition


def write(path: Path, table: pa.Table, **options: object) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(table, path, **options)


@settings(max_examples=25, deadline=None)
@given(
    rows=st.integers(1, 300),
    group=st.integers(1, 100),
    block_bytes=st.integers(1, 60_000),
    blocksize=st.integers(1, 8_000),
)
def test_any_split_gives_the_rows_of_the_whole(tmp_path_factory, rows, group, block_bytes, blocksize):
    folder = tmp_path_factory.mktemp("split")
    table = table_of(rows)
    write(folder / "a.parquet", table, row_group_size=group)
    files = list_files(str(folder), extensions=".parquet")
    seen = []
    for partition in make_partitions(files, format="parquet", blocksize=blocksize):
        row = 0
        for block in read_parquet_blocks(partition, block_bytes=block_bytes):
            assert block.rows.tolist() == list(range(row, row + block.table.num_rows))
            assert not block.bad
            row += block.table.num_rows
            seen.append(block.table)
    assert pa.concat_tables(seen).combine_chunks().equals(table)


def test_blocks_are_bounded_and_small_row_groups_are_joined(tmp_path):
    table = table_of(1000)
    write(tmp_path / "a.parquet", table, row_group_size=10)
    few = list(read_parquet_blocks(partition_of(tmp_path), block_bytes=10**9))
    assert [block.table.num_rows for block in few] == [1000]
    many = list(read_parquet_blocks(partition_of(tmp_path), block_bytes=10_000))
    assert len(many) > 3
    again = list(read_parquet_blocks(partition_of(tmp_path), block_bytes=10_000))
    assert [block.table.num_rows for block in many] == [block.table.num_rows for block in again]
    write(tmp_path / "a.parquet", table, row_group_size=1000)
    one_group = list(read_parquet_blocks(partition_of(tmp_path), block_bytes=10_000))
    assert max(block.table.num_rows for block in one_group) < 500


def test_missing_columns_are_unified_and_fields_choose(tmp_path):
    write(tmp_path / "a.parquet", pa.table({"id": pa.array([1], pa.int32()), "text": ["a"]}))
    write(tmp_path / "b.parquet", pa.table({"text": pa.array(["b"], pa.large_string()), "url": ["u"]}))
    write(tmp_path / "c.parquet", pa.table({"id": pa.array([None], pa.null()), "text": ["c"]}))
    schema = unified_schema(list_files(str(tmp_path), extensions=".parquet"))
    assert schema.names == ["id", "text", "url"]
    assert schema.field("id").type == pa.int32()
    assert schema.field("text").type == pa.large_string()
    blocks = list(read_parquet_blocks(partition_of(tmp_path), schema=schema))
    assert pa.concat_tables([block.table for block in blocks]).to_pylist() == [
        {"id": 1, "text": "a", "url": None},
        {"id": None, "text": "b", "url": "u"},
        {"id": None, "text": "c", "url": None},
    ]
    assert [block.rows.tolist() for block in blocks] == [[0, 1, 2]]
    assert [(first, file.relative) for first, file in blocks[0].sources] == [
        (0, "a.parquet"), (1, "b.parquet"), (2, "c.parquet"),
    ]  # fmt: skip
    chosen = list(read_parquet_blocks(partition_of(tmp_path), schema=schema, fields=["url", "id"]))
    assert [block.table.column_names for block in chosen] == [["url", "id"]]
    only = list(read_parquet_blocks(partition_of(tmp_path), schema=schema, fields=["url"]))
    assert [row for block in only for row in block.table.to_pylist()] == [{"url": None}, {"url": "u"}, {"url": None}]
    with pytest.raises(UsageError, match="Did you mean 'text'"):
        list(read_parquet_blocks(partition_of(tmp_path), schema=schema, fields=["txt"]))


def test_a_real_conflict_names_both_files(tmp_path):
    write(tmp_path / "a.parquet", pa.table({"id": [1]}))
    write(tmp_path / "b.parquet", pa.table({"id": ["one"]}))
    with pytest.raises(SchemaConflictError) as caught:
        unified_schema(list_files(str(tmp_path), extensions=".parquet"))
    message = str(caught.value)
    assert "a.parquet" in message
    assert "b.parquet" in message
    assert "int64" in message
    assert "string" in message
    assert caught.value.column == "id"


def test_columns_of_one_name_in_a_file_are_refused(tmp_path):
    write(tmp_path / "a.parquet", pa.table([pa.array([1]), pa.array([2])], names=["id", "id"]))
    with pytest.raises(SchemaConflictError, match=r"a\.parquet.*several columns named 'id'"):
        unified_schema(list_files(str(tmp_path), extensions=".parquet"))


@pytest.mark.parametrize(
    ("left", "right", "merged"),
    [
        (pa.null(), pa.list_(pa.int8()), pa.list_(pa.int8())),
        (pa.int8(), pa.int64(), pa.int64()),
        (pa.uint8(), pa.int8(), pa.int16()),
        (pa.uint64(), pa.int8(), None),
        (pa.int16(), pa.float32(), pa.float32()),
        (pa.int32(), pa.float32(), pa.float64()),
        (pa.int64(), pa.float64(), None),
        (pa.float32(), pa.float64(), pa.float64()),
        (pa.string(), pa.large_string(), pa.large_string()),
        (pa.dictionary(pa.int32(), pa.string()), pa.string(), pa.string()),
        (
            pa.dictionary(pa.int8(), pa.string()),
            pa.dictionary(pa.int32(), pa.string()),
            pa.dictionary(pa.int32(), pa.string()),
        ),
        (pa.bool_(), pa.int8(), None),
        (pa.timestamp("s"), pa.timestamp("us"), pa.timestamp("us")),
        (pa.timestamp("s", "UTC"), pa.timestamp("s"), None),
        (pa.decimal128(5, 2), pa.decimal128(6, 0), pa.decimal128(8, 2)),
        (pa.list_(pa.int8()), pa.large_list(pa.int16()), pa.large_list(pa.int16())),
        (pa.struct({"a": pa.int8()}), pa.struct({"b": pa.string()}), pa.struct({"a": pa.int8(), "b": pa.string()})),
        (pa.struct({"a": pa.int8()}), pa.struct({"a": pa.string()}), None),
        (pa.string(), pa.binary(), None),
    ],
)
def test_types_widen_only_where_exact(left, right, merged):
    assert merge_types(left, right) == merged
    swapped = merge_types(right, left)
    assert (swapped is None) == (merged is None)


def test_structs_with_missing_fields_are_read(tmp_path):
    write(tmp_path / "a.parquet", pa.table({"meta": [{"a": 1}, None]}))
    write(tmp_path / "b.parquet", pa.table({"meta": [{"b": "x", "a": 2}]}))
    rows = [row["meta"] for block in read_parquet_blocks(partition_of(tmp_path)) for row in block.table.to_pylist()]
    assert rows == [{"a": 1, "b": None}, None, {"a": 2, "b": "x"}]


def test_a_json_column_makes_the_others_json(tmp_path):
    field = pa.field("value", pa.string(), metadata={JSON_KEY: JSON_VALUE})
    write(tmp_path / "a.parquet", pa.table([['{"a": 1}', "5", None]], schema=pa.schema([field])))
    write(tmp_path / "b.parquet", pa.table({"value": ["plain", None]}))
    write(tmp_path / "c.parquet", pa.table({"value": [[1, 2], None]}))
    blocks = list(read_parquet_blocks(partition_of(tmp_path)))
    assert all(block.table.schema.field("value").metadata == {JSON_KEY: JSON_VALUE} for block in blocks)
    values = [value for block in blocks for value in block.table.column("value").to_pylist()]
    assert values == ['{"a": 1}', "5", None, '"plain"', None, "[1,2]", None]


def test_dictionary_columns_stay(tmp_path):
    write(tmp_path / "a.parquet", pa.table({"label": pa.array(["x", "y", "x"]).dictionary_encode()}), row_group_size=1)
    (block,) = read_parquet_blocks(partition_of(tmp_path))
    assert pa.types.is_dictionary(block.table.schema.field("label").type)
    assert block.table.column("label").to_pylist() == ["x", "y", "x"]


def test_a_pandas_index_is_never_invented(tmp_path):
    metadata = {b"pandas": b'{"index_columns": [{"kind": "range", "name": null}], "columns": []}', b"mine": b"kept"}
    write(tmp_path / "a.parquet", table_of(3).replace_schema_metadata(metadata))
    schema = unified_schema(list_files(str(tmp_path), extensions=".parquet"))
    assert schema.names == ["id", "text"]
    assert b'"index_columns": []' in schema.metadata[b"pandas"]
    assert schema.metadata[b"mine"] == b"kept"


def test_a_corrupt_file_is_reported_and_the_next_is_read(tmp_path):
    write(tmp_path / "a.parquet", table_of(5))
    (tmp_path / "b.parquet").write_bytes(b"PAR1 this is not parquet PAR1")
    write(tmp_path / "c.parquet", table_of(5, 5))
    blocks = list(read_parquet_blocks(partition_of(tmp_path)))
    (bad,) = [item for block in blocks for item in block.bad]
    assert (bad.cause, bad.row, bad.lost, bad.file.relative) == ("corrupt_parquet", 5, 1, "b.parquet")
    assert [block.rows.tolist() for block in blocks] == [[0, 1, 2, 3, 4, 6, 7, 8, 9, 10]]
    assert blocks[0].table.column("id").to_pylist() == list(range(10))


def test_a_corrupt_row_group_costs_only_its_rows(tmp_path):
    path = tmp_path / "a.parquet"
    sink = ParquetSink(str(path), compression=None)
    for start in (0, 50, 100):
        sink.append(table_of(50, start))
    sink.close()
    data = bytearray(path.read_bytes())
    at = data.index(b"document 70 ")
    data[at : at + 8] = b"DOCUMENT"
    path.write_bytes(data)
    blocks = list(read_parquet_blocks(partition_of(tmp_path), block_bytes=2_000))
    (bad,) = [item for block in blocks for item in block.bad]
    assert bad.cause == "corrupt_parquet"
    ids = [number for block in blocks for number in block.table.column("id").to_pylist()]
    rows = [row for block in blocks for row in block.rows.tolist()]
    assert rows == list(range(len(ids)))
    assert (bad.row, bad.salvaged) == (len(ids), len(ids))
    assert len(ids) + bad.lost == 150
    assert set(ids) >= set(range(50)) | set(range(100, 150))
    with pytest.raises(DamagedArchiveError, match="row group 1"):
        list(read_parquet_blocks(partition_of(tmp_path), block_bytes=2_000, strict=True))


def test_a_file_that_is_gone_is_not_taken_for_a_corrupt_one(tmp_path):
    write(tmp_path / "a.parquet", table_of(5))
    partition = partition_of(tmp_path)
    schema = unified_schema(partition.ranges)
    (tmp_path / "a.parquet").unlink()
    with pytest.raises(InputNotFoundError, match="gone"):
        list(read_parquet_blocks(partition, schema=schema))
    with pytest.raises(UsageError, match="no column"):
        list(read_parquet_blocks(partition, schema=schema, fields=[]))


def test_only_unreadable_files_are_an_error(tmp_path):
    (tmp_path / "b.parquet").write_bytes(b"no")
    with pytest.raises(InputError, match="footer"):
        unified_schema(list_files(str(tmp_path), extensions=".parquet"))
    assert row_group_cuts(str(tmp_path / "b.parquet"), block_bytes=1) == []


def test_memory_filesystem():
    fs = fsspec.filesystem("memory")
    with fs.open("/parquet/a.parquet", "wb") as file:
        pq.write_table(table_of(100), file, row_group_size=10)
    files = list_files("memory://parquet/", extensions=[".parquet"])
    partitions = make_partitions(files, format="parquet", blocksize=1000)
    assert [part.id for part in partitions][:2] == ["a.b0000", "a.b0001"]
    tables = [block.table for part in partitions for block in read_parquet_blocks(part)]
    assert pa.concat_tables(tables).column("id").to_pylist() == list(range(100))


def test_files_without_rows_have_no_blocks(tmp_path):
    write(tmp_path / "a.parquet", table_of(0))
    assert list(read_parquet_blocks(partition_of(tmp_path))) == []


def test_whole_partitions_need_no_footer():
    partition = make_partitions([InputFile("/nowhere/a.parquet", "a.parquet", 10, "0")], format="parquet")[0]
    assert partition.ranges[0].end == -1


def repeated(value: str, rows: int) -> pa.DictionaryArray:
    return pa.DictionaryArray.from_arrays(pa.array([0] * rows, pa.int32()), pa.array([value]))


@pytest.mark.parametrize("store_schema", [False, True])
def test_values_that_a_dictionary_repeats_end_a_block(tmp_path, store_schema):
    table = pa.table({"id": range(400), "text": repeated("x" * 1000, 400)})
    write(tmp_path / "in" / "a.parquet", table, store_schema=store_schema)
    blocks = list(read_parquet_blocks(partition_of(tmp_path / "in"), block_bytes=10_000))
    assert [number for block in blocks for number in block.rows.tolist()] == list(range(400))
    assert [number for block in blocks for number in block.table["id"].to_pylist()] == list(range(400))
    texts = [block.table["text"].cast(pa.string()) for block in blocks]
    assert all(text == "x" * 1000 for column in texts for text in column.to_pylist())
    assert max(column.nbytes for column in texts) <= 4 * 10_000


def test_a_row_over_the_limit_is_a_bad_record_and_reading_goes_on(tmp_path):
    texts = ["a", "b" * 5000, "c", "d" * 6000, "e"]
    write(tmp_path / "in" / "a.parquet", pa.table({"text": texts}))
    blocks = list(read_parquet_blocks(partition_of(tmp_path / "in"), max_record_bytes=4000))
    rows = [number for block in blocks for number in block.rows.tolist()]
    assert (rows, [text for block in blocks for text in block.table["text"].to_pylist()]) == (
        [0, 2, 4],
        ["a", "c", "e"],
    )
    bad = [one for block in blocks for one in block.bad]
    assert [(one.row, one.cause, one.lost) for one in bad] == [(1, "record_too_large", 0), (3, "record_too_large", 0)]
    assert "max_record_bytes=4000" in bad[0].told


def test_what_does_not_fit_into_memory_is_decoded_in_smaller_steps_with_the_same_borders(tmp_path, monkeypatch):
    numbers = list(range(900))
    write(
        tmp_path / "in" / "a.parquet",
        pa.table({"id": numbers, "text": [str(n) * 9 for n in numbers]}),
        row_group_size=500,
    )
    whole = [block.rows.tolist() for block in read_parquet_blocks(partition_of(tmp_path / "in"), block_bytes=5000)]
    original = pq.ParquetFile.iter_batches

    def short_of_memory(self, batch_size, **options):
        for place, batch in enumerate(original(self, batch_size=batch_size, **options)):
            if batch_size > 3 and place:
                raise pa.ArrowMemoryError("no more")
            yield batch

    monkeypatch.setattr(pq.ParquetFile, "iter_batches", short_of_memory)
    blocks = list(read_parquet_blocks(partition_of(tmp_path / "in"), block_bytes=5000))
    assert [block.rows.tolist() for block in blocks] == whole
    assert [number for block in blocks for number in block.table["id"].to_pylist()] == numbers


def test_a_row_that_never_fits_sets_the_rest_of_its_row_group_aside_or_the_file(tmp_path, monkeypatch):
    write(tmp_path / "in" / "a.parquet", table_of(20), row_group_size=10)
    original = pq.ParquetFile.iter_batches

    def short_of_memory(self, row_groups, **options):
        for place, batch in enumerate(original(self, row_groups=row_groups, **{**options, "batch_size": 1})):
            if place == 4 and row_groups == [0]:
                raise pa.ArrowMemoryError("no more")
            yield batch

    monkeypatch.setattr(pq.ParquetFile, "iter_batches", short_of_memory)
    blocks = list(read_parquet_blocks(partition_of(tmp_path / "in")))
    assert [number for block in blocks for number in block.table["id"].to_pylist()] == [*range(4), *range(10, 20)]
    (bad,) = [one for block in blocks for one in block.bad]
    assert (bad.cause, bad.lost) == ("record_too_large", 6)
    assert "row 4 of row group 0 needs over" in bad.told
    with pytest.raises(DamagedArchiveError, match="row 4 of row group 0"):
        list(read_parquet_blocks(partition_of(tmp_path / "in"), strict=True))


BOUND = """
import resource
from gristmill.storage.parquet_decoding import BoundedMemory

before = resource.getrlimit(resource.RLIMIT_DATA)
try:
    with BoundedMemory(64 << 20):
        bytearray(1 << 30)
except MemoryError:
    print("bounded")
assert resource.getrlimit(resource.RLIMIT_DATA) == before
with BoundedMemory(64 << 20), BoundedMemory(1 << 20):
    assert resource.getrlimit(resource.RLIMIT_DATA)[0] != before[0]
assert resource.getrlimit(resource.RLIMIT_DATA) == before
"""


def test_the_bound_on_memory_is_lifted_afterwards():
    # In a new process: one in which models ran keeps gigabytes to hand out without asking.
    done = subprocess.run([sys.executable, "-c", BOUND], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["bounded"]
