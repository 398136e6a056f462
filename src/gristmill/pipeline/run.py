"""Prepares a pipeline and runs it from plan to result."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from gristmill import notebook
from gristmill.backends.base import BaseExecutor
from gristmill.backends.plan import ExecutionPlan, RunSettings, Segment
from gristmill.errors import OutputError, PlanningError, UsageError
from gristmill.execution.driver import ErrorBudget, Work
from gristmill.ledger.performance import model_usage
from gristmill.ledger.record.answer_cache import note_elsewhere
from gristmill.ledger.record.commit import source_rows
from gristmill.ledger.record.input_files import sentence, totals
from gristmill.ledger.record.layout import RunFolder
from gristmill.ledger.record.plan_record import missing_scores_note
from gristmill.ledger.record.run_record import AlarmLimits
from gristmill.ledger.record.trail import StageCount, StageTime
from gristmill.observe.events import EventStream, KernelCompiling, Listener, Notice, RunFinished, RunStarted
from gristmill.observe.memory import cpu_count
from gristmill.pipeline.describe import describe_plan, initial_ranges
from gristmill.pipeline.output import OutputState, PartitionPerf, keep_recorded_names, open_output
from gristmill.pipeline.planner import Draft, check_columns, declared_columns, draft, finish
from gristmill.report.page import write_after_run
from gristmill.stages.base import ProcessingStage
from gristmill.stages.source_sink import ReaderStage
from gristmill.storage.atomic import check_writable, output_error
from gristmill.storage.files import SourceFiles
from gristmill.storage.partitions import Partition
from gristmill.tasks.base import EmptyTask, Task
from gristmill.tasks.document import DocumentBatch
from gristmill.tasks.file_group import FileGroupTask
from gristmill.tracking.accounting import settled

if TYPE_CHECKING:
    from gristmill.observe.profile.profile import Profile
    from gristmill.pipeline.pipeline import Pipeline

NEEDS_ALL = attrgetter("needs_all_documents")
TAKES_ALL_FILES = attrgetter("takes_all_files")


# --- results ---


@dataclass(frozen=True, slots=True)
class StageReport:
    """The row counts and time of one stage over the whole run."""

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
    skipped: Mapping[str, int] = field(default_factory=dict)
    """Number of non-document records that a reader found, by kind."""
    custom: Mapping[str, float] = field(default_factory=dict)
    """Figures that the stage logged in this run."""


@dataclass(frozen=True, slots=True)
class RunReport:
    """What a run did, over all partitions of the output including those of earlier runs."""

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
    record: str | None = None
    notes: tuple[str, ...] = ()
    alarms: tuple[str, ...] = ()
    left_out: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Input files that were not read: for each reason, their number and some examples."""
    _repr_html_ = notebook.of_report

    @property
    def dropped(self) -> int:
        """Number of documents dropped by all stages."""
        return sum(sum(stage.dropped.values()) for stage in self.stages)

    def __str__(self) -> str:
        lines = [f"{self.pipeline}: {self.status} in {self.seconds:.1f} s"]
        lines.append(f"{self.rows_read:,} documents read, {self.rows_written:,} kept, {self.quarantined:,} quarantined")
        for stage in self.stages:
            for reason, number in sorted(stage.dropped.items(), key=lambda pair: -pair[1]):
                lines.append(f"  {number:>8,} dropped by {stage.name}: {reason}")
            for cause, number in stage.quarantined.items():
                lines.append(f"  {number:>8,} quarantined by {stage.name}: {cause}")
            for kind, number in stage.skipped.items():
                lines.append(f"  {number:>8,} skipped by {stage.name}, not documents: {kind}")
            if "llm_requests" in stage.custom:
                lines.append(f"  {stage.name}: {model_usage(stage.custom, stage.busy_s)}")
        lines.extend([sentence(self.left_out)] if self.left_out else [])
        lines += [*self.alarms, f"output: {self.output}"] if self.output else self.alarms
        return "\n".join(lines)


class RunResult(list[Task[Any]]):
    """The tasks returned by the last stage, in source order, with the report of the run and its profile, if any.

    With a writer, these are the committed files of each partition; in runs of up to 10,000, with the cost of each
    stage.
    """

    _repr_html_ = notebook.of_result
    profile: Profile | None = None

    def __init__(self, tasks: Iterable[Task[Any]], report: RunReport) -> None:
        super().__init__(tasks)
        self.report = report


# --- planning ---


@dataclass(frozen=True, slots=True)
class Options:
    """The options of `Pipeline.run`."""

    fresh: bool = False
    error_budget: float | int | None = 0.01
    ignore_failures: bool | None = None
    salvage: bool = False
    id_field: str | None = "id"
    url_field: str | None = "url"
    scores: str = "decisive"
    alarm_share: float | None = 0.9
    record_path: str | os.PathLike[str] | None = None
    report: bool = True

    def check(self) -> None:
        """Refuse invalid values."""
        if self.scores not in ("decisive", "all"):
            raise UsageError(f"scores={self.scores!r}: must be 'decisive' or 'all'.")
        share = self.alarm_share
        if share is not None and (isinstance(share, bool) or not isinstance(share, int | float) or not 0 <= share <= 1):
            raise UsageError(f"alarm_share={share!r}: must be a share in [0, 1], or None for no alarm.")
        budget = self.error_budget
        if budget is None:
            return
        if isinstance(budget, bool) or not isinstance(budget, int | float):
            raise UsageError(f"error_budget={budget!r}: must be a share in [0, 1], a whole number of records, or None.")
        if budget < 0 or (isinstance(budget, float) and budget > 1):
            raise UsageError(
                f"error_budget={budget!r}: a float is a share in [0, 1]; for a number of records pass an int."
            )


@dataclass(slots=True)
class Prepared:
    """A pipeline that is checked and ready to run or describe; `root` returns the task of a partition."""

    sketch: Draft
    folder: RunFolder | None
    partitions: list[Partition]
    root: Callable[[Partition], Task[Any]]
    plan: ExecutionPlan
    files: SourceFiles | None = None


def prepare(
    pipeline: Pipeline, executor: BaseExecutor, initial_tasks: Sequence[Task[Any]] | None, options: Options
) -> Prepared:
    """Plan the pipeline and find its partitions; raises its errors before any data is read."""
    options.check()
    sketch = draft(pipeline.stages, has_initial_tasks=bool(initial_tasks))
    sink = sketch.sink
    folder = None if sink is None else RunFolder(sink.path, sink.storage_options, record_path=options.record_path)
    if sink is not None and folder is not None:
        check_writable(folder.path, sink.storage_options)
        elsewhere = "The record of the run goes there: choose another place with --record (record_path=…)."
        check_writable(folder.record, sink.storage_options, advice=elsewhere)
        resumes = not options.fresh and sink.mode != "overwrite"
        if resumes and folder.exists(folder.record_path("plan")):
            keep_recorded_names(folder, sketch.stages)
    if sink is None and any(map(NEEDS_ALL, sketch.stages)):
        raise PlanningError(
            "A pipeline with deduplication runs in steps, with intermediate files beside its output. Add a writer, "
            "such as JsonlWriter, as its last stage."
        )
    description = describe_plan(
        sketch.stages,
        variables=pipeline.config.get("variables"),
        scores=options.scores,
        id_field=options.id_field,
        url_field=options.url_field,
    )
    for stage in sketch.stages if executor.shares_environment else ():
        if not stage.runtime_env:
            stage.check_environment()
    for stage in sketch.stages:
        if folder is not None and type(stage).keep_record is not ProcessingStage.keep_record:
            stage.keep_record(folder.record)
    partitions, root = _roots(sketch, initial_tasks)
    unseen: list[str] = []
    if folder is not None and folder.ending is not None and len(partitions) > 1 and sketch.source is not None:
        if not any(map(NEEDS_ALL, sketch.stages)):
            sketch.source.keep_files_whole()
            partitions, root = _roots(sketch, initial_tasks)
        unseen.append(f"{folder.path} is a single file, so one worker writes it. Pass a folder to use all cores.")
    if sketch.source is not None:
        wanted, _ = declared_columns(sketch.stages[1:])
        unseen += check_columns(sketch.stages, sketch.source.columns(partitions, wanted))
    settings = RunSettings(
        id_field=options.id_field,
        url_field=options.url_field,
        scores=options.scores,
        ignore_failures=bool(executor.config.get("ignore_failures", False))
        if options.ignore_failures is None
        else options.ignore_failures,
        salvage=options.salvage,
        output=None if sink is None else sink.path,
        record=None if folder is None else folder.record,
        storage_options=None if sink is None else sink.storage_options,
        earlier=pipeline.config.get("earlier"),
        keeps_rows=pipeline.config.get("keeps_rows", False),
    )
    plan = finish(
        pipeline.name, sketch, executor.capacity(), settings, partitions, share_workers=not executor.one_stage_at_a_time
    )
    note = missing_scores_note(description["stages"]) if options.scores == "all" else None
    notes = (
        *plan.notes,
        *unseen,
        *([note] if note else []),
        *(sink.notes() if sink is not None and sink.has_summary else ()),
    )
    files = None if sketch.source is None else sketch.source.surveyed
    return Prepared(sketch, folder, partitions, root, replace(plan, notes=notes, description=description), files)


def _roots(
    sketch: Draft, initial_tasks: Sequence[Task[Any]] | None
) -> tuple[list[Partition], Callable[[Partition], Task[Any]]]:
    """The partitions of the input, and a function that returns the first task of each."""
    if sketch.source is not None:
        partitions = sketch.source.partitions()
        return partitions, partial(sketch.source.task, total=len(partitions))
    tasks = list(initial_tasks) if initial_tasks else [EmptyTask()]
    for task in tasks:
        if not isinstance(task, Task):
            raise PlanningError(f"initial_tasks holds {type(task).__name__}; it must hold tasks such as DocumentBatch.")
    if not (sketch.stages and isinstance(sketch.stages[0], ReaderStage) and sketch.stages[0].reads_ranges):
        _refuse_shared_files(tasks, sketch.stages[0].name)
    if any(map(TAKES_ALL_FILES, sketch.stages)) and len(tasks) > 1:
        paths = [path for task in tasks if isinstance(task, FileGroupTask) for path in task.data]
        tasks = [FileGroupTask(tasks[0].dataset_name, paths), *(t for t in tasks if not isinstance(t, FileGroupTask))]
    roots = [settled(task) if isinstance(task, DocumentBatch) else task for task in tasks]
    partitions = [
        Partition(number, f"task-{number:05d}", initial_ranges(root, number) if sketch.sink is not None else ())
        for number, root in enumerate(roots)
    ]
    return partitions, lambda partition: roots[partition.index]


def _refuse_shared_files(tasks: Sequence[Task[Any]], stage: str) -> None:
    """Refuse tasks that share a file: a stage that opens it would read its rows once for each task."""
    seen: set[str] = set()
    for task in tasks:
        if not isinstance(task, FileGroupTask):
            continue
        for path in dict.fromkeys(task.data):
            if path in seen:
                raise PlanningError(
                    f"{path} is in several of the initial tasks, and stage {stage!r} reads whole files: its rows "
                    "would be read more than once. Put each file into only one task.",
                    stage=stage,
                    path=path,
                )
            seen.add(path)


# --- running ---


@dataclass(slots=True)
class Run:
    """A run that has started: the plan, the work to do, the output if there is one, and the listeners."""

    pipeline: Pipeline
    plan: ExecutionPlan
    work: Work
    state: OutputState | None
    perf: PartitionPerf
    begun: float
    left_out: Mapping[str, Mapping[str, Any]]
    started: RunStarted

    def result(self) -> RunResult:
        """Its result, once it is done."""
        plan, work, state = self.plan, self.work, self.state
        committed = None if state is None else state.recorder.committed
        counts = work.trail.counts if state is None else {} if committed is None else committed.stages
        in_order: dict[str, StageCount] = {}
        stages: list[StageReport] = []
        for name in plan.stage_names:
            count, spent = counts.get(name, StageCount()), work.trail.times.get(name, StageTime())
            in_order[name] = count
            stages.append(
                StageReport(
                    name, count.rows_in, count.rows_out, count.created, dict(count.dropped), dict(count.quarantined),
                    count.untracked, count.changed, spent.busy_s, spent.calls, dict(count.skipped), dict(spent.custom),
                )
            )  # fmt: skip
        done_before = 0 if state is None else len(state.done)
        report = RunReport(
            pipeline=self.pipeline.name,
            status="done",
            seconds=time.monotonic() - self.begun,
            stages=tuple(stages),
            rows_read=source_rows(in_order),
            rows_written=stages[-1].rows_out if stages else 0,
            quarantined=sum(sum(stage.quarantined.values()) for stage in stages),
            partitions=len(work) + done_before,
            partitions_done_before=done_before,
            output=plan.settings.output,
            record=plan.settings.record,
            notes=tuple(plan.notes),
            alarms=tuple(work.budget.damaged if state is None else state.recorder.record()["alarms"]),
            left_out=self.left_out,
        )
        if state is None:
            return RunResult([task for number in sorted(work.results) for task in work.results[number]], report)
        del self.work, self.plan, work, plan  # with very many partitions, only the results need to fit into memory
        return RunResult(state.files(self.perf), report)


@contextmanager
def begun_run(
    pipeline: Pipeline,
    executor: BaseExecutor,
    initial_tasks: Sequence[Task[Any]] | None,
    options: Options,
    listeners: list[Listener],
    *,
    progress: bool | None,
) -> Iterator[Run]:
    """Plan a run, prepare its output and announce it; afterwards announce how it ended."""
    begun = time.monotonic()
    events = EventStream(listeners)
    if progress is not False and sys.stderr is not None:
        from gristmill.observe.display import LOGGING_INTERVAL_S, make_listener

        interval = executor.config.get("logging_interval", LOGGING_INTERVAL_S)
        events.listeners.append(make_listener("auto", logging_interval=interval))
    prepared = prepare(pipeline, executor, initial_tasks, options)
    plan, partitions, sink, files = prepared.plan, prepared.partitions, prepared.sketch.sink, prepared.files
    state: OutputState | None = None
    perf = PartitionPerf(len(partitions))
    if sink is not None and prepared.folder is not None:
        state = open_output(
            prepared.folder,
            sink,
            plan,
            partitions,
            fresh=options.fresh,
            alarms=AlarmLimits(max_dropped_share=options.alarm_share),
            searched=[] if prepared.sketch.source is None else prepared.sketch.source.searched_folders(),
            files=files,
        )
        plan = state.plan
        events.listeners += [state.recorder, perf]
        if "recipe" in pipeline.config:
            state.folder.write(state.folder.record_path("recipe"), str(pipeline.config["recipe"]).encode())
        places: dict[str, str] = {}
        for stage in prepared.sketch.stages:
            if stage.kept_elsewhere:
                places[stage.name] = stage.kept_elsewhere
        if places:
            note_elsewhere(state.folder, places)
        if state.done:
            partitions = [partition for partition in partitions if partition.id not in state.done]
    for stage in prepared.sketch.stages:
        if type(stage).begin_run is not ProcessingStage.begin_run:
            stage.begin_run()
    work = Work(plan, partitions, prepared.root, events, ErrorBudget(options.error_budget, plan.settings.output))
    left_out = {} if files is None or not files.left_out else totals(files.left_out)
    input_format = "" if files is None else files.format
    del prepared, partitions, files  # the work releases each partition when it ends
    if state is not None:
        work.budget.records, work.budget.quarantined = state.rows_read, state.quarantined
    done_before = 0 if state is None else len(state.done)
    started = RunStarted(
        pipeline=pipeline.name,
        executor=executor.name,
        stages=plan.stage_names,
        segments=tuple(map(Segment.describe, plan.segments)),
        partitions=len(work) + done_before,
        partitions_done_before=done_before,
        input_bytes=work.input_bytes,
        output=plan.settings.output,
        input_format=input_format,
    )
    if len(work) and state is not None and any(map(NEEDS_ALL, pipeline.stages)):
        state.recorder(started)  # the others are notified when the last step begins; until then they see earlier ones
    else:
        events.emit(started)
    for note in plan.notes:
        events.emit(Notice(note))
    status, error = "failed", None
    try:
        with announced_compilation(events, plan):
            yield Run(pipeline, plan, work, state, perf, begun, left_out, started)
        status = "done"
    except KeyboardInterrupt:
        status, error = "interrupted", "interrupted"
        raise
    except OSError as problem:
        error = str(problem)
        raise _disk_error(problem, plan) from problem
    except BaseException as problem:
        error = str(problem)
        raise
    finally:
        try:
            events.emit(RunFinished(status, error))
        finally:
            if state is not None:
                state.folder.sweep(own=state.plan.settings.staging)
                if options.report:
                    write_after_run(state.folder, events)
                else:
                    state.folder.remove(state.folder.record_path("report"))  # that of an earlier run


def _disk_error(problem: OSError, plan: ExecutionPlan) -> OSError:
    import errno

    if problem.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        return problem
    if not isinstance(problem, OutputError):
        problem = output_error(str(problem.filename or plan.settings.output), problem)
    return OutputError(
        f"{problem} Committed output is intact: make room and run the same command again to resume.",
        path=plan.settings.output,
        errno=problem.errno,
    )


@contextmanager
def announced_compilation(events: EventStream, plan: ExecutionPlan) -> Iterator[None]:
    """Announce when kernels have to be compiled, which takes a while and happens once, and compile on all cores."""
    if "numba" not in sys.modules:
        yield  # no compiled kernel is in use yet; a stage that loads kernels later gets them from the cache
        return
    from gristmill.kernels.compiler import compile_listeners

    told: list[str] = []

    def tell(name: str) -> None:
        if not told:
            from gristmill.kernels.ahead import compile_for

            told.append(name)
            cores = cpu_count()
            on = "" if cores == 1 else f" on {cores} cores"
            message = f"Compiling kernels{on}, once for this type of CPU; this can take half a minute."
            events.emit(Notice(message, once=True))
            compile_for([stage for segment in plan.segments for stage in segment.stages], processes=cores - 1)
        events.emit(KernelCompiling(name))

    compile_listeners.append(tell)
    try:
        yield
    finally:
        compile_listeners.remove(tell)
