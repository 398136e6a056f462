"""A sample of an input, taken at several places of it and passed through the stages of a first step."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from gristmill.stages.base import ProcessingStage
from gristmill.stages.deduplication.source import DocumentSource
from gristmill.stages.source_sink import ReaderStage
from gristmill.storage.compression import DamagedArchiveError, codec_of, open_source
from gristmill.storage.parquet_blocks import open_parquet
from gristmill.storage.partitions import Partition
from gristmill.tasks.document import DocumentBatch
from gristmill.tracking.origins import Lineage, lineage_of, with_lineage

SPOTS = 64
"""At how many places of the input documents are taken."""
_EXPANDED_BYTES = 4 << 20

StorageOptions = Mapping[str, Any] | None


@dataclass(frozen=True)
class InputSample:
    """Some documents of an input, or what they tell about all of it.

    Attributes:
        stored: The bytes of files that they take.
        documents: How many they are.
        text: Their bytes in memory.
        seconds: How long reading and processing them takes.
    """

    stored: float = 0.0
    documents: float = 0.0
    text: float = 0.0
    seconds: float = 0.0

    def __add__(self, other: InputSample) -> InputSample:
        return InputSample(
            self.stored + other.stored,
            self.documents + other.documents,
            self.text + other.text,
            self.seconds + other.seconds,
        )

    def scaled_to(self, stored: float) -> InputSample:
        """The like for as many bytes of files."""
        factor = stored / self.stored if self.stored > 0 else 0.0
        return InputSample(stored, self.documents * factor, self.text * factor, self.seconds * factor)


def stored_bytes(partitions: Sequence[Partition]) -> list[float]:
    """The bytes of files that each partition reads; blocks of Parquet files are counted in row groups, so by share."""
    extent: dict[str, int] = {}
    for partition in partitions:
        for piece in partition.ranges:
            extent[piece.path] = max(extent.get(piece.path, 0), piece.end)
    return [
        sum(
            float(piece.size)
            if piece.whole or piece.end < 0
            else piece.size * (piece.end - piece.start) / max(1, extent[piece.path])
            for piece in partition.ranges
        )
        for partition in partitions
    ]


def take_sample(
    source: DocumentSource,
    partitions: Sequence[Partition],
    stages: Sequence[ProcessingStage[Any, Any]],
    *,
    sample_bytes: int,
) -> InputSample:
    """What the whole input holds and takes, judged by about `sample_bytes` of it that go through the stages.

    The stages are set up. The documents come from places that are evenly spread over the bytes of the input, and each
    place stands for as many of them: files that are unlike each other count by their size.
    """
    files, reader, *_ = source.reader().decompose()  # type: ignore[attr-defined]
    assert isinstance(reader, ReaderStage)
    files.prepare(reader, partitions[:1])
    stored = stored_bytes(partitions)
    spots = spread(stored)
    total = InputSample()
    warm = False
    for spot, represented in spots.items():
        partition = partitions[spot]
        batches = _batches(reader.process(files.task(partition)))
        taken, left, warm = _take(batches, partition, stages, sample_bytes / len(spots), warm=warm)
        share = _share(source, partition, taken, stored[spot]) if left and stored[spot] else 1.0
        total += replace(taken, stored=stored[spot] * share).scaled_to(represented)
    return total


def spread(stored: Sequence[float]) -> dict[int, float]:
    """The partitions to take documents from, and the bytes that each stands for, from the bytes of all of them."""
    sizes = np.asarray(stored, np.float64)
    if len(sizes) <= SPOTS:
        return dict(enumerate(sizes.tolist()))
    ends = np.cumsum(sizes)
    middles = (np.arange(SPOTS) + 0.5) / SPOTS * ends[-1]
    places, times = np.unique(np.searchsorted(ends[:-1], middles, side="right"), return_counts=True)
    return dict(zip(places.tolist(), (times * ends[-1] / SPOTS).tolist(), strict=True))


def _take(
    batches: Iterator[DocumentBatch],
    partition: Partition,
    stages: Sequence[ProcessingStage[Any, Any]],
    room: float,
    *,
    warm: bool,
) -> tuple[InputSample, bool, bool]:
    """Documents of one partition, whether some are left, and whether compiled code was loaded."""
    documents, text, seconds = 0, 0.0, 0.0
    while True:
        begun = time.perf_counter()
        batch = next(batches, None)
        reading = time.perf_counter() - begun
        if batch is None:
            return InputSample(0.0, documents, text, seconds), False, warm
        if not batch.num_items:
            continue
        with_lineage(batch, Lineage(partition.index, partition.id))
        size = batch.columns.nbytes
        rows = batch.num_items if size <= room - text else max(1, int(batch.num_items * (room - text) / size))
        part = rows / batch.num_items
        if not warm:
            # The first call loads compiled code, or compiles it: no part of what a long run takes.
            _process(stages, batch.slice(0, 1))
            warm = True
        begun = time.perf_counter()
        _process(stages, batch.slice(0, rows))
        seconds += time.perf_counter() - begun + reading * part
        documents += rows
        text += size * part
        if part < 1 or text >= room:
            return InputSample(0.0, documents, text, seconds), True, warm


def _share(source: DocumentSource, partition: Partition, taken: InputSample, stored: float) -> float:
    """Which share of a partition was taken."""
    storage = (source.read_kwargs or {}).get("storage_options")
    if source.filetype == "parquet":
        rows = sum(_rows(piece.path, piece.start, piece.end, piece.whole, storage) for piece in partition.ranges)
        return min(1.0, taken.documents / max(1, rows))
    return min(1.0, taken.text / (stored * expansion(partition.ranges[0].path, storage_options=storage)))


def _rows(path: str, start: int, end: int, whole: bool, storage_options: StorageOptions) -> int:
    with open_parquet(path, storage_options=storage_options) as opened:
        metadata = opened.metadata
        if whole or end < 0:
            return int(metadata.num_rows)
        return sum(int(metadata.row_group(at).num_rows) for at in range(start, min(end, metadata.num_row_groups)))


def expansion(path: str, *, storage_options: StorageOptions = None) -> float:
    """How many bytes come out of each stored byte of a file, judged by its beginning."""
    if codec_of(path) == "none":
        return 1.0
    source: Any = open_source(path, storage_options=storage_options)
    target = memoryview(bytearray(1 << 20))
    made = 0
    with contextlib.closing(source), contextlib.suppress(DamagedArchiveError):
        while made < _EXPANDED_BYTES and (count := source.readinto(target)):
            made += count
    return max(1e-3, made / max(1, int(source.consumed)))


def _process(stages: Sequence[ProcessingStage[Any, Any]], batch: DocumentBatch) -> None:
    """Pass a batch through the stages, and forget it."""
    current: list[Any] = [batch]
    for stage in stages:
        given = [stage.process(one) for one in current if one.num_items]
        current = []
        for result in given:
            kept = [result] if isinstance(result, DocumentBatch) else list(result or ())
            for one in kept:
                with_lineage(one, lineage_of(batch))
            current.extend(kept)


def _batches(given: Any) -> Iterator[DocumentBatch]:
    yield from [given] if isinstance(given, DocumentBatch) else given or ()
