"""Reading part of the input: a random sample of the documents, or the first N of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeVar

import numpy as np
import numpy.typing as npt
import xxhash

from gristmill.errors import UsageError
from gristmill.storage.partitions import Partition

if TYPE_CHECKING:
    from gristmill.storage.jsonl_blocks import RecordBlock
    from gristmill.storage.parquet_blocks import TableBlock

B = TypeVar("B", "RecordBlock", "TableBlock")
_GAMMA, _FIRST, _SECOND = (np.uint64(n) for n in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB))


@dataclass(frozen=True, slots=True)
class Selection:
    """Which documents of the input are read.

    A hash of the seed, the partition and the row decides whether a document is in the sample, so that any worker on any
    executor selects the same ones. The first N are counted when the partitions are made.

    Attributes:
        sample: Fraction of documents, above 0 and at most 1; None for all.
        seed: Random seed of the sample.
        max_documents: Read at most this many documents, from the start (of the sample, if there is one).
        stop: The partition that holds the last of these, and the first row there that is not read.

    Raises:
        UsageError: A value is out of range.

    Example:
        >>> Selection(sample=0.5).mask("a", np.arange(6)).tolist()
        [False, True, True, True, False, False]
    """

    sample: float | None = None
    seed: int = 0
    max_documents: int | None = None
    stop: tuple[str, int] | None = None

    def __post_init__(self) -> None:
        sample, most = self.sample, self.max_documents
        if sample is not None and (isinstance(sample, bool) or not 0 < sample <= 1):
            raise UsageError(
                f"sample={sample!r}: must be a share of the documents, above 0 and at most 1.", value=sample
            )
        if most is not None and (isinstance(most, bool) or not isinstance(most, int) or most < 1):
            raise UsageError(f"max_documents={most!r}: must be a whole number of at least 1.", value=most)

    def __str__(self) -> str:
        sample = "" if self.sample is None else f"a sample of {self.sample:g} of the documents (seed {self.seed})"
        if self.max_documents is None:
            return sample
        return f"the first {self.max_documents} documents" + (f" of {sample}" if sample else "")

    def mask(self, partition_id: str, rows: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
        """Which of the rows of a partition are read."""
        chosen = np.ones(len(rows), bool)
        if self.sample is not None and self.sample < 1:
            start = xxhash.xxh3_64_intdigest(f"{self.seed}\n{partition_id}".encode("utf-8", "surrogatepass"))
            mixed = rows.astype(np.uint64) * _GAMMA + np.uint64(start)  # the generator SplitMix64, at place `row`
            mixed = (mixed ^ (mixed >> np.uint64(30))) * _FIRST
            mixed = (mixed ^ (mixed >> np.uint64(27))) * _SECOND
            mixed ^= mixed >> np.uint64(31)
            chosen = mixed < np.uint64(self.sample * 2.0**64)
        if self.stop is not None and self.stop[0] == partition_id:
            chosen &= rows < self.stop[1]
        return chosen

    def blocks(self, blocks: Iterable[B], partition_id: str) -> Iterator[B]:
        """The blocks with only the selected documents; damage before the last of them is still reported."""
        for block in blocks:
            places = np.array([one.row for one in block.bad], np.int64)
            begin = np.append(block.rows[:1], places[:1])
            if len(begin) and self._is_past(partition_id, int(begin.min())):
                return
            chosen = self.mask(partition_id, block.rows)
            bad = zip(block.bad, self.mask(partition_id, places).tolist(), strict=True)
            block.bad[:] = [
                one for one, selected in bad if selected or (one.lost and not self._is_past(partition_id, one.row))
            ]
            yield block if chosen.all() else block.take(chosen)

    def _is_past(self, partition_id: str, row: int) -> bool:
        """Whether the selection ends before this row of the partition."""
        return self.stop is not None and self.stop[0] == partition_id and row >= self.stop[1]

    def first_of(
        self, partitions: Sequence[Partition], rows_of: Callable[[Partition], Iterable[npt.NDArray[np.int64]]]
    ) -> tuple[list[Partition], Selection]:
        """The partitions that hold the first `max_documents`, and the selection that stops after the last of them.

        Args:
            partitions: All partitions, in source order.
            rows_of: Yields the row numbers of a partition in ascending order.
        """
        if self.max_documents is None:
            return list(partitions), self
        left = self.max_documents
        for number, partition in enumerate(partitions, 1):
            for rows in rows_of(partition):
                read = rows[self.mask(partition.id, rows)]
                if len(read) >= left:
                    return list(partitions[:number]), replace(self, stop=(partition.id, int(read[left - 1]) + 1))
                left -= len(read)
        return list(partitions), self
