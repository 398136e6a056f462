"""Deduplication as a stage anywhere in a pipeline: one document of every group of duplicates is passed on."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import fields
from typing import TYPE_CHECKING, Any, Literal

from gristmill.errors import StageDefinitionError
from gristmill.pipeline.planner import expand
from gristmill.stages.base import ProcessingStage, Spec
from gristmill.stages.deduplication.deduplication_workflow import DeduplicationWorkflow
from gristmill.stages.deduplication.exact.steps import Key
from gristmill.stages.deduplication.exact.workflow import ExactDeduplicationWorkflow
from gristmill.stages.deduplication.fuzzy.workflow import DEFAULT_THRESHOLD, Device, FuzzyDeduplicationWorkflow, Verify
from gristmill.stages.deduplication.repeated.line_workflow import LineDeduplicationWorkflow
from gristmill.stages.deduplication.repeated.lines import Scope, Unit
from gristmill.stages.deduplication.repeated.removal import Keep
from gristmill.stages.deduplication.repeated.substring_workflow import SubstringDeduplicationWorkflow
from gristmill.stages.deduplication.repeated.substrings import WindowUnit
from gristmill.stages.deduplication.semantic.text_workflow import DEFAULT_MODEL, TextSemanticDeduplicationWorkflow
from gristmill.stages.deduplication.semantic.workflow import SemanticDeduplicationWorkflow
from gristmill.stages.deduplication.survivor_rule import Survivor
from gristmill.stages.text.cutting import Action
from gristmill.tasks.document import DocumentBatch

if TYPE_CHECKING:
    from gristmill.backends.base import BaseExecutor
    from gristmill.pipeline.run import Options, Run
    from gristmill.stages.deduplication.pipeline_steps import PipelineSteps


class Deduplication(ProcessingStage[DocumentBatch, DocumentBatch]):
    """Base class of deduplications in pipelines: all documents are compared before any is passed on.

    A pipeline with such stages therefore runs in steps, with intermediate files beside the record of its output; they
    are removed at the end of the run. There is one record for all steps.
    """

    needs_all_documents = True
    role = "deduplication"
    text_field: str
    score_field: str | None

    @abstractmethod
    def workflow(self, *, output_path: str, **places: Any) -> DeduplicationWorkflow:
        """The workflow that finds the duplicates; `places` are options for paths, which this stage lacks."""

    def options_of(self, workflow: type[Any]) -> dict[str, Any]:
        """The options of this stage that the workflow has too, under the same names."""
        return {field.name: getattr(self, field.name) for field in fields(workflow) if field.name in vars(self)}

    def inputs(self) -> Spec:
        return ["data"], [self.text_field, *([self.score_field] if self.score_field is not None else [])]

    def outputs(self) -> Spec:
        return ["data"], []

    def process(self, task: DocumentBatch) -> DocumentBatch:
        """Never called: the stage is replaced by one that removes the duplicates."""
        raise StageDefinitionError(
            f"{type(self).__name__} compares all documents, so it must be a stage of a Pipeline itself and not part "
            "of another stage. Without a pipeline, use the workflow: "
            f"{type(self.workflow(output_path='unique/')).__name__}."
        )

    def steps(self, run: Run, executor: BaseExecutor, options: Options) -> PipelineSteps:
        """The steps that come before the last one of a run."""
        from gristmill.stages.deduplication.pipeline_steps import PipelineSteps

        return PipelineSteps(run, executor, options)


class ExactDeduplication(Deduplication):
    """Keeps one document of every group of identical texts.

    Args:
        text_field: Column that holds the text.
        survivor: Which document of a group to keep: "first" in source order, "longest", "best" or "newest" by
            `score_field`, or by "priority" of sources.
        score_field: Column of numbers for survivor="best" (the highest is kept), or of dates for "newest".
        source_priority: Patterns of source paths for survivor="priority", the preferred ones first.
        merge_empty: Whether empty and missing texts count as duplicates of each other.
        key: What to compare: "text", or the normalised "url" or "title". URLs are normalised by `UrlNormalizer`,
            without scheme and `www.`; titles ignore case, punctuation and repeated spaces.
        key_field: Column that holds the URL or title; defaults to `url` or `title`.
        against: A folder of other documents to compare with. They are not changed, and documents that duplicate them
            are removed.

    Example:
        >>> pipeline.add_stage(ExactDeduplication(survivor="longest"))
    """

    notes_changes = True
    name = "ExactDeduplication"

    def __init__(
        self,
        text_field: str = "text",
        *,
        survivor: Survivor = "first",
        score_field: str | None = None,
        source_priority: Sequence[str] | None = None,
        merge_empty: bool = False,
        key: Key = "text",
        key_field: str | None = None,
        against: str | None = None,
    ) -> None:
        self.text_field = text_field
        self.against = against
        self.survivor = survivor
        self.score_field = score_field
        self.source_priority = None if source_priority is None else list(source_priority)
        self.merge_empty = merge_empty
        self.key: Key = key
        self.key_field = key_field
        self.workflow(output_path="unique/")  # refuses invalid options

    def inputs(self) -> Spec:
        return self.workflow(output_path="unique/")._first_stage().inputs()

    def workflow(self, *, output_path: str, **places: Any) -> ExactDeduplicationWorkflow:
        return ExactDeduplicationWorkflow(output_path, **self.options_of(ExactDeduplicationWorkflow), **places)


class LineDeduplication(Deduplication):
    """Removes lines, paragraphs or sentences that occur more than `max_count` times.

    Units are compared without surrounding whitespace, with runs of ASCII whitespace as one. Every passage that is cut
    is in the ledger; a document with nothing left is dropped as `nothing_left`.

    Args:
        text_field: Column that holds the text.
        unit: "line", "paragraph" (lines up to a blank one) or "sentence".
        scope: Where to count repetitions: within a "document", a "domain" (the host in `url_field`) or "all".
        max_count: Units that occur more often than this are repeated.
        keep: "first" keeps the first occurrence in source order, "none" removes all of them.
        min_chars: Ignore shorter units.
        loose: Ignore case and ASCII punctuation, and treat all digits as equal, as CCNet does (Wenzek et al. 2019).
        url_field: Column that holds the URL, for scope="domain"; a document without one is compared with itself only.
        action: "cut", "mark" (do not change the documents, but write the positions to `marks_field`), or "drop" (drop
            documents above `max_share` and leave the others unchanged).
        marks_field: Column for marks: a list of start, end (in characters) and reason.
        max_share: Drop documents with a larger share of repeated text.

    Example:
        >>> pipeline.add_stage(LineDeduplication(unit="paragraph", scope="domain"))
    """

    notes_changes = True
    name = "LineDeduplication"
    score_field = None

    def __init__(
        self,
        text_field: str = "text",
        *,
        unit: Unit = "line",
        scope: Scope = "all",
        max_count: int = 1,
        keep: Keep = "first",
        min_chars: int = 20,
        loose: bool = False,
        url_field: str = "url",
        action: Action = "cut",
        marks_field: str = "repeated",
        max_share: float | None = None,
    ) -> None:
        self.text_field = text_field
        self.unit: Unit = unit
        self.scope: Scope = scope
        self.max_count = max_count
        self.keep: Keep = keep
        self.min_chars = min_chars
        self.loose = loose
        self.url_field = url_field
        self.action: Action = action
        self.marks_field = marks_field
        self.max_share = max_share
        self.workflow(output_path="unique/")

    def outputs(self) -> Spec:
        return ["data"], [self.text_field, *([self.marks_field] if self.action == "mark" else [])]

    def workflow(self, *, output_path: str, **places: Any) -> LineDeduplicationWorkflow:
        return LineDeduplicationWorkflow(output_path, **self.options_of(LineDeduplicationWorkflow), **places)


class SubstringDeduplication(Deduplication):
    """Removes passages of at least `min_length` words or bytes that occur more than once (Lee et al. 2021).

    Finds exactly the windows of `min_length` units that occur elsewhere, in the same document or another. Every passage
    that is cut is in the ledger; a document with nothing left is dropped as `nothing_left`.

    Args:
        text_field: Column that holds the text.
        unit: "token" (whitespace-separated words) or "byte".
        min_length: Minimum length of a passage, in units.
        keep: "first" keeps the first occurrence in source order, "none" removes all of them.
        action: "cut", "mark" (do not change the documents, but write the positions to `marks_field`), or "drop" (drop
            documents above `max_share` and leave the others unchanged).
        marks_field: Column for marks: a list of start, end (in characters) and reason.
        max_share: Drop documents with a larger share of repeated text.

    Example:
        >>> pipeline.add_stage(SubstringDeduplication(min_length=50))
    """

    notes_changes = True
    name = "SubstringDeduplication"
    score_field = None

    def __init__(
        self,
        text_field: str = "text",
        *,
        unit: WindowUnit = "token",
        min_length: int = 50,
        keep: Keep = "first",
        action: Action = "cut",
        marks_field: str = "repeated",
        max_share: float | None = None,
    ) -> None:
        self.text_field = text_field
        self.unit: WindowUnit = unit
        self.min_length = min_length
        self.keep: Keep = keep
        self.action: Action = action
        self.marks_field = marks_field
        self.max_share = max_share
        self.workflow(output_path="unique/")

    def outputs(self) -> Spec:
        return ["data"], [self.text_field, *([self.marks_field] if self.action == "mark" else [])]

    def workflow(self, *, output_path: str, **places: Any) -> SubstringDeduplicationWorkflow:
        return SubstringDeduplicationWorkflow(output_path, **self.options_of(SubstringDeduplicationWorkflow), **places)


class FuzzyDeduplication(Deduplication):
    """Keeps one document of every group of near-duplicates: texts that share most of their word sequences.

    Args:
        text_field: Column that holds the text.
        threshold: Minimum Jaccard similarity of duplicates.
        verify: How to verify candidates: "pairs" compares every pair exactly; "cluster" also splits clusters linked
            only transitively; "signature" compares signatures, which takes less disk and has an error of about 0.025;
            None treats every candidate as a duplicate.
        word_ngrams: Number of words per shingle.
        char_ngrams: Use shingles of this many characters instead of words.
        num_bands: Number of bands of a signature; derived from the threshold by default.
        minhashes_per_band: Number of hashes per band; derived from the threshold by default.
        seed: Seed of the hash functions.
        survivor: Which document of a group to keep: "first" in source order, "longest", "best" or "newest" by
            `score_field`, or by "priority" of sources.
        score_field: Column of numbers for survivor="best" (the highest is kept), or of dates for "newest".
        source_priority: Patterns of source paths for survivor="priority", the preferred ones first.
        merge_empty: Whether empty and missing texts count as duplicates of each other.
        device: Where to compute signatures: "cpu", "cuda", or "auto", which uses GPUs if available.
        against: A folder of other documents to compare with. They are not changed, and documents that duplicate them
            are removed.

    Example:
        >>> pipeline.add_stage(FuzzyDeduplication(threshold=0.75))
    """

    notes_changes = True
    name = "FuzzyDeduplication"

    def __init__(
        self,
        text_field: str = "text",
        *,
        threshold: float = DEFAULT_THRESHOLD,
        verify: Verify | None = "pairs",
        word_ngrams: int = 5,
        char_ngrams: int | None = None,
        num_bands: int | None = None,
        minhashes_per_band: int | None = None,
        seed: int = 42,
        survivor: Survivor = "first",
        score_field: str | None = None,
        source_priority: Sequence[str] | None = None,
        merge_empty: bool = False,
        device: Device = "auto",
        against: str | None = None,
    ) -> None:
        self.text_field = text_field
        self.against = against
        self.threshold = threshold
        self.verify: Verify | None = verify
        self.word_ngrams = word_ngrams
        self.char_ngrams = char_ngrams
        self.num_bands = num_bands
        self.minhashes_per_band = minhashes_per_band
        self.seed = seed
        self.survivor = survivor
        self.score_field = score_field
        self.source_priority = None if source_priority is None else list(source_priority)
        self.merge_empty = merge_empty
        self.device: Device = device
        self.workflow(output_path="unique/")

    def workflow(self, *, output_path: str, **places: Any) -> FuzzyDeduplicationWorkflow:
        return FuzzyDeduplicationWorkflow(
            output_path=output_path, **self.options_of(FuzzyDeduplicationWorkflow), **places
        )


class SemanticDeduplication(Deduplication):
    """Keeps one of the documents with nearly the same meaning, as measured by embeddings.

    The embeddings come from a sentence model (by default all-MiniLM-L6-v2 of the extra `semantic`), or from a column.

    Args:
        text_field: Column that holds the text.
        eps: Maximum distance (1 - cosine) of duplicates.
        which_to_keep: Which duplicate to keep: "hard" (farthest from its centroid), "easy" (nearest) or "random".
        n_clusters: Number of clusters; defaults to the square root of the number of documents.
        model_identifier: A sentence model: a hub id, a local folder, or `package:NAME`.
        embedding_field: Read embeddings from this column instead of computing them.
        embedding_max_chars: Maximum number of characters of a text to embed.
        model_inference_batch_size: Maximum number of documents per forward pass.
        model_cache_dir: Cache folder for downloads; None for the hub's default.
        hf_token: Access token for gated models; it is never shown.
        cpu_backend: What runs the encoder on the CPU: `torch` or `torch-int8`.
        random_state: Random seed of k-means and of which_to_keep="random".
        survivor: Instead of `which_to_keep`: "first" in source order, "longest", "best" or "newest" by
            `score_field`, or by "priority" of sources.
        score_field: Column of numbers for survivor="best" (the highest is kept), or of dates for "newest".
        source_priority: Patterns of source paths for survivor="priority", the preferred ones first.
        against: A folder of other documents to compare with. They are not changed, and documents that duplicate them
            are removed.

    Example:
        >>> pipeline.add_stage(SemanticDeduplication(eps=0.05))
    """

    notes_changes = True
    name = "SemanticDeduplication"

    def __init__(
        self,
        text_field: str = "text",
        *,
        eps: float = 0.01,
        which_to_keep: Literal["hard", "easy", "random"] = "hard",
        n_clusters: int | None = None,
        model_identifier: str = DEFAULT_MODEL,
        embedding_field: str | None = None,
        embedding_max_chars: int | None = None,
        model_inference_batch_size: int = 1024,
        model_cache_dir: str | None = None,
        hf_token: str | None = None,
        cpu_backend: Literal["torch", "torch-int8"] = "torch",
        random_state: int = 42,
        survivor: Survivor | None = None,
        score_field: str | None = None,
        source_priority: Sequence[str] | None = None,
        against: str | None = None,
    ) -> None:
        self.text_field = text_field
        self.against = against
        self.eps = eps
        self.which_to_keep = which_to_keep
        self.n_clusters = n_clusters
        self.model_identifier = model_identifier
        self.embedding_field = embedding_field
        self.embedding_max_chars = embedding_max_chars
        self.model_inference_batch_size = model_inference_batch_size
        self.model_cache_dir = model_cache_dir
        self.hf_token = hf_token
        self.cpu_backend = cpu_backend
        self.random_state = random_state
        self.survivor = survivor
        self.score_field = score_field
        self.source_priority = None if source_priority is None else list(source_priority)
        self.workflow(output_path="unique/")

    def inputs(self) -> Spec:
        score = [] if self.score_field is None else [self.score_field]
        return ["data"], [self.text_field if self.embedding_field is None else self.embedding_field, *score]

    def check_environment(self) -> None:
        for stage in expand(self.workflow(output_path="unique/")._first_stages()):
            stage.check_environment()

    def workflow(self, *, output_path: str, **places: Any) -> SemanticDeduplicationWorkflow:
        shared = {**self.options_of(SemanticDeduplicationWorkflow), **places}
        if self.embedding_field is not None:
            shared["id_field"] = shared.get("id_field") or "id"
            return SemanticDeduplicationWorkflow(None, output_path, **shared)
        del shared["embedding_field"], shared["random_state"]
        return TextSemanticDeduplicationWorkflow(
            None,
            output_path,
            perform_removal=False,
            model_identifier=self.model_identifier,
            embedding_max_chars=self.embedding_max_chars,
            model_inference_batch_size=self.model_inference_batch_size,
            model_cache_dir=self.model_cache_dir,
            hf_token=self.hf_token,
            cpu_backend=self.cpu_backend,
            kmeans_random_state=self.random_state,
            **shared,
        )
