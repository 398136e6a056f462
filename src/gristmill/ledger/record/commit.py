"""Committing a partition: check that its rows add up, write its record, move its files into place, then the entry.

A crash between any two steps leaves an entry that is still pending, or none: nothing that counts as output. What was
left behind is listed in that entry, and is replaced or removed by the next commit of the partition.
"""

from __future__ import annotations

import posixpath
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa
import xxhash

from gristmill.errors import ConservationError, OutputError
from gristmill.ledger.record.identity import IdLookup, index_hashes
from gristmill.ledger.record.layout import RunFolder
from gristmill.ledger.record.manifest import COMMITTED, PENDING, FileEntry, Manifest, ManifestEntry, source_of
from gristmill.ledger.record.quarantine import quarantine_lines
from gristmill.ledger.record.tables import changes_table, decision_table, parquet_bytes, scores_table
from gristmill.ledger.record.trail import QUARANTINED, StageCount, Trail
from gristmill.storage.atomic import WrittenFile
from gristmill.storage.partitions import Partition


def commit_partition(
    folder: RunFolder,
    partition: Partition,
    *,
    staged_files: Sequence[WrittenFile],
    trail: Trail,
    plan_digest: str,
    stage_order: Sequence[str],
    extension: str | None = None,
    source_stage: str | None = None,
    fsync: bool = False,
) -> ManifestEntry:
    """Make the output of a partition final.

    Args:
        folder: The output folder.
        partition: What was read.
        staged_files: The finished data files, anywhere in the same store (or local, for another store).
        trail: Everything recorded about the partition, merged.
        plan_digest: The digest of the plan that ran.
        stage_order: The stages that documents pass, from the reader to the writer.
        extension: The end of the final name, with its dot; by default a staged file keeps its own name, which must
            begin with the partition's id.
        source_stage: The stage that creates the rows, when it is not the first of `stage_order`.
        fsync: Wait for the disk before the entry is written, so that a power failure cannot undo a commit.

    Raises:
        ConservationError: The rows do not add up; nothing was written.
        OutputError: A file could not be written or moved; the partition is not committed.
    """
    _check_known(partition.id, trail, stage_order)
    if source_stage is not None:
        # What comes before the source are files, not rows.
        stage_order = list(stage_order)[list(stage_order).index(source_stage) :]
    rows_written = sum(file.rows for file in staged_files)
    rows_read = check_conservation(partition.id, trail, stage_order, rows_written=rows_written)
    counts = {stage: trail.counts.get(stage, StageCount()) for stage in stage_order}
    highest = [int(identity.rows.max()) for identity in trail.identities if len(identity.rows)]
    row_numbers = max(rows_read, max(highest, default=-1) + 1)
    contents = _record_contents(folder, partition.id, trail, stage_order, row_numbers)
    manifest = Manifest(folder)
    entry = ManifestEntry(
        partition=partition.id,
        index=partition.index,
        source=source_of(partition),
        fingerprint=partition.fingerprint(),
        plan=plan_digest,
        files=tuple(
            FileEntry(_final_name(folder, partition.id, file, number, extension), file.size, file.hash, file.rows)
            for number, file in enumerate(staged_files)
        ),
        records={
            kind: FileEntry(folder.relative(path), len(data), "xxh3:" + xxhash.xxh3_128_hexdigest(data), rows)
            for kind, (path, data, rows) in contents.items()
        },
        stages=counts,
        rows_read=rows_read,
        rows_written=trail.output_rows,
        rows_dropped=sum(sum(count.dropped.values()) for count in counts.values()),
        quarantined=sum(sum(count.quarantined.values()) for count in counts.values()),
        row_numbers=row_numbers,
        state=PENDING,
    )
    earlier = manifest.get(partition.id)
    committed = replace(entry, state=COMMITTED)
    if earlier is not None and earlier.to_dict() == committed.to_dict() and _intact(folder, earlier):
        # Another process was faster. Announcing the partition again would make it pending for a moment.
        for staged, final in zip(staged_files, entry.files, strict=True):
            if staged.path != folder.join(final.path):
                folder.remove(staged.path)
        return committed
    # From here on an entry names every file that may lie around, and nothing counts until it says committed.
    leftovers = tuple(file for file in (earlier.all_files if earlier else ()) if file.path not in _paths(entry))
    announced = replace(entry, files=(*entry.files, *leftovers))
    manifest.add(announced, fsync=fsync)
    for path, data, _ in contents.values():
        folder.write(path, data, fsync=fsync)
    for path in folder.record_files(partition.id):
        if folder.relative(path) not in _paths(entry):
            folder.remove(path)
    for file in leftovers:
        folder.remove(folder.join(file.path))
    for staged, final in zip(staged_files, entry.files, strict=True):
        _place(folder, staged, final)
    manifest.add(committed, fsync=fsync)
    return committed


def remove_partition(folder: RunFolder, partition_id: str) -> bool:
    """Take a partition out of the output: first its entry stops counting, then its files go.

    Returns whether there was anything.
    """
    manifest = Manifest(folder)
    entry = manifest.get(partition_id)
    if entry is None:
        found = [folder.remove(path) for path in folder.record_files(partition_id)]
        return folder.remove(folder.manifest_file(partition_id)) or any(found)
    if entry.state == COMMITTED:
        manifest.add(replace(entry, state=PENDING))
    for file in entry.all_files:
        folder.remove(folder.join(file.path))
    for path in folder.record_files(partition_id):
        folder.remove(path)
    folder.remove(folder.manifest_file(partition_id))
    return True


def check_conservation(partition_id: str, trail: Trail, stage_order: Sequence[str], *, rows_written: int) -> int:
    """The rows that the source of a partition created, once it is sure that every one of them is accounted for.

    Raises:
        ConservationError: The rows of a stage, or between two stages, do not add up.
    """
    counts = {stage: trail.counts.get(stage, StageCount()) for stage in stage_order}
    found = find_imbalance(counts)
    if found:
        stage, text = found
        raise ConservationError(
            f"Partition {partition_id!r}: {text} The run cannot be trusted and the partition is not committed.",
            partition=partition_id,
            stage=stage,
        )
    last = trail.counts.get(stage_order[-1], StageCount()).rows_out if stage_order else 0
    for what, number in (("the files hold", rows_written), ("the writer reported", trail.output_rows)):
        if number != last:
            raise ConservationError(
                f"Partition {partition_id!r}: {last} rows came out of the last stage "
                f"{(stage_order[-1] if stage_order else '')!r}, but {what} {number}.",
                partition=partition_id,
                stage=stage_order[-1] if stage_order else "",
                rows_out=last,
                rows_written=number,
            )
    _check_decisions(partition_id, trail, stage_order)
    return source_rows(counts)


def source_rows(counts: Mapping[str, StageCount]) -> int:
    """The rows of the source: what the first stage with any created, or was given where documents came by hand."""
    return next((count.rows_in + count.created for count in counts.values() if count.rows_in + count.created), 0)


def find_imbalance(counts: Mapping[str, StageCount]) -> tuple[str, str] | None:
    """The first stage whose rows do not add up, with a sentence that says how; None if all do."""
    before: str | None = None
    for stage, count in counts.items():
        gone, held = sum(count.dropped.values()), sum(count.quarantined.values())
        if not count.conserves():
            return stage, (
                f"the rows of stage {stage!r} do not add up: {count.rows_in} in + {count.created} created is not "
                f"{count.rows_out} out + {gone} dropped + {held} quarantined."
            )
        if before is not None and counts[before].rows_out != count.rows_in:
            return stage, (
                f"{counts[before].rows_out} rows came out of stage {before!r}, but {count.rows_in} went into "
                f"the next one, {stage!r}."
            )
        before = stage
    return None


def _check_known(partition_id: str, trail: Trail, stage_order: Sequence[str]) -> None:
    """Rows of a stage that the plan does not have would be missing from every sum."""
    speaking = {stage for stage, count in trail.counts.items() if count != StageCount()}
    speaking.update(block.stage for block in trail.decisions)
    speaking.update(record.stage for record in trail.quarantine)
    unknown = sorted(speaking.difference(stage_order))
    if unknown:
        raise ConservationError(
            f"Partition {partition_id!r} has rows of stages that the plan does not have: {', '.join(unknown)}. The "
            f"plan has {', '.join(stage_order)}.",
            partition=partition_id,
            stage=unknown[0],
        )


def _check_decisions(partition_id: str, trail: Trail, stage_order: Sequence[str]) -> None:
    """Every dropped row must have a decision and every quarantined one a record, or `why` could not answer."""
    decided: dict[tuple[str, str], int] = {}
    held: dict[tuple[str, str], int] = {}
    for block in trail.decisions:
        if block.outcome != QUARANTINED:
            decided[block.stage, block.reason] = decided.get((block.stage, block.reason), 0) + len(block.rows)
    for record in trail.quarantine:
        held[record.stage, record.cause] = held.get((record.stage, record.cause), 0) + 1
    for stage in stage_order:
        count = trail.counts.get(stage, StageCount())
        for what, counted, recorded in (("dropped", count.dropped, decided), ("quarantined", count.quarantined, held)):
            names = {*counted, *(name for at, name in recorded if at == stage)}
            for name in sorted(names):
                if counted.get(name, 0) != recorded.get((stage, name), 0):
                    raise ConservationError(
                        f"Partition {partition_id!r}: stage {stage!r} counts {counted.get(name, 0)} rows {what} for "
                        f"{name!r}, but the ledger has {recorded.get((stage, name), 0)} of them.",
                        partition=partition_id,
                        stage=stage,
                        reason=name,
                    )


def _record_contents(
    folder: RunFolder, partition_id: str, trail: Trail, stage_order: Sequence[str], row_numbers: int
) -> dict[str, tuple[str, bytes, int | None]]:
    """The files of a partition's record that are not empty: kind to (path, bytes, rows)."""
    contents: dict[str, tuple[str, bytes, int | None]] = {}
    tables: list[tuple[str, str, pa.Table]] = [
        ("ledger", folder.ledger_file(partition_id), decision_table(trail, stage_order)),
        ("changes", folder.changes_file(partition_id), changes_table(trail, stage_order)),
        ("scores", folder.scores_file(partition_id), scores_table(trail, stage_order)),
    ]
    for kind, path, table in tables:
        if table.num_rows:
            contents[kind] = (path, parquet_bytes(table), table.num_rows)
    ids, urls = index_hashes(trail.identities, row_numbers)
    indexes = (("ids", folder.ids_file(partition_id), ids), ("urls", folder.urls_file(partition_id), urls))
    for kind, path, hashes in indexes:
        if hashes is not None:
            contents[kind] = (path, hashes.astype("<u8", copy=False).tobytes(), None)
    if trail.quarantine:
        rows = np.array([record.row for record in trail.quarantine], np.int64)
        names = IdLookup(trail.identities).take(rows).to_pylist()
        lines = quarantine_lines(trail.quarantine, stage_order=stage_order, ids=names)
        contents["quarantine"] = (folder.quarantine_file(partition_id), lines, len(trail.quarantine))
    return contents


def _final_name(folder: RunFolder, partition_id: str, file: WrittenFile, number: int, extension: str | None) -> str:
    name = posixpath.basename(file.path.replace("\\", "/"))
    if extension is not None:
        return folder.relative(folder.data_file(partition_id, (f".{number}" if number else "") + extension))
    if not name.startswith(partition_id):
        raise OutputError(
            f"The staged file {file.path!r} cannot be given its final name: it must begin with the partition id "
            f"{partition_id!r}, or the extension must be given.",
            path=file.path,
        )
    return folder.relative(folder.data_file(partition_id, name[len(partition_id) :]))


def _intact(folder: RunFolder, entry: ManifestEntry) -> bool:
    """Whether every file of an entry is there with its size."""
    return all(folder.size(folder.join(file.path)) == file.size for file in entry.all_files)


def _place(folder: RunFolder, staged: WrittenFile, final: FileEntry) -> None:
    target = folder.join(final.path)
    if staged.path == target:
        return
    try:
        folder.move(staged.path, target)
    except FileNotFoundError as error:
        raise _vanished(staged.path, target) from error
    except OutputError as error:
        if isinstance(error.__cause__, FileNotFoundError):
            raise _vanished(staged.path, target) from error
        raise


def _vanished(source: str, target: str) -> OutputError:
    return OutputError(
        f"The staged file {source!r} is gone, so {target!r} could not be put in place. Something cleaned the staging "
        "folder during the run; run again to redo the partition.",
        path=source,
    )


def _paths(entry: ManifestEntry) -> set[str]:
    return {file.path for file in entry.all_files}
