"""What a deduplication will need, told from a sample of its input before anything is written."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from gristmill.errors import OutputError
from gristmill.pipeline.planner import expand
from gristmill.stages.base import ProcessingStage
from gristmill.stages.deduplication.source import DocumentSource
from gristmill.stages.ends import ReaderStage
from gristmill.storage.partitions import Partition
from gristmill.storage.remote import is_local, local_path
from gristmill.storage.sizes import format_size
from gristmill.tasks.base import Lineage
from gristmill.tasks.document import DocumentBatch

SAMPLE_BYTES = 8 << 20
_WORKER_BYTES = 320 << 20
"""What a worker needs at most: a batch with its columns, and the sorting of one range."""
_PASS_SHARE = 0.6
"""The time of the passes that only read and write, in parts of a pass that also hashes; measured."""


@dataclass(frozen=True)
class Forecast:
    """What a run will need, as far as a sample can tell."""

    input_bytes: int
    documents: int
    steps_bytes: int
    output_bytes: int
    memory_bytes: int
    seconds: float
    free_bytes: int | None
    partitions: int
    notes: list[str] = field(default_factory=list)

    def check(self, path: str) -> None:
        """Refuse what cannot fit.

        Raises:
            OutputError: The disk has less room than intermediate files and output will need.
        """
        needed = self.steps_bytes + self.output_bytes
        if self.free_bytes is not None and needed > self.free_bytes:
            raise OutputError(
                f"This deduplication will write about {format_size(needed)} ({format_size(self.steps_bytes)} of it "
                f"intermediate), but the disk of {path} has {format_size(self.free_bytes)} free. Make room, or put "
                "intermediate files elsewhere with cache_path.",
                path=path,
            )

    def __str__(self) -> str:
        lines = [
            f"input: {self.partitions} partitions, {format_size(self.input_bytes)}, about {self.documents} documents",
            f"intermediate files: about {format_size(self.steps_bytes)}",
            f"output: at most about {format_size(self.output_bytes)}",
            f"memory: about {format_size(self.memory_bytes)}, whatever the size of the input",
            f"time: about {self.seconds:.0f} s",
        ]
        if self.free_bytes is not None:
            lines.append(f"free disk: {format_size(self.free_bytes)}")
        return "\n".join([*lines, *self.notes])


def forecast(
    source: DocumentSource,
    partitions: list[Partition],
    stages: Sequence[ProcessingStage[Any, Any]],
    *,
    output: str,
    bytes_per_document: float,
    bytes_per_text_byte: float,
    workers: int,
    notes: list[str],
    sample_bytes: int = SAMPLE_BYTES,
) -> Forecast:
    """Run the stages of the first step on the beginning of the input and project from it."""
    read, documents, text, seconds = _sample(source, partitions, _ready(stages), sample_bytes)
    total = sum(
        piece.size if piece.end < 0 or piece.whole else piece.end - piece.start
        for p in partitions
        for piece in p.ranges
    )
    scale = total / max(1, read)
    return Forecast(
        input_bytes=total,
        documents=round(documents * scale),
        steps_bytes=round(scale * (documents * bytes_per_document + text * bytes_per_text_byte)),
        output_bytes=total,
        memory_bytes=_WORKER_BYTES * max(1, workers),
        seconds=scale * seconds * (1 + 2 * _PASS_SHARE) / max(1, workers),
        free_bytes=_free_bytes(output),
        partitions=len(partitions),
        notes=notes,
    )


def _ready(stages: Sequence[ProcessingStage[Any, Any]]) -> list[ProcessingStage[Any, Any]]:
    """The stages without composites, set up as a worker would."""
    flat = expand(list(stages))
    for stage in flat:
        stage.setup_on_node(None, None)
        stage.setup(None)
    return flat


def _sample(
    source: DocumentSource, partitions: list[Partition], stages: list[ProcessingStage[Any, Any]], sample_bytes: int
) -> tuple[int, int, int, float]:
    """Stored bytes, documents and bytes of text of a sample, and the seconds that reading and hashing it took."""
    files, reader, *_ = source.reader().decompose()  # type: ignore[attr-defined]
    assert isinstance(reader, ReaderStage)
    documents = text = 0
    begun, idle = time.perf_counter(), 0.0
    for partition in partitions:
        files.prepare(reader, partitions[:1])
        task = files.task(partition)
        size = sum(
            piece.size if piece.end < 0 or piece.whole else piece.end - piece.start for piece in partition.ranges
        )
        for batch in _batches(reader.process(task)):
            batch._lineage = Lineage(partition.index, partition.id)
            room = sample_bytes - text
            rows = batch.num_items if batch.columns.nbytes <= room else batch.num_items * room // batch.columns.nbytes
            nbytes = batch.columns.nbytes * max(1, rows) // max(1, batch.num_items)
            if not documents and batch.num_items:
                # The first call loads compiled code, or compiles it: no part of what a long run takes.
                paused = time.perf_counter()
                _process(stages, batch.slice(0, 1))
                idle = time.perf_counter() - paused
            _process(stages, batch.slice(0, max(1, rows)) if batch.num_items else batch)
            documents += min(batch.num_items, max(1, rows))
            text += nbytes
            if text >= sample_bytes or rows < batch.num_items:
                # Of a compressed file only a part was read; its share is told by the bytes that came out of it.
                return max(1, min(size, text)), documents, text, time.perf_counter() - begun - idle
        if text:
            return max(1, size), documents, text, time.perf_counter() - begun - idle
    return 1, 0, 0, 0.0


def _process(stages: list[ProcessingStage[Any, Any]], batch: DocumentBatch) -> None:
    """Pass a batch through the stages, and forget it."""
    current: list[Any] = [batch]
    for stage in stages:
        given = [stage.process(one) for one in current if one.num_items]
        current = []
        for result in given:
            kept = [result] if isinstance(result, DocumentBatch) else list(result or ())
            for one in kept:
                one._lineage = batch._lineage
            current.extend(kept)


def _batches(given: Any) -> Iterator[DocumentBatch]:
    yield from [given] if isinstance(given, DocumentBatch) else given or ()


def _free_bytes(path: str) -> int | None:
    if not is_local(path):
        return None
    place = local_path(path)
    while place and not os.path.exists(place):
        place = os.path.dirname(place)
    return shutil.disk_usage(place or ".").free
