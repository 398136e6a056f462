"""Committing a partition: check that its rows add up, write its record, move its files into place, then the entry.

A crash between any two steps leaves a pending entry or none, so nothing that counts as output. Files left behind are
listed in that entry, and the next commit of the partition replaces or removes them.
"""

from __future__ import annotations

import posixpath
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from operator import attrgetter
from typing import TYPE_CHECKING

import numpy as np
import xxhash

from gristmill.errors import ConservationError, OutputError
from gristmill.ledger.record.layout import PARTITION_FILES, RunFolder
from gristmill.ledger.record.manifest import COMMITTED, PENDING, DamagedFile, FileEntry, Manifest, ManifestEntry
from gristmill.ledger.record.quarantine import quarantine_lines
from gristmill.ledger.record.tables import ids_of_rows, index_hashes, ledger_table, parquet_bytes
from gristmill.ledger.record.trail import QUARANTINED, StageCount, Trail
from gristmill.storage.atomic import WrittenFile
from gristmill.storage.partitions import Partition

if TYPE_CHECKING:
    from gristmill.ledger.record.step_record import EarlierStep


def commit_partition(
    folder: RunFolder,
    partition: Partition,
    *,
    staged_files: Sequence[WrittenFile],
    trail: Trail,
    plan_digest: str,
    stage_order: Sequence[str],
    read_from: RunFolder | None = None,
    keeps_rows: bool = False,
) -> ManifestEntry:
    """Make the output of a partition final.

    Args:
        folder: The output.
        partition: What was read.
        staged_files: The finished data files, anywhere in the same store (or local, for another store); their names
            begin with the partition's id, and are kept. Those with a `record` go into the record of the partition.
        trail: Everything recorded about the partition, merged.
        plan_digest: The digest of the plan that ran.
        stage_order: The stages that documents pass, from the reader to the writer.
        read_from: The step whose output was read: the entry and the record continue those of that step.
        keeps_rows: Record the input row of each written document.

    Raises:
        ConservationError: The rows do not add up; nothing was written.
        OutputError: A file could not be written or moved; the partition is not committed.
    """
    step: EarlierStep | None = None
    if read_from is not None:
        from gristmill.ledger.record.step_record import EarlierStep

        step = EarlierStep(read_from, partition.id)
        step.number_rows(trail)
    counts = {stage: trail.counts.get(stage, StageCount()) for stage in stage_order}
    data_files: list[WrittenFile] = []
    of_record: list[WrittenFile] = []
    for one in staged_files:
        (of_record if one.record else data_files).append(one)
    staged_files = data_files
    rows_dropped = check_conservation(partition.id, trail, counts, staged_files)
    rows_read = row_numbers = source_rows(counts)
    for identity in trail.identities:
        row_numbers = max(row_numbers, int(identity.rows.max(initial=-1)) + 1)
    if trail.quarantine:  # in a sample the last row can be one of them
        row_numbers = max(row_numbers, 1 + max(map(attrgetter("row"), trail.quarantine)))
    contents = _record_contents(trail, stage_order, row_numbers)
    for extra in of_record:
        contents[extra.record] = (folder.read(extra.path), extra.rows)
    if keeps_rows:
        written = sorted(trail.written, key=attrgetter("order"))
        rows = np.concatenate([np.zeros(0, np.int64), *(block.rows for block in written)])
        contents["rows"] = (rows.astype("<i8", copy=False).tobytes(), None)
    committed = ManifestEntry(
        partition=partition.id,
        index=partition.index,
        source=tuple(partition.to_dict()["ranges"]),
        fingerprint=partition.fingerprint(),
        plan=plan_digest,
        files=_data_files(folder, partition, staged_files),
        stages=counts,
        rows_read=rows_read,
        rows_written=trail.output_rows,
        rows_dropped=rows_dropped,
        quarantined=len(trail.quarantine),
        row_numbers=row_numbers,
        damaged=_damaged_files(partition, trail) if trail.quarantine else None,
    )
    if step is not None:
        committed, contents = step.continued(committed, contents)
    records: dict[str, FileEntry] = {}
    for kind, (data, length) in contents.items():
        place = folder.relative(folder.record_path(kind, partition.id))
        records[kind] = FileEntry(place, len(data), "xxh3:" + xxhash.xxh3_128_hexdigest(data), length)
    committed = replace(committed, records=records)
    manifest = Manifest(folder)
    earlier = manifest.get(partition.id)
    leftovers: list[FileEntry] = []
    if earlier is not None:
        own = committed.all_files
        if earlier == committed and all(folder.size(folder.join(file.path)) == file.size for file in own):
            # Another process was faster. Announcing the partition again would briefly make it pending.
            for staged, final in zip(staged_files, committed.files, strict=True):
                if staged.path != folder.join(final.path):
                    folder.remove(staged.path)
            return committed
        paths = {file.path for file in own}
        leftovers = [file for file in earlier.all_files if file.path not in paths]
    # From here on the entry lists every file that may exist, and nothing counts until it is committed.
    manifest.add(replace(committed, state=PENDING, files=(*committed.files, *leftovers)))
    for kind in {**PARTITION_FILES, **contents}:
        path = folder.record_path(kind, partition.id)
        if kind in contents:
            folder.write(path, contents[kind][0])
        else:
            folder.remove(path)
    for file in leftovers:
        folder.remove(folder.join(file.path))
    for staged, final in zip(staged_files, committed.files, strict=True):
        target = folder.join(final.path)
        if staged.path != target:
            folder.move(staged.path, target)
    manifest.add(committed)
    return committed


def remove_partition(folder: RunFolder, partition_id: str) -> bool:
    """Remove a partition from the output: first its entry is invalidated, then its files are removed.

    Returns whether there was anything.
    """
    manifest = Manifest(folder)
    entry = manifest.get(partition_id)
    if entry is not None and entry.state == COMMITTED:
        manifest.add(replace(entry, state=PENDING))
    paths = [folder.join(file.path) for file in (entry.all_files if entry else ())]
    paths += [folder.record_path(kind, partition_id) for kind in (*PARTITION_FILES, "manifest")]
    removed = [folder.remove(path) for path in paths]
    return any(removed)


def check_conservation(
    partition_id: str, trail: Trail, counts: dict[str, StageCount], staged_files: Sequence[WrittenFile]
) -> int:
    """The number of dropped rows of a partition, after checking that every row is accounted for.

    Every dropped row must have a decision and every quarantined one a record, or `why` could not answer.

    Args:
        partition_id: The partition.
        trail: Everything recorded about it.
        counts: The counts of the stages of the plan among these, in plan order.
        staged_files: The finished data files.

    Raises:
        ConservationError: The rows of a stage, between two stages, in the files or in the ledger do not add up.
    """
    # Rows of a stage that the plan does not have would be missing from every sum.
    unknown = set(map(attrgetter("stage"), [*trail.decisions, *trail.quarantine])).difference(counts)
    for stage, count in trail.counts.items():
        if stage not in counts and count != StageCount():
            unknown.add(stage)
    if unknown:
        raise ConservationError(
            f"Partition {partition_id!r} has rows of stages that are not in the plan: "
            f"{', '.join(sorted(unknown))}. The plan has {', '.join(counts)}.",
            partition=partition_id,
            stage=min(unknown),
        )
    found = find_imbalance(counts)
    if found:
        stage, text = found
        raise ConservationError(
            f"Partition {partition_id!r}: {text} The run cannot be trusted and the partition is not committed.",
            partition=partition_id,
            stage=stage,
        )
    end, last = next(reversed(counts.items()), ("", StageCount()))
    rows_written = sum(map(attrgetter("rows"), staged_files))
    for what, number in (("the files hold", rows_written), ("the writer reported", trail.output_rows)):
        if number != last.rows_out:
            raise ConservationError(
                f"Partition {partition_id!r}: {last.rows_out} rows came out of the last stage {end!r}, but {what} "
                f"{number}.",
                partition=partition_id,
                stage=end,
                rows_out=last.rows_out,
                rows_written=number,
            )
    counted: Counter[tuple[str, str, str]] = Counter()
    for stage, count in counts.items():
        for what, rows in (("dropped", count.dropped), (QUARANTINED, count.quarantined)):
            for name, number in rows.items():
                counted[stage, what, name] += number
    recorded: Counter[tuple[str, str, str]] = Counter()
    for block in trail.decisions:
        if block.outcome != QUARANTINED:
            recorded[block.stage, "dropped", block.reason] += len(block.rows)
    for record in trail.quarantine:
        recorded[record.stage, QUARANTINED, record.cause] += 1
    for key in sorted({*counted, *recorded}):
        if counted[key] != recorded[key]:
            stage, what, name = key
            raise ConservationError(
                f"Partition {partition_id!r}: stage {stage!r} counts {counted[key]} rows {what} for {name!r}, but the "
                f"ledger has {recorded[key]} of them.",
                partition=partition_id,
                stage=stage,
                reason=name,
            )
    return counted.total() - len(trail.quarantine)


def source_rows(counts: Mapping[str, StageCount]) -> int:
    """The rows of the source: created by the first stage that has rows, or passed to it as initial tasks."""
    for count in counts.values():
        if count.rows_in + count.created:
            return count.rows_in + count.created
    return 0


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


def _record_contents(trail: Trail, stage_order: Sequence[str], row_numbers: int) -> dict[str, tuple[bytes, int | None]]:
    """The files of a partition's record that are not empty: kind to bytes and rows."""
    contents: dict[str, tuple[bytes, int | None]] = {}
    for kind in ("ledger", "changes", "cuts", "scores"):
        table = ledger_table(kind, trail, stage_order)
        if table.num_rows:
            contents[kind] = (parquet_bytes(table), table.num_rows)
    for kind, hashes in zip(("ids", "urls"), index_hashes(trail.identities, row_numbers), strict=True):
        if hashes is not None:
            contents[kind] = (hashes.astype("<u8", copy=False).tobytes(), None)
    if trail.quarantine:
        rows = np.array([record.row for record in trail.quarantine], np.int64)
        names = ids_of_rows(trail.identities, rows).to_pylist()
        lines = quarantine_lines(trail.quarantine, stage_order=stage_order, ids=names)
        contents["quarantine"] = (lines, len(trail.quarantine))
    return contents


def _damaged_files(partition: Partition, trail: Trail) -> tuple[DamagedFile, ...] | None:
    """The damaged files of the source, from what the reader quarantined; None if there are none."""
    damage = sorted((record for record in trail.quarantine if record.lost), key=attrgetter("row"))
    if not damage:
        return None
    names = {part.path: part.relative for part in partition.ranges}
    return tuple(
        DamagedFile(
            names.get(record.file, record.file), record.cause, record.detail, record.lost, record.row, record.salvaged
        )
        for record in damage
    )


def _data_files(folder: RunFolder, partition: Partition, staged_files: Sequence[WrittenFile]) -> tuple[FileEntry, ...]:
    """The data files of a partition with their paths in the output."""
    files, partition_id = [], partition.id
    for file in staged_files:
        name = posixpath.basename(file.path.replace("\\", "/"))
        if not name.startswith(partition_id):
            raise OutputError(
                f"The staged file {file.path!r} cannot get its final name: it must begin with the partition id "
                f"{partition_id!r}.",
                path=file.path,
            )
        place = folder.relative(folder.data_path(partition.name or partition_id, name[len(partition_id) :]))
        files.append(FileEntry(place, file.size, file.hash, file.rows))
    if folder.ending is not None and len(files) > 1:
        raise OutputError(
            f"The output {folder.path} is a single file, but its documents need {len(files)}, because their columns or "
            "types differ. Write to a folder, or name the columns to write (fields of the writer).",
            path=folder.path,
        )
    return tuple(files)
