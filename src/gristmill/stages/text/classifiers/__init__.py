"""Classifiers: a label, and if asked for its probabilities, for every document."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

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

_MODULES = {
    "AegisClassifier": "aegis",
    "ClassifierModelStage": "base",
    "ContentTypeClassifier": "content_type",
    "Deberta": "deberta",
    "DistributedDataClassifier": "base",
    "DomainClassifier": "domain",
    "FineWebEduClassifier": "fineweb_edu",
    "FineWebMixtralEduClassifier": "fineweb_edu",
    "FineWebNemotronEduClassifier": "fineweb_edu",
    "InstructionDataGuardClassifier": "aegis",
    "LinearClassifier": "linear",
    "MultilingualDomainClassifier": "domain",
    "PromptTaskComplexityClassifier": "prompt_task_complexity",
    "QualityClassifier": "quality",
}

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


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)
