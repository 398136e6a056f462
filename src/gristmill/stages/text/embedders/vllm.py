"""Embeddings with vLLM, for machines with GPUs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import pyarrow as pa

from gristmill.errors import UsageError, did_you_mean
from gristmill.stages.base import ProcessingStage, Spec
from gristmill.stages.resources import Resources
from gristmill.stages.text.models.model import check_positive
from gristmill.stages.text.models.sources import (
    Secret,
    check_identifier,
    check_model,
    fetch_model,
    folder_digest,
    hide,
    model_folder,
)
from gristmill.stages.text.models.tokens import format_name_with_suffix
from gristmill.stages.text.models.vllm_engine import (
    check_engine_options,
    engine_arguments,
    longest_prompt,
    require_vllm,
    start_engine,
)
from gristmill.tasks.document import DocumentBatch

if TYPE_CHECKING:
    from gristmill.backends.base import NodeInfo, WorkerMetadata

_TYPES = {"float32": np.float32, "float16": np.float16}
_OWNED = ("model", "runner")


class VLLMEmbeddingModelStage(ProcessingStage[DocumentBatch, DocumentBatch]):
    """Adds a vector for each document, computed by vLLM on a GPU.

    Texts that are longer than the model allows are truncated; a document without tokens gets null.
    `EmbeddingCreatorStage` does the same without vLLM, on CPUs as well.

    Args:
        model_identifier: A hub id, a local folder, or `package:NAME`.
        vllm_init_kwargs: More options for `vllm.LLM`, such as `max_model_len` or `gpu_memory_utilization`.
        text_field: Column that holds the text.
        pretokenize: Tokenize texts with the model's own tokenizer before passing them to the engine.
        embedding_field: Column for the vectors.
        max_chars: Maximum number of characters of a text to use; None for all.
        cache_dir: Cache folder for downloads; None for the hub's default.
        hf_token: Access token for gated models; it is never shown.
        verbose: Show vLLM's progress bar.
        metadata_fields: Columns to keep besides the vectors; None keeps all.
        model_inference_batch_size: Maximum number of documents passed to the engine at once; it forms its own batches.
        embedding_output_dtype: `float32` or `float16`.

    Example:
        >>> stage = VLLMEmbeddingModelStage("intfloat/e5-small-v2", metadata_fields=["id"])
        >>> stage.outputs()
        (['data'], ['id', 'embeddings'])
    """

    resources = Resources(cpus=1.0, gpus=1.0)
    needs_own_worker = True
    never_drops = True
    notes_changes = True
    text_parameter = "text_field"
    fills_text = False

    def __init__(
        self,
        model_identifier: str,
        vllm_init_kwargs: Mapping[str, Any] | None = None,
        text_field: str = "text",
        pretokenize: bool = True,
        embedding_field: str = "embeddings",
        max_chars: int | None = None,
        cache_dir: str | None = None,
        hf_token: str | Secret | None = None,
        verbose: bool = False,
        *,
        metadata_fields: Sequence[str] | None = None,
        model_inference_batch_size: int = 8192,
        embedding_output_dtype: Literal["float32", "float16"] = "float32",
    ) -> None:
        self.model_identifier = check_identifier(model_identifier)
        self.vllm_init_kwargs = check_engine_options(vllm_init_kwargs, option="vllm_init_kwargs", owned=_OWNED)
        check_positive("max_chars", max_chars)
        check_positive("model_inference_batch_size", model_inference_batch_size)
        if embedding_output_dtype not in _TYPES:
            raise UsageError(
                f"embedding_output_dtype={embedding_output_dtype!r}: must be 'float32' or "
                f"'float16'.{did_you_mean(str(embedding_output_dtype), _TYPES)}"
            )
        if embedding_field == text_field:
            raise UsageError(f"embedding_field={embedding_field!r} is the text column: choose another name.")
        self.name = format_name_with_suffix(self.model_identifier, "_vllm")
        self.text_field = text_field
        self.pretokenize = pretokenize
        self.embedding_field = embedding_field
        self.max_chars = max_chars
        self.cache_dir = cache_dir
        self._hf_token = hide(hf_token)
        self.verbose = verbose
        self.metadata_fields = None if metadata_fields is None else list(dict.fromkeys(metadata_fields))
        self.model_inference_batch_size = model_inference_batch_size
        self.embedding_output_dtype = embedding_output_dtype
        self.model: Any = None
        self.tokenizer: Any = None

    def inputs(self) -> Spec:
        """The text, and the columns to keep."""
        return ["data"], list(dict.fromkeys([self.text_field, *(self.metadata_fields or ())]))

    def outputs(self) -> Spec:
        """The vectors and the columns to keep."""
        kept = [self.text_field] if self.metadata_fields is None else self.metadata_fields
        return ["data"], [*kept, self.embedding_field]

    def content_digest(self) -> str | None:
        """The digest of a local model folder."""
        return folder_digest(self.model_identifier)

    def check_environment(self) -> None:
        """Reject a missing package or model."""
        require_vllm("VLLMEmbeddingModelStage")
        check_model(self.model_identifier, cache_dir=self.cache_dir, token=self._hf_token, files=["*.safetensors"])

    def setup_on_node(self, _node_info: NodeInfo | None = None, _worker_metadata: WorkerMetadata | None = None) -> None:
        """Download the model, once per node."""
        fetch_model(self.model_identifier, cache_dir=self.cache_dir, token=self._hf_token)

    def setup(self, worker_metadata: WorkerMetadata | None = None) -> None:
        """Start the engine, and load the tokenizer if texts are tokenized before."""
        folder = model_folder(self.model_identifier, cache_dir=self.cache_dir)
        self.model = start_engine(self.engine_arguments(folder))
        if self.pretokenize:
            from gristmill.stages.text.models.loading import load_tokenizer

            self.tokenizer = load_tokenizer(folder)

    def engine_arguments(self, folder: Path) -> dict[str, Any]:
        """The arguments of the engine for the model in a local folder."""
        return engine_arguments(folder, self.vllm_init_kwargs, runner="pooling")

    def teardown(self) -> None:
        """Release the engine."""
        self.model = self.tokenizer = None

    def process(self, batch: DocumentBatch) -> DocumentBatch:
        """The batch with the vectors and the columns to keep."""
        texts = [(text or "")[: self.max_chars] for text in batch.text(self.text_field).to_pylist()]
        found = [vector for part in self._parts(texts) for vector in self._vectors(part)]
        if self.metadata_fields is not None:
            batch = batch.select(self.metadata_fields)
        return batch.with_column(self.embedding_field, self._column(found))

    def _parts(self, texts: list[str]) -> Iterator[list[str]]:
        for start in range(0, len(texts), self.model_inference_batch_size):
            yield texts[start : start + self.model_inference_batch_size]

    def _vectors(self, texts: list[str]) -> list[np.ndarray[Any, Any] | None]:
        limit = longest_prompt(self.model)
        if self.tokenizer is None:
            prompts: list[Any] = list(texts)
            options = {"tokenization_kwargs": {"truncation": True, "max_length": limit}}
        else:
            tokens = self.tokenizer(texts, truncation=True, max_length=limit, verbose=False)["input_ids"]
            prompts = [{"prompt_token_ids": ids} if ids else "" for ids in tokens]
            options = {}
        full = [place for place, prompt in enumerate(prompts) if prompt]
        made: list[np.ndarray[Any, Any] | None] = [None] * len(texts)
        if full:
            answers = self.model.encode(
                [prompts[place] for place in full], pooling_task="embed", use_tqdm=self.verbose, **options
            )
            for place, answer in zip(full, answers, strict=True):
                made[place] = answer.outputs.data.float().cpu().numpy()
        return made

    def _column(self, found: list[np.ndarray[Any, Any] | None]) -> pa.Array:
        kind = _TYPES[self.embedding_output_dtype]
        sizes = np.array([0 if vector is None else len(vector) for vector in found], np.int64)
        offsets = np.concatenate([[0], np.cumsum(sizes)])
        filled = [vector.astype(kind) for vector in found if vector is not None]
        values = np.concatenate(filled) if filled else np.zeros(0, kind)
        missing = np.array([vector is None for vector in found], bool)
        return pa.LargeListArray.from_arrays(
            pa.array(offsets), pa.array(values), mask=pa.array(missing) if missing.any() else None
        )
