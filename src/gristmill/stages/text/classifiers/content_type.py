"""The content type classifier: news, blogs, reviews, and so on."""

from __future__ import annotations

from typing import Any

from gristmill.stages.text.classifiers.base import DistributedDataClassifier

CONTENT_TYPE_MODEL_IDENTIFIER = "nvidia/content-type-classifier-deberta"


class ContentTypeClassifier(DistributedDataClassifier):
    """Labels the type of speech of documents (news, blogs, reviews, …) with `nvidia/content-type-classifier-deberta`.

    Takes the options of `DistributedDataClassifier`, with these defaults: label in `content_pred`, 6000 characters,
    1024 tokens.

    Example:
        >>> ContentTypeClassifier(model_inference_batch_size=64).label_field
        'content_pred'
    """

    def __init__(
        self,
        cache_dir: str | None = None,
        label_field: str = "content_pred",
        score_field: str | None = None,
        text_field: str = "text",
        filter_by: list[str] | None = None,
        max_chars: int | None = 6000,
        sort_by_length: bool = True,
        model_inference_batch_size: int = 256,
        autocast: bool = True,
        **options: Any,
    ) -> None:
        super().__init__(
            **{"model_identifier": CONTENT_TYPE_MODEL_IDENTIFIER, "max_seq_length": 1024, **options},
            cache_dir=cache_dir,
            label_field=label_field,
            score_field=score_field,
            text_field=text_field,
            filter_by=filter_by,
            max_chars=max_chars,
            sort_by_length=sort_by_length,
            model_inference_batch_size=model_inference_batch_size,
            autocast=autocast,
        )
