"""Sorted runs and key ranges: every row is in exactly one range, whatever the ranges and the pieces."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gristmill.errors import InputError
from gristmill.stages.deduplication.key_ranges import document_cuts, hash_cuts, range_count
from gristmill.stages.deduplication.sorted_runs import (
    RunFile,
    RunFiles,
    SortedRunWriter,
    column,
    count_distinct,
    open_run,
    write_run,
)
from gristmill.stages.deduplication.source import first_key, make_keys, partitions_of, rows_of
from gristmill.tasks.columns import TableColumns
from gristmill.tasks.document import DocumentBatch


def table(keys: list[int]) -> pa.Table:
    return pa.table({"document": np.array(keys, np.uint64), "place": np.arange(len(keys))})


def runs(folder: Path, *lists: list[int]) -> RunFiles:
    files = []
    for number, keys in enumerate(lists):
        written = write_run(table(sorted(keys)), f"{folder}/{number}.arrow")
        files.append(RunFile(written.path, written.size, written.hash))
    return RunFiles(tuple(files))


@given(
    st.lists(st.lists(st.integers(0, 2**64 - 1) | st.integers(0, 50), max_size=20), min_size=1, max_size=3),
    st.integers(1, 9),
)
def test_ranges_hold_every_row_once(
    tmp_path_factory: pytest.TempPathFactory, lists: list[list[int]], count: int
) -> None:
    found = runs(tmp_path_factory.mktemp("runs"), *lists)
    everything = sorted(key for keys in lists for key in keys)
    for cuts in (hash_cuts(count), document_cuts(found, count)):
        assert cuts[0] == 0
        assert cuts[-1] == 1 << 64
        parts = [column(found.read(low, high), "document").tolist() for low, high in itertools.pairwise(cuts)]
        assert [key for part in parts for key in sorted(part)] == everything


@given(st.lists(st.lists(st.integers(0, 2**64 - 1) | st.integers(0, 9), max_size=20), max_size=3), st.integers(1, 9))
def test_different_numbers_are_counted_in_any_number_of_turns(
    tmp_path_factory: pytest.TempPathFactory, lists: list[list[int]], at_once: int
) -> None:
    found = runs(tmp_path_factory.mktemp("runs"), *lists)
    assert count_distinct(found, "document", at_once=at_once) == len({key for keys in lists for key in keys})


def test_the_number_of_ranges_follows_from_the_size() -> None:
    assert [range_count(size, 10) for size in (0, 1, 10, 11, 100)] == [1, 1, 1, 2, 10]


def test_cuts_share_the_rows_of_one_partition(tmp_path: Path) -> None:
    found = runs(tmp_path, list(range(10_000)))
    cuts = document_cuts(found, 4)
    sizes = [found.read(low, high).num_rows for low, high in itertools.pairwise(cuts)]
    assert len(sizes) == 4
    assert max(sizes) < 3000


def test_pieces_joined_are_what_one_worker_writes(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    batches = [DocumentBatch.from_columns(TableColumns(table(rng.integers(0, 99, 20).tolist()))) for _ in range(5)]
    writer = SortedRunWriter(str(tmp_path), run_bytes=600)
    whole = writer.open_part(f"{tmp_path}/whole.arrow")
    pieces = []
    for number, batch in enumerate(batches):
        whole.append(writer.encode(batch), rows=batch.num_items)
        part = writer.open_part(f"{tmp_path}/pieces/{number}.arrow")
        part.append(writer.encode(batch), rows=batch.num_items)
        pieces += part.close()
    one, other = whole.close(), writer.concatenate(pieces, f"{tmp_path}/joined.arrow")
    assert len(one) > 1
    assert sum(file.rows for file in one) == 100
    assert [(file.size, file.hash, file.rows) for file in one] == [(file.size, file.hash, file.rows) for file in other]
    for file in one:
        keys = column(open_run(file.path), "document")
        assert (keys[1:] >= keys[:-1]).all()


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "0.arrow").write_bytes(b"not arrow")
    with pytest.raises(InputError, match=r"0\.arrow is damaged"):
        open_run(f"{tmp_path}/0.arrow")


def test_keys_sort_in_source_order_and_come_apart_again() -> None:
    rows = np.array([0, 5, 2**39], np.int64)
    keys = np.concatenate([make_keys(partition, rows) for partition in (0, 1, 70_000)])
    assert (np.diff(keys.astype(object)) > 0).all()
    assert partitions_of(keys).tolist() == [0] * 3 + [1] * 3 + [70_000] * 3
    assert rows_of(keys).tolist() == rows.tolist() * 3
    assert first_key(1) == int(make_keys(1, rows)[0])
