"""Chains of pairs: their ends are those of a plain loop, in any ranges, in the memory of one range."""

from __future__ import annotations

import itertools
import tracemalloc
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gristmill.ledger.prove.verify import verify
from gristmill.stages.deduplication import SemanticDeduplicationWorkflow
from gristmill.stages.deduplication.key_ranges import document_cuts
from gristmill.stages.deduplication.semantic.chains import ShorterChains
from gristmill.stages.deduplication.semantic.neighbours import PAIRS
from gristmill.stages.deduplication.sorted_runs import RunFile, RunFiles, column, write_run
from tests.outputs import record_of
from tests.unit.pipeline.jobs import here

EPS = 0.1


def pairs(
    documents: npt.NDArray[np.uint64], others: npt.NDArray[np.uint64], alike: npt.NDArray[np.float64]
) -> pa.Table:
    ids, other_ids = (pa.array([f"d{key}" for key in keys], pa.large_string()) for keys in (documents, others))
    return pa.table([documents, others, alike, documents * 7, others * 7, ids, other_ids], schema=PAIRS)


def write(folder: Path, tables: list[pa.Table]) -> RunFiles:
    folder.mkdir(parents=True)
    files = []
    for number, table in enumerate(tables):
        path = folder / f"{number}.arrow"
        write_run(table, str(path))
        files.append(RunFile(str(path), path.stat().st_size, str(number)))
    return RunFiles(tuple(files))


def one_round(runs: RunFiles, cuts: list[int], folder: Path) -> RunFiles:
    stage = ShorterChains(eps=EPS)
    stage.runs = runs
    ranges = itertools.pairwise(cuts)
    found = [pa.concat_tables(list(stage.rows_from(low, high)) or [PAIRS.empty_table()]) for low, high in ranges]
    return write(folder, found)


@settings(max_examples=15, deadline=None)
@given(data=st.data())
def test_the_ends_are_those_of_a_plain_loop(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    count = data.draw(st.integers(1, 30))
    parents = {
        key: (data.draw(st.integers(0, key - 1)), data.draw(st.sampled_from([0.85, 0.9, 0.95])))
        for key in range(1, count)
        if data.draw(st.booleans())
    }
    keys = np.array(sorted(parents), np.uint64)
    table = pairs(
        keys,
        np.array([parents[int(key)][0] for key in keys], np.uint64),
        np.array([parents[int(key)][1] for key in keys], np.float64),
    )
    folder = tmp_path_factory.mktemp("chains")
    cut = data.draw(st.integers(0, len(keys)))
    runs = write(folder / "0", [table.slice(0, cut), table.slice(cut)])
    middle = data.draw(st.integers(1, 30))
    for number in range(1, 7):
        runs = one_round(runs, [0, middle, 1 << 64], folder / str(number))
    goes = {key: other for key, (other, alike) in parents.items() if not alike < 1.0 - EPS}
    expected = {}
    for key in goes:
        end = goes[key]
        while end in goes:
            end = goes[end]
        expected[key] = end
    found = runs.read()
    assert dict(zip(column(found, "document").tolist(), column(found, "other").tolist(), strict=True)) == expected
    for row in found.to_pylist():
        assert row["other_id"] == f"d{row['other']}"
        assert row["other_hash"] == row["other"] * 7
        direct = goes[row["document"]] == row["other"]
        assert row["similarity"] == parents[row["document"]][1] if direct else np.isnan(row["similarity"])


def test_a_round_takes_the_memory_of_a_range(tmp_path: Path) -> None:
    count, ranges = 200_000, 50
    keys = np.arange(1, count + 1, dtype=np.uint64)
    table = pairs(keys, keys - np.uint64(1), np.full(count, 0.95))
    whole = table.nbytes
    runs = write(tmp_path / "0", [table])
    del table
    cuts = document_cuts(runs, ranges)
    stage = ShorterChains(eps=EPS)
    stage.runs = runs
    allocated = pa.total_allocated_bytes()
    tracemalloc.start()
    most = 0
    for low, high in itertools.pairwise(cuts):
        for part in stage.rows_from(low, high):
            most = max(most, pa.total_allocated_bytes() - allocated)
            assert part.num_rows <= 1 << 14
    most += tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert most < whole / 4


def test_one_long_chain_has_one_survivor_however_it_is_cut(tmp_path: Path) -> None:
    """Each vector is nearest to the one before it, so that all of them go for the first."""
    angles = np.arange(60) * 0.02
    table = pa.table(
        {
            "id": [f"d{number}" for number in range(60)],
            "embeddings": np.stack([np.cos(angles), np.sin(angles)], 1).tolist(),
        }
    )
    (tmp_path / "in").mkdir()
    for number in range(3):
        pq.write_table(table.slice(number * 20, 20), tmp_path / "in" / f"{number}.parquet")
    lists = []
    for name, size in (("whole", None), ("cut", 1500)):
        output = tmp_path / name
        workflow = SemanticDeduplicationWorkflow(
            str(tmp_path / "in"), str(output), n_clusters=1, eps=0.01, survivor="first"
        )
        workflow.chain_range_bytes = size or workflow.chain_range_bytes
        workflow.run(executor=here())
        assert verify(output).ok
        rounds = [path.name for path in (record_of(output) / "steps").glob("chains-*")]
        assert bool(rounds) == (size is not None)
        rows = [
            row for path in sorted((output / "duplicates").glob("*.parquet")) for row in pq.read_table(path).to_pylist()
        ]
        lists.append(sorted((row["id"], row["survivor"], row["similarity"]) for row in rows))
    assert lists[0] == lists[1]
    assert len(lists[0]) == 59
    assert {survivor for _, survivor, _ in lists[0]} == {"d0"}
