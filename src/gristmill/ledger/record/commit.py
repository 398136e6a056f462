"""Committing a partition: check that its rows add up, write its record, move its files into place, then the entry.

A crash between any two steps leaves an entry that is still pending, or none: nothing that counts as output. What was
left behind is listed in that entry, and is replaced or removed by the next commit of the partition.
"""

from __future__ import annotations

import posixpath
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import xxhash

from gristmill.errors import ConservationError, OutputError
from gristmill.ledger.record.identity import ids_of_rows, index_hashes
from gristmill.ledger.record.layout import PARTITION_FILES, RunFolder
from gristmill.ledger.record.manifest import COMMITTED, PENDING, FileEntry, Manifest, ManifestEntry
from gristmill.ledger.record.quarantine import quarantine_lines
from gristmill.ledger.record.tables import ledger_table, parquet_bytes
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
) -> ManifestEntry:
    """Make the output of a partition final.

    Args:
        folder: The output folder.
        partition: What was read.
        staged_files: The finished data files, anywhere in the same store (or local, for another store); their names
            begin with the partition's id, and are kept.
        trail: Everything recorded about the partition, merged.
        plan_digest: The digest of the plan that ran.
        stage_order: The stages that documents pass, from the reader to the writer.

    Raises:
        ConservationError: The rows do not add up; nothing was written.
        OutputError: A file could not be written or moved; the partition is not committed.
    """
    rows_written = sum(file.rows for file in staged_files)
    rows_read = check_conservation(partition.id, trail, stage_order, rows_written=rows_written)
    counts = {stage: trail.counts.get(stage, StageCount()) for stage in stage_order}
    highest = [int(identity.rows.max()) for identity in trail.identities if len(identity.rows)]
    row_numbers = max(rows_read, max(highest, default=-1) + 1)
    contents = _record_contents(trail, stage_order, row_numbers)
    manifest = Manifest(folder)
    entry = ManifestEntry(
        partition=partition.id,
        index=partition.index,
        source=tuple(partition.to_dict()["ranges"]),
        fingerprint=partition.fingerprint(),
        plan=plan_digest,
        files=tuple(
            FileEntry(_final_name(folder, partition.id, file), file.size, file.hash, file.rows) for file in staged_files
        ),
        records={
            kind: FileEntry(
                folder.relative(folder.record_path(kind, partition.id)),
                len(data),
                "xxh3:" + xxhash.xxh3_128_hexdigest(data),
                rows,
            )
            for kind, (data, rows) in contents.items()
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
    if earlier == committed and all(folder.size(folder.join(file.path)) == file.size for file in entry.all_files):
        # Another process was faster. Announcing the partition again would make it pending for a moment.
        for staged, final in zip(staged_files, entry.files, strict=True):
            if staged.path != folder.join(final.path):
                folder.remove(staged.path)
        return committed
    # From here on an entry names every file that may lie around, and nothing counts until it says committed.
    own = {file.path for file in entry.all_files}
    leftovers = tuple(file for file in (earlier.all_files if earlier else ()) if file.path not in own)
    announced = replace(entry, files=(*entry.files, *leftovers))
    manifest.add(announced)
    for kind in PARTITION_FILES:
        path = folder.record_path(kind, partition.id)
        if kind in contents:
            folder.write(path, contents[kind][0])
        else:
            folder.remove(path)
    for file in leftovers:
        folder.remove(folder.join(file.path))
    for staged, final in zip(staged_files, entry.files, strict=True):
        _place(folder, staged, final)
    manifest.add(committed)
    return committed


def remove_partition(folder: RunFolder, partition_id: str) -> bool:
    """Take a partition out of the output: first its entry stops counting, then its files go.

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


def check_conservation(partition_id: str, trail: Trail, stage_order: Sequence[str], *, rows_written: int) -> int:
    """The rows that the source of a partition created, once it is sure that every one of them is accounted for.

    Raises:
        ConservationError: The rows of a stage, or between two stages, do not add up.
    """
    # Rows of a stage that the plan does not have would be missing from every sum.
    used = {stage for stage, count in trail.counts.items() if count != StageCount()}
    used.update(block.stage for block in trail.decisions)
    used.update(record.stage for record in trail.quarantine)
    unknown = sorted(used.difference(stage_order))
    if unknown:
        raise ConservationError(
            f"Partition {partition_id!r} has rows of stages that the plan does not have: {', '.join(unknown)}. The "
            f"plan has {', '.join(stage_order)}.",
            partition=partition_id,
            stage=unknown[0],
        )
    counts = {stage: trail.counts.get(stage, StageCount()) for stage in stage_order}
    found = find_imbalance(counts)
    if found:
        stage, text = found
        raise ConservationError(
            f"Partition {partition_id!r}: {text} The run cannot be trusted and the partition is not committed.",
            partition=partition_id,
            stage=stage,
        )
    end = stage_order[-1] if stage_order else ""
    last = counts[end].rows_out if stage_order else 0
    for what, number in (("the files hold", rows_written), ("the writer reported", trail.output_rows)):
        if number != last:
            raise ConservationError(
                f"Partition {partition_id!r}: {last} rows came out of the last stage {end!r}, but {what} {number}.",
                partition=partition_id,
                stage=end,
                rows_out=last,
                rows_written=number,
            )
    _check_decisions(partition_id, trail, counts)
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


def _check_decisions(partition_id: str, trail: Trail, counts: Mapping[str, StageCount]) -> None:
    """Every dropped row must have a decision and every quarantined one a record, or `why` could not answer."""
    counted: Counter[tuple[str, str, str]] = Counter()
    for stage, count in counts.items():
        counted.update({(stage, "dropped", reason): number for reason, number in count.dropped.items()})
        counted.update({(stage, QUARANTINED, cause): number for cause, number in count.quarantined.items()})
    recorded = Counter((record.stage, QUARANTINED, record.cause) for record in trail.quarantine)
    for block in trail.decisions:
        if block.outcome != QUARANTINED:
            recorded[block.stage, "dropped", block.reason] += len(block.rows)
    for stage, what, name in sorted({*counted, *recorded}):
        key = (stage, what, name)
        if counted[key] != recorded[key]:
            raise ConservationError(
                f"Partition {partition_id!r}: stage {stage!r} counts {counted[key]} rows {what} for {name!r}, but the "
                f"ledger has {recorded[key]} of them.",
                partition=partition_id,
                stage=stage,
                reason=name,
            )


def _record_contents(trail: Trail, stage_order: Sequence[str], row_numbers: int) -> dict[str, tuple[bytes, int | None]]:
    """The files of a partition's record that are not empty: kind to bytes and rows."""
    contents: dict[str, tuple[bytes, int | None]] = {}
    for kind in ("ledger", "changes", "scores"):
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


def _final_name(folder: RunFolder, partition_id: str, file: WrittenFile) -> str:
    name = posixpath.basename(file.path.replace("\\", "/"))
    if not name.startswith(partition_id):
        raise OutputError(
            f"The staged file {file.path!r} cannot be given its final name: it must begin with the partition id "
            f"{partition_id!r}.",
            path=file.path,
        )
    return folder.relative(folder.data_path(partition_id, name[len(partition_id) :]))


def _place(folder: RunFolder, staged: WrittenFile, final: FileEntry) -> None:
    target = folder.join(final.path)
    if staged.path == target:
        return
    try:
        folder.move(staged.path, target)
    except OSError as error:
        if not isinstance(error.__cause__ or error, FileNotFoundError):
            raise
        raise OutputError(
            f"The staged file {staged.path!r} is gone, so {target!r} could not be put in place. Something cleaned the "
            "staging folder during the run; run again to redo the partition.",
            path=staged.path,
        ) from error
