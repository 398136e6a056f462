"""Samplers as pipeline stages: an exact number of documents, of all or of every stratum, on any executor."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import xxhash

from gristmill.errors import PlanningError, StageDefinitionError, UsageError
from gristmill.ledger.record.layout import step_folder
from gristmill.pipeline.pipeline import Pipeline
from gristmill.stages.base import ProcessingStage, Spec
from gristmill.stages.deduplication.sorted_runs import RunFiles, SortedRunWriter, column, open_run, runs_of
from gristmill.stages.deduplication.source import DocumentStage, make_keys
from gristmill.stages.sharding.cuts import cut_keys, totals_of
from gristmill.stages.sharding.keys import RANDOM_BITS, RANDOM_MASK, Integers, Keys, mixed
from gristmill.stages.sharding.mix_steps import NOT_SAMPLED
from gristmill.tasks.columns import TableColumns
from gristmill.tasks.document import DocumentBatch

if TYPE_CHECKING:
    from gristmill.backends.base import BaseExecutor
    from gristmill.observe.events import Listener
    from gristmill.pipeline.run import Options, Run
    from gristmill.stages.deduplication.pipeline_steps import PipelineSteps
    from gristmill.stages.deduplication.step_files import PipelineDocuments

_MOST_STRATA = 1 << 16
_SAMPLE = 0x73616D706C65


class Sampler(ProcessingStage[DocumentBatch, DocumentBatch]):
    """Base class of samplers: all documents are counted before any is passed on.

    A pipeline with such a stage runs in steps, with intermediate files beside the record of its output, which are
    removed at the end. Documents are drawn by a hash of their origin, so that the sample is the same for any number of
    workers.
    """

    needs_all_documents = True
    notes_changes = True
    seed: int

    @property
    def strata_field(self) -> str | None:
        """The column that defines the stratum of a document; None if all belong to one."""
        return None

    @abstractmethod
    def wanted(self, documents: int) -> float:
        """The number of documents of a stratum to keep, from its total number."""

    def workflow(self, *, output_path: str, cache_path: str, **places: Any) -> SampleSearch:
        """The workflow that draws the sample."""
        return SampleSearch(self, cache_path)

    def inputs(self) -> Spec:
        return ["data"], [] if self.strata_field is None else [self.strata_field]

    def outputs(self) -> Spec:
        return ["data"], []

    def process(self, task: DocumentBatch) -> DocumentBatch:
        """Never called: the stage is replaced by one that drops documents."""
        raise StageDefinitionError(
            f"{type(self).__name__} counts all documents, so it must be a stage of a Pipeline itself and not part of "
            "another stage."
        )

    def steps(self, run: Run, executor: BaseExecutor, options: Options) -> PipelineSteps:
        """The steps that come before the last one of a run."""
        from gristmill.stages.deduplication.pipeline_steps import PipelineSteps

        return PipelineSteps(run, executor, options)


class ReservoirSampler(Sampler):
    """Keeps exactly `count` randomly drawn documents, or all of them if there are fewer.

    Equivalent to reservoir sampling (Vitter, "Random Sampling with a Reservoir", 1985), but not in a single pass: keeps
    the documents with the lowest random keys.

    Args:
        count: Number of documents to keep.
        seed: Random seed of the sample.

    Example:
        >>> pipeline.add_stage(ReservoirSampler(10_000, seed=1))
    """

    name = "ReservoirSampler"

    def __init__(self, count: int, *, seed: int = 0) -> None:
        self.count = _checked_count("ReservoirSampler", count)
        self.seed = seed

    def wanted(self, documents: int) -> float:
        return min(self.count, documents)


class StratifiedSampler(Sampler):
    """Keeps a number or a fraction of the documents of every value of a column.

    A fraction is rounded to whole documents, at least one per value. Documents without a value form their own stratum.

    Args:
        field: The column, with at most 65,536 different values.
        count: Number of documents to keep per value; set this or `fraction`.
        fraction: Share to keep of each value.
        seed: Random seed of the sample.

    Example:
        >>> pipeline.add_stage(StratifiedSampler("language", count=1000))
    """

    name = "StratifiedSampler"

    def __init__(self, field: str, *, count: int | None = None, fraction: float | None = None, seed: int = 0) -> None:
        if not isinstance(field, str) or not field:
            raise UsageError(f"StratifiedSampler(field={field!r}): must be a column name.")
        if (count is None) == (fraction is None):
            raise UsageError("StratifiedSampler: set either count or fraction.")
        if fraction is not None and (isinstance(fraction, bool) or not 0 < fraction <= 1):
            raise UsageError(f"StratifiedSampler(fraction={fraction!r}): must be above 0 and at most 1.")
        self.field = field
        self.count = None if count is None else _checked_count("StratifiedSampler", count)
        self.fraction = fraction
        self.seed = seed

    @property
    def strata_field(self) -> str | None:
        return self.field

    def wanted(self, documents: int) -> float:
        if self.count is not None:
            return min(self.count, documents)
        assert self.fraction is not None
        return max(1, round(self.fraction * documents))


def _checked_count(stage: str, count: Any) -> int:
    if isinstance(count, bool) or not isinstance(count, int) or count < 1:
        raise UsageError(f"{stage}(count={count!r}): must be a whole number, at least 1.")
    return count


class SampleSearch:
    """Draws the sample of a stage among the documents of a pipeline.

    Args:
        sampler: The stage.
        path: Folder for intermediate files.
    """

    def __init__(self, sampler: Sampler, path: str) -> None:
        self._sampler = sampler
        self._path = path
        self.step_prefix = ""

    def search(
        self,
        documents: PipelineDocuments,
        executor: BaseExecutor,
        *,
        name: str,
        error_budget: float | int | None,
        salvage: bool,
        listeners: Sequence[Listener],
    ) -> SampleSelection:
        """The stage `name` that keeps the sample."""
        sampler = self._sampler
        path = f"{self._path}/{self.step_prefix}keys"
        keys = SampleKeys(sampler.seed, sampler.strata_field)
        pipeline = Pipeline(f"{name}: keys", stages=[documents.reader(), keys, SortedRunWriter(path)])
        pipeline.run(
            executor, error_budget=error_budget, salvage=salvage, listeners=listeners, progress=False, report=False,
            ignore_failures=False, id_field=None, url_field=None, record_path=step_folder(path).record,
        )  # fmt: skip
        strata, cuts = draw_sample(runs_of(path), sampler)
        selection = SampleSelection(sampler.seed, sampler.strata_field, strata, cuts)
        selection.name = name
        return selection


def draw_sample(runs: RunFiles, sampler: Sampler) -> tuple[Keys, Keys]:
    """The strata, by the hash of their value, and the key below which documents of each are kept.

    Raises:
        PlanningError: There are too many strata.
    """
    strata = np.empty(0, np.uint64)
    for part in runs.parts("stratum"):
        strata = np.union1d(strata, part)
        if len(strata) > _MOST_STRATA:
            raise PlanningError(
                f"{type(sampler).__name__}: the column {sampler.strata_field!r} has more than {_MOST_STRATA:,} "
                "different values. Sample by a column with fewer, such as a language or a source."
            )

    def weights() -> Iterator[tuple[Keys, Integers]]:
        for file in runs.files:
            table = open_run(file.path, storage_options=runs.storage_options)
            numbers = np.searchsorted(strata, column(table, "stratum")).astype(np.uint64)
            keys = column(table, "key") | (numbers << np.uint64(RANDOM_BITS))
            yield keys, np.ones(len(keys), np.int64)

    wanted = {at: [float(sampler.wanted(total.documents))] for at, total in totals_of(weights).items()}
    found = cut_keys(weights, wanted) if wanted else {}
    cuts = [found[at][0] - (at << RANDOM_BITS) for at in range(len(strata))]
    return strata, np.array(cuts, np.uint64)


class SampleKeys(DocumentStage):
    """Turns documents into random keys with the hash of their stratum.

    Args:
        seed: Seed of the sample.
        strata_field: The column of strata, or None.
    """

    notes_changes = True
    name = "sample_keys"
    fork_safe = True

    def __init__(self, seed: int, strata_field: str | None) -> None:
        self.seed = seed
        self.strata_field = strata_field

    def inputs(self) -> Spec:
        return ["data"], [] if self.strata_field is None else [self.strata_field]

    def outputs(self) -> Spec:
        return ["data"], ["stratum", "key"]

    def process(self, task: DocumentBatch) -> DocumentBatch:
        strata, keys = drawn(task, self.seed, self.strata_field)
        return task.with_columns(TableColumns(pa.table({"stratum": strata, "key": keys})))


class SampleSelection(ProcessingStage[DocumentBatch, DocumentBatch]):
    """Drops the documents that are not in the sample.

    Args:
        seed: Seed of the sample.
        strata_field: The column of strata, or None.
        strata: The hashes of the strata, in ascending order.
        cuts: For each stratum, the key below which documents are kept.
    """

    notes_changes = True
    name = "sample_selection"
    fork_safe = True

    def __init__(self, seed: int, strata_field: str | None, strata: Keys, cuts: Keys) -> None:
        self.seed = seed
        self.strata_field = strata_field
        self._strata = strata
        self._cuts = cuts
        self.removals = xxhash.xxh3_128_hexdigest(strata.tobytes() + cuts.tobytes())
        """A digest of the sample: an output never mixes two samples."""

    def inputs(self) -> Spec:
        return ["data"], [] if self.strata_field is None else [self.strata_field]

    def outputs(self) -> Spec:
        return ["data"], []

    def process(self, task: DocumentBatch) -> DocumentBatch:
        strata, keys = drawn(task, self.seed, self.strata_field)
        places = np.searchsorted(self._strata, strata)
        return task.drop(keys >= self._cuts[places], reason=NOT_SAMPLED)


def drawn(batch: DocumentBatch, seed: int, strata_field: str | None) -> tuple[Keys, Keys]:
    """The stratum and the random key of every document."""
    strata = np.zeros(batch.num_items, np.uint64)
    if strata_field is not None and batch.columns.has(strata_field):
        from gristmill.kernels.hashing import hash_column

        strata = hash_column(batch.text(strata_field))
    keys: Keys = mixed(make_keys(batch.partition, batch.rows), seed ^ _SAMPLE) & RANDOM_MASK
    return strata, keys
