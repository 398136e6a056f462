"""The output of a run: what earlier runs left in its folder, what of it is still valid, and what the run returns."""

from __future__ import annotations

import os
import time
from array import array
from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from operator import itemgetter
from typing import Any

from gristmill.backends.plan import ExecutionPlan
from gristmill.errors import GristmillError, OutputError, OutputExistsError, ResumeError, VerificationError
from gristmill.figures import plural
from gristmill.ledger.performance import StagePerfStats
from gristmill.ledger.record.commit import remove_partition
from gristmill.ledger.record.earlier_names import earlier_name
from gristmill.ledger.record.input_files import record_list, totals
from gristmill.ledger.record.layout import RECORD_FOLDER, RECORD_NAMES, RunFolder
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
from gristmill.ledger.record.summary import remove_summary, write_summary
from gristmill.observe.events import Event, TaskFinished
from gristmill.stages.source_sink import READER_PARTS, SinkStage
from gristmill.storage.atomic import output_error
from gristmill.storage.files import RECORD_SUFFIX, SourceFiles, is_local, skip_reason
from gristmill.storage.formats import codec_of, format_of
from gristmill.storage.partitions import Partition
from gristmill.tasks.base import Task
from gristmill.tasks.file_group import FileGroupTask

MOST_PARTITIONS = 10_000
"""In runs with more partitions, tasks carry no performance records, which would dominate the driver's memory."""


@dataclass(slots=True, eq=False)
class PartitionPerf:
    """Adds up the cost of each stage per partition; listens to the events of a run.

    The tasks returned by a pipeline with a writer represent partitions, each of which passed the stages in many
    batches.

    Attributes:
        partitions: Number of partitions of the run; above `MOST_PARTITIONS` nothing is kept.
    """

    partitions: int
    _stages: dict[str, tuple[array[float], array[int], array[float]]] = field(default_factory=dict, init=False)
    _custom: dict[tuple[int, str], dict[str, float]] = field(default_factory=dict, init=False)

    def __call__(self, event: Event) -> None:
        """Handle an event."""
        if self.partitions > MOST_PARTITIONS or not isinstance(event, TaskFinished):
            return
        at = event.partition
        for name, spent in event.times.items():
            seconds, items, idle = self._stages.setdefault(name, (array("d"), array("q"), array("d")))
            missing = at + 1 - len(seconds)
            if missing > 0:
                seconds.extend([-1.0] * missing)
                items.extend([0] * missing)
                idle.extend([0.0] * missing)
            seconds[at] = max(seconds[at], 0.0) + spent.busy_s
            items[at] += spent.items
            idle[at] += spent.idle_s
            if spent.custom:
                custom = self._custom.setdefault((at, name), {})
                for key, value in spent.custom.items():
                    custom[key] = custom.get(key, 0.0) + value

    def of(self, partition: int) -> list[StagePerfStats]:
        """One record per stage, in the order of their first calls; empty if this run did not process the partition."""
        return [
            StagePerfStats(
                name,
                process_time=seconds[partition],
                actor_idle_time=idle[partition],
                num_items_processed=items[partition],
                custom_metrics=self._custom.get((partition, name), {}),
            )
            for name, (seconds, items, idle) in self._stages.items()
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
        """One task per committed partition, in source order; those of this run carry the cost of their stages."""
        found: list[tuple[int, str, Task[Any]]] = []
        for entry in Manifest(self.folder).scan():  # one at a time: there can be very many
            paths = [self.folder.join(file.path) for file in entry.files]
            metadata = {"partition_id": entry.partition, "rows": entry.rows_written}
            task = FileGroupTask(data=paths, _stage_perf=perf.of(entry.index), _metadata=metadata)
            task.task_id = entry.partition
            found.append((entry.index, entry.partition, task))
        return list(map(itemgetter(2), sorted(found, key=itemgetter(0, 1))))

    def summarize(self, sink: SinkStage) -> None:
        """Write the writer's summary of the whole output, after every partition is committed."""
        summary = sink.summary(self.folder)
        if summary is not None:
            write_summary(self.folder, summary)

    def check_whole(self, partitions: int) -> None:
        """Check that all committed files still exist, and that no other pipeline wrote to this folder meanwhile.

        Args:
            partitions: Expected number of partitions.

        Raises:
            ResumeError: Another pipeline did; the message names the differences.
            OutputError: Something is missing.
        """
        digest = self.plan.settings.plan_digest
        recorded = read_plan(self.folder)
        if recorded is not None and plan_digest(recorded) != digest:
            check_plan(self.folder, self.plan.description)  # says what differs
        # If the same run continues in another process as well, entries and files are being replaced: check again.
        for pause_s in (0.2, 1.0, 0.0):
            other, gone, left = self._missing(partitions, digest)
            if other or not (gone or left > 0):
                break
            time.sleep(pause_s)
        if other:
            raise ResumeError(
                f"Another pipeline wrote to {self.folder.path} during this run: {len(other)} partitions, starting "
                f"with {other[0]}, do not belong to this run. Use a separate folder for each, and start over with "
                "--fresh (fresh=True).",
                path=str(self.folder.path),
                partitions=other,
            )
        if gone or left > 0:
            lost = f"{plural(len(gone), 'file')}, such as {gone[0]}, changed or missing" if gone else ""
            lost += f"{', ' if gone else ''}{plural(left, 'partition')} without a record" if left > 0 else ""
            raise OutputError(
                f"The output {self.folder.path} is incomplete: {lost}, although everything was written. Something "
                "else removed or changed files during the run. Run the same command again: only what is missing is "
                "redone.",
                path=str(self.folder.path),
            )

    def _missing(self, partitions: int, digest: str) -> tuple[list[str], list[str], int]:
        """Partitions of another plan, files that differ from the committed ones, and the number of missing entries."""
        there: dict[str, int] = {}
        roots = [self.folder.record] if self.folder.ending is not None else [self.folder.record, self.folder.path]
        for root in roots:
            for name, size in self.folder.walk(root).items():
                there[f"{root}/{name}"] = size
        other, gone = [], []
        for entry in Manifest(self.folder).scan():
            partitions -= 1
            if entry.plan != digest:
                other.append(entry.partition)
            for file in entry.all_files:
                path = self.folder.join(file.path)
                if there.get(path) == file.size or self.folder.size(path) == file.size:
                    continue
                gone.append(self.folder.shown(file.path))
        return other, gone, partitions


def open_output(
    folder: RunFolder,
    sink: SinkStage,
    plan: ExecutionPlan,
    partitions: Sequence[Partition],
    *,
    fresh: bool,
    alarms: AlarmLimits | None = None,
    searched: Sequence[str] = (),
    files: SourceFiles | None = None,
) -> OutputState:
    """Prepare the output and find the partitions that are already done.

    Args:
        folder: The output.
        sink: The writer.
        plan: The plan.
        partitions: All partitions of the input.
        fresh: Remove the results of an earlier run.
        alarms: When to raise an alarm at the end.
        searched: Folders that the source searches for files.
        files: What happened to the files of the input.

    Raises:
        OutputError: The output cannot be written, or must be empty and is not.
        ResumeError: The existing output was made by another plan or from other inputs.
    """
    begun, absent = _checked(folder, sink, partitions, searched, write=True, fresh=fresh)
    manifest = Manifest(folder)
    try:
        previous = read_run(folder)  # also when starting over: the inputs can be compared
    except VerificationError:
        previous = None
    resume = Resume()
    if fresh or absent or sink.mode == "overwrite":
        for name in [*[entry.partition for entry in manifest.scan()], *manifest.pending]:
            remove_partition(folder, name)
        for kind in ("plan", "run"):
            folder.remove(folder.record_path(kind))
        remove_summary(folder)
        begun = False
    folder.sweep()
    notes = plan.notes
    if begun:
        check_plan(folder, plan.description)
        if has_uncompared_code(read_plan(folder)):
            notes = (*notes, UNCOMPARED_CODE)
        digest = adopt_plan(manifest, plan.description)
        resume = decide(manifest, partitions, digest, salvage=plan.settings.salvage)
        if len(resume.done) < len(partitions):
            remove_summary(folder)
    else:
        digest = write_plan(folder, plan.description)
    account: dict[str, Any] | None = None
    if files is not None:
        account = {"paths": files.paths, "extensions": files.extensions, "read": files.read, "left_out": {}}
        if files.left_out:
            account["left_out"] = totals(files.left_out)
            record_list(folder, files.left_out)
        else:
            folder.remove(folder.record_path("left_out"))
    settings = replace(plan.settings, plan_digest=digest, staging=folder.new_staging())
    return OutputState(
        folder,
        replace(plan, settings=settings, notes=notes),
        resume.done,
        RunRecorder(
            folder,
            limits=alarms,
            quiet_stages=(plan.stage_names[0], *READER_PARTS, plan.stage_names[-1]),
            previous=previous,
            files=account,
            plan_digest=digest,
        ),
        rows_read=resume.rows_read,
        quarantined=resume.quarantined,
    )


def keep_recorded_names(folder: RunFolder, stages: Sequence[Any]) -> None:
    """Use the filter names of an output made by an earlier version, whose record keeps one name per filter."""
    try:
        plan = read_plan(folder)
    except (GristmillError, OSError):
        return  # opening the output reports what is wrong with it
    recorded = {} if plan is None else {str(stage.get("name")): stage for stage in plan.get("stages") or ()}
    for stage in stages if recorded else ():
        if stage.name not in recorded and earlier_name(stage.name) in recorded:
            stage.name = earlier_name(stage.name)
        parameters = recorded.get(stage.name, {}).get("parameters") or {}
        for key in ("filter_obj", "score_fn", "filter_fn"):
            filters = list(getattr(stage, key, None) or ())
            kept = parameters.get(key)
            told_filters = kept if isinstance(kept, list) else ()
            for place, (one, told) in enumerate(zip(filters, told_filters, strict=False)):
                then = told.get("name") if isinstance(told, dict) else None
                name = getattr(one, "_name", None)
                if isinstance(name, str) and name != then == earlier_name(name):
                    filters[place] = copy(one)
                    filters[place]._name = then
            if filters:
                setattr(stage, key, filters)


def preview_output(
    folder: RunFolder,
    sink: SinkStage,
    plan: ExecutionPlan,
    partitions: Sequence[Partition],
    *,
    searched: Sequence[str] = (),
) -> Resume:
    """What `open_output` would find, without writing anything; does not check that the output is writable.

    Raises:
        OutputError: See `open_output`.
        ResumeError: See `open_output`.
    """
    begun, absent = _checked(folder, sink, partitions, searched, write=False)
    if not begun or absent or sink.mode == "overwrite":
        return Resume()
    return preview(folder, partitions, plan.description, salvage=plan.settings.salvage)


# --- what may already exist ---


def _checked(
    folder: RunFolder,
    sink: SinkStage,
    partitions: Sequence[Partition],
    searched: Sequence[str],
    *,
    write: bool,
    fresh: bool = False,
) -> tuple[bool, bool]:
    """Whether partitions are committed, and whether the output was deleted, once writing to it is known to be allowed.

    If only its record is left, a run starts over.
    """
    there = os.path.lexists(folder.path) if is_local(folder.path) else bool(folder.walk(folder.path))
    if folder.ending is not None:
        check_single(folder, sink.extension, partitions)
    check_apart(folder, partitions, searched)
    check_usable(folder, write=write)
    check_strangers(folder, sink.mode, sink.extension, partitions)
    begun = next(Manifest(folder).scan(), None) is not None
    absent = begun and not there
    if absent and (folder.ending is not None or not is_local(folder.path)):  # one without documents does not count
        absent = any(entry.files for entry in Manifest(folder).scan())
    if begun and sink.mode == "error" and not fresh and not absent:
        raise OutputExistsError(
            f"{sink.path} already holds the output of a run, and the writer has mode='error'. Write to another "
            "folder, or use mode='ignore' to resume it or mode='overwrite' to replace it.",
            path=sink.path,
        )
    return begun, absent


def check_single(folder: RunFolder, extension: str, partitions: Sequence[Partition]) -> None:
    """Check that an output that is a single file (its name has an `ending`) is possible.

    Args:
        folder: The output.
        extension: File extension that its writer uses.
        partitions: The input.

    Raises:
        OutputError: The file name implies another format, or there are several input files.
    """
    if (format_of(folder.path), codec_of(folder.path)) != (format_of(extension), codec_of(extension)):
        raise OutputError(
            f"The output {folder.path} ends with {folder.ending}, but the writer writes {extension} files. Change the "
            "file name or the format (--output-filetype, --compression), or pass a folder.",
            path=folder.path,
        )
    if len(partitions) > 1:
        files = len({piece.path for partition in partitions for piece in partition.ranges})
        raise OutputError(
            f"The output {folder.path} is a single file, but the input is {plural(files, 'file')} in "
            f"{plural(len(partitions), 'partition')}. Pass a folder to write to.",
            path=folder.path,
        )


def check_usable(folder: RunFolder, *, write: bool = True) -> None:
    """Fail now rather than after the first partition if the output or its record is not writable.

    Args:
        folder: The output.
        write: Also try to write a file.

    Raises:
        OutputError: A path is a file or leads through one, or is not writable.
    """
    elsewhere = " The record of the run goes there: choose another place for it with --record (record_path=…)."
    for path, what, advice in ((folder.data_folder, "output", ""), (folder.record, "record", elsewhere)):
        place = path
        while is_local(path) and not os.path.lexists(place) and os.path.dirname(place) != place:
            place = os.path.dirname(place)
        if is_local(path) and not os.path.isdir(place):
            raise OutputError(
                f"The {what} folder {path} cannot be created: {place} is a file. Check the output path.{advice}",
                path=path,
            )
        if write:
            probe = f"{path}/.gristmill-probe"
            try:
                folder.write(probe, b"")
                folder.remove(probe)
            except OSError as error:
                cause = error.__cause__ if isinstance(error.__cause__, OSError) else error
                raise OutputError(f"{output_error(path, cause)}{advice}", path=path, errno=error.errno) from error
    for name in os.listdir(folder.record) if is_local(folder.record) and os.path.isdir(folder.record) else ():
        if os.path.islink(f"{folder.record}/{name}"):
            raise OutputError(
                f"{folder.record}/{name} is a symbolic link, and links are not allowed in a record. Remove it.",
                path=f"{folder.record}/{name}",
            )


def check_apart(folder: RunFolder, partitions: Sequence[Partition], searched: Sequence[str]) -> None:
    """Check that an output, its record and its input do not overlap.

    Args:
        folder: The output.
        partitions: The input.
        searched: Folders that are searched for input files.

    Raises:
        OutputError: The output contains input files, which it could overwrite, or is inside a folder that is searched
            for input, so that the next run would read it; or the record overlaps with it.
    """
    root, record = folder.path, folder.record
    outside = "Choose another place for the record with --record (record_path=…)"
    if f"{root}/".startswith(f"{record}/") or (record.startswith(f"{root}/") and record != f"{root}/{RECORD_FOLDER}"):
        raise OutputError(
            f"The output {root} and its record {record} overlap. {outside} outside the output.", path=root
        )
    if not is_local(record) and record.partition("://")[0] != root.partition("://")[0]:
        raise OutputError(
            f"The output {root} and its record {record} are in different stores. {outside} in the store of the output "
            "or on this machine.",
            path=root,
        )
    if root.endswith(RECORD_SUFFIX):
        raise OutputError(
            f"The output {root} is named like the record of a run, which readers skip. Choose another name.", path=root
        )
    for partition in partitions:
        for piece in partition.ranges:
            if piece.path == root:
                raise OutputError(f"The output {root} is the input file. Write to a different file.", path=root)
            if _is_read_below(piece.path, root):
                raise OutputError(
                    f"The output folder {root} holds the input file {piece.path}. Write to another folder.",
                    path=root,
                )
    for path in searched:
        if _is_read_below(root, path.rstrip("/")):
            raise OutputError(
                f"The output {root} is inside the input folder {path}, so the next run would read it as input. Write "
                "beside the input, or select the input files by a pattern that excludes the output.",
                path=root,
            )


def check_strangers(folder: RunFolder, mode: str, extension: str, partitions: Sequence[Partition]) -> None:
    """Refuse to overwrite files that were not written by a run, unless the writer allows it.

    Args:
        folder: The output.
        mode: The writer's mode.
        extension: Extension of its files.
        partitions: The partitions that will be written.

    Raises:
        OutputExistsError: There are such files, or the record belongs to another output.
    """
    if folder.has_run():
        _check_owner(folder)
        return
    there = []
    for name in folder.walk():
        first, *rest = name.split("/")
        if first != RECORD_FOLDER or not rest:
            there.append(name)
        elif rest[0] not in RECORD_NAMES and rest[0][0] != "." and not folder.exists(folder.record_path("workflow")):
            raise OutputExistsError(
                f"{folder.record} holds {rest[0]!r}, which is not part of the record of a run. Choose another place "
                "for the record with --record (record_path=…).",
                path=folder.record,
            )
    # Checked again: another process may have started meanwhile, and it records its plan before it writes anything.
    if mode == "overwrite" or not there or folder.has_run():
        return
    if mode == "error":
        raise OutputExistsError(
            f"{folder.path} is not empty ({folder.shown(there[0])!r}), and the writer has mode='error'. Write to "
            "another folder, or use mode='ignore' to write beside the existing files.",
            path=folder.path,
        )
    ours = {folder.relative(folder.data_path(part.name or part.id, extension)) for part in partitions}
    replaced = sorted(ours.intersection(there))
    if replaced:
        more = f" and {len(replaced) - 1} more" if len(replaced) > 1 else ""
        held = f"folder {folder.path} holds {replaced[0]!r}{more}," if folder.ending is None else f"{folder.path} was"
        raise OutputExistsError(
            f"The output {held} not written by a run; it would be overwritten. Write to another place, move it away, "
            "or use the writer's mode='overwrite'.",
            path=folder.path,
        )


def _check_owner(folder: RunFolder) -> None:
    """Refuse an explicitly chosen record that belongs to another output; a moved output leaves nothing behind."""
    if folder.record in (f"{folder.path}{RECORD_SUFFIX}", f"{folder.path}/{RECORD_FOLDER}"):
        return
    try:
        owner = (read_run(folder) or {}).get("output") or folder.path
    except VerificationError:
        return
    if owner != folder.path and (os.path.lexists(owner) if is_local(owner) else folder.walk(owner)):
        raise OutputExistsError(
            f"{folder.record} is the record of {owner}. Choose another place for the record of {folder.path} with "
            "--record (record_path=…).",
            path=folder.record,
        )


def _is_read_below(path: str, folder: str) -> bool:
    """Whether a reader of `folder` would read `path`: it is inside, and no part of its path has a skipped name."""
    below = path.removeprefix(f"{folder}/")
    return below != path and not any(skip_reason(name, folder=True) for name in below.split("/"))
