"""The trail: what has happened to the rows of a task so far, carried by the task until its partition is committed.

A trail is additive. When a stage turns one task into several, the first child takes the trail and the others start
empty; at the commit all trails of a partition are merged, so nothing depends on the order in which tasks arrive.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

Rows = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

DROPPED = "dropped"
DUPLICATE = "duplicate"
QUARANTINED = "quarantined"
CONVERTED = "converted"
"""The reason of documents that a stage turned into a task of another kind; documents made from it later are new
ones."""
TOO_MANY = "too_many_bad_lines"
"""The cause of bad lines that are only counted, because many others of their partition are in quarantine already."""
UNTRACKED = "untracked"
"""The reason of missing rows if rows of unknown origin turned up."""

UNTRACKED_ROW = -1
"""The row number of a document whose origin is not known."""


@dataclass(slots=True)
class StageCount:
    """The rows of one stage: `rows_in + created == rows_out + dropped + quarantined`.

    `untracked` is the number of created rows that could not be matched with an input row; the same number of dropped
    rows may be the same documents. `changed` counts changed texts, `touched` rows that gained or lost a column, or have
    another value in a column without text. `skipped` counts what a reader found in its files that is not a document, by
    kind.
    """

    rows_in: int = 0
    rows_out: int = 0
    created: int = 0
    dropped: dict[str, int] = field(default_factory=dict)
    quarantined: dict[str, int] = field(default_factory=dict)
    untracked: int = 0
    changed: int = 0
    touched: int = 0
    bytes_in: int = 0
    bytes_out: int = 0
    skipped: dict[str, int] = field(default_factory=dict)

    def conserves(self) -> bool:
        """Whether every row that went in or was created is accounted for."""
        gone = sum(self.dropped.values()) + sum(self.quarantined.values())
        return self.rows_in + self.created == self.rows_out + gone

    def add(self, other: StageCount) -> None:
        """Add the counts of `other` to these."""
        self.rows_in += other.rows_in
        self.rows_out += other.rows_out
        self.created += other.created
        self.untracked += other.untracked
        self.changed += other.changed
        self.touched += other.touched
        self.bytes_in += other.bytes_in
        self.bytes_out += other.bytes_out
        for mine, theirs in (
            (self.dropped, other.dropped),
            (self.quarantined, other.quarantined),
            (self.skipped, other.skipped),
        ):
            for key, number in theirs.items():
                mine[key] = mine.get(key, 0) + number


@dataclass(slots=True)
class Decisions:
    """One stage's verdict on some rows of one task, for one reason, as columns."""

    stage: str
    outcome: str
    reason: str
    rows: Rows
    scores: Floats | None = None
    threshold: float | None = None
    survivors: list[str] | None = None
    similarities: Floats | None = None
    clusters: Rows | None = None


@dataclass(slots=True)
class Changes:
    """How many characters a stage added to (or took from) a field of some rows."""

    stage: str
    field: str
    rows: Rows
    characters: Rows


@dataclass(slots=True)
class Cuts:
    """Passages that a stage cut from (or marked in) a field of some rows, for one reason.

    `starts` and `ends` count characters in the text that the stage received.
    """

    stage: str
    field: str
    reason: str
    rows: Rows
    starts: Rows
    ends: Rows


@dataclass(slots=True)
class Scores:
    """One score of every row a stage saw; only recorded when all scores are requested."""

    stage: str
    score: str
    rows: Rows
    values: Floats


@dataclass(slots=True)
class Written:
    """Which rows were written, in the order of the file; only recorded for files that a later step reads.

    `order` is the position of the batch within the partition.
    """

    order: tuple[int, ...]
    rows: Rows


@dataclass(slots=True)
class QuarantinedRecord:
    """A record that could not be processed, with everything needed to inspect it and to process it again.

    For a damaged file, `lost` is the approximate number of records missing with it, and `salvaged` the number of its
    rows before this one that were kept; None for none.
    """

    row: int
    stage: str
    cause: str
    detail: str
    file: str = ""
    offset: int = -1
    size: int = 0
    raw: bytes = b""
    lost: int = 0
    salvaged: int | None = None


@dataclass(slots=True)
class Identity:
    """The id and URL of every row of a source batch, as hashes, and the ids themselves for those that get dropped.

    `rows` are the row numbers within the partition, parallel to `id_hashes` and `url_hashes`.
    """

    rows: Rows
    id_hashes: npt.NDArray[np.uint64] | None = None
    url_hashes: npt.NDArray[np.uint64] | None = None
    ids: Any = None  # a pyarrow array of strings, or None


@dataclass(slots=True)
class StageTime:
    """Where the time of a stage went; never part of what is compared between runs."""

    calls: int = 0
    busy_s: float = 0.0
    items: int = 0
    custom: dict[str, float] = field(default_factory=dict)
    idle_s: float = 0.0
    """How long the worker waited for its input."""

    def add(self, other: StageTime) -> None:
        """Add the figures of `other` to these."""
        self.calls += other.calls
        self.busy_s += other.busy_s
        self.idle_s += other.idle_s
        self.items += other.items
        for key, value in other.custom.items():
            self.custom[key] = self.custom.get(key, 0.0) + value


@dataclass(slots=True)
class Trail:
    """Everything recorded about one task (or, merged, about one partition).

    The counts and times of a stage are created on first access.
    """

    counts: defaultdict[str, StageCount] = field(default_factory=partial(defaultdict, StageCount))
    decisions: list[Decisions] = field(default_factory=list)
    changes: list[Changes] = field(default_factory=list)
    cuts: list[Cuts] = field(default_factory=list)
    scores: list[Scores] = field(default_factory=list)
    quarantine: list[QuarantinedRecord] = field(default_factory=list)
    identities: list[Identity] = field(default_factory=list)
    times: defaultdict[str, StageTime] = field(default_factory=partial(defaultdict, StageTime))
    output_rows: int = 0
    written: list[Written] = field(default_factory=list)

    def merge(self, other: Trail) -> None:
        """Add everything that `other` holds."""
        for stage, counts in other.counts.items():
            self.counts[stage].add(counts)
        for stage, times in other.times.items():
            self.times[stage].add(times)
        self.decisions.extend(other.decisions)
        self.changes.extend(other.changes)
        self.cuts.extend(other.cuts)
        self.scores.extend(other.scores)
        self.quarantine.extend(other.quarantine)
        self.identities.extend(other.identities)
        self.output_rows += other.output_rows
        self.written.extend(other.written)


def join_sources(trails: Mapping[tuple[int, ...] | None, Trail]) -> Trail:
    """The trail of a whole partition, from those of the tasks that its documents were made from.

    Each of these numbers its rows from 0; in the partition they are numbered consecutively, in the order of the tasks.
    """
    if len(trails) == 1:
        return next(iter(trails.values()))
    whole, first = Trail(), 0
    for source in sorted(trails, key=lambda source: source or ()):
        trail = trails[source]
        rows = _row_numbers(trail)
        _move_rows(trail, first)
        whole.merge(trail)
        first += rows
    return whole


def row_blocks(trail: Trail) -> list[Decisions | Changes | Cuts | Scores | Identity | Written]:
    """Everything in a trail that has row numbers as a column."""
    return [*trail.decisions, *trail.changes, *trail.cuts, *trail.scores, *trail.identities, *trail.written]


def _row_numbers(trail: Trail) -> int:
    blocks = row_blocks(trail)
    highest = [int(block.rows.max()) for block in blocks if len(block.rows)]
    return max((-1, *highest, *(record.row for record in trail.quarantine))) + 1


def _move_rows(trail: Trail, by: int) -> None:
    if not by:
        return
    for block in row_blocks(trail):
        block.rows = np.where(block.rows >= 0, block.rows + by, block.rows)
    for record in trail.quarantine:
        if record.row >= 0:
            record.row += by
