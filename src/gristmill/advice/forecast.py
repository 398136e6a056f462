"""Forecasts a run from a sample: time, CPU, memory, disk, and what every stage would keep."""

from __future__ import annotations

import heapq
import math
import os
import shutil
import tempfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from gristmill.advice.sampling import Measured, draw, measure, on_sample, reader_entry, size_of
from gristmill.backends.base import BaseExecutor
from gristmill.backends.local import SMALL_INPUT
from gristmill.backends.registry import get_executor
from gristmill.errors import InputError, UsageError
from gristmill.figures import share as percent
from gristmill.observe.events import Listener
from gristmill.pipeline.run import Options, Prepared, prepare
from gristmill.recipes.loader import Recipe
from gristmill.storage.formats import codec_of
from gristmill.storage.jsonl_blocks import DEFAULT_BLOCK_BYTES

_STEADY_S = 3.0
"""How long each worker should be busy on the sample: shorter runs mostly measure start-up."""
_MOST_ENLARGED = 2
_MOST_READ = 8 * 10**9
_LEAST_PARTITIONS = 32
"""Limits on the input that a sample reads: at most these bytes, unless that is fewer than these partitions."""
_TINY = 50
_NORMAL = 1.96
"""Standard deviations on each side that hold 95 % of a normal distribution."""
_BATCH_COPIES = 4
"""Number of copies of a batch's text in a worker's memory: as read, decoded, and as kernel buffers."""
_COMPRESSION = 4
_RECORD_BYTES = 2000
"""Typical compression ratio and record size, for a first estimate."""


@dataclass(frozen=True, slots=True)
class StageForecast:
    """The forecast for one stage on the whole input.

    Attributes:
        name: The stage.
        rows_in: Documents that it will receive.
        rows_out: Documents that it will pass on.
        kept: The share that it keeps; None if no document of the sample reached it.
        error: Half the width of the 95 % confidence interval of that share.
        bytes_out: Size of its output; None if unknown.
        busy_seconds: Worker-seconds.
        compares: Whether it compares all documents, so that a sample underestimates the number of duplicates.
    """

    name: str
    rows_in: int
    rows_out: int
    kept: float | None
    error: float | None
    bytes_out: int | None
    busy_seconds: float
    compares: bool = False


@dataclass(frozen=True, slots=True)
class Forecast:
    """The forecast for a run of a recipe.

    Attributes:
        recipe: Its name.
        input_bytes: The size of the files to read.
        workers: Number of workers it will use.
        sample_share: The share of the documents in the sample.
        sample_documents: Number of documents in the sample.
        sample_seconds: Total time of all runs on samples.
        notes: Further remarks.
        wall_seconds: From the start of the run to its end.
        startup_seconds: The part of it that does not depend on the input.
        compile_seconds: Time spent compiling kernels for the forecast; the run itself reuses them.
        core_hours: CPU core hours.
        gpu_hours: GPU hours.
        memory_bytes: Peak memory.
        documents: Number of documents in the input.
        documents_out: Number of documents in the output.
        output_bytes: The size of the output.
        record_bytes: The size of its record, with the intermediate files of deduplications.
        staging_bytes: Maximum size of files written but not yet committed.
        stages: The forecasts of the stages.
    """

    recipe: str
    input_bytes: int
    workers: int
    sample_share: float
    sample_documents: int
    sample_seconds: float
    notes: tuple[str, ...]
    wall_seconds: float
    startup_seconds: float
    compile_seconds: float
    core_hours: float
    gpu_hours: float
    memory_bytes: int
    documents: int
    documents_out: int
    output_bytes: int
    record_bytes: int
    staging_bytes: int
    stages: tuple[StageForecast, ...]

    def as_json(self) -> dict[str, Any]:
        """Everything as plain values."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class SampleSize:
    """The requested size of a sample: a share or a number of documents."""

    share: float | None = None
    documents: int | None = None


def parse_sample(text: str) -> SampleSize:
    """A sample as written on the command line: `1%`, `0.01` or a number of documents.

    Raises:
        UsageError: It is none of these.

    Example:
        >>> parse_sample("1%"), parse_sample("5000")
        (SampleSize(share=0.01, documents=None), SampleSize(share=None, documents=5000))
    """
    plain = text.strip().replace(",", "").replace("_", "")
    try:
        if plain.endswith("%"):
            found = SampleSize(share=float(plain[:-1]) / 100)
        elif plain.isdigit() and int(plain) > 1:
            return SampleSize(documents=int(plain))
        else:
            found = SampleSize(share=float(plain))
    except ValueError:
        found = SampleSize(share=-1.0)
    if found.share is None or not 0 < found.share <= 1:
        raise UsageError(
            f"--sample {text}: must be a share of the documents such as 1% or 0.01, or a number such as 5000.",
            value=text,
        )
    return found


def forecast(
    recipe: Recipe,
    executor: BaseExecutor,
    size: SampleSize,
    *,
    seed: int = 0,
    allow_code: Sequence[str] = (),
    near: str | None = None,
    tell: Callable[[str], None] = lambda line: None,
    listeners: Iterable[Listener] = (),
    **options: Any,
) -> Forecast:
    """Run a recipe on a sample and forecast the full run.

    Args:
        recipe: The recipe, with its input and output set; nothing is written to that output.
        executor: Where it will run.
        size: Requested size of the sample; enlarged if it is too short to measure.
        seed: Random seed of the sample.
        allow_code: Modules whose stages the recipe may use.
        near: A folder on the disk to put the sample on; defaults to the system's temporary folder.
        tell: Called with a line about each step.
        listeners: Called with the events of the runs.
        options: Those of `Pipeline.run` that change what is recorded.

    Raises:
        InputError: The input has no documents.
    """
    reader_entry(recipe)
    pipeline = recipe.pipeline(allow_code=allow_code)
    prepared = prepare(pipeline, executor, None, Options(**options))
    whole = _Input.of(prepared)
    comparing = [stage for stage in prepared.sketch.stages if stage.needs_all_documents]
    text_field = next((str(getattr(stage, "text_field", "text")) for stage in comparing), None)
    share = size.share if size.share is not None else min(1.0, (size.documents or 1) / max(1, whole.guess))
    with tempfile.TemporaryDirectory(prefix="gristmill-plan-", dir=_folder_near(near)) as place:
        runs = _Runs(recipe, executor, whole, place, tell, list(listeners), allow_code, options)
        runs.take(pipeline.stages, share, seed, text_field)
        for _ in range(_MOST_ENLARGED):
            steady, wanted = runs.steady(in_steps=bool(comparing))
            if steady >= wanted or runs.share >= 1:
                break
            share = min(1.0, runs.share * max(2.0, min(100.0, 1.3 * wanted / max(steady, 0.01))))
            tell(f"The sample is too short to measure ({steady:.2f} s of steady work): taking {percent(share)}.")
            runs.take(pipeline.stages, share, seed, text_field)
        if not runs.measured.report.rows_read:
            raise InputError("The input has no documents to sample.")
        return runs.forecast(prepared)


@dataclass(frozen=True, slots=True)
class _Input:
    """The whole input, as far as file listings show."""

    sizes: tuple[int, ...]
    compressed: bool

    @classmethod
    def of(cls, prepared: Prepared) -> _Input:
        sizes = []
        for partition in prepared.partitions:
            pieces = (one.size if one.whole or one.end < 0 else one.end - one.start for one in partition.ranges)
            sizes.append(sum(pieces))
        paths = [one.path for partition in prepared.partitions[:1] for one in partition.ranges]
        compressed = any(codec_of(path) != "none" or path.lower().endswith(".parquet") for path in paths)
        return cls(tuple(sizes), compressed)

    @property
    def size(self) -> int:
        return sum(self.sizes)

    @property
    def guess(self) -> int:
        """Approximate number of documents."""
        return max(1, self.size * (_COMPRESSION if self.compressed else 1) // _RECORD_BYTES)


class _Runs:
    """The sample runs of one forecast."""

    def __init__(
        self,
        recipe: Recipe,
        executor: BaseExecutor,
        whole: _Input,
        place: str,
        tell: Callable[[str], None],
        listeners: list[Listener],
        allow_code: Sequence[str],
        options: dict[str, Any],
    ) -> None:
        self.recipe, self.whole, self.place, self.tell = recipe, whole, place, tell
        self.listeners, self.allow_code, self.options = listeners, allow_code, options
        self.workers = max(1, int(executor.capacity().cpus))
        self.executor = executor
        if executor.name == "local" and executor.config.get("num_cpus") is None and whole.size > SMALL_INPUT:
            # A small sample would run in this process, unlike the full run.
            self.executor = get_executor("local", {**executor.config, "num_cpus": self.workers})
        self.compile_s = self.seconds = 0.0
        self.tiny: Measured | None = None

    def take(self, stages: Sequence[Any], share: float, seed: int, text_field: str | None) -> None:
        """Draw a sample of this share and run the recipe on it; for a share of 1, on the input itself."""
        sample = f"{self.place}/sample"
        for old in (sample, f"{sample}.gristmill"):
            shutil.rmtree(old, ignore_errors=True)
        self.share = self.chosen = 1.0
        if share < 1:
            least = _LEAST_PARTITIONS / max(1, len(self.whole.sizes))
            chosen = min(1.0, max(_MOST_READ / max(1, self.whole.size), least, share))
            self.tell(f"Drawing {percent(share)} of the documents.")
            self.drawn = draw(
                stages, sample, self.executor, share=min(1.0, share / chosen), chosen=chosen, seed=seed,
                text_field=text_field, listeners=self.listeners,
            )  # fmt: skip
            self.chosen = min(1.0, self.drawn.input_bytes / max(1, self.whole.size))
            self.share = share / chosen * self.chosen
            self.seconds += self.drawn.wall_s
            if not size_of(sample):
                share = self.share = self.chosen = 1.0
                shutil.rmtree(sample, ignore_errors=True)
                self.tell("The input is too small for a sample.")
        if self.tiny is None:
            self.tell(f"Running {self.recipe.name} on {_TINY} documents, to measure its start-up time.")
            self.tiny = self._run(sample, limit=_TINY)
            if self.tiny.meter.compiled:
                first = self.tiny.meter.wall_s
                self.tiny = self._run(sample, limit=_TINY)
                self.compile_s = max(0.0, first - self.tiny.meter.wall_s)
        self.tell(f"Running {self.recipe.name} on {'the sample' if share < 1 else 'the whole input'}.")
        # Several partitions per worker, so that all workers are busy, as in the full run.
        self.sample_bytes = size_of(sample) if share < 1 else self.whole.size
        pieces = max(1 << 16, min(DEFAULT_BLOCK_BYTES, self.sample_bytes // (2 * self.workers)))
        self.measured = self._run(sample, blocksize=pieces)
        if share >= 1:
            self.drawn = self.measured.meter

    def steady(self, *, in_steps: bool) -> tuple[float, float]:
        """Seconds of work on the sample without start-up, and the required number of seconds."""
        assert self.tiny is not None
        meter, tiny = self.measured.meter, self.tiny.meter
        if in_steps:
            return meter.wall_s - tiny.wall_s, max(_STEADY_S, tiny.wall_s)
        return meter.worker_s / self.workers - tiny.worker_s, _STEADY_S

    def _run(self, sample: str, *, blocksize: int | None = None, limit: int | None = None) -> Measured:
        output = f"{self.place}/output"
        for old in (output, f"{output}.gristmill"):
            shutil.rmtree(old, ignore_errors=True)
        source = sample if os.path.exists(sample) else None
        changed = on_sample(self.recipe, source, output, blocksize=blocksize, limit=limit)
        found = measure(
            changed, output, self.executor, allow_code=self.allow_code, listeners=self.listeners, **self.options
        )
        self.seconds += found.meter.wall_s
        return found

    def forecast(self, prepared: Prepared) -> Forecast:
        """The forecast for the full run, from the measurements."""
        assert self.tiny is not None
        meter, report, tiny = self.measured.meter, self.measured.report, self.tiny.meter
        scale = 1 / self.share
        # Work is proportional to bytes rather than documents, a few of which are very long; the number of bytes is
        # known unless they are compressed.
        by_bytes = scale if self.whole.compressed else self.whole.size / max(1, self.sample_bytes)
        names = [stage.name for stage in prepared.sketch.stages if stage.needs_all_documents]
        # Reading is measured on the original files; the sample may be compressed differently.
        read_s, rows = meter.reading()
        drawn_s, _ = self.drawn.reading()
        passes = rows / max(1, report.rows_read)
        # The first task of a worker also loads kernels and models, as in the tiny run.
        first_s = min(tiny.worker_s * self.workers, meter.worker_s / 2)
        worker_s = max(0.0, meter.worker_s - first_s - read_s) * by_bytes + passes * drawn_s / self.chosen
        startup = tiny.wall_s
        if names:
            # Steps run one after the other, and the driver does some of their work: use their wall time.
            reading = (passes * drawn_s / self.chosen - read_s * by_bytes) / self.workers
            wall = startup + max(0.0, meter.wall_s - tiny.wall_s) * by_bytes + reading
        else:
            wall = startup + makespan(self.whole.sizes, worker_s, self.workers, shared=len(prepared.plan.segments) > 1)
        batch = self.sample_bytes / max(1, sum(meter.calls[name] for name in meter.calls if name.endswith("_reader")))
        fuller = max(0.0, min(DEFAULT_BLOCK_BYTES, max(self.whole.sizes, default=0)) - batch)
        output_bytes = round(self.measured.output_bytes * by_bytes)
        fixed = self.tiny.record_bytes
        per_document = max(0, self.measured.record_bytes - fixed * report.partitions)
        largest = max(self.whole.sizes, default=0) / max(1, self.whole.size)
        stages = tuple(self._stage(one, scale, by_bytes, names) for one in report.stages)
        notes = []
        if names:
            notes.append(
                f"{' and '.join(names)}: a sample keeps identical texts together, but contains only those "
                "near-duplicate pairs whose documents are both in it. The full input has more of them, so the number "
                "kept is an upper bound."
            )
        if self.chosen < 1:
            notes.append(f"Read for the sample: {percent(self.chosen)} of the partitions, chosen at random.")
        return Forecast(
            recipe=self.recipe.name,
            input_bytes=self.whole.size,
            workers=self.workers,
            sample_share=self.share,
            sample_documents=report.rows_read,
            sample_seconds=self.seconds,
            notes=tuple(notes),
            wall_seconds=wall,
            startup_seconds=startup,
            compile_seconds=self.compile_s,
            core_hours=(worker_s + first_s) * meter.core_s / max(meter.worker_s, 1e-9) / 3600,
            gpu_hours=meter.gpu_s * by_bytes / 3600,
            memory_bytes=round(meter.peak_bytes + self.workers * _BATCH_COPIES * fuller),
            documents=round(report.rows_read * scale),
            documents_out=round(report.rows_written * scale),
            output_bytes=output_bytes,
            record_bytes=round(self.measured.once_bytes + fixed * len(self.whole.sizes) + per_document * scale),
            staging_bytes=round(min(1.0, largest * self.workers) * output_bytes),
            stages=stages,
        )

    def _stage(self, one: Any, scale: float, by_bytes: float, comparing: Sequence[str]) -> StageForecast:
        meter = self.measured.meter
        rows_in = one.rows_in + one.created
        kept = one.rows_out / rows_in if rows_in else None
        error = None if kept is None else _NORMAL * math.sqrt(max(kept * (1 - kept), 1 / (4 * rows_in)) / rows_in)
        count = meter.counts.get(one.name)
        size = None if count is None or not count.bytes_out else round(count.bytes_out * by_bytes)
        busy = one.busy_s * by_bytes
        if one.name.endswith("_reader"):
            busy = self.drawn.reading()[0] / self.chosen
        return StageForecast(
            one.name,
            round(rows_in * scale),
            round(one.rows_out * scale),
            kept,
            0.0 if one.created else error,
            size,
            busy,
            one.name in comparing,
        )


def makespan(sizes: Sequence[int], worker_s: float, workers: int, *, shared: bool = False) -> float:
    """The wall time of workers for partitions of these sizes, assigned in this order to the next free worker.

    Args:
        sizes: The sizes of the partitions.
        worker_s: Time that one worker would need for all of them.
        workers: Number of workers.
        shared: Whether workers share the documents of a partition, so that a large one does not keep the others
            waiting.

    Example:
        >>> makespan([4, 1, 1, 1, 1], 8.0, 2)
        4.0
        >>> makespan([8], 8.0, 2)
        8.0
    """
    total = sum(sizes)
    if shared or not total:
        return worker_s / workers
    free = [0.0] * workers
    for size in sizes:
        heapq.heappush(free, heapq.heappop(free) + worker_s * size / total)
    return max(free)


def _folder_near(path: str | None) -> str | None:
    """The parent folder of a local output, if it exists and is writable."""
    if path is None or "://" in path:
        return None
    parent = Path(path).absolute().parent
    return str(parent) if parent.is_dir() and os.access(parent, os.W_OK) else None
