"""What a run gives back: the tasks that came out, and the report on what happened."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from gristmill.ledger.record.trail import StageCount, StageTime
from gristmill.tasks.base import Task


@dataclass(frozen=True, slots=True)
class StageReport:
    """The rows and the time of one stage over the whole run."""

    name: str
    rows_in: int = 0
    rows_out: int = 0
    created: int = 0
    dropped: Mapping[str, int] = field(default_factory=dict)
    quarantined: Mapping[str, int] = field(default_factory=dict)
    untracked: int = 0
    changed: int = 0
    busy_s: float = 0.0
    calls: int = 0

    @classmethod
    def of(cls, name: str, counts: StageCount, times: StageTime) -> StageReport:
        """The report of the stage `name`."""
        return cls(
            name,
            counts.rows_in,
            counts.rows_out,
            counts.created,
            dict(counts.dropped),
            dict(counts.quarantined),
            counts.untracked,
            counts.changed,
            times.busy_s,
            times.calls,
        )


@dataclass(frozen=True, slots=True)
class RunReport:
    """What a run did, over all partitions of the output, those of earlier runs included."""

    pipeline: str
    status: str
    seconds: float
    stages: tuple[StageReport, ...]
    rows_read: int
    rows_written: int
    quarantined: int
    partitions: int
    partitions_done_before: int
    output: str | None
    notes: tuple[str, ...] = ()
    alarms: tuple[str, ...] = ()

    @property
    def dropped(self) -> int:
        """How many documents were dropped, over all stages."""
        return sum(sum(stage.dropped.values()) for stage in self.stages)

    def __str__(self) -> str:
        lines = [f"{self.pipeline}: {self.status} in {self.seconds:.1f} s"]
        lines.append(f"{self.rows_read} documents read, {self.rows_written} kept, {self.quarantined} quarantined")
        for stage in self.stages:
            for reason, number in sorted(stage.dropped.items(), key=lambda pair: -pair[1]):
                lines.append(f"  {number:>8} dropped by {stage.name}: {reason}")
            for cause, number in stage.quarantined.items():
                lines.append(f"  {number:>8} quarantined by {stage.name}: {cause}")
        lines.extend(self.alarms)
        if self.output:
            lines.append(f"output: {self.output}")
        return "\n".join(lines)


class RunResult(list[Task[Any]]):
    """The tasks that came out of the last stage, in source order, with the report on the run.

    With a writer these are the committed files of each partition, with what its stages cost (in runs of up to 10,000
    partitions; the report has the sums of all).
    """

    def __init__(self, tasks: Iterable[Task[Any]], report: RunReport) -> None:
        super().__init__(tasks)
        self.report = report
