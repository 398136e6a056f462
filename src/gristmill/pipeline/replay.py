"""Processes quarantined records again, after a fix, by redoing the partitions that hold them.

The partitions are read from the input and committed as in any run, so the result is the same as that of a run that
never failed. Partitions without quarantined records are not touched.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from gristmill import notebook
from gristmill.backends.base import BaseExecutor
from gristmill.backends.registry import as_executor
from gristmill.errors import ResumeError, VerificationError
from gristmill.execution.driver import ErrorBudget, Work
from gristmill.figures import plural
from gristmill.ledger.record.layout import RunFolder
from gristmill.ledger.record.manifest import Manifest, ManifestEntry
from gristmill.ledger.record.plan_record import plan_changes, read_plan
from gristmill.ledger.record.quarantine import parse_quarantine
from gristmill.ledger.record.resume import adopt_plan, decide
from gristmill.ledger.record.run_record import RUNNING, RunRecorder, read_run
from gristmill.ledger.record.shape import open_table
from gristmill.ledger.record.trail import QUARANTINED
from gristmill.observe.events import EventStream, Listener, RunFinished, RunStarted
from gristmill.pipeline.planner import draft
from gristmill.pipeline.run import NEEDS_ALL, Options, Prepared, announced_compilation, prepare
from gristmill.report.page import write_after_run
from gristmill.stages.source_sink import ReaderStage
from gristmill.storage.partitions import Partition

if TYPE_CHECKING:
    from gristmill.pipeline.pipeline import Pipeline


@dataclass(slots=True)
class ReplayReport:
    """What happened to the quarantined records.

    Attributes:
        records: Number of quarantined records that were processed again.
        written: Number of these that are now in the output.
        dropped: Number of these that a stage dropped.
        still_quarantined: Number of records in quarantine after the replay, of any cause and in any partition.
        unreadable: Number of these that the reader cannot read, so that no change to a stage helps.
        partitions: Number of partitions that were redone.
        missing: Number of partitions that the run itself has not finished yet.
        plan_changes: Differences from the plan that made the output, in words.
    """

    records: int = 0
    written: int = 0
    dropped: int = 0
    still_quarantined: int = 0
    unreadable: int = 0
    partitions: int = 0
    missing: int = 0
    plan_changes: list[str] = field(default_factory=list)

    _repr_html_ = notebook.as_text

    def __str__(self) -> str:
        text = (
            f"{plural(self.records, 'record')} replayed in {plural(self.partitions, 'partition')}: "
            f"{self.written} written, {self.dropped} dropped, {self.still_quarantined} still in quarantine"
        )
        if self.unreadable:
            text += (
                f". {self.unreadable} of them cannot be read by any pipeline: correct them in their input file and "
                "run the pipeline again, which redoes that file"
            )
        if self.missing:
            text += (
                f". The run itself is not complete: {plural(self.missing, 'partition')} are missing. Run the pipeline "
                "again to process them"
            )
        return text


def replay(
    pipeline: Pipeline,
    executor: BaseExecutor | str | None = None,
    *,
    cause: str | None = None,
    record_path: str | os.PathLike[str] | None = None,
    listeners: Sequence[Listener] = (),
) -> ReplayReport:
    """Redo the partitions of the pipeline's output that hold quarantined records.

    The id and URL columns and the scores to record are those of the run.

    Args:
        pipeline: The pipeline with the fix; its stages must have the same names as in the run.
        executor: Where to run.
        cause: Only redo partitions with a record that was quarantined for this cause.
        record_path: Path of the run's record, if not beside the output.
        listeners: Called with every event.

    Raises:
        ResumeError: The output was made by a pipeline with other stages, or the input of a partition to redo has
            changed or is missing.
    """
    chosen = as_executor(executor)
    comparing = next(filter(NEEDS_ALL, pipeline.stages), None)
    if comparing is not None:
        raise ResumeError(
            f"Stage {comparing.name!r} compares all documents, so quarantined ones cannot be processed separately: "
            "they may be duplicates of others. Start over with the fix: run with --fresh (fresh=True)."
        )
    sink = draft(pipeline.stages, has_initial_tasks=False).sink
    if sink is None:
        raise ResumeError("The pipeline has no writer, so there is no output whose quarantine could be replayed.")
    folder = RunFolder(sink.path, sink.storage_options, record_path=record_path)
    folder.require_run()
    recorded = (read_plan(folder) or {}).get("settings") or {}
    same = {key: recorded[key] for key in ("id_field", "url_field", "scores") if key in recorded}
    manifest = Manifest(folder)
    manifest.settle()
    entries = manifest.load()
    # The readable part of damaged files stays in the output if the run kept it.
    salvage = any(file.salvaged is not None for entry in entries.values() for file in entry.damaged or ())
    options = Options(ignore_failures=True, error_budget=None, salvage=salvage, record_path=folder.record, **same)
    prepared = prepare(pipeline, chosen, None, options)
    description = prepared.plan.description
    report = ReplayReport(plan_changes=_plan_changes(folder, description))
    dirty = {
        key: entry
        for key, entry in entries.items()
        if any(count.quarantined if cause is None else cause in count.quarantined for count in entry.stages.values())
    }
    partitions = _partitions_to_redo(folder, dirty, manifest.pending, prepared)
    tried = {key: _quarantined_rows(folder, entry) for key, entry in dirty.items()}
    report.records = sum(len(rows) for rows in tried.values())
    report.partitions = len(partitions)
    digest = adopt_plan(manifest, description)
    plan = replace(
        prepared.plan, settings=replace(prepared.plan.settings, plan_digest=digest, staging=folder.new_staging())
    )
    events = EventStream(list(listeners))
    recorder = RunRecorder(folder, quiet_stages=(plan.stage_names[0], plan.stage_names[-1]))
    done = len(entries.keys() | manifest.pending.keys())
    status, error, wanted = _before(folder, done)
    started = RunStarted(
        pipeline=pipeline.name,
        executor=chosen.name,
        stages=plan.stage_names,
        segments=tuple(segment.describe() for segment in plan.segments),
        partitions=wanted,
        partitions_done_before=done - len(partitions),
        input_bytes=0,
        output=folder.path,
    )
    work = Work(plan, partitions, prepared.root, events, ErrorBudget(None))
    events.emit(started)
    events.listeners.append(recorder)
    try:
        if partitions:
            with announced_compilation(events, plan):
                chosen.execute(plan, work)
        work.finish()
    finally:
        folder.sweep(own=plan.settings.staging)
    entries = manifest.load()
    for key, rows in tried.items():
        decided = _decided_rows(folder, entries[key])
        report.dropped += len([row for row in rows if row in decided[0]])
        report.written += len([row for row in rows if row not in decided[0] | decided[1]])
    report.still_quarantined = sum(entry.quarantined for entry in entries.values())
    reader = prepared.sketch.stages[0]
    if isinstance(reader, ReaderStage):
        counts = [entry.stages[reader.name] for entry in entries.values() if reader.name in entry.stages]
        report.unreadable = sum(sum(count.quarantined.values()) for count in counts)
    report.missing = wanted - len(entries)
    if not report.missing and (status in ("done", RUNNING) or not report.still_quarantined):
        status, error = "done", None
    elif status not in ("failed", "interrupted"):
        status = "interrupted"
    # Written only now: an interrupted replay leaves the record of the run unchanged, in particular its status.
    recorder(started)
    events.emit(RunFinished(status, error))
    if folder.exists(folder.record_path("report")):
        write_after_run(folder, events)
    return report


def _plan_changes(folder: RunFolder, description: Mapping[str, Any]) -> list[str]:
    old = read_plan(folder)
    before, now = ([stage["name"] for stage in plan.get("stages", [])] for plan in (old or description, description))
    if before != now:
        raise ResumeError(
            f"The output was made by the stages {', '.join(before)}, but the pipeline now has {', '.join(now)}. A "
            "replay accepts a fixed stage, but not a different list of stages: run with fresh=True (--fresh) instead.",
            before=before,
            now=now,
        )
    return plan_changes(folder, description)


def _partitions_to_redo(
    folder: RunFolder, dirty: Mapping[str, ManifestEntry], pending: Mapping[str, ManifestEntry], prepared: Prepared
) -> list[Partition]:
    """The partitions to process, by their positions in the output; their input must be unchanged.

    Includes partitions with an unfinished commit, such as that of an interrupted replay.
    """
    here_now = {key: replace(entry, plan="") for key, entry in dirty.items()}
    found = decide(here_now, prepared.partitions, "", salvage=prepared.plan.settings.salvage)
    if found.changed:
        some = "; ".join(f"{key}: {found.reasons[key]}" for key in found.changed[:3])
        raise ResumeError(
            f"A replay reads the input of {plural(len(dirty), 'partition')} of {folder.path} again, but the input of "
            f"{len(found.changed)} of them has changed ({some}). Run the pipeline again instead: it redoes every "
            "partition whose input has changed.",
            partitions=found.changed,
        )
    here = {partition.id: partition for partition in prepared.partitions}
    return [
        replace(here[key], index=entry.index)
        for key, entry in sorted({**dirty, **pending}.items(), key=lambda pair: pair[1].index)
        if key in here
    ]


def _quarantined_rows(folder: RunFolder, entry: ManifestEntry) -> list[int]:
    data = folder.read(folder.record_path("quarantine", entry.partition))
    return [item.record.row for item in parse_quarantine(data, partition=entry.partition)]


def _decided_rows(folder: RunFolder, entry: ManifestEntry) -> tuple[set[int], set[int]]:
    """The dropped rows of a partition, and those in quarantine."""
    if "ledger" not in entry.records:
        return set(), set()
    with folder.open(folder.join(entry.records["ledger"].path)) as stream:
        table = open_table(stream).read(["row", "outcome"])
    pairs = list(zip(table["row"].to_pylist(), table["outcome"].to_pylist(), strict=True))
    held = {row for row, outcome in pairs if outcome == QUARANTINED}
    return {row for row, outcome in pairs if outcome != QUARANTINED}, held


def _before(folder: RunFolder, done: int) -> tuple[str, str | None, int]:
    """How the last run ended, and its total number of partitions."""
    try:
        run = read_run(folder) or {}
    except VerificationError:
        run = {}
    return str(run.get("status")), run.get("error"), max(int(run.get("partitions") or 0), done)
