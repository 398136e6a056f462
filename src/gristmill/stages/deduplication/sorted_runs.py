"""Files between steps: Arrow tables sorted by an unsigned key, of which a later step reads only its key range.

A step that partitions by hash need not know the next one's number of buckets: every partition writes its rows sorted,
and a bucket is the same key range of all files. Local files are memory-mapped.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import xxhash

from gristmill.errors import InputError
from gristmill.ledger.record.layout import step_folder
from gristmill.ledger.record.manifest import Manifest
from gristmill.stages.source_sink import PartFile, SinkStage
from gristmill.storage.arrow_functions import call_function
from gristmill.storage.atomic import AtomicFile, WrittenFile
from gristmill.storage.compression import open_raw
from gristmill.storage.files import is_local, local_path
from gristmill.tasks.document import DocumentBatch

EXTENSION = ".arrow"
RUN_BYTES = 64 << 20
"""Bytes that a partition collects before they are sorted and written as a file."""

_MANY = 1 << 15
"""Number of keys from which a kernel pays off."""

StorageOptions = Mapping[str, Any] | None


@dataclass(frozen=True, slots=True)
class RunFile:
    """One committed file of sorted rows."""

    path: str
    size: int
    hash: str


@dataclass(frozen=True, slots=True)
class RunFiles:
    """All files that a finished step has written, in source order."""

    files: tuple[RunFile, ...]
    storage_options: dict[str, Any] | None = None

    @property
    def size(self) -> int:
        """Total size in bytes."""
        return sum(file.size for file in self.files)

    @property
    def digest(self) -> str:
        """A hash over the contents of all files, in order."""
        digest = xxhash.xxh3_128()
        for file in self.files:
            digest.update(f"{file.hash}:{file.size}\n".encode())
        return digest.hexdigest()

    def parts(self, name: str) -> Iterator[npt.NDArray[Any]]:
        """A column file by file, so that only one is in memory at a time."""
        for file in self.files:
            yield column(open_run(file.path, storage_options=self.storage_options), name)

    def read(self, low: int = 0, high: int = 1 << 64) -> pa.Table:
        """The rows with `low` <= key < `high`, file by file; the key is the first column."""
        return read_range(self.files, low, high, storage_options=self.storage_options)


def joined(*runs: RunFiles) -> RunFiles:
    """The files of several steps, in order."""
    return RunFiles(tuple(file for one in runs for file in one.files), runs[-1].storage_options)


def runs_of(path: str, *, storage_options: StorageOptions = None, ending: str = EXTENSION) -> RunFiles:
    """The committed files of a step's folder whose names end with `ending`."""
    folder = step_folder(path, storage_options)
    files = [
        RunFile(folder.join(file.path), file.size, file.hash)
        for entry in Manifest(folder).ordered()
        for file in entry.files
        if file.path.endswith(ending)
    ]
    return RunFiles(tuple(files), None if storage_options is None else dict(storage_options))


def read_range(files: Sequence[RunFile], low: int, high: int, *, storage_options: StorageOptions = None) -> pa.Table:
    """The rows of `files` with `low` <= key < `high`, file by file."""
    tables = []
    for file in files:
        table = open_run(file.path, storage_options=storage_options)
        keys = table.column(0).chunk(0).to_numpy() if table.num_rows else np.empty(0, np.uint64)
        start = int(np.searchsorted(keys, np.uint64(low))) if low > 0 else 0
        end = int(np.searchsorted(keys, np.uint64(high))) if high < 1 << 64 else len(keys)
        tables.append(table.slice(start, end - start))
    return pa.concat_tables(tables) if tables else pa.table({})


def open_run(path: str, *, storage_options: StorageOptions = None) -> pa.Table:
    """The table of one file, memory-mapped if the file is local.

    Raises:
        InputError: The file was not written by a step.
    """
    with input_damage(path):
        if is_local(path):
            source = pa.memory_map(local_path(path))
        else:
            with open_raw(path, storage_options=storage_options) as file:
                source = pa.BufferReader(file.read())
        return pa.ipc.open_file(source).read_all()


@contextmanager
def input_damage(path: str) -> Iterator[None]:
    """Turn Arrow's error about a damaged run file into one that says what to do."""
    try:
        yield
    except pa.ArrowInvalid as error:
        raise InputError(
            f"{path} is damaged ({error}). It is an intermediate file of a workflow: start over with --fresh "
            "(fresh=True).",
            path=path,
        ) from error


def column(table: pa.Table, name: str) -> npt.NDArray[Any]:
    """A column without nulls as one numpy array."""
    chunks: list[npt.NDArray[Any]] = [chunk.to_numpy(zero_copy_only=False) for chunk in table.column(name).chunks]
    if len(chunks) == 1:
        return chunks[0]
    kind = table.schema.field(name).type.to_pandas_dtype()
    return np.concatenate(chunks) if chunks else np.empty(0, kind)


def count_distinct(runs: RunFiles, name: str, *, at_once: int = 1 << 22) -> int:
    """The number of different values in a column; it is read once for every `at_once` rows, to save memory."""
    rows = sum(len(part) for part in runs.parts(name))
    turns = max(1, -(-rows // at_once))
    total = 0
    for turn in range(turns):
        mine = [np.unique(part[part % np.uint64(turns) == turn]) for part in runs.parts(name)]
        total += len(np.unique(np.concatenate(mine))) if mine else 0
    return total


def sorted_by_key(table: pa.Table) -> pa.Table:
    """The table sorted by its first column; rows with equal keys keep their order."""
    keys = column(table, table.column_names[0])
    if len(keys) < 2 or bool((keys[1:] >= keys[:-1]).all()):
        return table.combine_chunks()
    if len(keys) < _MANY:
        order = np.argsort(keys, kind="stable")
    else:  # only workers sort this many; a driver has no other use for kernels
        from gristmill.kernels.sorting import stable_order

        order = stable_order(keys)
    return call_function("take", [table, pa.array(order)]).combine_chunks()


def numbered(path: str, ending: str, number: int) -> str:
    """The path of the run number `number` of a partition."""
    return path if number == 0 else f"{path.removesuffix(ending)}.{number}{ending}"


def write_run(
    table: pa.Table, path: str, *, storage_options: StorageOptions = None, rows: int | None = None
) -> WrittenFile:
    """Write a table as one record batch; `rows` is the number of documents it represents."""
    batches = table.combine_chunks().to_batches() or [pa.RecordBatch.from_pylist([], schema=table.schema)]
    file = AtomicFile(path, storage_options=dict(storage_options) if storage_options else None)
    try:
        # Column by column to the file, so that the table is not in memory twice.
        with pa.ipc.new_file(pa.PythonFile(file, mode="w"), table.schema) as writer:
            for batch in batches:
                writer.write_batch(batch)
        return file.publish(rows=table.num_rows if rows is None else rows)
    except BaseException:
        file.discard()
        raise


class SortedPart:
    """The sorted runs of one partition while they are gathered; the names of all of them end with `ending`."""

    def __init__(self, path: str, storage_options: StorageOptions, run_bytes: int, *, ending: str = EXTENSION) -> None:
        self._path = path
        self._ending = ending
        self._storage_options = storage_options
        self._run_bytes = run_bytes
        self._tables: list[pa.Table] = []
        self._bytes = 0
        self._rows = 0
        self._done: list[WrittenFile] = []

    def append(self, payload: pa.Table, /, *, rows: int | None = None) -> None:
        if self._bytes and self._bytes + payload.nbytes > self._run_bytes:
            self._flush()
        self._tables.append(payload)
        self._bytes += payload.nbytes
        self._rows += payload.num_rows if rows is None else rows

    def close(self) -> list[WrittenFile]:
        if self._tables:
            self._flush()
        return self._done

    def abort(self) -> None:
        self._tables = []

    def _flush(self) -> None:
        table = pa.concat_tables(self._tables)
        self._tables, self._bytes = [], 0
        table = sorted_by_key(table)
        path = numbered(self._path, self._ending, len(self._done))
        self._done.append(write_run(table, path, storage_options=self._storage_options, rows=self._rows))
        self._rows = 0


class SortedRunWriter(SinkStage):
    """Writes batches whose first column is an unsigned key, sorted by it.

    Args:
        path: The folder of the step.
        storage_options: File system options for URLs.
        run_bytes: Bytes that a partition collects before they are sorted and written as a file. Later steps do not
            depend on the number of files, so it is not part of the plan and may change when a run resumes.
    """

    name = "sorted_runs"
    fork_safe = True
    mode = "ignore"

    def __init__(self, path: str, *, storage_options: StorageOptions = None, run_bytes: int = RUN_BYTES) -> None:
        self.path = path
        self.storage_options = None if storage_options is None else dict(storage_options)
        self._run_bytes = run_bytes

    @property
    def extension(self) -> str:
        return EXTENSION

    def encode(self, batch: DocumentBatch) -> pa.Table:
        return batch.to_pyarrow()

    def open_part(self, path: str) -> PartFile:
        return self._part(path)

    def _part(self, path: str, ending: str = EXTENSION) -> SortedPart:
        return SortedPart(path, self.storage_options, self._run_bytes, ending=ending)

    def concatenate(self, pieces: Sequence[WrittenFile], path: str) -> list[WrittenFile]:
        part = self.open_part(path)
        for piece in pieces:
            part.append(open_run(piece.path, storage_options=self.storage_options), rows=piece.rows)
        return part.close()

    def process(self, task: DocumentBatch) -> Any:
        raise NotImplementedError("a step's writer only works in a pipeline")
