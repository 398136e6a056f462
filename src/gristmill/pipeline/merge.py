"""Puts additional documents into the committed files of a partition, in the order of their rows where that is known."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Collection, Sequence

import numpy as np
import pyarrow as pa

from gristmill.ledger.record.layout import RunFolder
from gristmill.ledger.record.manifest import ManifestEntry
from gristmill.ledger.record.trail import Rows, Trail
from gristmill.stages.source_sink import SinkStage
from gristmill.storage.atomic import WrittenFile
from gristmill.storage.compression import open_source
from gristmill.storage.parquet_blocks import open_parquet
from gristmill.tasks.columns import Columns, RecordColumns, TableColumns, records_of_lines
from gristmill.tasks.document import DocumentBatch
from gristmill.tracking.batch_attribution import concat_columns

_READ_BYTES = 1 << 20


def merged_files(
    folder: RunFolder,
    sink: SinkStage,
    entry: ManifestEntry,
    trail: Trail,
    outputs: Sequence[DocumentBatch],
    waiting: Collection[int],
    staging: str,
) -> tuple[list[WrittenFile], bool]:
    """The partition's output with `outputs` in it, staged for a new commit, and whether a run would have written it so.

    `waiting` are the rows that were in quarantine when the output was written.
    """
    parts: list[Columns] = [_read(folder, file.path) for file in entry.files]
    filled = [batch for batch in outputs if batch.num_items]
    if not parts and not filled:
        return [], True
    before = _kept_rows(entry, trail, waiting)
    as_read = before is not None
    if parts and before is not None:
        # If this does not give the files that are there, the run has cut or arranged its rows in another way.
        rewritten = _write(sink, f"{staging}/before/{entry.partition}", concat_columns(parts), _cuts(before, entry))
        as_read = [file.hash for file in rewritten] == [file.hash for file in entry.files]
        for file in rewritten:
            folder.remove(file.path)
    added_columns = [batch.columns for batch in filled]
    if parts and isinstance(parts[0], TableColumns):
        schema = parts[0].table().schema
        added_columns = [TableColumns(cast_where_possible(part.table(), schema)) for part in added_columns]
    columns = concat_columns([*parts, *added_columns])
    added = np.concatenate([np.array([], np.int64), *(batch.rows for batch in filled)])
    borders = [0, columns.num_rows]
    if before is not None:
        rows = np.concatenate([before, added])
        order = np.argsort(rows, kind="stable")
        columns = columns.take(order)
        borders = _cuts(rows[order], entry)
    return _write(sink, f"{staging}/{entry.partition}", columns, borders), as_read


def _cuts(rows: Rows, entry: ManifestEntry) -> list[int]:
    """Where rows of different batches of the source meet: each is compressed, or made a row group, by itself."""
    return sorted({0, len(rows), *np.searchsorted(rows, entry.batches).tolist()})


def _write(sink: SinkStage, path: str, columns: Columns, borders: Sequence[int]) -> list[WrittenFile]:
    part = sink.open_part(f"{path}{sink.extension}")
    try:
        for start, end in itertools.pairwise(borders):
            batch = DocumentBatch.from_columns(columns.slice(start, end - start))
            part.append(sink.encode(batch), rows=batch.num_items)
        return part.close()
    except BaseException:
        part.abort()
        raise


def cast_where_possible(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """`table` with the types that `schema` has for its columns, where every value can be one of these exactly."""
    for number, field in enumerate(table.schema):
        wanted = schema.field(field.name).type if field.name in schema.names else field.type
        if wanted != field.type:
            with contextlib.suppress(pa.ArrowException):
                table = table.set_column(number, pa.field(field.name, wanted), table.column(number).cast(wanted))
    return table


def _kept_rows(entry: ManifestEntry, trail: Trail, waiting: Collection[int]) -> Rows | None:
    """The row of each document in the output, if documents were only dropped, and not made or put in another order."""
    if any(counts.created for counts in list(trail.counts.values())[1:]):
        return None
    kept = np.ones(entry.row_numbers, bool)
    for decision in trail.decisions:
        kept[decision.rows[decision.rows >= 0]] = False
    kept[[row for row in waiting if 0 <= row < entry.row_numbers]] = False
    rows = np.flatnonzero(kept)
    return rows if len(rows) == entry.rows_written else None


def _read(folder: RunFolder, path: str) -> Columns:
    full = folder.join(path)
    if path.endswith(".parquet"):
        with open_parquet(full, storage_options=folder.storage_options) as opened:
            return TableColumns(opened.read())
    source = open_source(full, storage_options=folder.storage_options)
    data = bytearray()
    buffer = memoryview(bytearray(_READ_BYTES))
    try:
        while count := source.readinto(buffer):
            data += buffer[:count]
    finally:
        source.close()
    return RecordColumns(records_of_lines(np.frombuffer(bytes(data), np.uint8)))
