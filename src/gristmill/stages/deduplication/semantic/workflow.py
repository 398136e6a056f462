"""`SemanticDeduplicationWorkflow`: removes documents whose embeddings nearly equal that of another one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from typing import Any

from gristmill.backends.base import BaseExecutor
from gristmill.errors import UsageError
from gristmill.stages.deduplication.deduplication_workflow import DeduplicationWorkflow
from gristmill.stages.deduplication.forecast import Forecast
from gristmill.stages.deduplication.key_ranges import RANGE_BYTES
from gristmill.stages.deduplication.semantic.chains import find_ends
from gristmill.stages.deduplication.semantic.search import (
    DEFAULT_MAX_EPS,
    SearchSettings,
    find_pairs,
    histogram,
    search_forecast,
    settle_max_eps,
)
from gristmill.stages.deduplication.semantic.survivors import SemanticSurvivors
from gristmill.stages.deduplication.semantic.vectors import DocumentVectors, WithText
from gristmill.stages.deduplication.sorted_runs import RunFiles
from gristmill.stages.deduplication.workflow_steps import Stage, Steps

METRICS = ("cosine", "l2")
DIMENSIONS = 384
"""Assumed length of embeddings in a forecast that has seen none."""


@dataclass(eq=False, repr=False)
class SemanticDeduplicationWorkflow(DeduplicationWorkflow):
    """Removes documents whose embeddings point in nearly the same direction, as SemDeDup does (Abbas et al. 2023).

    k-means clusters the vectors; in every cluster, and across near boundaries, each vector looks for the nearest one
    that is preferred to it. A document is removed if that one has a cosine of at least 1 - `eps`. These pairs are kept
    in files: running again with another `eps` (up to `max_eps`) reselects, without embeddings or search. For a larger
    `eps`, or another `max_eps`, the search is repeated with the existing embeddings.

    All vectors are rounded to integers whose products are exact, so the result is the same on any number of workers and
    on any machine. Documents without an embedding are not compared, and are kept; so are those without text, if the
    input has the text column.

    Args:
        input_path: A file, folder, glob or URL, or a list of these.
        output_path: Output folder for the remaining documents; without `perform_removal` for the ids of the others, in
            `duplicates/`.
        n_clusters: Number of clusters; defaults to the square root of the number of vectors.
        cache_path: Folder for intermediate files; defaults to `steps` in the record.
        record_path: Where to keep the record of the run, instead of `OUTPUT.gristmill` beside the output.
        id_field: Column that holds document ids.
        embedding_field: Column that holds the embeddings: lists of numbers, all of the same length.
        metadata_fields: Accepted for compatibility; the output has all columns.
        input_filetype: "jsonl" or "parquet"; detected from the file names by default.
        input_file_extensions: Extensions of the files to read in a folder.
        max_iter: Maximum number of rounds of k-means.
        tol: Stop k-means when the mean cosine with the centroids grows by less than this share.
        random_state: Random seed of k-means and of which_to_keep="random".
        init: Accepted for compatibility; k-means starts from random vectors of its sample.
        n_init: Accepted for compatibility; k-means runs once.
        oversampling_factor: For GPUs; has no effect.
        max_samples_per_batch: For GPUs; has no effect.
        fit_data_fraction: Accepted for compatibility; k-means learns from a random sample that fits into memory.
        distance_metric: "cosine" or "l2", which are equivalent, since all vectors have the same length.
        which_to_keep: Which duplicate to keep: "hard" (farthest from its centroid), "easy" (nearest) or "random".
        ranking_strategy: Only None is accepted; for your own ranking use `survivor="best"` with a `score_field`.
        pairwise_batch_size: For GPUs; has no effect.
        eps: Maximum distance (1 - cosine) of duplicates; None only finds and keeps the pairs.
        read_kwargs: See the readers.
        cache_kwargs: Accepted for compatibility; intermediate files use the options of `write_kwargs`.
        write_kwargs: See the writers.
        clear_output: Accepted for compatibility; `run(fresh=True)` starts over.
        verbose: Accepted for compatibility; has no effect.
        pairwise_compute_dtype: For GPUs; has no effect.
        kmeans_embedding_output_dtype: For GPUs; has no effect.
        perform_removal: If True, write the remaining documents; otherwise only the ids of those to remove.
        max_eps: Keep pairs up to this distance, so that `eps` can be raised later without a new search. Defaults to the
            value of an earlier run into the same output unless `eps` is larger, otherwise to 0.1 or `eps`.
        input_blocksize: See `blocksize` of the readers.
        files_per_partition: See the readers; instead of `input_blocksize`.
        output_filetype: "jsonl" or "parquet"; defaults to the input format.
        survivor: Instead of `which_to_keep`: "first" in source order, "longest", "best" or "newest" by
            `score_field`, or by "priority" of sources.
        score_field: Column of numbers for survivor="best" (the highest is kept), or of dates for "newest".
        source_priority: Patterns of source paths for survivor="priority", the preferred ones first.
        text_field: Column that holds the text, for survivor="longest", and to skip empty texts.
        against: Other documents (see `input_path`) to compare with. They are not changed, and input documents that
            duplicate them are removed.

    Example:
        >>> workflow = SemanticDeduplicationWorkflow("embedded/", "unique/", eps=0.01, perform_removal=True)
        >>> workflow.run().get_metadata("num_removed")
        >>> workflow.with_eps(0.05).run().get_metadata("num_removed")
    """

    name = "semantic_deduplication"
    reason = "semantic_duplicate"
    ids_folder = "duplicates"
    id_generator_file = "semantic_id_generator.json"
    first_step = "vectors"
    chain_range_bytes = RANGE_BYTES
    """Bytes of pairs in memory at once when finding survivors."""

    without_effect = (
        "cache_kwargs",
        "clear_output",
        "fit_data_fraction",
        "init",
        "kmeans_embedding_output_dtype",
        "max_samples_per_batch",
        "metadata_fields",
        "n_init",
        "oversampling_factor",
        "pairwise_batch_size",
        "pairwise_compute_dtype",
        "verbose",
    )

    input_path: str | Sequence[str] | None
    output_path: str
    n_clusters: int | None = None
    cache_path: str | None = None
    id_field: str | None = "id"
    embedding_field: str = "embeddings"
    metadata_fields: Sequence[str] | None = None
    input_filetype: str | None = None
    input_file_extensions: Sequence[str] | None = None
    max_iter: int = 300
    tol: float = 1e-4
    random_state: int = 42
    init: str | None = None
    n_init: int | str | None = None
    oversampling_factor: float | None = None
    max_samples_per_batch: int | None = None
    fit_data_fraction: float | None = None
    distance_metric: str = "cosine"
    which_to_keep: str = "hard"
    ranking_strategy: None = None
    pairwise_batch_size: int | None = None
    eps: float | None = None
    read_kwargs: Mapping[str, Any] | None = None
    cache_kwargs: Mapping[str, Any] | None = None
    write_kwargs: Mapping[str, Any] | None = None
    clear_output: bool | None = None
    verbose: bool | None = None
    pairwise_compute_dtype: str | None = None
    kmeans_embedding_output_dtype: str | None = None
    _: KW_ONLY
    perform_removal: bool = False
    max_eps: float | None = None
    input_blocksize: int | str | None = None
    files_per_partition: int | None = None
    output_filetype: str | None = None
    survivor: str | None = None
    score_field: str | None = None
    source_priority: Sequence[str] | None = None
    text_field: str = "text"
    record_path: str | None = None
    against: str | Sequence[str] | None = None

    def __post_init__(self) -> None:
        kind = type(self).__name__
        if self.ranking_strategy is not None:
            raise UsageError(f"{kind}(ranking_strategy=…): use which_to_keep, or survivor='best' with a score_field.")
        if self.distance_metric not in METRICS:
            raise UsageError(f"{kind}(distance_metric={self.distance_metric!r}): must be 'cosine' or 'l2'.")
        if self.survivor is not None and self.which_to_keep != "hard":
            raise UsageError(
                f"{kind}(which_to_keep={self.which_to_keep!r}, survivor={self.survivor!r}): set only one of the two."
            )
        if self.eps is not None and not 0 <= self.eps < 1:
            raise UsageError(f"eps={self.eps!r}: a distance (1 - cosine) must be at least 0 and below 1.")
        if self.perform_removal and self.eps is None:
            raise UsageError(f"{kind}(perform_removal=True, eps=None): set eps to the maximum distance of duplicates.")
        super().__post_init__()
        self.settings = SearchSettings(
            n_clusters=self.n_clusters,
            max_iter=self.max_iter,
            tol=self.tol,
            seed=self.random_state,
            which_to_keep=self.which_to_keep if self.survivor is None else None,  # type: ignore[arg-type]
            max_eps=max(DEFAULT_MAX_EPS, self.eps or 0.0) if self.max_eps is None else self.max_eps,
        )
        self._check_eps(self.eps)

    def with_eps(self, eps: float) -> SemanticDeduplicationWorkflow:
        """The same workflow with another `eps`; its run reselects among the pairs that this one found."""
        import copy

        self._check_eps(eps)
        other = copy.copy(self)
        other.eps = eps
        return other

    def _check_eps(self, eps: float | None) -> None:
        if eps is not None and not 0 <= eps <= self.settings.max_eps:
            raise UsageError(
                f"eps={eps!r}: must be a distance (1 - cosine) from 0 to max_eps={self.settings.max_eps:g}. Pairs "
                "further apart are not kept; for a larger eps set a larger max_eps: the search is then repeated with "
                "the existing embeddings.",
                eps=eps,
            )

    # --- the steps ---

    def _first_stage(self) -> Stage:
        return DocumentVectors(
            self.embedding_field, text_field=self.text_field, id_field=self.id_field or "id", rule=self.rule
        )

    @property
    def _named_columns(self) -> dict[str, str | None]:
        return {"embedding_field": self.embedding_field, **super()._named_columns}

    def _columns(self) -> list[str]:
        """The columns that the first step reads."""
        return [self.embedding_field, self.id_field or "id", self.text_field, *self.rule.columns]

    def _text_stages(self, steps: Steps) -> list[Stage]:
        """The stage that skips documents without text, whose embeddings are all the same and meaningless.

        Whether there are texts is decided for the whole input: per batch, it would depend on the partitioning.
        """
        found = steps.source.look_for([self.text_field])
        return [WithText(self.text_field)] if found is not None and self.text_field in found.names else []

    def _find(self, steps: Steps) -> RunFiles | None:
        stages = [*self._text_stages(steps), *self._first_stages()]
        vectors = steps.run_on_documents("vectors", stages, self._columns())
        settings = settle_max_eps(steps, self.settings, eps=self.eps, given=self.max_eps is not None)
        steps.result.add_metadata("max_eps", settings.max_eps)
        pairs = find_pairs(steps, vectors, settings)
        if self.eps is None:
            return None
        step = f"survivors-{self.eps!r}"
        source = find_ends(steps, pairs, eps=self.eps, range_bytes=self.chain_range_bytes)
        survivors = steps.removing(SemanticSurvivors(vectors, eps=self.eps))
        steps.run(step, [source, survivors, steps.writer(step)], id_field=None)
        return steps.runs(step)

    def _facts(self, steps: Steps, removals: RunFiles | None) -> dict[str, Any]:
        facts = super()._facts(steps, removals)
        facts.update(
            eps=self.eps,
            duplicates_by_eps=histogram(steps.runs("pairs"), 1.0 - steps.result.get_metadata("max_eps")),
            which_to_keep=self.settings.which_to_keep,
            survivor=self.rule.survivor if self.settings.which_to_keep is None else self.settings.which_to_keep,
        )
        return facts

    # --- the forecast ---

    bytes_per_document = 64.0 + 2.0 * DIMENSIONS

    def _forecast(self, executor: BaseExecutor) -> Forecast:
        found = super()._forecast(executor)
        workers = max(1, int(executor.capacity().cpus))
        more = search_forecast(found.documents, DIMENSIONS, self.settings, workers=workers)
        return replace(
            found,
            steps_bytes=found.steps_bytes + more.bytes,
            memory_bytes=found.memory_bytes + more.memory,
            growing_bytes=found.growing_bytes + more.memory,
            seconds=found.seconds + more.seconds,
            notes=[*found.notes, more.note],
        )
