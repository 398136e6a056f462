"""`TextSemanticDeduplicationWorkflow`: embeds texts, and removes those that mean nearly the same as another one."""

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
    """Keeps one of the documents that mean nearly the same: embeddings first, then `SemanticDeduplicationWorkflow`.

    By default the embeddings come from all-MiniLM-L6-v2, whose weights install with the extra `semantic`, so nothing
    is downloaded. Documents that are empty, missing or white space are compared with nothing, and stay.

    Args:
        input_path: A file, a folder, a glob, a URL, or a list of these.
        output_path: Where the documents that stay are written; without `perform_removal` the ids of the others, in
            `duplicates/`.
        cache_path: Where intermediate files go; by default to `steps` in the record.
        record_path: Where the record of the run is kept, instead of beside the output in `OUTPUT.gristmill`.
        perform_removal: Write the documents that stay; else only the ids of those to remove.
        text_field: The column with the text.
        embedding_field: How the column of embeddings is called on the way; the output does not have it.
        model_identifier: A sentence model: a hub id, a local folder, or `package:NAME`.
        embedding_max_chars: How many characters of a text are embedded at the most; None embeds as much as the model
            reads.
        embedding_pretokenize: Accepted; texts are always tokenized before.
        embedding_vllm_init_kwargs: Accepted; vLLM is not used.
        hf_token: An access token for gated models; it is never shown.
        model_cache_dir: Where downloads are kept; None for the default of the hub.
        n_clusters: How many clusters; by default the square root of the number of vectors.
        id_field: The column with the documents' ids; by default they are called by partition and row in lists.
        metadata_fields: Accepted; the output has all columns.
        distance_metric: "cosine" or "l2", which prefer the same, since all vectors have the same length.
        which_to_keep: Which one of near documents stays: "hard" keeps those far from their centroid, "easy" those
            near to it, "random" any.
        eps: How far apart duplicates may be, as 1 - cosine; None only finds and keeps the pairs.
        kmeans_max_iter: The most rounds of k-means.
        kmeans_tol: k-means stops when the mean cosine with the centroids grows by less than this share.
        kmeans_random_state: Chooses the vectors k-means begins with, and the order for which_to_keep="random".
        input_filetype: "jsonl" or "parquet"; found out by the names of the files when not given.
        input_file_extensions: Which files of a folder to take.
        input_files_per_partition: As `files_per_partition` of the readers.
        input_blocksize: As `blocksize` of the readers.
        output_filetype: "jsonl" or "parquet"; by default as the input.
        read_kwargs: As in the readers.
        write_kwargs: As in the writers.
        max_eps: Pairs up to so far apart are kept, so that `eps` can be changed up to it; by default that of an earlier
            run into the same output, where `eps` is not above it, else 0.1 or `eps`.
        embedding_max_seq_length: The most tokens of a text; None takes the model's own limit.
        model_inference_batch_size: The most documents per forward pass.
        cpu_backend: What runs the encoder where there is no GPU: `torch` or `torch-int8`.
        survivor: Instead of `which_to_keep`: "first" in source order, "longest", "best" or "newest" by
            `score_field`, or by "priority" of sources.
        score_field: The column of numbers for survivor="best" (the highest stays), or of dates for "newest".
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

    # Texts are embedded at some hundred a second, so a forecast looks at fewer of them.
    sample_bytes = 1 << 18

    def _columns(self) -> list[str]:
        return [self.text_field, self.id_field or "id", *self.rule.columns]

    def _text_stages(self, steps: Steps) -> list[Stage]:
        return []  # part of the first stages, as nothing is compared but texts

    def _first_stages(self) -> list[Stage]:
        instead = "Or take embeddings from a column: --embedding-field (SemanticDeduplicationWorkflow)."
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
