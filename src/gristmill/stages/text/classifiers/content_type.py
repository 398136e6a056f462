"""The content type classifier: news, blogs, reviews, and so on."""

from __future__ import annotations

from dataclasses import dataclass

from gristmill.stages.text.classifiers.base import DistributedDataClassifier

CONTENT_TYPE_MODEL_IDENTIFIER = "nvidia/content-type-classifier-deberta"


@dataclass(kw_only=True, eq=False, repr=False)
class ContentTypeClassifier(DistributedDataClassifier):
    """Labels the content type of documents (news, blogs, reviews, …) with `nvidia/content-type-classifier-deberta`.

    Accepts the options of `DistributedDataClassifier`, with the defaults of the published model.

    Example:
        >>> ContentTypeClassifier(model_inference_batch_size=64).label_field
        'content_pred'
    """

    model_identifier: str = CONTENT_TYPE_MODEL_IDENTIFIER
    label_field: str = "content_pred"
    max_chars: int | None = 6000
    max_seq_length: int | None = 1024
