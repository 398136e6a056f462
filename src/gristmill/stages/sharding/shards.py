"""The last step of a shuffle: every shard reads its key ranges from all run files, in the order of the keys."""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from gristmill.stages.base import ProcessingStage, Spec
from gristmill.stages.deduplication.sorted_runs import RunFiles, input_damage
from gristmill.stages.sharding.cuts import cut_keys, totals_of, weights_in
from gristmill.stages.sharding.keys import LENGTH_CLASSES, RANDOM_BITS, RANDOM_MASK, Integers, Keys
from gristmill.stages.sharding.scatter import RECORD, document_columns
from gristmill.stages.source_sink import ReaderStage, SourceColumns, SourceStage
from gristmill.storage.arrow_functions import call_function
from gristmill.storage.block_memory import room_for
from gristmill.storage.files import local_path
from gristmill.storage.partitions import FileRange, Partition
from gristmill.tasks.columns import RecordColumns, TableColumns
from gristmill.tasks.document import DocumentBatch
from gristmill.tasks.file_group import FileGroupTask

PIECE_BYTES = 24 << 20
"""Amount of a shard that is sorted at once."""
_MAPPED = 500
"""Number of run files that a reader keeps mapped; each uses a file descriptor."""

Range = tuple[int, int]


@dataclass(frozen=True)
class Shard:
    """One output file.

    Attributes:
        name: Name of the file, without its extension.
        split: Its split; empty without splits.
        ranges: The keys that it holds, first and end, one range for each length class.
        pieces: Number of pieces in which it is written, to save memory.
    """

    name: str
    split: str
    ranges: tuple[Range, ...]
    pieces: int

    def piece(self, number: int) -> list[Range]:
        """The key ranges of one piece."""
        cut = [[low + (high - low) * at // self.pieces for at in (number, number + 1)] for low, high in self.ranges]
        return [(low, high) for low, high in cut if high > low]


def plan_shards(
    runs: Sequence[RunFiles], *, splits: Sequence[str], unit: str, size: int | None, bytes_per_piece: int = PIECE_BYTES
) -> list[Shard]:
    """The shards for the documents: of equal size, as few as possible with each at most about `size`.

    Args:
        runs: The documents.
        splits: The names of the splits, in order; empty without splits.
        unit: The unit of shard sizes: `size` (bytes), `documents` or `tokens`.
        size: Size of a shard; None: one shard per split.
        bytes_per_piece: Amount of a shard that is sorted at once.
    """
    weights = weights_in(runs, unit)
    totals = totals_of(weights)
    stored = totals if unit == "size" else totals_of(weights_in(runs, "size"))
    names = list(splits) or [""]
    counts: list[int] = []
    targets: dict[int, list[float]] = {}
    strata: list[list[int]] = []
    for number in range(len(names)):
        mine = [at for at in totals if at // LENGTH_CLASSES == number]
        total = sum(totals[at].weight for at in mine)
        count = 1 if size is None else max(1, -(-total // size))
        count = min(count, max(1, sum(totals[at].documents for at in mine)))
        counts.append(count if mine else 0)
        strata.append(mine)
        targets.update({at: [totals[at].weight * cut / count for cut in range(1, count)] for at in mine})
    cuts = cut_keys(weights, targets, nearest=True) if any(targets.values()) else {at: [] for at in targets}
    shards = []
    for name, count, mine in zip(names, counts, strata, strict=True):
        stored_bytes = sum(stored[at].weight for at in mine)
        pieces = max(1, -(-stored_bytes // max(1, count * bytes_per_piece)))
        for number in range(count):
            ranges = []
            for at in mine:
                edges = [at << RANDOM_BITS, *cuts[at], (at + 1) << RANDOM_BITS]
                ranges.append((edges[number], edges[number + 1]))
            shards.append(Shard(f"{name or 'shard'}-{number:05d}-of-{count:05d}", name, tuple(ranges), pieces))
    return shards


class ShardSource(SourceStage):
    """The shards as partitions.

    Args:
        runs: The documents: one set of run files for each source.
        shards: The shards to write.
    """

    name = "shards"
    fork_safe = True

    def __init__(self, runs: Sequence[RunFiles], shards: Sequence[Shard]) -> None:
        self._runs = tuple(runs)
        self._shards = tuple(shards)
        self.contents = [one.digest for one in runs]
        self.cuts = [(shard.name, shard.ranges) for shard in shards]

    def partitions(self) -> list[Partition]:
        size = sum(one.size for one in self._runs)
        stamp = ":".join(self.contents)
        count = len(self._shards)
        return [
            Partition(
                at,
                shard.name,
                (FileRange(shard.name, "keys", size, stamp, size * at // count, size * (at + 1) // count, False),),
            )
            for at, shard in enumerate(self._shards)
        ]

    def columns(self, partitions: Sequence[Partition], wanted: Sequence[str]) -> SourceColumns | None:
        return None

    def task(self, partition: Partition, *, total: int = 1) -> FileGroupTask:
        task = super().task(partition, total=total)
        task._metadata["shard"] = self._shards[partition.index]
        return task

    def prepare(self, reader: ProcessingStage[Any, Any], partitions: Sequence[Partition]) -> None:
        assert isinstance(reader, ShardReader)
        reader.runs = self._runs


class ShardReader(ReaderStage):
    """Reads the documents of a shard in their new order.

    Args:
        id_field: The key of ids that were stored separately; None if there are none, or sources have different ones.
    """

    name = "shard_reader"
    fork_safe = True

    def __init__(self, id_field: str | None = None) -> None:
        self.id_field = id_field
        self._runs: tuple[RunFiles, ...] = ()
        self._mapped: MappedRuns | None = None

    @property
    def runs(self) -> tuple[RunFiles, ...]:
        """The files to read; set by the source on its own copy."""
        return self._runs

    @runs.setter
    def runs(self, runs: tuple[RunFiles, ...]) -> None:
        self._runs = runs

    def inputs(self) -> Spec:
        return ["data"], []

    def outputs(self) -> Spec:
        return ["data"], []

    def process(self, task: FileGroupTask) -> Iterator[DocumentBatch]:
        shard: Shard = task._metadata["shard"]
        done = 0
        for found in self.pieces(shard):
            batch = self._piece(found, done)
            done += batch.num_items
            yield batch
            del batch  # the next one reuses its memory

    def pieces(self, shard: Shard) -> Iterator[KeySlices]:
        """The documents of a shard, piece by piece; each piece is valid until the next one."""
        if self._mapped is None:
            self._mapped = MappedRuns(self._runs)
        for number in range(shard.pieces):
            found = KeySlices(self._mapped, shard.piece(number))
            if len(found.keys):
                yield found
            self._mapped.release()

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_mapped": None}

    def _piece(self, found: KeySlices, done: int) -> DocumentBatch:
        rows = np.arange(done, done + len(found.keys))
        if found.is_records:
            records = found.records()
            known = {}
            if self.id_field is not None:  # found when documents were scattered: they need not be parsed again
                known = {self.id_field: found.texts("id")}
                records.remember(self.id_field, known[self.id_field])
            return DocumentBatch.from_columns(RecordColumns(records, arrays=known), rows=rows)
        return DocumentBatch.from_columns(TableColumns(found.documents()), rows=rows)


class MappedRuns:
    """Run files that stay mapped from one piece to the next, within a limit.

    Args:
        runs: The files of each source.
    """

    def __init__(self, runs: Sequence[RunFiles]) -> None:
        self._files = [(source, file.path) for source, one in enumerate(runs) for file in one.files]
        self._open: list[MappedRun] = []

    def __iter__(self) -> Iterator[MappedRun]:
        if self._open:
            yield from self._open
            return
        for source, path in self._files:
            run = MappedRun(source, path)
            if not run.table.num_rows:
                continue
            if len(self._files) <= _MAPPED:
                self._open.append(run)
            yield run

    def release(self) -> None:
        """Unmap the files; they stay in the system's page cache and are mapped again on use."""
        for run in self._open:
            run.release()


class MappedRun:
    """One run file: its columns mapped, its documents read on request.

    Mapped documents would count with all pages around them, which are several times their size.

    Attributes:
        source: The number of the source it belongs to.
        table: The whole file.
        keys: Its keys.
    """

    def __init__(self, source: int, path: str) -> None:
        self.source = source
        self._path = local_path(path)
        with open(self._path, "rb") as file, input_damage(path):
            self._mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
            buffer = pa.py_buffer(self._mapped)
            self.table: pa.Table = pa.ipc.open_file(buffer).read_all()
        self._base = buffer.address
        self.keys: Keys = (
            self.table.column("key").chunk(0).to_numpy() if self.table.num_rows else np.empty(0, np.uint64)
        )

    def read(self, address: int, target: npt.NDArray[np.uint8]) -> None:
        """Fill `target` with the bytes of the file that are mapped at `address`."""
        place, filled = address - self._base, 0
        file = os.open(self._path, os.O_RDONLY)
        try:
            while filled < len(target):
                count = os.preadv(file, [target[filled:].data], place + filled)
                if count == 0:
                    raise OSError(f"{self._path} is shorter than when it was opened.")
                filled += count
        finally:
            os.close(file)

    def release(self) -> None:
        """Unmap the file."""
        self._mapped.madvise(mmap.MADV_DONTNEED)


class KeySlices:
    """The rows of some key ranges out of all run files, in the order of their random keys; mapped, not read.

    Args:
        runs: The files.
        ranges: The keys.
    """

    def __init__(self, runs: MappedRuns, ranges: Sequence[Range]) -> None:
        self._tables: list[pa.Table] = []
        self._runs: list[MappedRun] = []
        edges = np.array([min(edge, (1 << 64) - 1) for pair in ranges for edge in pair], np.uint64)
        open_end = [high >= 1 << 64 for _, high in ranges]
        for run in runs:
            places = np.searchsorted(run.keys, edges).tolist()
            for at, to_the_end in enumerate(open_end):
                start, end = places[2 * at], len(run.keys) if to_the_end else places[2 * at + 1]
                if end > start:
                    self._tables.append(run.table.slice(start, end - start))
                    self._runs.append(run)
        keys = self._column("key", np.uint64)
        # Rows with equal keys keep the order of the files, so that the order does not depend on the number of ranges.
        self.order: Integers = np.argsort(keys & RANDOM_MASK, kind="stable")
        self.keys: Keys = keys[self.order]

    @property
    def is_records(self) -> bool:
        """Whether documents are JSONL records."""
        return RECORD in self._tables[0].column_names

    def numbers(self, name: str) -> Integers:
        """A column of numbers, in order."""
        values: Integers = self._column(name, np.int64)[self.order]
        return values

    def source_numbers(self) -> Integers:
        """The source of each document, in order."""
        lengths = [table.num_rows for table in self._tables]
        return np.repeat(np.array([run.source for run in self._runs], np.int64), lengths)[self.order]

    def texts(self, name: str) -> pa.Array:
        """A column of texts, in order; null if a source has none."""
        nothing = pa.large_string()
        parts = [
            table.column(name).combine_chunks() if name in table.column_names else pa.nulls(table.num_rows, nothing)
            for table in self._tables
        ]
        flat = [chunk for part in parts for chunk in (part.chunks if isinstance(part, pa.ChunkedArray) else [part])]
        whole = pa.concat_arrays(flat) if flat else pa.nulls(0, nothing)
        return call_function("take", [whole, pa.array(self.order)])

    def records(self) -> Any:
        """The JSONL records, in order, line by line in one buffer."""
        from gristmill.kernels.json_write import gather
        from gristmill.storage.json_records import JsonRecords

        bounds = []
        for table in self._tables:
            array = table.column(RECORD).chunk(0)
            _, offsets, data = array.buffers()
            inside = np.frombuffer(offsets, np.int64)[array.offset : array.offset + len(array) + 1]
            bounds.append(inside + (data.address if data is not None else 0))
        read = room_for(int(sum(one[-1] - one[0] for one in bounds)))
        starts, ends, filled = [], [], 0
        for run, one in zip(self._runs, bounds, strict=True):
            size = int(one[-1] - one[0])
            if size:
                run.read(int(one[0]), read[filled : filled + size])
            one = one - one[0] + read.ctypes.data + filled
            starts.append(one[:-1])
            ends.append(one[1:])
            filled += size
        first, last = np.concatenate(starts)[self.order], np.concatenate(ends)[self.order]
        lengths = last - first
        out = room_for(int(lengths.sum()) + len(lengths))
        gather(0, first, last, ord("\n"), out)
        stops = np.cumsum(lengths + 1) - 1
        return JsonRecords(out, stops - lengths, stops)

    def documents(self) -> pa.Table:
        """The documents' columns, in order."""
        tables = [document_columns(table) for table in self._tables]
        whole = pa.concat_tables(tables, promote_options="permissive").combine_chunks()
        return call_function("take", [whole, pa.array(self.order)])

    def _column(self, name: str, kind: type[Any]) -> Any:
        parts = [table.column(name).chunk(0).to_numpy() for table in self._tables]
        return np.concatenate(parts) if parts else np.empty(0, kind)
