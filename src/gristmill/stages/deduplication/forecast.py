"""Estimates what a deduplication will need from a sample of its input, before anything is written."""

from __future__ import annotations

import contextlib
import os
import shutil
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from gristmill.backends.base import BaseExecutor
from gristmill.errors import OutputError, PlanningError
from gristmill.figures import format_size, parse_size
from gristmill.pipeline.planner import expand
from gristmill.stages.base import ProcessingStage
from gristmill.stages.deduplication.source import DocumentSource
from gristmill.storage.compression import DamagedArchiveError, open_source
from gristmill.storage.files import is_local, local_path
from gristmill.storage.formats import codec_of
from gristmill.storage.parquet_blocks import open_parquet
from gristmill.storage.partitions import Partition
from gristmill.tasks.document import DocumentBatch
from gristmill.tracking.origins import Lineage, with_lineage

SPOTS = 16
"""Number of places in the input at which documents are sampled."""
SAMPLE_BYTES = 4 << 20
_EXPANDED_BYTES = 4 << 20
_WORKER_BYTES = 320 << 20
"""Maximum memory of a worker: a batch with its columns, and the sorting of one range."""
_LEAST_BYTES = 150 << 20
"""Minimum memory of a run with one worker."""
_PASS_SHARE = 0.6
"""Time of the passes that only read and write, relative to a pass that also hashes; measured."""
_START_SECONDS = 1.0


@dataclass(frozen=True)
class FreeSpace:
    """A folder that files will be written to.

    Attributes:
        path: The folder.
        device: The disk it is on; None if unknown, as for URLs.
        free: The free bytes of that disk.
    """

    path: str
    device: int | None = None
    free: int | None = None

    @classmethod
    def of(cls, path: str) -> FreeSpace:
        """The disk of `path`, which need not exist yet."""
        if not is_local(path):
            return cls(path)
        folder = os.path.abspath(local_path(path))
        while not os.path.exists(folder):
            folder = os.path.dirname(folder)
        return cls(path, os.stat(folder).st_dev, shutil.disk_usage(folder).free)


@dataclass(frozen=True)
class Forecast:
    """What a run will need, as estimated from a sample.

    Attributes:
        input_bytes: The stored bytes of the input.
        documents: Approximate number of documents.
        steps_bytes: Approximate size of the intermediate files.
        output_bytes: Maximum size of the output.
        memory_bytes: Approximate memory of a run without a budget.
        growing_bytes: The part of it that grows with the documents, and so cannot be reduced.
        seconds: Approximate duration.
        free_bytes: Free bytes of the disk with the intermediate files; None if unknown.
        partitions: Number of partitions of the input.
        notes: Further notes.
    """

    input_bytes: int
    documents: int
    steps_bytes: int
    output_bytes: int
    memory_bytes: int
    growing_bytes: int
    seconds: float
    free_bytes: int | None
    partitions: int
    notes: list[str] = field(default_factory=list)

    def check(self, steps: FreeSpace, output: FreeSpace, memory_limit: int | None) -> None:
        """Reject a run that does not fit on disk or in memory.

        Args:
            steps: Folder of the intermediate files.
            output: Folder of the output.
            memory_limit: Maximum memory that may be used; None if unknown.

        Raises:
            OutputError: A disk has less free space than needed.
            PlanningError: There is less memory than needed.
        """
        same = steps.device == output.device
        wanted = [(output, self.output_bytes + (self.steps_bytes if same else 0))]
        wanted += [] if same else [(steps, self.steps_bytes)]
        for place, needed in wanted:
            if place.free is not None and needed > place.free:
                parts = f" ({format_size(self.steps_bytes)} of it intermediate)" if same else ""
                raise OutputError(
                    f"This deduplication will write about {format_size(needed)}{parts} to {place.path}, but that disk "
                    f"has {format_size(place.free)} free. Make room, or put intermediate files on another disk with "
                    "--cache (cache_path).",
                    path=place.path,
                )
        least = self.growing_bytes + _LEAST_BYTES
        if memory_limit is not None and least > memory_limit:
            raise PlanningError(
                f"This deduplication of about {self.documents} documents needs at least {format_size(least)} of "
                f"memory ({format_size(self.growing_bytes)} of it to group duplicates), but has "
                f"{format_size(memory_limit)}. Raise --memory-budget (memory_budget), use a larger machine, or "
                "deduplicate parts of the input first.",
                needed=least,
            )

    def __str__(self) -> str:
        large = self.growing_bytes > self.memory_bytes / 20
        grows = f", {format_size(self.growing_bytes)} of it proportional to the number of documents" if large else ""
        count = f"{self.partitions} partition{'' if self.partitions == 1 else 's'}"
        lines = [
            f"input: {count}, {format_size(self.input_bytes)}, about {self.documents} documents",
            f"intermediate files: about {format_size(self.steps_bytes)}",
            f"output: at most about {format_size(self.output_bytes)}",
            f"memory: at most about {format_size(self.memory_bytes)}{grows}",
            f"time: about {_duration(self.seconds)}",
        ]
        if self.free_bytes is not None:
            lines.append(f"free disk: {format_size(self.free_bytes)}")
        return "\n".join([*lines, *self.notes])


def forecast(
    source: DocumentSource,
    partitions: Sequence[Partition],
    stages: Sequence[ProcessingStage[Any, Any]],
    *,
    steps: FreeSpace,
    bytes_per_document: float,
    bytes_per_text_byte: float,
    memory_per_document: float,
    plain_output: bool,
    workers: int,
    notes: list[str],
    sample_bytes: int = SAMPLE_BYTES,
) -> Forecast:
    """Read a little at a few places of the input, pass it through the first step, and extrapolate.

    The places are spread over the stored bytes and weighted equally, so that dissimilar files count by their size.
    `plain_output` means that the output is not compressed, while the input may be.
    """
    flat = expand(list(stages))
    for stage in flat:
        stage.setup_on_node(None, None)
        stage.setup(None)
    stored = np.asarray(_stored_bytes(partitions), np.float64)
    total = float(stored.sum())
    middles = (np.arange(SPOTS) + 0.5) / SPOTS * total
    spots = np.unique(np.searchsorted(np.cumsum(stored)[:-1], middles, side="right"), return_counts=True)
    chosen = [partitions[spot] for spot in spots[0].tolist()]
    documents = text = seconds = 0.0
    batches = source.first_batches(chosen, batch_bytes=max(1, sample_bytes // SPOTS))
    for partition, batch, times in zip(chosen, batches, spots[1].tolist(), strict=True):
        if batch is not None:
            found = _documents_per_byte(source, partition, batch) * total * times / SPOTS
            size = batch.columns.nbytes / batch.num_items
            documents += found
            text += found * size
            seconds += found * _seconds_per_document(flat, batch, partition, max(1, int(sample_bytes / SPOTS / size)))
    growing = round(documents * memory_per_document)
    return Forecast(
        input_bytes=round(total),
        documents=round(documents),
        steps_bytes=round(documents * bytes_per_document + text * bytes_per_text_byte),
        output_bytes=round(text if plain_output else total),
        memory_bytes=_WORKER_BYTES * max(1, workers) + growing,
        growing_bytes=growing,
        seconds=_START_SECONDS + seconds * (1 + 2 * _PASS_SHARE) / max(1, workers),
        free_bytes=steps.free,
        partitions=len(partitions),
        notes=notes,
    )


def _stored_bytes(partitions: Sequence[Partition]) -> list[float]:
    """The bytes of files that each partition reads; blocks of Parquet files are counted in row groups, so by share."""
    extent: dict[str, int] = {}
    for partition in partitions:
        for piece in partition.ranges:
            extent[piece.path] = max(extent.get(piece.path, 1), piece.end)
    return [
        sum(
            piece.size * (1.0 if piece.whole or piece.end < 0 else (piece.end - piece.start) / extent[piece.path])
            for piece in partition.ranges
        )
        for partition in partitions
    ]


def _documents_per_byte(source: DocumentSource, partition: Partition, batch: DocumentBatch) -> float:
    """The number of documents per stored byte of a partition, estimated from its first file and its first documents."""
    storage = (source.read_kwargs or {}).get("storage_options")
    piece = partition.ranges[0]
    if source.filetype == "parquet":
        with open_parquet(piece.path, storage_options=storage) as opened:
            return float(opened.metadata.num_rows) / max(1, piece.size)
    return expansion(piece.path, storage_options=storage) * batch.num_items / max(1, batch.columns.nbytes)


def expansion(path: str, *, storage_options: Mapping[str, Any] | None = None) -> float:
    """The number of uncompressed bytes per stored byte of a file, estimated from its beginning."""
    if codec_of(path) == "none":
        return 1.0
    source: Any = open_source(path, storage_options=storage_options)
    target = memoryview(bytearray(1 << 20))
    made = 0
    with contextlib.closing(source), contextlib.suppress(DamagedArchiveError):
        while made < _EXPANDED_BYTES and (count := source.readinto(target)):
            made += count
    return max(1e-3, made / max(1, int(source.consumed)))


def _seconds_per_document(
    stages: Sequence[ProcessingStage[Any, Any]], batch: DocumentBatch, partition: Partition, count: int
) -> float:
    """The time that the stages take for each of the first documents of a batch, at most `count` of them."""
    count = min(count, batch.num_items)
    lineage = Lineage(partition.index, partition.id)
    # One document goes first: it loads or compiles kernels, which does not count in a long run.
    for size in (1, count):
        begun = time.perf_counter()
        tasks: list[Any] = [with_lineage(batch.slice(0, size), lineage)]
        for stage in stages:
            tasks = [with_lineage(one, lineage) for one in stage.process_batch(tasks) if one.num_items]
    return (time.perf_counter() - begun) / count


def memory_limit(executor: BaseExecutor) -> int | None:
    """The memory that a run may use: its budget, or the free memory of this machine; None for other machines."""
    if executor.name != "local":
        return None
    budget = executor.config.get("memory_budget")
    import psutil

    return int(psutil.virtual_memory().available) if budget is None else parse_size(budget, name="memory_budget")


def _duration(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"
