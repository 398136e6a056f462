"""Reads texts for the report again from the input and output of a run: examples, lengths and languages."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from gristmill.errors import GristmillError
from gristmill.ledger.ask.lookup import Record, parsed, source_of, text_of
from gristmill.ledger.record.layout import RunFolder
from gristmill.ledger.record.manifest import ManifestEntry
from gristmill.storage.files import StorageOptions
from gristmill.storage.partitions import BadRecord, FileRange, Partition

if TYPE_CHECKING:
    from gristmill.storage.parquet_blocks import TableBlock

Place = tuple[str, int]
"""The partition and the row number of a document."""

_LANGUAGES = ("language", "lang", "language_code")
_BLOCK_BYTES = 1 << 20
_MAX_RECORD_BYTES = 16 << 20
"""Longer documents are skipped: the page could show only a little of them, and reading them costs memory."""
_GIVEN = "initial_tasks["
_MAX_LANGUAGES = 12
_LENGTH_STEPS = [0, *(round(10 ** (step / 3)) for step in range(3, 22))]
"""Lower bounds of the length classes in characters: three per order of magnitude."""


class TextReader:
    """Reads documents again, within a budget.

    Args:
        folder: The run.
        text_field: Text column, if a stage does not name another one.
        budget: Maximum number of bytes to read.
        documents: Number of documents per partition whose lengths and languages are counted.

    Attributes:
        found: The requested documents.
        before: Documents of the input.
        after: Documents of the output.
        problems: What could not be read, by partition.
    """

    def __init__(self, folder: RunFolder, text_field: str, *, budget: int, documents: int) -> None:
        self.folder = folder
        self.text_field = text_field
        self.budget = budget
        self.documents = documents
        self.found: dict[Place, Record] = {}
        self.before: list[Record] = []
        self.after: list[Record] = []
        self.problems: dict[str, str] = {}

    def read_input(self, entry: ManifestEntry, wanted: Collection[int]) -> None:
        """Find the documents with these row numbers in the input of a partition, and count its first ones."""
        partition, left_out = source_of(entry)
        if any(part.relative.startswith(_GIVEN) for part in partition.ranges):
            self.problems[entry.partition] = "The documents were passed as tasks and are not in any file."
            return
        missing, counted = set(wanted), 0
        try:
            for row, record in self._records(partition, missing, left_out, None):
                if counted < self.documents:
                    self.before.append(record)
                    counted += 1
                if row in missing:
                    missing.discard(row)
                    self.found[entry.partition, row] = record
                if not missing and counted >= self.documents:
                    return
        except (OSError, GristmillError, ValueError) as error:
            self.problems[entry.partition] = str(error)

    def read_output(self, entry: ManifestEntry) -> None:
        """Count the first documents in the output of a partition."""
        ranges = [FileRange(self.folder.join(file.path), file.path, file.size, "", 0, -1, True) for file in entry.files]
        partition = Partition(0, entry.partition, tuple(ranges))
        try:
            for number, (_, record) in enumerate(self._records(partition, (), {}, self.folder.storage_options), 1):
                self.after.append(record)
                if number >= self.documents:
                    return
        except (OSError, GristmillError, ValueError) as error:
            self.problems.setdefault("output", str(error))

    def _records(
        self,
        partition: Partition,
        wanted: Collection[int],
        left_out: Mapping[str, BadRecord],
        options: StorageOptions,
    ) -> Iterator[tuple[int, Record]]:
        """The first documents of a partition and the requested ones, until the budget is spent."""
        if any(part.reading or ".parquet" in part.relative.lower() for part in partition.ranges):
            yield from self._rows(partition, wanted, left_out, options)
            return
        from gristmill.storage.jsonl_blocks import read_blocks

        counted = 0
        blocks = read_blocks(
            partition,
            block_bytes=_BLOCK_BYTES,
            max_record_bytes=_MAX_RECORD_BYTES,
            left_out=left_out,
            storage_options=options,
        )
        for block in blocks:
            self.budget -= block.nbytes
            first = np.arange(len(block.rows)) < self.documents - counted
            counted += len(block.rows)
            for at in np.flatnonzero(first | np.isin(block.rows, list(wanted))).tolist():
                record = parsed(block.buffer[int(block.starts[at]) : int(block.ends[at])].tobytes())
                if record is not None:
                    yield int(block.rows[at]), record
            if self.budget <= 0:
                return

    def _rows(
        self,
        partition: Partition,
        wanted: Collection[int],
        left_out: Mapping[str, BadRecord],
        options: StorageOptions,
    ) -> Iterator[tuple[int, Record]]:
        from gristmill.storage.parquet_blocks import read_parquet_blocks, unified_schema
        from gristmill.storage.row_blocks import read_row_blocks

        counted = 0
        read: Callable[..., Iterator[TableBlock]] = read_row_blocks
        if not any(part.reading for part in partition.ranges):
            schema = unified_schema(partition.ranges, storage_options=options)
            fields = [name for name in schema.names if name in (self.text_field, "id", *_LANGUAGES)]
            read = partial(read_parquet_blocks, schema=schema, fields=fields or None)
        blocks = read(
            partition,
            block_bytes=_BLOCK_BYTES,
            max_record_bytes=_MAX_RECORD_BYTES,
            left_out=left_out,
            storage_options=options,
        )
        for block in blocks:
            self.budget -= block.table.nbytes
            first = np.arange(len(block.rows)) < self.documents - counted
            counted += len(block.rows)
            chosen = np.flatnonzero(first | np.isin(block.rows, list(wanted)))
            records = block.table.take(chosen).to_pylist() if len(chosen) else []
            yield from zip(block.rows[chosen].tolist(), records, strict=True)
            if self.budget <= 0:
                return

    # --- data for the page ---

    def described_lengths(self) -> dict[str, Any] | None:
        """The number of documents by length, before and after; None if no text was found."""
        counts = [self._lengths(records) for records in (self.before, self.after)]
        if not any(map(sum, counts)):
            return None
        last = max(at for one in counts for at, number in enumerate(one) if number) + 1
        return {"from": _LENGTH_STEPS[:last], "before": counts[0][:last], "after": counts[1][:last]}

    def _lengths(self, records: Sequence[Record]) -> list[int]:
        texts = map(partial(text_of, text_field=self.text_field), records)
        lengths = [len(text) for text in texts if text is not None]
        found: list[int] = np.histogram(lengths, [*_LENGTH_STEPS, np.inf])[0].tolist()
        return found

    def described_languages(self) -> dict[str, Any] | None:
        """The most frequent languages before and after, from a language column; None if there is none."""
        sides = [Counter(filter(None, map(_language, records))) for records in (self.before, self.after)]
        total = sides[0] + sides[1]
        if not total:
            return None
        names = [name for name, _ in total.most_common(_MAX_LANGUAGES)]
        return {
            "names": names,
            "before": [sides[0][name] for name in names],
            "after": [sides[1][name] for name in names],
            "others": [side.total() - sum(side[name] for name in names) for side in sides],
        }


def _language(record: Record) -> str | None:
    for name in _LANGUAGES:
        value = record.get(name)
        if isinstance(value, str) and value:
            return value
    return None
