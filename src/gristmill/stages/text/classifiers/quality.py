"""The quality classifier: High, Medium or Low."""

from __future__ import annotations

from dataclasses import dataclass

from gristmill.stages.text.classifiers.base import DistributedDataClassifier

QUALITY_CLASSIFIER_MODEL_IDENTIFIER = "nvidia/quality-classifier-deberta"


@dataclass(kw_only=True, eq=False, repr=False)
class QualityClassifier(DistributedDataClassifier):
    """Labels the quality of documents with `nvidia/quality-classifier-deberta`.

    Accepts the options of `DistributedDataClassifier`, with the defaults of the published model.

    Example:
        >>> QualityClassifier(model_inference_batch_size=64, max_chars=3000).label_field
        'quality_pred'
    """

    model_identifier: str = QUALITY_CLASSIFIER_MODEL_IDENTIFIER
    label_field: str = "quality_pred"
    max_chars: int | None = 6000
    max_seq_length: int | None = 1024
