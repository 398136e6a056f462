"""Runs a recipe on a sample of its input, in a private folder, and measures the resources that it uses."""

from __future__ import annotations

import os
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import xxhash

from gristmill.backends.base import BaseExecutor
from gristmill.errors import PlanningError
from gristmill.kernels.hashing import hash_column
from gristmill.ledger.record.trail import StageCount
from gristmill.observe.events import Event, KernelCompiling, Listener, RunFinished, RunStarted, Sample, TaskFinished
from gristmill.pipeline import Pipeline
from gristmill.pipeline.run import RunReport
from gristmill.recipes.loader import Recipe, StageEntry
from gristmill.stages.base import CompositeStage, ProcessingStage, Spec
from gristmill.stages.source_sink import ReaderStage
from gristmill.stages.text.io.documents import DocumentWriter
from gristmill.stages.text.io.reader.partitioning import FilePartitioningStage
from gristmill.storage.partitions import Partition
from gristmill.storage.selection import Selection
from gristmill.tasks.document import DocumentBatch

Stage = ProcessingStage[Any, Any]
_OF_PLACES = ("files_per_partition", "blocksize", "file_paths", "storage_options", "max_documents", "sample", "seed")
"""Parameters of a reader that describe the location and form of its input."""


class ChosenPartitions(FilePartitioningStage):
    """A source that yields a random part of its partitions, so that a sample need not read a very large input."""

    fork_safe = True
    chosen_share: float = 1.0
    chosen_seed: int = 0

    def partitions(self) -> list[Partition]:
        """The selected partitions, renumbered; at least one."""
        every = super().partitions()
        limit = int(self.chosen_share * 2**64)
        ranks = [xxhash.xxh3_64_intdigest(f"{self.chosen_seed}\n{one.id}".encode("utf-8", "replace")) for one in every]
        chosen = [one for one, rank in zip(every, ranks, strict=True) if rank < limit] or every[:1]
        return [replace(one, index=number) for number, one in enumerate(chosen)]


class TextSample(ProcessingStage[DocumentBatch, DocumentBatch]):
    """Keeps a share of all texts, chosen by their hashes, so that copies of a text are all kept or all dropped."""

    name = "text_sample"
    fork_safe = True
    notes_changes = True

    def __init__(self, share: float, seed: int, text_field: str) -> None:
        self.share = share
        self.seed = seed
        self.text_field = text_field

    def inputs(self) -> Spec:
        return ["data"], [self.text_field]

    def outputs(self) -> Spec:
        return ["data"], []

    def process(self, task: DocumentBatch) -> DocumentBatch:
        mixed = hash_column(task.text(self.text_field)) * np.uint64(0x9E3779B97F4A7C15 + 2 * self.seed)
        limit = np.uint64(min(self.share * 2.0**64, 2.0**64 - 2048))
        return task.drop(mixed >= limit, reason="not_in_sample")


@dataclass
class Meter:
    """Listens to a run, or to all steps of one, and adds up its resource use.

    Attributes:
        worker_s: Seconds that workers spent on tasks.
        core_s: The same, multiplied by the CPU cores that each requests.
        gpu_s: The same, multiplied by the GPUs.
        busy_s: Seconds by stage.
        counts: Rows and bytes by stage.
        calls: Calls by stage.
        input_bytes: Size of the input of the first step.
        peak_bytes: Peak memory.
        compiled: Number of kernels that had to be compiled.
        began: When the first step began.
        ended: When the last step ended.
        waited_s: Seconds until a worker started its first task.
    """

    worker_s: float = 0.0
    core_s: float = 0.0
    gpu_s: float = 0.0
    busy_s: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    counts: dict[str, StageCount] = field(default_factory=lambda: defaultdict(StageCount))
    calls: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    input_bytes: int = 0
    peak_bytes: int = 0
    compiled: int = 0
    began: float | None = None
    ended: float = 0.0
    waited_s: float | None = None
    _segments: Mapping[int, tuple[float, float]] = field(default_factory=dict)

    def __call__(self, event: Event) -> None:
        """Called with the events of the run."""
        if isinstance(event, TaskFinished):
            if self.waited_s is None and self.began is not None:
                self.waited_s = max(0.0, time.time() - self.began - event.seconds)
            cpus, gpus = self._segments.get(event.segment, (1.0, 0.0))
            self.worker_s += event.seconds
            self.core_s += event.seconds * max(cpus, 0.0 if gpus else 1.0)
            self.gpu_s += event.seconds * gpus
            for name, count in event.counts.items():
                self.counts[name].add(count)
            for name, spent in event.times.items():
                self.busy_s[name] += spent.busy_s
                self.calls[name] += spent.calls
        elif isinstance(event, Sample):
            self.peak_bytes = max(self.peak_bytes, event.memory_bytes)
        elif isinstance(event, RunStarted):
            if self.began is None:
                self.began, self.input_bytes = event.at, event.input_bytes
            self._segments = {one.index: (one.cpus, one.gpus) for one in event.segments}
        elif isinstance(event, RunFinished):
            self.ended = event.at
        elif isinstance(event, KernelCompiling):
            self.compiled += 1

    @property
    def wall_s(self) -> float:
        """From the beginning of the first step to the end of the last."""
        return 0.0 if self.began is None else max(0.0, self.ended - self.began)

    def reading(self) -> tuple[float, int]:
        """Seconds and rows of all readers."""
        names = [name for name in self.busy_s if name.endswith("_reader")]
        return sum(self.busy_s[name] for name in names), sum(self.counts[name].created for name in names)


@dataclass(frozen=True, slots=True)
class Measured:
    """A run on a sample, and the sizes of its files."""

    meter: Meter
    report: RunReport
    output_bytes: int
    record_bytes: int
    once_bytes: int
    """The files of the record that belong to the run as a whole; not in `record_bytes`."""


def reader_entry(recipe: Recipe) -> StageEntry:
    """The reader of a recipe.

    Raises:
        PlanningError: It has none, or one that already reads only a part.
    """
    first = recipe.stages[0] if recipe.stages else None
    if first is None or not first.name.endswith("Reader"):
        raise PlanningError("--sample needs a recipe that begins with a reader, such as DocumentReader.")
    for name in ("sample", "max_documents"):
        if first.parameters.get(name) is not None:
            raise PlanningError(
                f"The recipe's reader already reads only a part of the input ({name}). Remove it to forecast the "
                "whole input, or omit --limit."
            )
    return first


def draw(
    stages: Sequence[Stage],
    folder: str,
    executor: BaseExecutor,
    *,
    share: float,
    chosen: float = 1.0,
    seed: int = 0,
    text_field: str | None = None,
    listeners: Sequence[Listener] = (),
) -> Meter:
    """Write a sample of an input to a folder; returns the resources used for reading.

    Args:
        stages: The stages of a pipeline; the first one reads the input.
        folder: Folder to write to.
        executor: Where to run.
        share: The share of the documents of the partitions that are read.
        chosen: The share of partitions that are read.
        seed: Random seed of the sample.
        text_field: Keep identical texts of this column together; None samples each document independently.
        listeners: Called with the events.
    """
    source, reader = _flat(stages[0])
    assert isinstance(source, FilePartitioningStage)
    if chosen < 1:
        part = ChosenPartitions.__new__(ChosenPartitions)
        vars(part).update(vars(source), chosen_share=chosen, chosen_seed=seed)
        source = part
    between: list[Stage] = []
    if text_field is not None and share < 1:
        between = [TextSample(share, seed, text_field)]
    elif share < 1:
        selection = Selection(share, seed)
        source.selection = source._selected = selection
        assert isinstance(reader, ReaderStage)
        reader.select(selection)
    filetype: Any = source.format
    pipeline = Pipeline("sample", stages=[source, reader, *between, DocumentWriter(folder, filetype)])
    meter = Meter()
    pipeline.run(executor, error_budget=None, alarm_share=None, progress=False, listeners=[*listeners, meter])
    return meter


def _flat(stage: Stage) -> list[Stage]:
    if not isinstance(stage, CompositeStage):
        return [stage]
    return [inner for part in stage.decompose() for inner in _flat(part)]


def on_sample(
    recipe: Recipe, sample: str | None, output: str, *, blocksize: int | None, limit: int | None = None
) -> Recipe:
    """The recipe, reading a sample (None for all of its input) in blocks or up to a limit, and writing elsewhere."""
    stages = []
    for place, entry in enumerate(recipe.stages):
        parameters = dict(entry.parameters)
        if place == 0:
            if sample is not None:
                parameters = {name: value for name, value in parameters.items() if name not in _OF_PLACES}
                parameters["file_paths"] = sample
                if blocksize is not None:
                    parameters["blocksize"] = blocksize
            if limit is not None:
                parameters["max_documents"] = limit
        elif entry.name.endswith("Writer"):
            parameters.pop("storage_options", None)
            parameters["path"] = output
        stages.append(replace(entry, parameters=parameters))
    return replace(recipe, stages=tuple(stages))


def measure(
    recipe: Recipe,
    output: str,
    executor: BaseExecutor,
    *,
    allow_code: Sequence[str] = (),
    listeners: Sequence[Listener] = (),
    **options: Any,
) -> Measured:
    """Run a recipe on a sample; returns its resource use and output sizes."""
    meter = Meter()
    pipeline = recipe.pipeline(allow_code=allow_code)
    report = pipeline.run(
        executor, progress=False, keep_steps=True, error_budget=None, alarm_share=None, fresh=True,
        listeners=[*listeners, meter], **options,
    ).report  # fmt: skip
    record = Path(f"{output}.gristmill")
    # These exist once, regardless of the number of partitions.
    once = sum(size_of(str(file)) for file in record.glob("*.*") if file.is_file())
    return Measured(meter, report, size_of(output), size_of(str(record)) - once, once)


def size_of(path: str) -> int:
    """The bytes of a file, or of all files below a folder."""
    return sum(os.path.getsize(file) for file in _files(path))


def _files(path: str) -> Iterator[str]:
    place = Path(path)
    if place.is_file():
        yield path
        return
    yield from (str(file) for file in place.rglob("*") if file.is_file())
