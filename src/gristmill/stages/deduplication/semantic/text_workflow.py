"""`TextSemanticDeduplicationWorkflow`: embeds texts, and removes those with nearly the same meaning as another one."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Mapping, Sequence
from typing import Any

from gristmill.errors import did_you_mean, require_module
from gristmill.stages.deduplication.semantic.vectors import WithText
from gristmill.stages.deduplication.semantic.workflow import SemanticDeduplicationWorkflow
from gristmill.stages.deduplication.workflow_steps import Stage, Steps
from gristmill.stages.text.io.reader.assign_ids import DEDUP_ID_FIELD

DEFAULT_MODEL = "sentence-transformers/all-MiniLM-L6-v2"


class TextSemanticDeduplicationWorkflow(SemanticDeduplicationWorkflow):
    """Keeps one of the documents with nearly the same meaning: embeds texts, then runs `SemanticDeduplicationWorkflow`.

    By default the embeddings come from all-MiniLM-L6-v2, whose weights are installed with the extra `semantic`, so
    nothing is downloaded. Documents that are empty, missing or blank are not compared, and are kept.

    Args:
        input_path: A file, folder, glob or URL, or a list of these.
        output_path: Output folder for the remaining documents; without `perform_removal` for the ids of the others, in
            `duplicates/`.
        cache_path: Folder for intermediate files; defaults to `steps` in the record.
        record_path: Where to keep the record of the run, instead of `OUTPUT.gristmill` beside the output.
        perform_removal: If True, write the remaining documents; otherwise only the ids of those to remove.
        text_field: Column that holds the text.
        embedding_field: Temporary column for embeddings; not in the output.
        model_identifier: A sentence model: a hub id, a local folder, or `package:NAME`.
        embedding_max_chars: Maximum number of characters of a text to embed; None embeds up to the model's limit.
        embedding_pretokenize: Accepted for compatibility; texts are always tokenized first.
        embedding_vllm_init_kwargs: Accepted for compatibility; vLLM is not used.
        hf_token: Access token for gated models; it is never shown.
        model_cache_dir: Cache folder for downloads; None for the hub's default.
        n_clusters: Number of clusters; defaults to the square root of the number of vectors.
        id_field: Column that holds document ids; by default documents are identified by partition and row in lists.
        metadata_fields: Accepted for compatibility; the output has all columns.
        distance_metric: "cosine" or "l2", which are equivalent, since all vectors have the same length.
        which_to_keep: Which duplicate to keep: "hard" (farthest from its centroid), "easy" (nearest) or "random".
        eps: Maximum distance (1 - cosine) of duplicates; None only finds and keeps the pairs.
        kmeans_max_iter: Maximum number of rounds of k-means.
        kmeans_tol: Stop k-means when the mean cosine with the centroids grows by less than this share.
        kmeans_random_state: Random seed of k-means and of which_to_keep="random".
        input_filetype: "jsonl" or "parquet"; detected from the file names by default.
        input_file_extensions: Extensions of the files to read in a folder.
        input_files_per_partition: See `files_per_partition` of the readers.
        input_blocksize: See `blocksize` of the readers.
        output_filetype: "jsonl" or "parquet"; defaults to the input format.
        read_kwargs: See the readers.
        write_kwargs: See the writers.
        max_eps: Keep pairs up to this distance, so that `eps` can be raised later without a new search. Defaults to the
            value of an earlier run into the same output unless `eps` is larger, otherwise to 0.1 or `eps`.
        embedding_max_seq_length: Maximum number of tokens of a text; None uses the model's own limit.
        model_inference_batch_size: Maximum number of documents per forward pass.
        cpu_backend: What runs the encoder on the CPU: `torch` or `torch-int8`.
        survivor: Instead of `which_to_keep`: "first" in source order, "longest", "best" or "newest" by
            `score_field`, or by "priority" of sources.
        score_field: Column of numbers for survivor="best" (the highest is kept), or of dates for "newest".
        source_priority: Patterns of source paths for survivor="priority", the preferred ones first.
        **accepted: Options of `SemanticDeduplicationWorkflow` that have no effect, also as `kmeans_…`; and
            `use_id_generator`, `id_generator_state_file`, `output_file_extension`, `output_fields`, and
            `embedding_pooling` (the model's own files decide). `embedding_model_inference_batch_size` is an earlier
            name of `model_inference_batch_size`.

    Example:
        >>> workflow = TextSemanticDeduplicationWorkflow("crawl/", "unique/", eps=0.05)
        >>> workflow.run().get_metadata("num_removed")
    """

    name = "text_semantic_deduplication"

    def __init__(
        self,
        input_path: str | Sequence[str] | None,
        output_path: str,
        cache_path: str | None = None,
        perform_removal: bool = True,
        text_field: str = "text",
        embedding_field: str = "embeddings",
        model_identifier: str = DEFAULT_MODEL,
        embedding_max_chars: int | None = None,
        embedding_pretokenize: bool | None = None,
        embedding_vllm_init_kwargs: Mapping[str, Any] | None = None,
        hf_token: str | None = None,
        model_cache_dir: str | None = None,
        n_clusters: int | None = None,
        id_field: str | None = None,
        metadata_fields: Sequence[str] | None = None,
        distance_metric: str = "cosine",
        which_to_keep: str = "hard",
        eps: float | None = 0.01,
        kmeans_max_iter: int = 300,
        kmeans_tol: float = 1e-4,
        kmeans_random_state: int = 42,
        *,
        input_filetype: str | None = None,
        input_file_extensions: Sequence[str] | None = None,
        input_files_per_partition: int | None = None,
        input_blocksize: int | str | None = None,
        output_filetype: str | None = None,
        read_kwargs: Mapping[str, Any] | None = None,
        write_kwargs: Mapping[str, Any] | None = None,
        max_eps: float | None = None,
        embedding_max_seq_length: int | None = None,
        model_inference_batch_size: int = 1024,
        cpu_backend: str = "torch",
        survivor: str | None = None,
        score_field: str | None = None,
        source_priority: Sequence[str] | None = None,
        record_path: str | None = None,
        **accepted: Any,
    ) -> None:
        own = {name: accepted.pop(name, None) for name in _IGNORED}
        for name in accepted:
            if _INHERITED.get(name, name) not in _FIELDS and name != "embedding_model_inference_batch_size":
                known = [*inspect.signature(TextSemanticDeduplicationWorkflow).parameters, *_IGNORED, *_INHERITED]
                raise TypeError(
                    f"TextSemanticDeduplicationWorkflow() got an unexpected keyword argument {name!r}."
                    f"{did_you_mean(name, known)}"
                )
        earlier_batch_size = accepted.pop("embedding_model_inference_batch_size", None)
        own |= {
            "embedding_pretokenize": embedding_pretokenize,
            "embedding_vllm_init_kwargs": embedding_vllm_init_kwargs,
        }
        super().__init__(
            input_path,
            output_path,
            n_clusters,
            cache_path,
            id_field=None if id_field == DEDUP_ID_FIELD else id_field,
            embedding_field=embedding_field,
            metadata_fields=metadata_fields,
            input_filetype=input_filetype,
            input_file_extensions=input_file_extensions,
            max_iter=kmeans_max_iter,
            tol=kmeans_tol,
            random_state=kmeans_random_state,
            distance_metric=distance_metric,
            which_to_keep=which_to_keep,
            eps=eps,
            read_kwargs=read_kwargs,
            write_kwargs=write_kwargs,
            perform_removal=perform_removal,
            max_eps=max_eps,
            input_blocksize=input_blocksize,
            files_per_partition=input_files_per_partition,
            output_filetype=output_filetype,
            survivor=survivor,
            score_field=score_field,
            source_priority=source_priority,
            text_field=text_field,
            record_path=record_path,
            **{_INHERITED.get(name, name): value for name, value in accepted.items()},
        )
        self.ignored = sorted({*self.ignored, *(option for option, value in own.items() if value is not None)})
        self.model_identifier = model_identifier
        self.embedding_max_chars = embedding_max_chars
        self.embedding_max_seq_length = embedding_max_seq_length
        self.hf_token = hf_token
        self.model_cache_dir = model_cache_dir
        self.model_inference_batch_size = earlier_batch_size or model_inference_batch_size
        self.cpu_backend = cpu_backend

    # Only a few hundred texts per second are embedded, so a forecast uses fewer of them.
    sample_bytes = 1 << 18

    def _columns(self) -> list[str]:
        return [self.text_field, self.id_field or "id", *self.rule.columns]

    def _text_stages(self, steps: Steps) -> list[Stage]:
        return []  # part of the first stages, as only texts are compared

    def _first_stages(self) -> list[Stage]:
        instead = "Or read embeddings from a column: --embedding-field (SemanticDeduplicationWorkflow)."
        for module in ("torch", "transformers"):
            require_module(module, "Embedding texts", extra="semantic", instead=instead)
        from gristmill.stages.text.embedders import EmbeddingCreatorStage

        embedder = EmbeddingCreatorStage(
            model_identifier=self.model_identifier,
            text_field=self.text_field,
            embedding_field=self.embedding_field,
            cache_dir=self.model_cache_dir,
            max_chars=self.embedding_max_chars,
            max_seq_length=self.embedding_max_seq_length,
            model_inference_batch_size=self.model_inference_batch_size,
            hf_token=self.hf_token,
            cpu_backend=self.cpu_backend,  # type: ignore[arg-type]
        )
        return [WithText(self.text_field), embedder, super()._first_stage()]


_FIELDS = frozenset(one.name for one in dataclasses.fields(SemanticDeduplicationWorkflow))
_IGNORED = (
    "embedding_pooling",
    "id_generator_state_file",
    "output_fields",
    "output_file_extension",
    "use_id_generator",
)
_INHERITED = {
    "kmeans_fit_data_fraction": "fit_data_fraction",
    "kmeans_init": "init",
    "kmeans_max_samples_per_batch": "max_samples_per_batch",
    "kmeans_n_init": "n_init",
    "kmeans_oversampling_factor": "oversampling_factor",
}
