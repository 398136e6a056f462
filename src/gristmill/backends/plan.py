"""The frozen plan that a pipeline becomes and that every executor runs."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from gristmill.observe.events import SegmentPlan
from gristmill.stages.base import ProcessingStage, member_names
from gristmill.stages.resources import Resources
from gristmill.stages.source_sink import SinkStage

Stage = ProcessingStage[Any, Any]


@dataclass(frozen=True, slots=True)
class Segment:
    """Adjacent stages that share one worker."""

    index: int
    stages: tuple[Stage, ...]
    resources: Resources
    batch_size: int
    workers: int | None
    runtime_env: Mapping[str, Any] | None = None

    @property
    def name(self) -> str:
        """The stages' names, joined."""
        return " → ".join(stage.name for stage in self.stages)

    @property
    def time_limit_s(self) -> float | None:
        """The shortest time limit of its stages."""
        limits = [stage.time_limit_s for stage in self.stages if stage.time_limit_s is not None]
        return min(limits) if limits else None

    @property
    def overlaps_calls(self) -> bool:
        """Whether its stage may be called for a batch before the previous call has returned."""
        # Time limits need to know exactly where a worker is, and a device belongs to one thread.
        alone = len(self.stages) == 1 and self.time_limit_s is None and not self.resources.gpus
        return alone and self.stages[0].overlaps_calls

    @property
    def sink(self) -> SinkStage | None:
        """The writer, if this segment ends with one."""
        last = self.stages[-1] if self.stages else None
        return last if isinstance(last, SinkStage) else None

    def describe(self, gpus: float | None = None) -> SegmentPlan:
        """The segment as listeners see it."""
        names = tuple(itertools.chain.from_iterable(map(member_names, self.stages)))
        share = self.resources.gpus if gpus is None else gpus
        return SegmentPlan(self.index, names, self.resources.cpus, share, self.batch_size, self.workers)


@dataclass(frozen=True, slots=True)
class RunSettings:
    """The settings of a run other than its stages. Sent to every worker.

    Attributes:
        id_field: Column that holds document ids; looked up by `why`.
        url_field: Column that holds document URLs.
        scores: `decisive` keeps the deciding score, `all` keeps every score of every document.
        ignore_failures: Quarantine documents on which a stage raises, instead of failing the run.
        salvage: Keep the readable part of damaged input files.
        staging: Folder for pieces of partitions until they are committed; None if the pipeline has no writer.
        output: The output; None if the pipeline has no writer.
        record: The folder of its record.
        plan_digest: Digest of the plan, compared by the manifest.
        earlier: The folder of the step whose output this run reads; its record is continued.
        keeps_rows: Record the original row of each written document, because a later step reads the output.
    """

    id_field: str | None = "id"
    url_field: str | None = "url"
    scores: str = "decisive"
    ignore_failures: bool = False
    salvage: bool = False
    staging: str | None = None
    output: str | None = None
    record: str | None = None
    storage_options: Mapping[str, Any] | None = None
    plan_digest: str = ""
    stage_names: tuple[str, ...] = ()
    earlier: str | None = None
    keeps_rows: bool = False


@dataclass(frozen=True, slots=True)
class ExecutionPlan:
    """Segments to run, in order, with the settings of the run."""

    name: str
    segments: tuple[Segment, ...]
    settings: RunSettings
    stage_names: tuple[str, ...]
    notes: Sequence[str] = field(default=())
    description: Mapping[str, Any] = field(default_factory=dict)

    @property
    def sink(self) -> SinkStage | None:
        """The writer at the end, if there is one."""
        return self.segments[-1].sink if self.segments else None

    @property
    def whole_partitions(self) -> bool:
        """Whether one worker processes a partition from reading to commit."""
        return len(self.segments) == 1 and self.sink is not None
