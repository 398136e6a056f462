"""Decides what to do about a task whose worker died: retry, retry alone, and finally find the document that kills.

Pure bookkeeping, used by every executor that knows how far a worker had got. A single death proves nothing about a
document: workers die for many reasons. The input of a task is only taken apart after the task has killed several
workers in which it ran alone, and only a document that kills twice on its own is quarantined.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

Slices = Sequence[tuple[int, int]]

_ALONE_BEFORE_SEARCH = 3
_DEATHS_OF_ONE_DOCUMENT = 2
_PIECES = 16
FEW = 16
"""Number of documents per call after a stage has exceeded the default time limit."""
_MOST_ATTEMPTS = 400
_MOST_DEATHS_NOWHERE = 4
"""How often a task may kill its worker without a document in progress (for example while a file is read)."""


@dataclass(frozen=True, slots=True)
class Place:
    """A worker's position: number of the call, index of the stage, and the rows in progress."""

    call: int
    stage: int
    lo: int
    hi: int


@dataclass(frozen=True, slots=True)
class Hints:
    """What earlier attempts at the same task have shown, by number of the call.

    Attributes:
        slices: The pieces in which these calls pass their input to the stage, to find the document that kills.
        poison: Rows that kill, with the cause; they are quarantined without being touched.
        slow: Stages, by their index, that have exceeded the default time limit: they receive a few documents at a time.
    """

    slices: Mapping[int, Slices] = field(default_factory=dict)
    poison: Mapping[int, Mapping[int, str]] = field(default_factory=dict)
    slow: Mapping[int, float] = field(default_factory=dict)


@dataclass(slots=True)
class Attempts:
    """The history of one task."""

    deaths: int = 0
    deaths_alone: int = 0
    deaths_nowhere: int = 0
    searching: bool = False
    slices: dict[int, list[tuple[int, int]]] = field(default_factory=dict)
    poison: dict[int, dict[int, str]] = field(default_factory=dict)
    suspects: dict[tuple[int, int], int] = field(default_factory=dict)

    @property
    def alone(self) -> bool:
        """Whether the next attempt must run alone in a fresh worker."""
        return self.deaths > 0

    @property
    def hints(self) -> Hints:
        """Hints for the next attempt."""
        return Hints(
            slices={call: tuple(pieces) for call, pieces in self.slices.items()},
            poison={call: dict(rows) for call, rows in self.poison.items()},
        )

    def died(self, place: Place | None, cause: str, *, was_alone: bool, certain: bool = False) -> bool:
        """Learn from a death.

        Args:
            place: Where the worker was; None if unknown.
            cause: The cause of death, as the quarantine will name it.
            was_alone: Whether the task was alone in a fresh worker.
            certain: The current document is certainly the cause (it exceeded its time limit).

        Returns:
            Whether another attempt makes sense.
        """
        self.deaths += 1
        if was_alone:
            self.deaths_alone += 1
        if certain or self.deaths_alone >= _ALONE_BEFORE_SEARCH:
            self.searching = True
        if not self.searching:
            return True
        if place is None or place.hi <= place.lo:
            self.deaths_nowhere += 1
            return self.deaths_nowhere < _MOST_DEATHS_NOWHERE
        if self.deaths > _MOST_ATTEMPTS:
            return False
        if place.hi - place.lo == 1:
            self._suspect(place, cause, certain=certain)
        else:
            self._split(place)
        return True

    def _suspect(self, place: Place, cause: str, *, certain: bool) -> None:
        key = (place.call, place.lo)
        self.suspects[key] = self.suspects.get(key, 0) + 1
        if certain or self.suspects[key] >= _DEATHS_OF_ONE_DOCUMENT:
            self.poison.setdefault(place.call, {})[place.lo] = cause

    def _split(self, place: Place) -> None:
        """Split the piece that killed a worker; the pieces around it stay as they are.

        Only rows known to contain a killer are listed; the runner fills the gaps.
        """
        step = max(1, -(-(place.hi - place.lo) // _PIECES))
        finer = [(start, min(place.hi, start + step)) for start in range(place.lo, place.hi, step)]
        kept: list[tuple[int, int]] = []
        for lo, hi in self.slices.get(place.call, []):
            if lo < place.lo:
                kept.append((lo, min(hi, place.lo)))
            if hi > place.hi:
                kept.append((max(lo, place.hi), hi))
        self.slices[place.call] = sorted([*kept, *finer])


def around(lo: int, hi: int, poison: Mapping[int, str]) -> Iterator[tuple[int, int]]:
    """The piece `lo:hi`, split so that every poisonous row is alone."""
    start = lo
    for row in sorted(row for row in poison if lo <= row < hi):
        if row > start:
            yield start, row
        yield row, row + 1
        start = row + 1
    if start < hi:
        yield start, hi


def by_time(start: int, stop: int, limit_s: float, most: int | None = None) -> Iterator[tuple[int, int]]:
    """Pieces that each take about a quarter of the time limit, so that only a slow document can exceed it."""
    size = 1
    while start < stop:
        end = min(stop, start + size)
        begun = time.perf_counter()
        yield start, end
        spent = max(time.perf_counter() - begun, 1e-6)
        fitting = int((end - start) * limit_s / 4 / spent)
        size = int(np.clip(fitting, 1, min(2 * size, most or stop)))
        start = end


def with_gaps(slices: Slices, rows: int, limit_s: float | None, most: int | None = None) -> Iterator[tuple[int, int]]:
    """The slices and, in order, the gaps before, between and after them."""
    at = 0
    for lo, hi in [*slices, (rows, rows)]:
        if at < lo:
            yield from [(at, lo)] if limit_s is None else by_time(at, lo, limit_s, most)
        if lo < hi:
            yield lo, hi
        at = hi
