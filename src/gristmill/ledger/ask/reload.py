"""Reads the record of a committed partition back as a trail, so that more can be added to it."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from gristmill.ledger.record.layout import RunFolder
from gristmill.ledger.record.manifest import ManifestEntry
from gristmill.ledger.record.quarantine import parse_quarantine
from gristmill.ledger.record.trail import QUARANTINED, Changes, Decisions, Identity, Scores, StageCount, Trail


def load_trail(folder: RunFolder, entry: ManifestEntry) -> Trail:
    """The trail that `commit_partition` wrote as `entry`, without its times."""
    trail = Trail(
        counts={stage: StageCount.from_dict(counts.to_dict()) for stage, counts in entry.stages.items()},
        output_rows=entry.rows_written,
        batches=list(entry.batches),
    )
    decisions = _table(folder, folder.ledger_file(entry.partition))
    if decisions is not None:
        trail.decisions = _decisions(decisions)
    changes = _table(folder, folder.changes_file(entry.partition))
    if changes is not None:
        trail.changes = [
            Changes(str(stage), str(field), _rows(part), part.column("characters").to_numpy())
            for (stage, field), part in _groups(changes, ["stage", "field"])
        ]
    scores = _table(folder, folder.scores_file(entry.partition))
    if scores is not None:
        trail.scores = [
            Scores(str(stage), str(name), _rows(part), part.column(part.num_columns - 1).to_numpy())
            for (stage, name), part in _groups(scores, scores.column_names[1:3])
        ]
    if entry.quarantined:
        data = folder.read(folder.quarantine_file(entry.partition))
        trail.quarantine = [item.record for item in parse_quarantine(data, partition=entry.partition)]
    trail.identities = [_identity(folder, entry, decisions)]
    return trail


def _table(folder: RunFolder, path: str) -> pa.Table | None:
    if not folder.exists(path):
        return None
    return pq.read_table(io.BytesIO(folder.read(path)))


def _rows(table: pa.Table) -> npt.NDArray[np.int64]:
    return np.asarray(table.column("row").fill_null(-1).to_numpy(), np.int64)


def _groups(table: pa.Table, names: list[str]) -> list[tuple[tuple[Any, ...], pa.Table]]:
    """The rows of `table` by the values of some columns, in order of appearance."""
    keys = list(zip(*(table.column(name).to_pylist() for name in names), strict=True))
    places: dict[tuple[Any, ...], list[int]] = {}
    for place, key in enumerate(keys):
        places.setdefault(key, []).append(place)
    return [(key, table.take(pa.array(rows))) for key, rows in places.items()]


def _decisions(table: pa.Table) -> list[Decisions]:
    found = []
    for (stage, outcome, reason, threshold), part in _groups(table, ["stage", "outcome", "reason", "threshold"]):
        if outcome == QUARANTINED:
            continue  # these are in the quarantine
        scores, similarity = part.column("score"), part.column("similarity")
        survivors = part.column("survivor").to_pylist()
        found.append(
            Decisions(
                str(stage),
                str(outcome),
                str(reason),
                _rows(part),
                None if scores.null_count == len(part) else scores.to_numpy(),
                threshold,
                None if all(text is None for text in survivors) else survivors,
                None if similarity.null_count == len(part) else similarity.to_numpy(),
                _clusters(part),
            )
        )
    return found


def _clusters(part: pa.Table) -> Any:
    if "cluster" not in part.column_names or part.column("cluster").null_count == len(part):
        return None  # also what runs have left that did not record them
    return part.column("cluster").to_numpy()


def _identity(folder: RunFolder, entry: ManifestEntry, decisions: pa.Table | None) -> Identity:
    """The hashes of all rows, and the ids as far as the ledger knows them."""
    rows = np.arange(entry.row_numbers, dtype=np.int64)
    hashes = [
        np.frombuffer(folder.read(path), np.uint64).copy() if folder.exists(path) else None
        for path in (folder.ids_file(entry.partition), folder.urls_file(entry.partition))
    ]
    ids: list[str | None] = [None] * len(rows)
    if decisions is not None:
        pairs = zip(decisions.column("row").to_pylist(), decisions.column("id").to_pylist(), strict=True)
        for row, name in pairs:
            if row is not None and row < len(ids):
                ids[row] = name
    return Identity(rows, hashes[0], hashes[1], pa.array(ids, pa.large_string()))
