"""The record of a partition, continued from one step of a run to the next.

A pipeline with a deduplication runs in steps, with files between them. Each step reads the files of the previous one,
but its record covers everything so far: row numbers are those of the input, and counts, decisions, changes, cuts,
scores and quarantined records of earlier steps precede its own. The record of the last step is therefore that of the
whole run.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from gristmill.errors import ConservationError
from gristmill.ledger.record.layout import RunFolder
from gristmill.ledger.record.manifest import COMMITTED, Manifest, ManifestEntry
from gristmill.ledger.record.quarantine import parse_quarantine, quarantine_lines
from gristmill.ledger.record.shape import open_table
from gristmill.ledger.record.tables import parquet_bytes
from gristmill.ledger.record.trail import Rows, Trail, row_blocks

if TYPE_CHECKING:
    from gristmill.kernels.hashing import Hashes

Contents = dict[str, tuple[bytes, int | None]]
"""The files of a record: kind to bytes and rows."""


class EarlierStep:
    """A committed partition of the previous step.

    Args:
        folder: The folder of that step.
        partition: The id of the partition.

    Raises:
        ConservationError: The step has not committed this partition.
    """

    def __init__(self, folder: RunFolder, partition: str) -> None:
        entry = Manifest(folder).get(partition)
        if entry is None or entry.state != COMMITTED or "rows" not in entry.records:
            raise ConservationError(
                f"Partition {partition!r} is not in {folder.path}, the step that is being read. Something removed it "
                "during the run; run again.",
                partition=partition,
            )
        self.folder = folder
        self.entry = entry

    def rows(self) -> Rows:
        """The row number in the input of every document of the step's output."""
        return np.frombuffer(self._read("rows"), "<i8")

    def number_rows(self, trail: Trail) -> None:
        """Convert row numbers recorded for the step's output to those of the input."""
        numbers = np.append(self.rows(), -1)  # the last one is for rows of unknown origin
        for block in row_blocks(trail):
            block.rows = numbers[block.rows]
        for record in trail.quarantine:
            if record.row >= 0:
                record.row = int(numbers[record.row])

    def continued(self, own: ManifestEntry, contents: Contents) -> tuple[ManifestEntry, Contents]:
        """The entry and the record of a partition from its input to the end of the current step.

        Raises:
            ConservationError: The current step did not read what this one wrote.
        """
        before = self.entry
        reader, *stages = own.stages
        read = own.stages[reader]
        if read.rows_out != before.rows_written or read.quarantined:
            raise ConservationError(
                f"Partition {own.partition!r}: {before.rows_written} rows were written to {self.folder.path}, but "
                f"{read.rows_out} were read from there. The run cannot be trusted and the partition is not committed.",
                partition=own.partition,
                stage=reader,
            )
        counts = {**dict(list(before.stages.items())[:-1]), **{stage: own.stages[stage] for stage in stages}}
        entry = dataclasses.replace(
            own,
            source=before.source,
            stages=counts,
            rows_read=before.rows_read,
            rows_dropped=before.rows_dropped + own.rows_dropped,
            quarantined=before.quarantined + own.quarantined,
            row_numbers=before.row_numbers,
            damaged=before.damaged,
        )
        index = {kind: self._index(kind, contents) for kind in ("ids", "urls")}
        joined: Contents = {
            kind: (hashes.astype("<u8", copy=False).tobytes(), None)
            for kind, hashes in index.items()
            if hashes is not None
        }
        for kind in ("ledger", "changes", "cuts", "scores"):
            table = self._table(kind, contents, index["ids"])
            if table is not None:
                joined[kind] = (parquet_bytes(table), table.num_rows)
        quarantine = self._quarantine(contents, list(counts))
        joined |= {"quarantine": quarantine} if quarantine is not None else {}
        joined |= {"rows": contents["rows"]} if "rows" in contents else {}
        if "documents" in contents:
            joined["documents"] = self._documents(contents["documents"])
        return entry, joined

    def _read(self, kind: str) -> bytes:
        return self.folder.read(self.folder.join(self.entry.records[kind].path))

    def _index(self, kind: str, contents: Mapping[str, tuple[bytes, int | None]]) -> Hashes | None:
        """The hashes by row: those of the input or, if it has none, those assigned to documents later."""
        known = np.zeros(self.entry.row_numbers, np.uint64)
        if kind in contents:
            own = np.frombuffer(contents[kind][0], "<u8")[: len(known)]
            known[: len(own)] = own
        if kind in self.entry.records:
            first = np.frombuffer(self._read(kind), "<u8")
            known = np.where(first != 0, first, known)
        return known if known.any() else None

    def _table(self, kind: str, contents: Contents, ids: Hashes | None) -> pa.Table | None:
        """The rows of both steps: scores by stage, the others by row and then by stage."""
        tables = []
        if kind in self.entry.records:
            tables.append(_table_of(self._read(kind)))
        if kind in contents:
            own = _table_of(contents[kind][0])
            tables.append(_with_first_ids(own, ids) if kind == "ledger" else own)
        if not tables:
            return None
        table = pa.concat_tables(tables)
        if kind == "scores":
            place = table.schema.get_field_index("score")  # a name here, but a number in the other tables
            return table.set_column(place, "score", table.column(place).combine_chunks().dictionary_encode())
        rows = table.column("row").fill_null(-1).to_numpy()
        return table.take(pa.array(np.argsort(rows, kind="stable")))

    def _documents(self, content: tuple[bytes, int | None]) -> tuple[bytes, int | None]:
        """The destination of each document of a partition, by the row numbers of the input."""
        table = _table_of(content[0])
        numbers = np.append(self.rows(), -1)
        place = table.schema.get_field_index("row")
        own = table.set_column(place, table.schema.field(place), pa.array(numbers[table.column(place).to_numpy()]))
        return parquet_bytes(own), content[1]

    def _quarantine(self, contents: Contents, order: list[str]) -> tuple[bytes, int] | None:
        entries = []
        for found in (
            self._read("quarantine") if "quarantine" in self.entry.records else b"",
            contents["quarantine"][0] if "quarantine" in contents else b"",
        ):
            entries += parse_quarantine(found, partition=self.entry.partition)
        if not entries:
            return None
        records, ids = [item.record for item in entries], [item.id for item in entries]
        return quarantine_lines(records, stage_order=order, ids=ids), len(records)


def _table_of(data: bytes) -> pa.Table:
    return open_table(pa.BufferReader(data)).read(use_threads=False)


def _with_first_ids(table: pa.Table, ids: Hashes | None) -> pa.Table:
    """The decisions with the ids of the input instead of those assigned to documents later."""
    if ids is None or not table.num_rows:
        return table
    from gristmill.kernels.hashing import hash_column

    rows = table.column("row").fill_null(-1).to_numpy()
    texts = table.column("id").cast(pa.large_string()).combine_chunks()
    same: npt.NDArray[np.bool_] = (rows < 0) | (hash_column(texts) == ids[np.maximum(rows, 0)])
    place = table.schema.get_field_index("id")
    kept = pa.chunked_array([pc.if_else(pa.array(same), texts, None)])
    return table.set_column(place, "id", kept.cast(table.schema.field(place).type))
