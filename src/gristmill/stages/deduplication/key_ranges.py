"""The source of steps that process all keys: equal ranges of keys, each small enough for a share of the memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from gristmill.stages.base import ProcessingStage
from gristmill.stages.deduplication.sorted_runs import RunFiles, column, open_run
from gristmill.stages.source_sink import ReaderStage, SourceColumns, SourceStage
from gristmill.storage.partitions import FileRange, Partition
from gristmill.tasks.columns import TableColumns
from gristmill.tasks.document import DocumentBatch
from gristmill.tasks.file_group import FileGroupTask

RANGE_BYTES = 24 << 20
"""Bytes of files per range; sorting and grouping needs about six times as much memory.

Fixed, so that the ranges depend on the data alone and a run can resume with another budget or worker count.
"""
_SAMPLED = 2000
"""Number of keys of a file that are sampled to find even cuts."""


def range_count(size: int, range_bytes: int = RANGE_BYTES) -> int:
    """Number of ranges that `size` bytes of sorted runs are divided into."""
    return max(1, -(-size // range_bytes))


def hash_cuts(count: int) -> list[int]:
    """Bounds of `count` ranges of hash keys: hashes are evenly distributed."""
    return [-(-(1 << 64) * number // count) for number in range(count + 1)]


def document_cuts(runs: RunFiles, count: int) -> list[int]:
    """Bounds of `count` ranges of document keys, so that each holds about the same number of rows.

    Documents cluster at the beginning of each partition's numbers, so the cuts are derived from a sample of the keys.
    """
    sample = []
    for file in runs.files:
        keys = column(open_run(file.path, storage_options=runs.storage_options), "document")
        sample.append(keys[:: max(1, len(keys) // _SAMPLED)])
    keys = np.sort(np.concatenate(sample)) if sample else np.empty(0, np.uint64)
    inner = [int(keys[len(keys) * number // count]) for number in range(1, count)] if len(keys) else []
    return [0, *sorted({cut for cut in inner if cut > 0}), 1 << 64]


class KeyRanges(SourceStage):
    """Divides the keys of a finished step into ranges.

    Args:
        runs: The output of the step.
        cuts: Where ranges begin and end.
    """

    name = "key_ranges"
    fork_safe = True

    def __init__(self, runs: RunFiles, cuts: Sequence[int]) -> None:
        self._runs = runs
        self.cuts = tuple(cuts)
        self.count = len(self.cuts) - 1

    def partitions(self) -> list[Partition]:
        size, digest = self._runs.size, self._runs.digest
        return [
            Partition(
                number,
                f"range-{number:05d}",
                (
                    FileRange(
                        f"range-{number:05d}",
                        "keys",
                        size,
                        digest,
                        size * number // self.count,
                        size * (number + 1) // self.count,
                        False,
                    ),
                ),
            )
            for number in range(self.count)
        ]

    def columns(self, partitions: Sequence[Partition], wanted: Sequence[str]) -> SourceColumns | None:
        return None

    def task(self, partition: Partition, *, total: int = 1) -> FileGroupTask:
        task = super().task(partition, total=total)
        task._metadata["keys"] = (self.cuts[partition.index], self.cuts[partition.index + 1])
        return task

    def prepare(self, reader: ProcessingStage[Any, Any], partitions: Sequence[Partition]) -> None:
        assert isinstance(reader, RangeReader)
        reader.runs = self._runs


class RangeReader(ReaderStage):
    """Reads a range of keys and converts it with `rows_from` of a subclass.

    Attributes:
        runs: Set by the source on its own copy.
        removable_from: For removal lists, only documents from this key on; those before it are always kept.
    """

    fork_safe = True
    removable_from = 0

    def __init__(self) -> None:
        self._runs: RunFiles | None = None

    @property
    def runs(self) -> RunFiles:
        """The files to read."""
        assert self._runs is not None
        return self._runs

    @runs.setter
    def runs(self, runs: RunFiles) -> None:
        self._runs = runs

    def process(self, task: FileGroupTask) -> Iterator[DocumentBatch]:
        low, high = task._metadata["keys"]
        done = 0
        for table in self.rows_from(low, high):
            if self.removable_from:
                table = table.filter(pa.array(column(table, "document") >= np.uint64(self.removable_from)))
            if table.num_rows:
                rows = np.arange(done, done + table.num_rows)
                yield DocumentBatch.from_columns(TableColumns(table), rows=rows)
                done += table.num_rows

    def rows_from(self, low: int, high: int) -> Iterator[pa.Table]:
        """The tables to pass on for the keys `low` <= key < `high`."""
        yield self.runs.read(low, high)
