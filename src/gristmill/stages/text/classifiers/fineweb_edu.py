"""The educational-value classifiers: a regression from 0 to 5, as a float, a whole number and a label.

The scale and the threshold are those of Lozhkov et al., "FineWeb-Edu", 2024.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from gristmill.errors import UsageError
from gristmill.stages.text.classifiers.base import (
    CpuBackend,
    DistributedDataClassifier,
    check_cpu_backend,
    check_filter_by,
    check_new_columns,
)
from gristmill.stages.text.models.sources import Secret, hide
from gristmill.stages.text.models.token_batches import TokenBatchModelStage
from gristmill.stages.text.models.tokens import PaddingSide

if TYPE_CHECKING:
    import torch

    from gristmill.backends.base import WorkerMetadata

FINEWEB_EDU_MODEL_IDENTIFIER = "HuggingFaceFW/fineweb-edu-classifier"
FINEWEB_MIXTRAL_EDU_MODEL_IDENTIFIER = "nvidia/nemocurator-fineweb-mixtral-edu-classifier"
FINEWEB_NEMOTRON_EDU_MODEL_IDENTIFIER = "nvidia/nemocurator-fineweb-nemotron-4-edu-classifier"

HIGH_QUALITY, LOW_QUALITY = "high_quality", "low_quality"
_THRESHOLD = 2.5
_HIGHEST = 5.0


class FineWebModelStage(TokenBatchModelStage):
    """Adds the score of a regression head: clamped to 0..5, rounded, and as a label from 2.5 on.

    Args:
        model_identifier: A hub id, a local folder, or `package:NAME`.
        cache_dir: Cache folder for downloads; None for the hub's default.
        label_field: Column for `high_quality` or `low_quality`.
        float_score_field: Column for the score.
        int_score_field: Column for the rounded score.
        model_inference_batch_size: Maximum number of documents per forward pass.
        has_seq_order: Whether the tokenizer sorted the documents; if so, the original order is restored.
        autocast: Use a faster 16-bit type, if the device has one.
        keep_tokens: Keep the token columns.
        hf_token: Access token for gated models.
        cpu_backend: What runs the network on the CPU: `torch` or `torch-int8`.
        max_seq_length: Maximum number of tokens of existing token lists; longer ones are cut.
        padding_side: Side on which shorter documents are padded.
    """

    notes_changes = True
    fork_safe = True

    def __init__(
        self,
        model_identifier: str,
        cache_dir: str | None = None,
        label_field: str = "preds",
        float_score_field: str = "float_score",
        int_score_field: str = "int_score",
        model_inference_batch_size: int = 256,
        has_seq_order: bool = True,
        autocast: bool = True,
        keep_tokens: bool = False,
        *,
        hf_token: str | Secret | None = None,
        cpu_backend: CpuBackend = "torch",
        max_seq_length: int | None = None,
        padding_side: PaddingSide = "right",
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
        check_cpu_backend(cpu_backend)
        self._hf_token = hide(hf_token)
        self.label_field = label_field
        self.float_score_field = float_score_field
        self.int_score_field = int_score_field
        self.keep_tokens = keep_tokens
        self.cpu_backend = cpu_backend
        self.max_seq_length = max_seq_length

    def outputs(self) -> tuple[list[str], list[str]]:
        """The label and both scores."""
        return ["data"], [self.label_field, self.float_score_field, self.int_score_field]

    def setup(self, worker_metadata: WorkerMetadata | None = None) -> None:
        """Load the regression model onto the GPU or CPU from local files."""
        import torch

        from gristmill.stages.text.models.devices import place
        from gristmill.stages.text.models.loading import load_network

        network = load_network("AutoModelForSequenceClassification", self.model_path, dtype=torch.float32)
        self._check_outputs(network)
        self.check_length(network)
        self.model = place(
            network, worker_metadata, cpus=self.resources.cpus, cpu_backend=self.cpu_backend, autocast=self.autocast
        )

    def _check_outputs(self, network: Any) -> None:
        outputs = int(network.config.num_labels)
        if outputs != 1:
            raise UsageError(
                f"{self.model_identifier} has {outputs} outputs, but a score needs a model with one. For labels use "
                "DistributedDataClassifier(model_identifier=...)."
            )

    def process_model_output(
        self, outputs: Any, model_input_batch: dict[str, torch.Tensor] | None = None
    ) -> dict[str, Any]:
        """The scores and labels of the documents of a batch."""
        raw = outputs[0].float().reshape(len(outputs[0]), -1)[:, 0].cpu().numpy().astype(np.float64)
        scores = np.clip(raw, 0.0, _HIGHEST)
        return {
            self.float_score_field: scores,
            self.int_score_field: np.rint(scores).astype(np.int64),
            self.label_field: np.where(raw >= _THRESHOLD, HIGH_QUALITY, LOW_QUALITY).astype(object),
        }

    def output_columns(self, collected_output: Any) -> Mapping[str, pa.Array]:
        """The score, the rounded score and the label."""
        return {
            self.float_score_field: pa.array(collected_output[self.float_score_field]),
            self.int_score_field: pa.array(collected_output[self.int_score_field]),
            self.label_field: pa.array(collected_output[self.label_field].tolist(), pa.large_string()),
        }


@dataclass(kw_only=True, eq=False, repr=False)
class EducationClassifier(DistributedDataClassifier):
    """Scores the educational value of documents: the base class of the three published classifiers.

    Accepts the options of `DistributedDataClassifier` (except `score_field`), and three result columns.

    Args:
        label_field: Column for `high_quality` or `low_quality`.
        float_score_field: Column for the score, from 0 to 5.
        int_score_field: Column for the rounded score.
    """

    float_score_field: str = "float_score"
    int_score_field: str = "int_score"
    max_seq_length: int | None = 512
    score_field: None = field(default=None, init=False)
    scores_by_label: bool = field(default=False, init=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_filter_by(self.filter_by, known=(HIGH_QUALITY, LOW_QUALITY))
        check_new_columns(self, "label_field", "float_score_field", "int_score_field")

    def model_stage(self) -> TokenBatchModelStage:
        """The stage that runs the regression model."""
        return FineWebModelStage(
            model_identifier=self.model_identifier,
            cache_dir=self.cache_dir,
            label_field=self.label_field,
            float_score_field=self.float_score_field,
            int_score_field=self.int_score_field,
            model_inference_batch_size=self.model_inference_batch_size,
            has_seq_order=self.sort_by_length and not self.use_existing_tokens,
            autocast=self.autocast,
            keep_tokens=self.keep_tokens,
            hf_token=self.hf_token,
            cpu_backend=self.cpu_backend,
            max_seq_length=self.max_seq_length if self.use_existing_tokens else None,
            padding_side=self.padding_side,
        )


@dataclass(kw_only=True, eq=False, repr=False)
class FineWebEduClassifier(EducationClassifier):
    """Scores the educational value of documents with `HuggingFaceFW/fineweb-edu-classifier`.

    Example:
        >>> FineWebEduClassifier(filter_by=["high_quality"]).int_score_field
        'fineweb-edu-score-int'
    """

    model_identifier: str = FINEWEB_EDU_MODEL_IDENTIFIER
    label_field: str = "fineweb-edu-score-label"
    float_score_field: str = "fineweb-edu-score-float"
    int_score_field: str = "fineweb-edu-score-int"


@dataclass(kw_only=True, eq=False, repr=False)
class FineWebMixtralEduClassifier(EducationClassifier):
    """Scores educational value with the variant trained on annotations by Mixtral 8x22B.

    Example:
        >>> FineWebMixtralEduClassifier(filter_by=["high_quality"]).int_score_field
        'fineweb-mixtral-edu-score-int'
    """

    model_identifier: str = FINEWEB_MIXTRAL_EDU_MODEL_IDENTIFIER
    label_field: str = "fineweb-mixtral-edu-score-label"
    float_score_field: str = "fineweb-mixtral-edu-score-float"
    int_score_field: str = "fineweb-mixtral-edu-score-int"
    model_inference_batch_size: int = 1024


@dataclass(kw_only=True, eq=False, repr=False)
class FineWebNemotronEduClassifier(EducationClassifier):
    """Scores educational value with the variant trained on annotations by Nemotron-4 340B.

    Example:
        >>> FineWebNemotronEduClassifier(filter_by=["high_quality"]).int_score_field
        'fineweb-nemotron-edu-score-int'
    """

    model_identifier: str = FINEWEB_NEMOTRON_EDU_MODEL_IDENTIFIER
    label_field: str = "fineweb-nemotron-edu-score-label"
    float_score_field: str = "fineweb-nemotron-edu-score-float"
    int_score_field: str = "fineweb-nemotron-edu-score-int"
    model_inference_batch_size: int = 1024
