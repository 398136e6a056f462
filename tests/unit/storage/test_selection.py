"""Which documents a sample or a limit selects."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gristmill.errors import UsageError
from gristmill.storage.files import list_files
from gristmill.storage.jsonl_blocks import read_blocks
from gristmill.storage.partitions import Partition, make_partitions
from gristmill.storage.selection import Selection

ROWS = np.arange(100_000)


@pytest.mark.parametrize("share", [0.001, 0.1, 0.5, 0.999])
def test_a_sample_has_about_its_share_of_the_rows(share: float) -> None:
    chosen = Selection(sample=share).mask("part", ROWS)
    assert abs(chosen.mean() - share) < 4 * np.sqrt(share * (1 - share) / len(ROWS))


def test_a_sample_depends_on_seed_and_partition_and_on_nothing_else() -> None:
    chosen = Selection(sample=0.1).mask("part", ROWS)
    assert np.array_equal(chosen, Selection(sample=0.1).mask("part", ROWS))
    for other in (Selection(sample=0.1, seed=1).mask("part", ROWS), Selection(sample=0.1).mask("other", ROWS)):
        assert abs((chosen & other).mean() - 0.01) < 0.002  # as independent samples


def test_a_larger_sample_holds_the_smaller_one() -> None:
    small, large = (Selection(sample=share).mask("part", ROWS) for share in (0.1, 0.3))
    assert not (small & ~large).any()


def test_all_of_it() -> None:
    assert Selection(sample=1.0).mask("part", ROWS).all()
    assert Selection(max_documents=3).mask("part", ROWS).all()  # counted when the partitions are made


@pytest.mark.parametrize("wrong", [{"sample": 0}, {"sample": 1.1}, {"sample": True}, {"max_documents": 0}])
def test_values_out_of_range_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(UsageError, match=f"{next(iter(wrong))}="):
        Selection(**wrong)  # type: ignore[arg-type]


@given(
    sizes=st.lists(st.integers(0, 30), min_size=1, max_size=5),
    most=st.integers(1, 100),
    share=st.sampled_from([None, 0.3, 0.8]),
    piece=st.integers(1, 10),
)
def test_the_first_documents_are_those_that_come_first(
    sizes: list[int], most: int, share: float | None, piece: int
) -> None:
    partitions = [Partition(index, f"p{index}", ()) for index in range(len(sizes))]
    whole = Selection(sample=share)
    everything = [
        (part.id, row) for part, size in zip(partitions, sizes, strict=True)
        for row in np.arange(size)[whole.mask(part.id, np.arange(size))].tolist()
    ]  # fmt: skip
    kept, selection = Selection(sample=share, max_documents=most).first_of(
        partitions, lambda part: (np.arange(sizes[part.index])[at : at + piece] for at in range(0, 30, piece))
    )
    found = [
        (part.id, row) for part in kept
        for row in np.arange(sizes[part.index])[selection.mask(part.id, np.arange(sizes[part.index]))].tolist()
    ]  # fmt: skip
    assert found == everything[:most]
    assert kept == partitions[: len(kept)]


def test_bad_records_are_selected_like_others(tmp_path: Path) -> None:
    good = [json.dumps({"text": "x" * 10})] * 50
    lines = [line if number % 10 else json.dumps({"text": "y" * 300}) for number, line in enumerate(good)]
    (tmp_path / "a.jsonl").write_text("\n".join(lines) + "\n")
    [part] = make_partitions(list_files(tmp_path, extensions=[".jsonl"]), format="jsonl")
    selection = Selection(sample=0.7, stop=(part.id, 35))
    blocks = list(selection.blocks(read_blocks(part, max_record_bytes=100), part.id))
    rows = [*np.concatenate([block.rows for block in blocks]).tolist(), *(bad.row for b in blocks for bad in b.bad)]
    assert sorted(rows) == np.arange(50)[selection.mask(part.id, np.arange(50))].tolist()
    assert max(rows) < 35
    assert any(block.bad for block in blocks)


def test_damage_is_reported_whatever_is_selected(tmp_path: Path) -> None:
    packed = gzip.compress("".join(f'{{"text": "{number}"}}\n' for number in range(1000)).encode())
    (tmp_path / "a.jsonl.gz").write_bytes(packed[:-20])
    [part] = make_partitions(list_files(tmp_path, extensions=[".jsonl"]), format="jsonl")
    for seed in range(3):
        blocks = Selection(sample=0.01, seed=seed).blocks(read_blocks(part), part.id)
        assert sum(len(block.bad) for block in blocks) == 1
