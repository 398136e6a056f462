"""Classifiers: a label, and optionally probabilities, for every document."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gristmill.lazy import lazy_names

if TYPE_CHECKING:
    from gristmill.stages.text.classifiers.aegis import AegisClassifier, InstructionDataGuardClassifier
    from gristmill.stages.text.classifiers.base import ClassifierModelStage, DistributedDataClassifier
    from gristmill.stages.text.classifiers.content_type import ContentTypeClassifier
    from gristmill.stages.text.classifiers.deberta import Deberta
    from gristmill.stages.text.classifiers.domain import DomainClassifier, MultilingualDomainClassifier
    from gristmill.stages.text.classifiers.fineweb_edu import (
        FineWebEduClassifier,
        FineWebMixtralEduClassifier,
        FineWebNemotronEduClassifier,
    )
    from gristmill.stages.text.classifiers.linear import LinearClassifier
    from gristmill.stages.text.classifiers.prompt_task_complexity import PromptTaskComplexityClassifier
    from gristmill.stages.text.classifiers.quality import QualityClassifier

__all__ = [
    "AegisClassifier",
    "ClassifierModelStage",
    "ContentTypeClassifier",
    "Deberta",
    "DistributedDataClassifier",
    "DomainClassifier",
    "FineWebEduClassifier",
    "FineWebMixtralEduClassifier",
    "FineWebNemotronEduClassifier",
    "InstructionDataGuardClassifier",
    "LinearClassifier",
    "MultilingualDomainClassifier",
    "PromptTaskComplexityClassifier",
    "QualityClassifier",
]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "aegis": ["AegisClassifier", "InstructionDataGuardClassifier"],
        "base": ["ClassifierModelStage", "DistributedDataClassifier"],
        "content_type": ["ContentTypeClassifier"],
        "deberta": ["Deberta"],
        "domain": ["DomainClassifier", "MultilingualDomainClassifier"],
        "fineweb_edu": ["FineWebEduClassifier", "FineWebMixtralEduClassifier", "FineWebNemotronEduClassifier"],
        "linear": ["LinearClassifier"],
        "prompt_task_complexity": ["PromptTaskComplexityClassifier"],
        "quality": ["QualityClassifier"],
    },
)
