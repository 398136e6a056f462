"""The domain classifiers: the topic of a document, in English and in 52 languages."""

from __future__ import annotations

from dataclasses import dataclass

from gristmill.stages.text.classifiers.base import DistributedDataClassifier

DOMAIN_MODEL_IDENTIFIER = "nvidia/domain-classifier"
MULTILINGUAL_DOMAIN_MODEL_IDENTIFIER = "nvidia/multilingual-domain-classifier"


@dataclass(kw_only=True, eq=False, repr=False)
class DomainClassifier(DistributedDataClassifier):
    """Labels the domain of English documents with `nvidia/domain-classifier`.

    Accepts the options of `DistributedDataClassifier`, with the defaults of the published model.

    Example:
        >>> DomainClassifier(model_inference_batch_size=64).label_field
        'domain_pred'
    """

    model_identifier: str = DOMAIN_MODEL_IDENTIFIER
    label_field: str = "domain_pred"
    max_chars: int | None = 2000
    max_seq_length: int | None = 512


@dataclass(kw_only=True, eq=False, repr=False)
class MultilingualDomainClassifier(DistributedDataClassifier):
    """Labels the domain of documents in many languages with `nvidia/multilingual-domain-classifier`.

    Accepts the options of `DistributedDataClassifier`, with the defaults of the published model.

    Example:
        >>> MultilingualDomainClassifier(model_inference_batch_size=64).label_field
        'multilingual_domain_pred'
    """

    model_identifier: str = MULTILINGUAL_DOMAIN_MODEL_IDENTIFIER
    label_field: str = "multilingual_domain_pred"
    max_chars: int | None = 2000
    max_seq_length: int | None = 512
