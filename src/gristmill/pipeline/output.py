"""The output folder of a run: what earlier runs left there, and what of it still counts."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from operator import itemgetter
from typing import Any

from gristmill.backends.plan import ExecutionPlan
from gristmill.errors import OutputError, OutputExistsError, ResumeError, VerificationError
from gristmill.ledger.record.alarms import AlarmLimits
from gristmill.ledger.record.commit import remove_partition
from gristmill.ledger.record.layout import RECORD_FOLDER, RunFolder
from gristmill.ledger.record.manifest import Manifest
from gristmill.ledger.record.plan_record import UNCOMPARED_CODE, check_plan, has_uncompared_code, read_plan, write_plan
from gristmill.ledger.record.resume import Resume, adopt_plan, decide, preview
from gristmill.ledger.record.run_record import RunRecorder, read_run
from gristmill.ledger.record.trail import StageCount
from gristmill.pipeline.partition_perf import PartitionPerf
from gristmill.stages.source_sink import SinkStage
from gristmill.storage.partitions import Partition
from gristmill.tasks.base import Task
from gristmill.tasks.file_group import FileGroupTask


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
        found = []
        for entry in Manifest(self.folder).scan():
            paths = [self.folder.join(file.path) for file in entry.files]
            metadata = {"partition_id": entry.partition, "rows": entry.rows_written}
            task = FileGroupTask(data=paths, _stage_perf=perf.of(entry.index), _metadata=metadata)
            task.task_id = entry.partition
            found.append((entry.index, entry.partition, task))
        return [task for _, _, task in sorted(found, key=itemgetter(0, 1))]

    def totals(self) -> dict[str, StageCount]:
        """The counts of all partitions that were committed when the run ended."""
        committed = self.recorder.committed
        return {} if committed is None else committed.stages

    def alarms(self) -> list[str]:
        """What in the counts deserves a look."""
        return [str(alarm) for alarm in self.recorder.record().get("alarms", [])]

    def check_own(self) -> None:
        """Make sure that no other pipeline has written here meanwhile.

        Raises:
            ResumeError: One has; the message names what differs.
        """
        check_plan(self.folder, self.plan.description)
        digest = self.plan.settings.plan_digest
        other = [entry.partition for entry in Manifest(self.folder).scan() if entry.plan != digest]
        if other:
            raise ResumeError(
                f"During this run another pipeline has written to {self.folder.path}: {len(other)} partitions, "
                f"{other[0]} the first, are not of this run. Give each its own folder, and start over with --fresh "
                "(fresh=True).",
                path=str(self.folder.path),
                partitions=other,
            )

    def close(self) -> None:
        """Remove the work in progress."""
        if self.plan.settings.staging is not None:
            self.folder.remove_tree(self.plan.settings.staging)
        self.folder.sweep()


def open_output(
    sink: SinkStage,
    plan: ExecutionPlan,
    partitions: Sequence[Partition],
    *,
    fresh: bool,
    alarms: AlarmLimits | None = None,
    searched: Sequence[str] = (),
) -> OutputState:
    """Make the output folder ready and find out which partitions are already there.

    Args:
        sink: The writer.
        plan: The plan.
        partitions: All partitions of the input.
        fresh: Remove what an earlier run left.
        alarms: When to raise an alarm at the end.
        searched: Folders in which the source looks for files.

    Raises:
        OutputError: The folder cannot be written, or must be empty and is not.
        ResumeError: What lies there was made by another plan or from other inputs.
    """
    folder = RunFolder(sink.path, storage_options=sink.storage_options)
    check_apart(folder, partitions, searched)
    check_writable(folder)
    check_strangers(folder, sink, partitions)
    manifest = Manifest(folder)
    previous = _previous_run(folder)
    if fresh or sink.mode == "overwrite":
        for name in [*[entry.partition for entry in manifest.scan()], *manifest.pending]:
            remove_partition(folder, name)
        folder.remove(folder.plan_file)
        folder.remove(folder.run_file)
    else:
        _check_mode(sink, manifest)
    folder.sweep()
    notes = plan.notes
    if manifest.is_begun():
        check_plan(folder, plan.description)
        if has_uncompared_code(read_plan(folder)):
            notes = (*notes, UNCOMPARED_CODE)
        digest = adopt_plan(manifest, plan.description)
        resume = decide(manifest, partitions, digest)
    else:
        digest = write_plan(folder, plan.description)
        resume = Resume()
    settings = replace(plan.settings, plan_digest=digest, staging=folder.new_staging())
    return OutputState(
        folder,
        replace(plan, settings=settings, notes=notes),
        resume.done,
        RunRecorder(folder, limits=alarms, quiet_stages=(plan.stage_names[0], plan.stage_names[-1]), previous=previous),
        rows_read=resume.rows_read,
        quarantined=resume.quarantined,
    )


def preview_output(
    sink: SinkStage, plan: ExecutionPlan, partitions: Sequence[Partition], *, searched: Sequence[str] = ()
) -> Resume:
    """What `open_output` would find, without writing anything; that the folder can be written is not tried.

    Raises:
        OutputError: As `open_output` does.
        ResumeError: As `open_output` does.
    """
    folder = RunFolder(sink.path, storage_options=sink.storage_options)
    check_apart(folder, partitions, searched)
    check_is_folder(folder)
    check_strangers(folder, sink, partitions)
    manifest = Manifest(folder)
    if sink.mode == "overwrite":
        return Resume()
    _check_mode(sink, manifest)
    return preview(folder, partitions, plan.description) if manifest.is_begun() else Resume()


def _check_mode(sink: SinkStage, manifest: Manifest) -> None:
    """Refuse to go on with the output of a run where the writer wants none."""
    if sink.mode == "error" and manifest.is_begun():
        raise OutputExistsError(
            f"{sink.path} already holds the output of a run, and the writer has mode='error'. Write to another folder, "
            "or use mode='ignore' to go on with it or mode='overwrite' to replace it.",
            path=sink.path,
        )


def _previous_run(folder: RunFolder) -> dict[str, Any] | None:
    """The record of the run before, also when this one starts over: its input can be compared."""
    try:
        return read_run(folder)
    except VerificationError:
        return None


def _has_run_before(folder: RunFolder, manifest: Manifest) -> bool:
    """Whether a run has begun here, even if it came to nothing: what lies here may then be of its making."""
    return folder.exists(folder.plan_file) or folder.exists(folder.run_file) or manifest.is_begun()


def check_strangers(folder: RunFolder, sink: SinkStage, partitions: Sequence[Partition]) -> None:
    """Refuse to replace files that no run has written, unless the writer is told to.

    Raises:
        OutputExistsError: There are some.
    """
    if sink.mode == "overwrite" or _has_run_before(folder, Manifest(folder)):
        return
    there = [name for name in folder.walk() if not name.startswith(f"{RECORD_FOLDER}/")]
    # Asked again: another process may have begun meanwhile, and it notes its plan before it writes anything.
    if not there or _has_run_before(folder, Manifest(folder)):
        return
    if sink.mode == "error":
        raise OutputExistsError(
            f"The output folder {folder.path} is not empty (it holds {there[0]!r}), and the writer has mode='error'. "
            "Write to another folder, or use mode='ignore' to write beside what is there.",
            path=sink.path,
        )
    ours = {folder.relative(folder.data_file(partition.id, sink.extension)) for partition in partitions}
    replaced = sorted(ours.intersection(there))
    if replaced:
        more = f" and {len(replaced) - 1} more" if len(replaced) > 1 else ""
        raise OutputExistsError(
            f"The output folder {folder.path} holds {replaced[0]!r}{more}, written by no run, and the output would "
            "replace it. Write to another folder, move it away, or use the writer's mode='overwrite'.",
            path=sink.path,
        )


def check_is_folder(folder: RunFolder) -> None:
    """Refuse a path that is a file, or goes through one.

    Raises:
        OutputError: It is.
    """
    if not folder.local:
        return
    place = str(folder.path)
    while not os.path.lexists(place) and os.path.dirname(place) != place:
        place = os.path.dirname(place)
    if not os.path.isdir(place):
        raise OutputError(
            f"The output folder {folder.path} cannot be made: {place} is a file. Check the output path.",
            path=str(folder.path),
        )


def check_writable(folder: RunFolder) -> None:
    """Fail now, and not after the first partition, if nothing can be written.

    Raises:
        OutputError: Nothing can.
    """
    check_is_folder(folder)
    probe = folder.join("_gristmill/.probe")
    try:
        folder.write(probe, b"")
        folder.remove(probe)
    except OutputError as error:
        raise OutputError(
            f"The output folder {folder.path} cannot be used. {error}", path=str(folder.path), errno=error.errno
        ) from error
    except OSError as error:
        raise OutputError(
            f"Cannot write to {folder.path}: {error.strerror or error}. Check the path and its permissions.",
            path=str(folder.path),
        ) from error


def check_apart(folder: RunFolder, partitions: Sequence[Partition], searched: Sequence[str]) -> None:
    """Make sure that an output and its input are not mixed up.

    Args:
        folder: The output.
        partitions: The input.
        searched: The folders in which input files are looked for.

    Raises:
        OutputError: The output holds files of the input, or lies where input files are looked for.
    """
    _check_not_an_input(folder, partitions)
    _check_not_inside(folder, searched)


def _check_not_an_input(folder: RunFolder, partitions: Sequence[Partition]) -> None:
    """Refuse an output folder in which the input lies: it could be replaced, and nobody could prove the output."""
    root = str(folder.path).rstrip("/") + "/"
    for partition in partitions:
        for piece in partition.ranges:
            below = piece.path.removeprefix(root)
            if below != piece.path and not _is_passed_over(below):
                raise OutputError(
                    f"The output folder {folder.path} holds the input file {piece.path}. Write to another folder.",
                    path=str(folder.path),
                )


def _check_not_inside(folder: RunFolder, searched: Sequence[str]) -> None:
    """Refuse an output below an input folder: the next run would take it for input."""
    here = str(folder.path).rstrip("/")
    for path in searched:
        inside = here.removeprefix(path.rstrip("/") + "/")
        if inside != here and not _is_passed_over(inside):
            raise OutputError(
                f"The output folder {here} lies inside the input folder {path}, so that the next run would read it as "
                "input. Write beside the input, or name the input files by a pattern that leaves the output out.",
                path=here,
            )


def _is_passed_over(path: str) -> bool:
    """Whether a part of the path has a name that readers pass over in folders."""
    return any(name.startswith(("_", ".")) for name in path.split("/"))
