"""The progress of a run over time, and what its workers waited for: part of `run.json` for longer runs."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from gristmill.observe.events import Sample, SegmentPlan

MOST_POINTS = 240
"""Maximum number of points. When it is reached, every second point is dropped and the interval doubles."""
_FIRST_PAUSE_S = 0.25

_SERIES = ("workers", "busy", "queued", "queued_bytes")
_TOTALS = ("seconds", "rows_read", "rows_written", "memory_bytes")


@dataclass(slots=True)
class StageWaits:
    """Waiting times of the workers of a stage's segment."""

    starved_seconds: float = 0.0
    blocked_seconds: float = 0.0
    starting_seconds: float = 0.0
    peak_memory_bytes: int = 0
    retries: int = 0
    crashes: int = 0
    recycles: int = 0

    def record(self) -> dict[str, Any]:
        """The sums as plain values."""
        return {name: round(value, 3) for name, value in asdict(self).items()}


@dataclass(slots=True)
class RunHistory:
    """Samples of a run as columns, and sums by stage.

    Stages that share a segment have the same sums: their workers are the same.

    Attributes:
        started_at: When the run began.
        waits: By stage.
    """

    started_at: float
    waits: defaultdict[str, StageWaits] = field(default_factory=lambda: defaultdict(StageWaits))
    _segments: tuple[SegmentPlan, ...] = ()
    _points: dict[str, list[Any]] = field(default_factory=lambda: {name: [] for name in _TOTALS})
    _columns: dict[tuple[str, ...], dict[str, list[int]]] = field(default_factory=dict)
    _pause: float = _FIRST_PAUSE_S
    _last: Sample | None = None

    def begin(self, segments: tuple[SegmentPlan, ...]) -> None:
        """The following samples belong to these segments."""
        self._segments = segments

    def stages_of(self, segment: int) -> Sequence[StageWaits]:
        """The sums of the stages of a segment."""
        known = 0 <= segment < len(self._segments)
        return [self.waits[name] for name in self._segments[segment].stages] if known else []

    def add(self, sample: Sample, rows_read: int, rows_written: int) -> None:
        """Add a sample, with the rows so far."""
        self._last = sample
        for segment, held in enumerate(sample.worker_bytes):
            most = max(held.values(), default=0)
            for waits in self.stages_of(segment):
                waits.starved_seconds += sample.starved_s[segment] if sample.starved_s else 0.0
                waits.blocked_seconds += sample.blocked_s[segment] if sample.blocked_s else 0.0
                waits.starting_seconds += sample.starting_s[segment] if sample.starting_s else 0.0
                waits.peak_memory_bytes = max(waits.peak_memory_bytes, most)
        seconds = self._points["seconds"]
        if not seconds or sample.at - self.started_at - seconds[-1] >= self._pause:
            self._point(sample.at, sample, rows_read, rows_written)

    def finish(self, at: float, rows_read: int, rows_written: int) -> None:
        """Finish the history: the last point has all rows."""
        if self._last is not None:
            self._point(at, self._last, rows_read, rows_written)

    def _point(self, at: float, sample: Sample, rows_read: int, rows_written: int) -> None:
        if len(self._points["seconds"]) >= MOST_POINTS:
            self._thin()
        number = len(self._points["seconds"])
        self._points["seconds"].append(round(at - self.started_at, 3))
        self._points["rows_read"].append(rows_read)
        self._points["rows_written"].append(rows_written)
        self._points["memory_bytes"].append(sample.memory_bytes)
        for plan in self._segments:
            self._columns.setdefault(plan.stages, {name: [0] * number for name in _SERIES})
        present = {plan.stages: plan.index for plan in self._segments}
        for stages, columns in self._columns.items():
            segment = present.get(stages, len(sample.workers))
            for name, column in columns.items():
                values = getattr(sample, name)
                column.append(values[segment] if segment < len(values) else 0)

    def _thin(self) -> None:
        for columns in (self._points, *self._columns.values()):
            for column in columns.values():
                del column[1::2]
        self._pause *= 2

    def record(self) -> dict[str, Any]:
        """The history as plain values."""
        segments = [{"stages": list(stages), **columns} for stages, columns in self._columns.items()]
        return {**self._points, "segments": segments}
