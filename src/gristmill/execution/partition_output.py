"""How output leaves a worker: a whole partition at once, or pieces that are joined when the partition is complete.

Both produce the same bytes. The first is used when one segment processes a partition from reading to commit, so that no
document crosses a process boundary.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from gristmill.backends.plan import RunSettings
from gristmill.errors import InputError, ResumeError
from gristmill.ledger.record.commit import commit_partition
from gristmill.ledger.record.layout import RunFolder, step_folder
from gristmill.ledger.record.manifest import ManifestEntry
from gristmill.ledger.record.plan_record import plan_digest, read_plan
from gristmill.ledger.record.trail import Trail, Written, join_sources
from gristmill.stages.source_sink import PartFile, SinkStage
from gristmill.storage.atomic import WrittenFile
from gristmill.storage.partitions import Partition
from gristmill.tasks.base import Task
from gristmill.tasks.document import DocumentBatch
from gristmill.tracking.origins import Lineage, lineage_of


@dataclass(slots=True)
class TaskEnd:
    """The end of one task: its position, what happened to it, and what it produced.

    Attributes:
        lineage: The task's place in its partition, with its trail.
        piece: The staged file with its rows, if there is a writer.
        task: The task itself, if there is no writer.
        entry: The manifest entry, when the worker has already committed the whole partition.
        failed: The stage that returned a FailedTask: the partition is unfinished, and the next run redoes it.
        reason: Why it failed, if the stage said so.
    """

    lineage: Lineage
    piece: WrittenFile | None = None
    task: Task[Any] | None = None
    entry: ManifestEntry | None = None
    failed: str | None = None
    reason: str = ""


class PartitionOutput:
    """The output of one partition while a single worker writes it."""

    def __init__(self, sink: SinkStage, settings: RunSettings, lineage: Lineage) -> None:
        self._sink = sink
        self._settings = settings
        self._lineage = lineage
        self._file: PartFile | None = None
        self._rows = 0
        self._trails: dict[tuple[int, ...] | None, Trail] = {}
        self.failed: str | None = None
        self.reason = ""

    def note(self, lineage: Lineage) -> None:
        """Add the trail of a task that has ended."""
        self._trails.setdefault(lineage.source, Trail()).merge(lineage.trail)

    def append(self, batch: DocumentBatch) -> int:
        """Append the batch; returns the number of bytes before compression."""
        if self._file is None:
            staged = f"{self._settings.staging}/{self._lineage.partition_id}{self._sink.extension}"
            self._file = self._sink.open_part(staged)
        payload = self._sink.encode(batch)
        self._file.append(payload, rows=batch.num_items)
        self._rows += batch.num_items
        if self._settings.keeps_rows:
            lineage = lineage_of(batch)
            lineage.trail.written.append(Written(lineage.order, batch.rows))
        return int(payload.nbytes)

    def commit(self, partition: Partition) -> TaskEnd:
        """Finish the file and commit the partition, unless a task of it failed."""
        trail = join_sources(self._trails) if self._trails else Trail()
        trail.output_rows = self._rows
        whole = Lineage(partition.index, partition.id, trail=trail)
        if self.failed is not None:
            self.abort()
            return TaskEnd(whole, failed=self.failed, reason=self.reason)
        files = [] if self._file is None else self._file.close()
        self._file = None
        return TaskEnd(whole, entry=commit(self._sink, self._settings, partition, files, trail))

    def abort(self) -> None:
        """Remove the written files."""
        if self._file is not None:
            self._file.abort()
            self._file = None


def write_piece(sink: SinkStage, settings: RunSettings, batch: DocumentBatch) -> WrittenFile:
    """Write one batch as a piece of its partition."""
    lineage = lineage_of(batch)
    number = "-".join(map(str, lineage.order)) or "0"
    part = sink.open_piece(f"{settings.staging}/{lineage.partition_id}/{number}{sink.extension}")
    try:
        part.append(sink.encode(batch), rows=batch.num_items)
        (written,) = part.close()
    except BaseException:
        part.abort()
        raise
    lineage.trail.output_rows += batch.num_items
    if settings.keeps_rows:
        lineage.trail.written.append(Written(lineage.order, batch.rows))
    return written


def join_pieces(
    sink: SinkStage, settings: RunSettings, partition: Partition, pieces: Sequence[WrittenFile], trail: Trail
) -> ManifestEntry:
    """Join the pieces of a complete partition, in order, and commit it."""
    files: list[WrittenFile] = []
    if pieces:
        files.extend(sink.concatenate(pieces, f"{settings.staging}/{partition.id}{sink.extension}"))
    return commit(sink, settings, partition, files, trail)


def commit(
    sink: SinkStage, settings: RunSettings, partition: Partition, files: Sequence[WrittenFile], trail: Trail
) -> ManifestEntry:
    """Make the staged files the partition's output.

    Raises:
        InputError: One of its input files has changed since the run was planned.
        ResumeError: Another pipeline has taken over the output.
    """
    assert settings.output is not None
    for part in partition.ranges:
        try:
            found = os.stat(part.path)
        except (OSError, ValueError):
            continue  # not a local file, or removed meanwhile: what was read of it is as planned
        if part.stamp and (found.st_size, str(found.st_mtime_ns)) != (part.size, part.stamp):
            raise InputError(
                f"The input {part.path} was changed during the run ({part.size:,} bytes when the run was planned, now "
                f"{found.st_size:,}), so what was read may be a mix of old and new. Nothing of {partition.id} is "
                "committed. Run the same command again: finished partitions are kept, changed files are read again.",
                path=part.path,
                partition=partition.id,
            )
    folder = RunFolder(settings.output, settings.storage_options, record_path=settings.record)
    recorded = read_plan(folder)
    if recorded is not None and plan_digest(recorded) != settings.plan_digest:
        raise ResumeError(
            f"Another pipeline started to write to {settings.output} during this run, so nothing of {partition.id} is "
            "committed: the output must not become a mixture of two. Use a separate folder for each.",
            path=settings.output,
            partition=partition.id,
        )
    if not files and folder.ending is not None:  # a user who names a file expects it to exist, even without documents
        files = sink.open_part(f"{settings.staging}/{partition.id}{sink.extension}").close()
    return commit_partition(
        folder,
        partition,
        staged_files=list(files),
        trail=trail,
        plan_digest=settings.plan_digest,
        stage_order=settings.stage_names,
        read_from=None if settings.earlier is None else step_folder(settings.earlier, settings.storage_options),
        keeps_rows=settings.keeps_rows,
    )
