"""The prompt classifier: the task of a prompt, and its complexity in six dimensions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from gristmill.errors import NotSupportedError
from gristmill.stages.base import CompositeStage, ProcessingStage
from gristmill.stages.text.classifiers.base import compose
from gristmill.stages.text.models.sources import CONFIG_FILES, Secret, check_identifier, fetch_model, hide, read_config
from gristmill.stages.text.models.token_batches import TokenBatchModelStage
from gristmill.stages.text.models.tokens import PaddingSide, format_name_with_suffix
from gristmill.tasks.document import DocumentBatch

if TYPE_CHECKING:
    import torch

    from gristmill.backends.base import NodeInfo, WorkerMetadata

PROMPT_TASK_COMPLEXITY_MODEL_IDENTIFIER = "nvidia/prompt-task-and-complexity-classifier"

# The weights of the dimensions in the published complexity score.
COMPLEXITY_WEIGHTS = {
    "creativity_scope": 0.35,
    "reasoning": 0.25,
    "constraint_ct": 0.15,
    "domain_knowledge": 0.15,
    "contextual_knowledge": 0.05,
    "number_of_few_shots": 0.05,
}
# One head of the network each, in its order, after the head for the task.
DIMENSIONS = (
    "creativity_scope",
    "reasoning",
    "contextual_knowledge",
    "number_of_few_shots",
    "domain_knowledge",
    "no_label_reason",
    "constraint_ct",
)
OUTPUT_FIELDS = ["prompt_complexity_score", "task_type_1", "task_type_2", "task_type_prob", *DIMENSIONS]

_SECOND_TASK_FROM = 0.1
_FEW_SHOTS_FROM = 0.05


def published_fields(
    probabilities: list[npt.NDArray[np.float64]], config: Mapping[str, Any]
) -> dict[str, npt.NDArray[Any]]:
    """The eleven published columns from the probabilities of the eight heads.

    A dimension is the expected weight of its classes, divided by a constant; the second task is "NA" below 0.1.
    """
    tasks, names = probabilities[0], config["task_type_map"]
    order = np.argsort(-tasks, axis=1, kind="stable")[:, :2]
    rows = np.arange(len(tasks))
    label = np.array([names[str(number)] for number in range(tasks.shape[1])], dtype=object)
    first, second = label[order[:, 0]], label[order[:, 1]]
    second[np.round(tasks[rows, order[:, 1]], 3) < _SECOND_TASK_FROM] = "NA"
    fields: dict[str, npt.NDArray[Any]] = {
        "task_type_1": first,
        "task_type_2": second,
        "task_type_prob": np.round(tasks[rows, order[:, 0]], 3),
    }
    for name, values in zip(DIMENSIONS, probabilities[1:], strict=True):
        fields[name] = np.round(values @ np.asarray(config["weights_map"][name]) / config["divisor_map"][name], 4)
    shots = fields["number_of_few_shots"]
    fields["number_of_few_shots"] = np.where(shots >= _FEW_SHOTS_FROM, shots, 0.0)
    total = sum((weight * fields[name] for name, weight in COMPLEXITY_WEIGHTS.items()), np.zeros(len(tasks)))
    fields["prompt_complexity_score"] = np.round(total, 5)
    return fields


class PromptTaskComplexityModelStage(TokenBatchModelStage):
    """Adds the eleven columns of the prompt classifier.

    Args:
        cache_dir: Cache folder for downloads; None for the hub's default.
        model_inference_batch_size: Maximum number of documents per forward pass.
        has_seq_order: Whether the tokenizer sorted the documents; if so, the original order is restored.
        autocast: Use a faster 16-bit type, if the device has one.
        keep_tokens: Keep the token columns.
        model_identifier: The model, if not the published one.
        hf_token: Access token.
    """

    notes_changes = True
    fork_safe = True

    def __init__(
        self,
        cache_dir: str | None = None,
        model_inference_batch_size: int = 256,
        has_seq_order: bool = True,
        autocast: bool = True,
        keep_tokens: bool = False,
        *,
        model_identifier: str = PROMPT_TASK_COMPLEXITY_MODEL_IDENTIFIER,
        hf_token: str | Secret | None = None,
    ) -> None:
        super().__init__(
            model_identifier=model_identifier,
            cache_dir=cache_dir,
            model_inference_batch_size=model_inference_batch_size,
            has_seq_order=has_seq_order,
            autocast=autocast,
        )
        self._hf_token = hide(hf_token)
        self.keep_tokens = keep_tokens
        self._config: dict[str, Any] = {}

    def outputs(self) -> tuple[list[str], list[str]]:
        """The eleven columns."""
        return ["data"], list(OUTPUT_FIELDS)

    def setup_on_node(self, _node_info: NodeInfo | None = None, _worker_metadata: WorkerMetadata | None = None) -> None:
        """Download the classifier, and the configuration of its base model, once per node."""
        super().setup_on_node(_node_info, _worker_metadata)
        config = read_config(self.model_path)
        if "base_config" not in config:
            fetch_model(config["base_model"], cache_dir=self.cache_dir, token=self._hf_token, files=CONFIG_FILES)

    def setup(self, worker_metadata: WorkerMetadata | None = None) -> None:
        """Load the network onto the GPU or CPU from local files."""
        from gristmill.stages.text.classifiers.deberta import load_multi_head
        from gristmill.stages.text.models.devices import place

        network, self._config = load_multi_head(self.model_path, cache_dir=self.cache_dir)
        self.check_length(network)
        self.model = place(
            network, worker_metadata, cpus=self.resources.cpus, cpu_backend="torch", autocast=self.autocast
        )

    def process_model_output(
        self, outputs: list[torch.Tensor], model_input_batch: dict[str, torch.Tensor] | None = None
    ) -> dict[str, Any]:
        """The columns for the documents of a batch."""
        return published_fields([head.double().cpu().numpy() for head in outputs], self._config)

    def output_columns(self, collected_output: Any) -> Mapping[str, pa.Array]:
        """The columns as text and numbers."""
        return {
            name: pa.array(collected_output[name].tolist(), pa.large_string() if name in _TEXTS else pa.float64())
            for name in OUTPUT_FIELDS
        }


_TEXTS = ("task_type_1", "task_type_2")


@dataclass(eq=False, repr=False)
class PromptTaskComplexityClassifier(CompositeStage[DocumentBatch, DocumentBatch]):
    """Predicts a prompt's task type and complexity with `nvidia/prompt-task-and-complexity-classifier`.

    Args:
        cache_dir: Cache folder for downloads; None for the hub's default.
        text_field: Column that holds the prompt.
        filter_by: Not supported, as there are eleven columns: filter on one of them with a `Filter` stage.
        max_chars: Maximum number of characters of a text to tokenize; None for all.
        sort_by_length: Process documents of similar length together; the original order is restored.
        model_inference_batch_size: Maximum number of documents per forward pass.
        autocast: Use a faster 16-bit type, if the device has one.
        keep_tokens: Keep the token columns.
        use_existing_tokens: Use existing token columns instead of tokenizing.
        model_identifier: The model, if not the published one.
        hf_token: Access token; it is never shown.
    """

    cache_dir: str | None = None
    text_field: str = "text"
    filter_by: list[str] | None = None
    max_chars: int | None = None
    sort_by_length: bool = True
    model_inference_batch_size: int = 256
    autocast: bool = True
    keep_tokens: bool = False
    use_existing_tokens: bool = False
    model_identifier: str = field(default=PROMPT_TASK_COMPLEXITY_MODEL_IDENTIFIER, kw_only=True)
    hf_token: Any = field(default=None, kw_only=True)

    max_seq_length = 512
    padding_side: PaddingSide = field(default="right", init=False)

    def __post_init__(self) -> None:
        self.model_identifier = check_identifier(self.model_identifier)
        self.name = format_name_with_suffix(self.model_identifier)
        self.hf_token = hide(self.hf_token)
        if self.filter_by is not None:
            raise NotSupportedError(
                "PromptTaskComplexityClassifier has no filter_by, because it adds eleven columns. Add a Filter stage "
                "on one of them, such as 'task_type_1'."
            )

    def decompose(self) -> list[ProcessingStage[Any, Any]]:
        """The tokenizer and the network."""
        model = PromptTaskComplexityModelStage(
            cache_dir=self.cache_dir,
            model_inference_batch_size=self.model_inference_batch_size,
            has_seq_order=self.sort_by_length and not self.use_existing_tokens,
            autocast=self.autocast,
            keep_tokens=self.keep_tokens,
            model_identifier=self.model_identifier,
            hf_token=self.hf_token,
        )
        if self.use_existing_tokens:
            model.max_seq_length = self.max_seq_length
        return compose(self, model)
