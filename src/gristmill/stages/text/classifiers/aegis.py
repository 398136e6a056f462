"""The guard classifiers: content safety from answers, poisoning from hidden states. Both need Llama Guard."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from gristmill.errors import UsageError
from gristmill.stages.base import CompositeStage, ProcessingStage
from gristmill.stages.text.classifiers.base import check_filter_by, check_new_columns, label_filter
from gristmill.stages.text.classifiers.guard_stages import (
    HIDDEN_TEXT_FIELD,
    LABELS,
    FormatAegisPromptStage,
    PostProcessAegisResponsesStage,
    check_template,
)
from gristmill.stages.text.models.loading import load_tokenizer
from gristmill.stages.text.models.sources import Secret, check_identifier, fetch_model, hide, model_folder
from gristmill.stages.text.models.token_batches import TokenBatchModelStage
from gristmill.stages.text.models.tokenizer import TokenizerStage
from gristmill.stages.text.models.tokens import format_name_with_suffix
from gristmill.tasks.document import DocumentBatch

if TYPE_CHECKING:
    import torch

    from gristmill.backends.base import NodeInfo, WorkerMetadata

BASE_MODEL_IDENTIFIER = "meta-llama/LlamaGuard-7b"
AEGIS_VARIANTS = (
    "nvidia/Aegis-AI-Content-Safety-LlamaGuard-Defensive-1.0",
    "nvidia/Aegis-AI-Content-Safety-LlamaGuard-Permissive-1.0",
)
INSTRUCTION_DATA_GUARD_MODEL_IDENTIFIER = "nvidia/instruction-data-guard"
MAX_SEQ_LENGTH = 4096
_POISONED_FROM = 0.5


class AegisModelStage(TokenBatchModelStage):
    """Runs a guard model: returns the tokens of its answers, or the probability and verdict of poisoning.

    Args:
        model_identifier: The adapter.
        cache_dir: Cache folder for downloads; None for the hub's default.
        hf_token: Access token for the gated base model; it is never shown.
        label_field: Column for the answer (as text), or for the verdict.
        score_field: Column for the probability of poisoning.
        model_inference_batch_size: Maximum number of documents per forward pass.
        has_seq_order: Whether the tokenizer sorted the documents; if so, the original order is restored.
        add_instruction_data_guard: Judge poisoning instead of answering.
        autocast: Use a faster 16-bit type, if the device has one.
        keep_tokens: Keep the token columns.
        base_model: Base model, if not the published one.
        judge_model: The network over the hidden state, if not the published one.
    """

    notes_changes = True
    fork_safe = True

    def __init__(
        self,
        model_identifier: str,
        cache_dir: str | None = None,
        hf_token: str | Secret | None = None,
        label_field: str = "preds",
        score_field: str = "probs",
        model_inference_batch_size: int = 256,
        has_seq_order: bool = True,
        add_instruction_data_guard: bool = False,
        autocast: bool = True,
        keep_tokens: bool = False,
        *,
        base_model: str = BASE_MODEL_IDENTIFIER,
        judge_model: str = INSTRUCTION_DATA_GUARD_MODEL_IDENTIFIER,
    ) -> None:
        super().__init__(
            model_identifier=model_identifier,
            cache_dir=cache_dir,
            model_inference_batch_size=model_inference_batch_size,
            has_seq_order=has_seq_order,
            padding_side="left",
            autocast=autocast,
        )
        self._hf_token = hide(hf_token)
        self.label_field = label_field
        self.score_field = score_field
        self.add_instruction_data_guard = add_instruction_data_guard
        self.keep_tokens = keep_tokens
        self.base_model = base_model
        self.judge_model = judge_model
        self._tokenizer: Any = None

    def outputs(self) -> tuple[list[str], list[str]]:
        """The answer, or the verdict and its probability."""
        return ["data"], [self.label_field] + ([self.score_field] if self.add_instruction_data_guard else [])

    def _parts(self) -> list[str]:
        judge = [self.judge_model] if self.add_instruction_data_guard else []
        return [self.base_model, self.model_identifier, *judge]

    def setup_on_node(self, _node_info: NodeInfo | None = None, _worker_metadata: WorkerMetadata | None = None) -> None:
        """Download the base model, the adapter and the judge, once per node."""
        for part in self._parts():
            fetch_model(part, cache_dir=self.cache_dir, token=self._hf_token)

    def setup(self, worker_metadata: WorkerMetadata | None = None) -> None:
        """Load all parts onto the GPU or CPU from local files."""
        import torch

        from gristmill.stages.text.classifiers.guard_models import GuardModel
        from gristmill.stages.text.models.devices import choose_device, faster_type, limit_threads

        limit_threads(worker_metadata, self.resources.cpus)
        device = choose_device(worker_metadata)
        base, adapter, *judge = (model_folder(part, cache_dir=self.cache_dir) for part in self._parts())
        dtype = (faster_type(device.type) if self.autocast else None) or torch.float32
        self.model = GuardModel(base, adapter, *judge, dtype=dtype).to(device).eval()
        self._tokenizer = load_tokenizer(base)

    def process_model_output(
        self, outputs: torch.Tensor, model_input_batch: dict[str, torch.Tensor] | None = None
    ) -> dict[str, Any]:
        """The answers as text, or the probabilities, of the documents of a batch."""
        if self.add_instruction_data_guard:
            return {self.score_field: outputs.float().cpu().numpy().astype(np.float64)}
        texts = self._tokenizer.batch_decode(outputs.cpu(), skip_special_tokens=True)
        return {self.label_field: np.array(texts, dtype=object)}

    def output_columns(self, collected_output: Any) -> Mapping[str, pa.Array]:
        """The answers, or the verdicts and their probabilities."""
        if not self.add_instruction_data_guard:
            return {self.label_field: pa.array(collected_output[self.label_field].tolist(), pa.large_string())}
        scores = collected_output[self.score_field]
        return {self.score_field: pa.array(scores), self.label_field: pa.array(scores >= _POISONED_FROM)}


@dataclass(eq=False, repr=False)
class AegisClassifier(CompositeStage[DocumentBatch, DocumentBatch]):
    """Labels unsafe content with an AEGIS model: `safe`, a category O1 to O13, or `unknown`.

    The base model `meta-llama/LlamaGuard-7b` is gated: request access on its page, then pass an `hf_token`.

    Args:
        aegis_variant: The defensive model (default) or the permissive one.
        cache_dir: Cache folder for downloads; None for the hub's default.
        hf_token: Access token for the gated base model; it is never shown.
        label_field: Column for the label.
        raw_output_field: Column for the model's answer.
        keep_raw_output: Keep the answer, to see what led to `unknown`.
        text_field: Column that holds the text.
        filter_by: Keep only documents with one of these labels.
        max_chars: Maximum number of characters of a text that the model sees.
        sort_by_length: Process documents of similar length together; the original order is restored.
        model_inference_batch_size: Maximum number of documents per forward pass.
        autocast: Use a faster 16-bit type, if the device has one.
        keep_tokens: Keep the token columns.
        aegis_prompt_field: Existing column of prompts; None creates them.
        keep_aegis_prompt_field: Keep the prompts.
        use_existing_tokens: Use existing token columns; needs `aegis_prompt_field`.
        policy: The categories of unsafe content, one `number: name` per line; None for the thirteen of AEGIS.
        template: The whole prompt, containing `{text}` and optionally `{policy}`; None uses the chat template of the
            adapter or of the base model, and our own wording if they have none. Use the prompt of the model card if
            results must be comparable with published ones.
        base_model: Base model, if not the published one.
    """

    aegis_variant: str = AEGIS_VARIANTS[0]
    cache_dir: str | None = None
    hf_token: Any = None
    label_field: str = "aegis_pred"
    raw_output_field: str = "_aegis_raw_pred"
    keep_raw_output: bool = False
    text_field: str = "text"
    filter_by: list[str] | None = None
    max_chars: int = 6000
    sort_by_length: bool = True
    model_inference_batch_size: int = 64
    autocast: bool = True
    keep_tokens: bool = False
    aegis_prompt_field: str | None = None
    keep_aegis_prompt_field: bool = False
    use_existing_tokens: bool = False
    policy: str | None = field(default=None, kw_only=True)
    template: str | None = field(default=None, kw_only=True)
    base_model: str = field(default=BASE_MODEL_IDENTIFIER, kw_only=True)

    def __post_init__(self) -> None:
        self.aegis_variant = check_identifier(self.aegis_variant)
        self.name = format_name_with_suffix(self.aegis_variant)
        self.hf_token = hide(self.hf_token)
        check_filter_by(self.filter_by, known=LABELS)
        check_new_columns(self, "label_field", "raw_output_field")
        check_template(self.template)
        if self.use_existing_tokens and self.aegis_prompt_field is None:
            raise UsageError("use_existing_tokens=True: set aegis_prompt_field= to the column of the prompts.")

    def filter_by_category(self, value: str) -> bool:
        """Whether a document with this label is kept."""
        return self.filter_by is None or value in self.filter_by

    def decompose(self) -> list[ProcessingStage[Any, Any]]:
        """Prompt, tokenizer, model, reading of the answer, and the filter."""
        prompt_field = self.aegis_prompt_field or HIDDEN_TEXT_FIELD
        stages: list[ProcessingStage[Any, Any]] = []
        if self.aegis_prompt_field is None:
            stages.append(
                FormatAegisPromptStage(
                    self.text_field,
                    self.max_chars,
                    policy=self.policy,
                    template=self.template,
                    models=(self.aegis_variant, self.base_model),
                    cache_dir=self.cache_dir,
                    hf_token=self.hf_token,
                )
            )
        if not self.use_existing_tokens:
            stages.append(_guard_tokenizer(self, text_field=prompt_field, max_chars=None))
        stages.append(
            AegisModelStage(
                model_identifier=self.aegis_variant,
                cache_dir=self.cache_dir,
                hf_token=self.hf_token,
                label_field=self.raw_output_field,
                model_inference_batch_size=self.model_inference_batch_size,
                has_seq_order=self.sort_by_length and not self.use_existing_tokens,
                autocast=self.autocast,
                keep_tokens=self.keep_tokens,
                base_model=self.base_model,
            )
        )
        stages.append(
            PostProcessAegisResponsesStage(
                label_field=self.label_field,
                raw_output_field=self.raw_output_field,
                keep_raw_output=self.keep_raw_output,
                aegis_prompt_field=prompt_field,
                keep_aegis_prompt_field=self.keep_aegis_prompt_field,
            )
        )
        return [*stages, *label_filter(self)]


@dataclass(eq=False, repr=False)
class InstructionDataGuardClassifier(CompositeStage[DocumentBatch, DocumentBatch]):
    """Predicts the probability that an instruction with its response is poisoned (`nvidia/instruction-data-guard`).

    Made for English texts of the form "Instruction: … Input: … Response: …". Review some of its findings before you
    remove anything: expect false positives.

    Args:
        cache_dir: Cache folder for downloads; None for the hub's default.
        hf_token: Access token for the gated base model; it is never shown.
        label_field: Column for the verdict.
        score_field: Column for the probability.
        text_field: Column that holds the text.
        filter_by: Keep only documents with this verdict, such as `[False]`.
        max_chars: Maximum number of characters of a text to tokenize; None for all.
        sort_by_length: Process documents of similar length together; the original order is restored.
        model_inference_batch_size: Maximum number of documents per forward pass.
        autocast: Use a faster 16-bit type, if the device has one.
        keep_tokens: Keep the token columns.
        use_existing_tokens: Use existing token columns instead of tokenizing.
        model_identifier: The network over the hidden state, if not the published one.
        aegis_variant: The adapter, if not the defensive AEGIS model.
        base_model: Base model, if not the published one.
    """

    cache_dir: str | None = None
    hf_token: Any = None
    label_field: str = "is_poisoned"
    score_field: str = "instruction_data_guard_poisoning_score"
    text_field: str = "text"
    filter_by: list[Any] | None = None
    max_chars: int | None = None
    sort_by_length: bool = True
    model_inference_batch_size: int = 64
    autocast: bool = True
    keep_tokens: bool = False
    use_existing_tokens: bool = False
    model_identifier: str = field(default=INSTRUCTION_DATA_GUARD_MODEL_IDENTIFIER, kw_only=True)
    aegis_variant: str = field(default=AEGIS_VARIANTS[0], kw_only=True)
    base_model: str = field(default=BASE_MODEL_IDENTIFIER, kw_only=True)

    def __post_init__(self) -> None:
        self.model_identifier = check_identifier(self.model_identifier)
        self.name = format_name_with_suffix(self.model_identifier)
        self.hf_token = hide(self.hf_token)
        check_filter_by(self.filter_by, known=(True, False, "True", "False"))
        check_new_columns(self, "label_field", "score_field")

    def filter_by_category(self, value: Any) -> bool:
        """Whether a document with this verdict is kept."""
        return self.filter_by is None or value in self.filter_by or str(value) in self.filter_by

    def decompose(self) -> list[ProcessingStage[Any, Any]]:
        """Tokenizer, model, and the filter."""
        stages: list[ProcessingStage[Any, Any]] = []
        if not self.use_existing_tokens:
            stages.append(_guard_tokenizer(self, text_field=self.text_field, max_chars=self.max_chars))
        stages.append(
            AegisModelStage(
                model_identifier=self.aegis_variant,
                cache_dir=self.cache_dir,
                hf_token=self.hf_token,
                label_field=self.label_field,
                score_field=self.score_field,
                model_inference_batch_size=self.model_inference_batch_size,
                has_seq_order=self.sort_by_length and not self.use_existing_tokens,
                add_instruction_data_guard=True,
                autocast=self.autocast,
                keep_tokens=self.keep_tokens,
                base_model=self.base_model,
                judge_model=self.model_identifier,
            )
        )
        return [*stages, *label_filter(self)]


def _guard_tokenizer(classifier: Any, *, text_field: str, max_chars: int | None) -> TokenizerStage:
    return TokenizerStage(
        model_identifier=classifier.base_model,
        cache_dir=classifier.cache_dir,
        hf_token=classifier.hf_token,
        text_field=text_field,
        max_chars=max_chars,
        max_seq_length=MAX_SEQ_LENGTH,
        padding_side="left",
        sort_by_length=classifier.sort_by_length,
        unk_token=True,
    )
