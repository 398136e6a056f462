"""The domain classifiers: what a document is about, in English and in 52 languages."""

from __future__ import annotations

from typing import Any

from gristmill.stages.text.classifiers.base import DistributedDataClassifier

DOMAIN_MODEL_IDENTIFIER = "nvidia/domain-classifier"
MULTILINGUAL_DOMAIN_MODEL_IDENTIFIER = "nvidia/multilingual-domain-classifier"


class DomainClassifier(DistributedDataClassifier):
    """Labels the domain of English documents with `nvidia/domain-classifier`.

    Takes the options of `DistributedDataClassifier`, with these defaults: label in `domain_pred`, 2000 characters,
    512 tokens.

    Example:
        >>> DomainClassifier(model_inference_batch_size=64).label_field
        'domain_pred'
    """

    def __init__(
        self,
        cache_dir: str | None = None,
        label_field: str = "domain_pred",
        score_field: str | None = None,
        text_field: str = "text",
        filter_by: list[str] | None = None,
        max_chars: int | None = 2000,
        sort_by_length: bool = True,
        model_inference_batch_size: int = 256,
        autocast: bool = True,
        **options: Any,
    ) -> None:
        super().__init__(
            **{"model_identifier": DOMAIN_MODEL_IDENTIFIER, "max_seq_length": 512, **options},
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


class MultilingualDomainClassifier(DistributedDataClassifier):
    """Labels the domain of documents in many languages with `nvidia/multilingual-domain-classifier`.

    Takes the options of `DistributedDataClassifier`, with these defaults: label in
    `multilingual_domain_pred`, 2000 characters, 512 tokens.

    Example:
        >>> MultilingualDomainClassifier(model_inference_batch_size=64).label_field
        'multilingual_domain_pred'
    """

    def __init__(
        self,
        cache_dir: str | None = None,
        label_field: str = "multilingual_domain_pred",
        score_field: str | None = None,
        text_field: str = "text",
        filter_by: list[str] | None = None,
        max_chars: int | None = 2000,
        sort_by_length: bool = True,
        model_inference_batch_size: int = 256,
        autocast: bool = True,
        **options: Any,
    ) -> None:
        super().__init__(
            **{"model_identifier": MULTILINGUAL_DOMAIN_MODEL_IDENTIFIER, "max_seq_length": 512, **options},
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
