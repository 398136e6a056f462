"""The ledger's Parquet files: the same bytes for the same content, sorted, with ids, and small."""

from __future__ import annotations

import gzip
import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from hypothesis import given
from hypothesis import strategies as st

from gristmill.kernels.hashing import hash_column
from gristmill.ledger.record.quarantine import parse_quarantine, quarantine_lines
from gristmill.ledger.record.tables import ledger_table, parquet_bytes
from gristmill.ledger.record.trail import Changes, Decisions, Identity, QuarantinedRecord, Scores, Trail
from tests.unit.ledger.making import STAGES, make_trail

stages = st.sampled_from(["words", "clean", "dedup", "unplanned"])
numbers = st.sampled_from([0.0, -0.0, 1.5, float("nan"), float("inf")])


@st.composite
def pieces(draw: Any) -> Trail:
    rows = np.array(draw(st.lists(st.integers(-1, 3), min_size=1, max_size=4)), np.int64)
    n = len(rows)
    values = np.array(draw(st.lists(numbers, min_size=n, max_size=n)))
    survivors = draw(st.none() | st.lists(st.sampled_from(["a", "b", "é"]), min_size=n, max_size=n))
    return Trail(
        decisions=[
            Decisions(
                draw(stages),
                draw(st.sampled_from(["dropped", "duplicate"])),
                draw(st.sampled_from(["x", "y"])),
                rows,
                values if draw(st.booleans()) else None,
                draw(st.none() | numbers),
                survivors,
                values if draw(st.booleans()) else None,
            )
        ],
        changes=[Changes(draw(stages), draw(st.sampled_from(["text", "title"])), rows, rows * 3)],
        scores=[Scores(draw(stages), draw(st.sampled_from(["p", "q"])), rows, values)],
        quarantine=[
            QuarantinedRecord(int(rows[0]), draw(stages), draw(st.sampled_from(["u", "v"])), "d", raw=draw(st.binary()))
        ],
    )


@given(st.lists(pieces(), max_size=6), st.randoms(use_true_random=False))
def test_the_order_of_merging_never_shows(parts: list[Trail], chance: random.Random) -> None:
    def files(given_parts: list[Trail]) -> list[bytes]:
        trail = Trail()
        for part in given_parts:
            trail.merge(part)
        tables = [ledger_table(kind, trail, STAGES) for kind in ("ledger", "changes", "scores")]
        return [*map(parquet_bytes, tables), quarantine_lines(trail.quarantine, stage_order=STAGES)]

    shuffled = list(parts)
    chance.shuffle(shuffled)
    assert files(parts) == files(shuffled)


def test_rows_are_sorted_and_carry_ids_and_nulls() -> None:
    trail = make_trail(prefix="d")
    trail.decisions.append(Decisions("clean", "dropped", "untracked", np.array([-1, 2])))
    table = pq.read_table(pa.BufferReader(parquet_bytes(ledger_table("ledger", trail, STAGES)))).to_pylist()
    assert [(row["row"], row["stage"]) for row in table] == [
        (None, "clean"), (0, "read"), (1, "words"), (2, "clean"), (2, "words"), (3, "words"), (4, "dedup"),
    ]  # fmt: skip
    assert [row["id"] for row in table] == [None, None, "d-1", "d-2", "d-2", "d-3", "d-4"]
    assert table[2] == {
        "row": 1, "id": "d-1", "stage": "words", "outcome": "dropped", "reason": "too_few_words", "score": 3.0,
        "threshold": 50.0, "survivor": None, "similarity": None, "cluster": None,
    }  # fmt: skip
    assert (table[-1]["survivor"], table[-1]["similarity"], table[-1]["score"]) == ("d-5", 0.93, None)
    assert table[1]["outcome"] == "quarantined"


def test_a_dropped_document_takes_at_most_forty_bytes(shared_data: Path) -> None:
    ids = []
    for path in sorted((shared_data / "texts").glob("*.jsonl.gz"))[:8]:
        with gzip.open(path) as lines:
            ids += [json.loads(line)["id"] for line in lines]
    column = pa.array(ids, pa.large_string())
    chance = np.random.default_rng(1)
    dropped = np.sort(chance.permutation(len(ids))[: len(ids) // 2])
    trail = Trail(
        identities=[Identity(np.arange(len(ids)), hash_column(column), None, column)],
        decisions=[
            Decisions(f"stage-{n}", "dropped", f"reason-{n}", dropped[n::5], chance.random(len(dropped[n::5])), 0.3)
            for n in range(5)
        ],
    )
    size = len(parquet_bytes(ledger_table("ledger", trail, [])))
    assert len(dropped) > 1000
    assert size / len(dropped) + 8 <= 40  # the entry in the index included


@given(st.lists(st.tuples(st.binary(max_size=20), st.text(max_size=10)), max_size=6))
def test_quarantine_keeps_every_byte(records: list[tuple[bytes, str]]) -> None:
    given_records = [
        QuarantinedRecord(row, "read", "cause", detail, f"f{detail}", row, len(raw), raw)
        for row, (raw, detail) in enumerate(records)
    ]
    ids = [detail if row % 2 else None for row, (_, detail) in enumerate(records)]
    lines = quarantine_lines(list(reversed(given_records)), ids=list(reversed(ids)))
    assert lines.count(b"\n") == len(records)
    back = parse_quarantine(lines, partition="p")
    assert [item.record for item in back] == given_records
    assert [item.id for item in back] == ids
