"""Processes quarantined records again, after a fix, and puts what comes of them into the output.

A record goes on at the stage that could not process it, as it was at that point; one that could not be read is read
again. What fails once more stays in quarantine. Everything else in the output is left as it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from gristmill.backends.base import BaseExecutor
from gristmill.backends.plan import RunSettings, Stage
from gristmill.backends.registry import as_executor
from gristmill.errors import ResumeError, VerificationError
from gristmill.execution.driver import ErrorBudget, Work
from gristmill.ledger.ask.reload import load_trail
from gristmill.ledger.record.commit import commit_partition
from gristmill.ledger.record.identity import make_identity
from gristmill.ledger.record.layout import RunFolder
from gristmill.ledger.record.manifest import Manifest, ManifestEntry
from gristmill.ledger.record.plan_record import compare, plan_digest, read_plan
from gristmill.ledger.record.resume import adopt_plan
from gristmill.ledger.record.run_record import RUNNING, RunRecorder, read_run
from gristmill.ledger.record.trail import QuarantinedRecord, StageCount, Trail
from gristmill.observe.events import EventStream, Listener, RunFinished, RunStarted
from gristmill.observe.figures import plural
from gristmill.pipeline.describe import describe_plan
from gristmill.pipeline.merge import cast_where_possible, merged_files
from gristmill.pipeline.planner import Draft, draft, finish
from gristmill.stages.source_sink import ReaderStage, SinkStage
from gristmill.storage.json_records import JsonRecords
from gristmill.storage.parquet_blocks import open_parquet
from gristmill.storage.partitions import Partition
from gristmill.tasks.base import Task
from gristmill.tasks.columns import RecordColumns, TableColumns
from gristmill.tasks.document import DocumentBatch

if TYPE_CHECKING:
    from gristmill.pipeline.pipeline import Pipeline


@dataclass(slots=True)
class ReplayReport:
    """What became of the quarantined records.

    Attributes:
        records: Records that were processed again.
        written: Documents that are now in the output because of it.
        dropped: Documents that a later stage has dropped.
        still_quarantined: Records in quarantine after the replay, of any cause.
        incomplete: Of these, records of which only the beginning was kept, so that they cannot be replayed.
        unreadable: Of these, records that are no JSON objects, whatever the stages do.
        partitions: Partitions that were committed again.
        rearranged: Of these, partitions that hold the documents of a run that never failed, but in another order or in
            other row groups: behind a stage that makes several documents or batches of one, places are not known.
        missing: Partitions that the run itself has not finished yet.
        plan_changes: What is different from the plan that made the output, in words.
    """

    records: int = 0
    written: int = 0
    dropped: int = 0
    still_quarantined: int = 0
    incomplete: int = 0
    partitions: int = 0
    unreadable: int = 0
    rearranged: int = 0
    missing: int = 0
    plan_changes: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        text = (
            f"{plural(self.records, 'record')} replayed in {plural(self.partitions, 'partition')}: "
            f"{self.written} written, {self.dropped} dropped, {self.still_quarantined} still in quarantine"
        )
        if self.unreadable:
            text += (
                f". {self.unreadable} of them cannot be read as JSON objects, and no stage can change that: correct "
                "them in their input file and run the pipeline again, which does that file anew"
            )
        if self.incomplete:
            text += (
                f". {self.incomplete} of them are too long to be kept whole (the quarantine has their first 64 KiB), "
                "so they cannot be replayed: correct them in their input file and run the pipeline again, which does "
                "that file anew"
            )
        if self.rearranged:
            text += (
                f". {plural(self.rearranged, 'partition')} now have the documents of a run without failures, but not "
                "its order or its row groups, because a stage makes several documents or batches of one; for its exact "
                "bytes, run the pipeline with --fresh (fresh=True)"
            )
        if self.missing:
            text += (
                f". The run itself is not complete: {plural(self.missing, 'partition')} are missing. Run the pipeline "
                "again to do them"
            )
        return text


@dataclass(slots=True)
class _Partition:
    """One partition on its way through a replay."""

    entry: ManifestEntry
    trail: Trail
    waiting: frozenset[int]
    outputs: list[DocumentBatch] = field(default_factory=list)
    replayed: Trail = field(default_factory=Trail)


def replay(
    pipeline: Pipeline,
    executor: BaseExecutor | str | None = None,
    *,
    cause: str | None = None,
    listeners: Sequence[Listener] = (),
) -> ReplayReport:
    """Process the quarantined records of the pipeline's output again and merge the result.

    The fields with ids and URLs and the scores to record are those of the run.

    Args:
        pipeline: The pipeline as it is now, with the fix; its stages must have the names they had.
        executor: Where to run.
        cause: Only records quarantined for this cause.
        listeners: Called with every event.

    Raises:
        ResumeError: The output was made by a pipeline with other stages, or a commit in it did not finish.
    """
    chosen = as_executor(executor)
    sketch = draft(pipeline.stages, has_initial_tasks=False)
    sink = sketch.sink
    if sink is None:
        raise ResumeError("The pipeline has no writer, so it has no output whose quarantine could be replayed.")
    folder = RunFolder(sink.path, storage_options=sink.storage_options)
    folder.require_run()
    recorded = (read_plan(folder) or {}).get("settings") or {}
    id_field, url_field = recorded.get("id_field", "id"), recorded.get("url_field", "url")
    scores = recorded.get("scores", "decisive")
    description = describe_plan(
        sketch.stages,
        variables=pipeline.config.get("variables"),
        scores=scores,
        id_field=id_field,
        url_field=url_field,
    )
    report = ReplayReport(plan_changes=_plan_changes(folder, description, sketch))
    manifest = Manifest(folder)
    manifest.settle()
    _check_finished(manifest)
    found: dict[int, _Partition] = {}
    for number, entry in enumerate(manifest.ordered()):
        if entry.quarantined:
            trail = load_trail(folder, entry)
            found[number] = _Partition(entry, trail, frozenset(record.row for record in trail.quarantine))
    names = [stage.name for stage in sketch.stages]
    for place, name in enumerate(names[:-1]):
        fields = (id_field, url_field)
        _replay_stage(pipeline, chosen, sketch, place, name, found, cause, list(listeners), fields, scores, report)
    digest = adopt_plan(manifest, description)
    staging = folder.new_staging()
    try:
        for part in found.values():
            if part.replayed.counts:
                _merge(folder, sink, part, digest, names, staging, report)
    finally:
        folder.remove_tree(staging)
        folder.sweep_staging()
    entries = manifest.load().values()
    report.still_quarantined = sum(entry.quarantined for entry in entries)
    report.missing = _record(pipeline, chosen, folder, names, len(entries), still=report.still_quarantined)
    report.incomplete = sum(
        not _whole(record)
        for part in found.values()
        for record in part.trail.quarantine
        if cause in (None, record.cause)
    )
    return report


def _check_finished(manifest: Manifest) -> None:
    if manifest.pending:
        some = ", ".join(list(manifest.pending)[:3])
        raise ResumeError(
            f"The commit of {plural(len(manifest.pending), 'partition')} in {manifest.folder.path} did not finish "
            f"({some}). Run the pipeline again first, which does them anew, and then replay.",
            partitions=list(manifest.pending),
        )


def _record(
    pipeline: Pipeline, executor: BaseExecutor, folder: RunFolder, names: Sequence[str], done: int, *, still: int
) -> int:
    """Bring run.json to what the manifest says now; returns how many partitions the run has yet to do."""
    try:
        before = read_run(folder) or {}
    except VerificationError:
        before = {}
    wanted = max(int(before.get("partitions") or 0), done)
    status, error = str(before.get("status")), before.get("error")
    if done == wanted and (status in ("done", RUNNING) or not still):
        status, error = "done", None
    elif status not in ("failed", "interrupted"):
        status = "interrupted"
    recorder = RunRecorder(folder, quiet_stages=(names[0], names[-1]))
    recorder(
        RunStarted(
            pipeline=pipeline.name,
            executor=executor.name,
            stages=tuple(names),
            segments=(),
            partitions=wanted,
            partitions_done_before=done,
            input_bytes=0,
            output=folder.path,
        )
    )
    recorder(RunFinished(status, error))
    return wanted - done


def _plan_changes(folder: RunFolder, description: dict[str, Any], sketch: Draft) -> list[str]:
    old = read_plan(folder)
    if old is None or plan_digest(old) == plan_digest(description):
        return []
    before = [stage["name"] for stage in old.get("stages", [])]
    now = [stage.name for stage in sketch.stages]
    if before != now:
        raise ResumeError(
            f"The output was made by the stages {', '.join(before)}, and the pipeline now has {', '.join(now)}. A "
            "replay can take a fixed stage, but not another list of stages: run with fresh=True (--fresh) instead.",
            before=before,
            now=now,
        )
    return compare(old, description)


def _replay_stage(
    pipeline: Pipeline,
    executor: BaseExecutor,
    sketch: Draft,
    place: int,
    name: str,
    found: dict[int, _Partition],
    cause: str | None,
    listeners: list[Listener],
    fields: tuple[str | None, str | None],
    scores: str,
    report: ReplayReport,
) -> None:
    """Run the records that `name` could not process from that stage on."""
    reader = isinstance(sketch.stages[place], ReaderStage)
    pending: list[tuple[Partition, Task[Any]]] = []
    for number, part in found.items():
        mine = [r for r in part.trail.quarantine if r.stage == name and cause in (None, r.cause) and _whole(r)]
        batch, taken = _batch(mine)
        report.unreadable += len(mine) - len(taken)
        if batch is None:
            continue
        batch = _typed(batch, part.entry)
        _take_out(part.trail, taken, name, reader=reader)
        if reader:
            identity = make_identity(batch, id_field=fields[0], url_field=fields[1])
            part.replayed.identities.append(identity)
        report.records += len(taken)
        pending.append((Partition(number, part.entry.partition, ()), batch))
    stages: list[Stage] = sketch.stages[place + (1 if reader else 0) : -1]
    if not pending:
        return
    if not stages:
        for partition, task in pending:
            assert isinstance(task, DocumentBatch)
            found[partition.index].outputs.append(task)
            _count_reader(found[partition.index], name, task.num_items)
        return
    settings = RunSettings(ignore_failures=True, scores=scores)
    plan = finish(pipeline.name, Draft(None, list(stages)), executor.capacity(), settings)
    batches = {partition.index: batch for partition, batch in pending}
    work = Work(
        plan,
        [partition for partition, _ in pending],
        lambda partition: batches[partition.index],
        EventStream(listeners),
        ErrorBudget(None),
        keep_trails=True,
    )
    executor.execute(plan, work)
    work.finish()
    for partition, task in pending:
        part = found[partition.index]
        if reader:
            _count_reader(part, name, task.num_items)
        part.replayed.merge(work.trails[partition.index])
        part.outputs.extend(batch for batch in work.results[partition.index] if isinstance(batch, DocumentBatch))


def _whole(record: QuarantinedRecord) -> bool:
    """Whether all of the record is in the quarantine."""
    return len(record.raw) >= record.size and record.row >= 0


def _batch(records: Sequence[QuarantinedRecord]) -> tuple[DocumentBatch | None, list[QuarantinedRecord]]:
    """The records that can be read as documents, as a batch."""
    ordered = sorted(records, key=lambda record: record.row)
    lines = b"".join(record.raw.replace(b"\n", b" ") + b"\n" for record in ordered)
    buffer = np.frombuffer(lines, np.uint8)
    sizes = np.array([len(record.raw) for record in ordered], np.int64)
    ends = np.cumsum(sizes + 1) - 1
    good, wrong, _ = JsonRecords.scan(buffer, ends - sizes, ends)
    kept = [record for number, record in enumerate(ordered) if number not in set(wrong.tolist())]
    if not kept:
        return None, []
    rows = np.array([record.row for record in kept], np.int64)
    batch = DocumentBatch.from_columns(RecordColumns(good), rows=rows)
    batch._metadata["source_file"] = kept[0].file
    return batch, kept


def _typed(batch: DocumentBatch, entry: ManifestEntry) -> DocumentBatch:
    """The batch with the types that its Parquet files have; JSON, in which the quarantine keeps it, knows fewer."""
    paths = [part["path"] for part in entry.source if ".parquet" in part["relative"].lower()]
    if not paths:
        return batch
    try:
        with open_parquet(paths[0]) as opened:
            schema = opened.schema_arrow
    except (OSError, pa.ArrowException):
        return batch  # the input is gone; the types are then those of the output, where it can be cast to them
    table = cast_where_possible(batch.columns.table(), schema)
    typed = DocumentBatch.from_columns(TableColumns(table), rows=batch.rows)
    typed._metadata = batch._metadata
    return typed


def _take_out(trail: Trail, taken: Sequence[QuarantinedRecord], name: str, *, reader: bool) -> None:
    """Remove records from the quarantine of a trail, as if the stage had never seen them."""
    gone = {id(record) for record in taken}
    trail.quarantine = [record for record in trail.quarantine if id(record) not in gone]
    counts = trail.count(name)
    for record in taken:
        counts.quarantined[record.cause] -= 1
        if not counts.quarantined[record.cause]:
            del counts.quarantined[record.cause]
    if reader:
        counts.created -= len(taken)
    else:
        counts.rows_in -= len(taken)


def _count_reader(part: _Partition, name: str, rows: int) -> None:
    part.replayed.count(name).add(StageCount(created=rows, rows_out=rows))


def _merge(
    folder: RunFolder,
    sink: SinkStage,
    part: _Partition,
    digest: str,
    names: Sequence[str],
    staging: str,
    report: ReplayReport,
) -> None:
    """Commit the partition again, with what came of its quarantined records."""
    written = sum(batch.num_items for batch in part.outputs)
    report.written += written
    report.dropped += sum(len(decision.rows) for decision in part.replayed.decisions)
    report.partitions += 1
    files, same = merged_files(folder, sink, part.entry, part.trail, part.outputs, part.waiting, staging)
    report.rearranged += not same
    trail = part.trail
    trail.merge(part.replayed)
    trail.count(names[-1]).add(StageCount(rows_in=written, rows_out=written))
    trail.output_rows = part.entry.rows_written + written
    partition = Partition.from_dict(
        {"index": part.entry.index, "id": part.entry.partition, "ranges": list(part.entry.source)}
    )
    commit_partition(folder, partition, staged_files=files, trail=trail, plan_digest=digest, stage_order=list(names))
