"""The output of a run: what earlier runs left in its folder, what of it still counts, and what the run gives back."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from operator import itemgetter
from typing import Any

from gristmill.backends.plan import ExecutionPlan
from gristmill.errors import GristmillError, OutputExistsError, ResumeError, VerificationError
from gristmill.ledger.performance import StagePerfStats
from gristmill.ledger.record.commit import remove_partition
from gristmill.ledger.record.earlier_names import earlier_name
from gristmill.ledger.record.input_files import record_files
from gristmill.ledger.record.layout import RunFolder
from gristmill.ledger.record.manifest import Manifest
from gristmill.ledger.record.plan_record import (
    UNCOMPARED_CODE,
    check_plan,
    has_uncompared_code,
    plan_digest,
    read_plan,
    write_plan,
)
from gristmill.ledger.record.resume import Resume, adopt_plan, decide, preview
from gristmill.ledger.record.run_record import AlarmLimits, RunRecorder, read_run
from gristmill.observe.events import Event, TaskFinished
from gristmill.stages.source_sink import SinkStage
from gristmill.storage.files import SourceFiles
from gristmill.storage.partitions import Partition
from gristmill.tasks.base import Task
from gristmill.tasks.file_group import FileGroupTask

MOST_PARTITIONS = 10_000
"""In runs of more partitions tasks carry no records: these would take more memory than all else in the driver."""


@dataclass(slots=True, eq=False)
class PartitionPerf:
    """Adds up what each stage cost for each partition; a listener of the events of a run.

    The tasks that a writer's pipeline returns stand for partitions, of which each passed the stages in many batches.

    Attributes:
        partitions: How many partitions the run has; above `MOST_PARTITIONS` nothing is kept.
    """

    partitions: int
    _stages: dict[str, tuple[array[float], array[int]]] = field(default_factory=dict, init=False)
    _custom: dict[tuple[int, str], dict[str, float]] = field(default_factory=dict, init=False)

    def __call__(self, event: Event) -> None:
        """Take note of an event."""
        if self.partitions > MOST_PARTITIONS or not isinstance(event, TaskFinished):
            return
        at = event.partition
        for name, spent in event.times.items():
            seconds, items = self._stages.setdefault(name, (array("d"), array("q")))
            missing = at + 1 - len(seconds)
            if missing > 0:
                seconds.extend([-1.0] * missing)
                items.extend([0] * missing)
            seconds[at] = max(seconds[at], 0.0) + spent.busy_s
            items[at] += spent.items
            if spent.custom:
                custom = self._custom.setdefault((at, name), {})
                for key, value in spent.custom.items():
                    custom[key] = custom.get(key, 0.0) + value

    def of(self, partition: int) -> list[StagePerfStats]:
        """One record per stage, in the order in which stages were first called; empty if this run did not do it."""
        return [
            StagePerfStats(
                name,
                process_time=seconds[partition],
                num_items_processed=items[partition],
                custom_metrics=self._custom.get((partition, name), {}),
            )
            for name, (seconds, items) in self._stages.items()
            if partition < len(seconds) and seconds[partition] >= 0
        ]


@dataclass(slots=True)
class OutputState:
    """An output folder during a run."""

    folder: RunFolder
    plan: ExecutionPlan
    done: set[str]
    recorder: RunRecorder
    rows_read: int = 0
    quarantined: int = 0

    def files(self, perf: PartitionPerf) -> list[Task[Any]]:
        """A task for each committed partition, in source order; those of this run carry what their stages cost."""
        found: list[tuple[int, str, Task[Any]]] = []
        for entry in Manifest(self.folder).scan():  # one by one: there can be very many
            paths = [self.folder.join(file.path) for file in entry.files]
            metadata = {"partition_id": entry.partition, "rows": entry.rows_written}
            task = FileGroupTask(data=paths, _stage_perf=perf.of(entry.index), _metadata=metadata)
            task.task_id = entry.partition
            found.append((entry.index, entry.partition, task))
        return list(map(itemgetter(2), sorted(found, key=itemgetter(0, 1))))

    def check_own(self) -> None:
        """Make sure that no other pipeline has written here meanwhile.

        Raises:
            ResumeError: One has; the message names what differs.
        """
        digest = self.plan.settings.plan_digest
        recorded = read_plan(self.folder)
        if recorded is not None and plan_digest(recorded) != digest:
            check_plan(self.folder, self.plan.description)  # says what differs
        other = [entry.partition for entry in Manifest(self.folder).scan() if entry.plan != digest]
        if other:
            raise ResumeError(
                f"During this run another pipeline has written to {self.folder.path}: {len(other)} partitions, "
                f"{other[0]} the first, are not of this run. Give each its own folder, and start over with --fresh "
                "(fresh=True).",
                path=str(self.folder.path),
                partitions=other,
            )


def open_output(
    sink: SinkStage,
    plan: ExecutionPlan,
    partitions: Sequence[Partition],
    *,
    fresh: bool,
    alarms: AlarmLimits | None = None,
    searched: Sequence[str] = (),
    files: SourceFiles | None = None,
) -> OutputState:
    """Make the output folder ready and find out which partitions are already there.

    Args:
        sink: The writer.
        plan: The plan.
        partitions: All partitions of the input.
        fresh: Remove what an earlier run left.
        alarms: When to raise an alarm at the end.
        searched: Folders in which the source looks for files.
        files: What became of the files of the input.

    Raises:
        OutputError: The folder cannot be written, or must be empty and is not.
        ResumeError: What lies there was made by another plan or from other inputs.
    """
    folder, begun = _checked(sink, partitions, searched, write=True, fresh=fresh)
    manifest = Manifest(folder)
    try:
        previous = read_run(folder)  # also when this run starts over: its input can be compared
    except VerificationError:
        previous = None
    resume = Resume()
    if fresh or sink.mode == "overwrite":
        for name in [*[entry.partition for entry in manifest.scan()], *manifest.pending]:
            remove_partition(folder, name)
        for kind in ("plan", "run"):
            folder.remove(folder.record_path(kind))
        begun = False
    folder.sweep()
    notes = plan.notes
    if begun:
        check_plan(folder, plan.description)
        if has_uncompared_code(read_plan(folder)):
            notes = (*notes, UNCOMPARED_CODE)
        digest = adopt_plan(manifest, plan.description)
        resume = decide(manifest, partitions, digest, salvage=plan.settings.salvage)
    else:
        digest = write_plan(folder, plan.description)
    settings = replace(plan.settings, plan_digest=digest, staging=folder.new_staging())
    return OutputState(
        folder,
        replace(plan, settings=settings, notes=notes),
        resume.done,
        RunRecorder(
            folder,
            limits=alarms,
            quiet_stages=(plan.stage_names[0], plan.stage_names[-1]),
            previous=previous,
            files=None if files is None else record_files(folder, files),
        ),
        rows_read=resume.rows_read,
        quarantined=resume.quarantined,
    )


def keep_recorded_names(sink: SinkStage, stages: Sequence[Any]) -> None:
    """Call filters as an output of an earlier version calls them: its record keeps one name for each."""
    try:
        plan = read_plan(RunFolder(sink.path, storage_options=sink.storage_options))
    except (GristmillError, OSError):
        return  # opening the output says what is wrong with it
    recorded = {} if plan is None else {str(stage.get("name")): stage for stage in plan.get("stages") or ()}
    for stage in stages if recorded else ():
        if stage.name not in recorded and earlier_name(stage.name) in recorded:
            stage.name = earlier_name(stage.name)
        parameters = recorded.get(stage.name, {}).get("parameters") or {}
        for key in ("filter_obj", "score_fn", "filter_fn"):
            filters = list(getattr(stage, key, None) or ())
            for place, (one, told) in enumerate(zip(filters, parameters.get(key) or (), strict=False)):
                then = told.get("name") if isinstance(told, dict) else None
                name = getattr(one, "_name", None)
                if isinstance(name, str) and name != then == earlier_name(name):
                    filters[place] = copy(one)
                    filters[place]._name = then
            if filters:
                setattr(stage, key, filters)


def preview_output(
    sink: SinkStage, plan: ExecutionPlan, partitions: Sequence[Partition], *, searched: Sequence[str] = ()
) -> Resume:
    """What `open_output` would find, without writing anything; that the folder can be written is not tried.

    Raises:
        OutputError: As `open_output` does.
        ResumeError: As `open_output` does.
    """
    folder, begun = _checked(sink, partitions, searched, write=False)
    if not begun or sink.mode == "overwrite":
        return Resume()
    return preview(folder, partitions, plan.description, salvage=plan.settings.salvage)


def _checked(
    sink: SinkStage, partitions: Sequence[Partition], searched: Sequence[str], *, write: bool, fresh: bool = False
) -> tuple[RunFolder, bool]:
    """The output folder, once it is clear that it may be written to, and whether it holds committed partitions."""
    folder = RunFolder(sink.path, storage_options=sink.storage_options)
    folder.check_apart(partitions, searched)
    folder.check_usable(write=write)
    folder.check_strangers(sink.mode, sink.extension, partitions)
    begun = next(Manifest(folder).scan(), None) is not None
    if begun and sink.mode == "error" and not fresh:
        raise OutputExistsError(
            f"{sink.path} already holds the output of a run, and the writer has mode='error'. Write to another folder, "
            "or use mode='ignore' to go on with it or mode='overwrite' to replace it.",
            path=sink.path,
        )
    return folder, begun
