"""Deduplication: workflows that find duplicate documents and remove all but one of each group."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gristmill.lazy import lazy_names

if TYPE_CHECKING:
    from gristmill.stages.deduplication.decontamination.stage import Decontamination
    from gristmill.stages.deduplication.decontamination.workflow import DecontaminationWorkflow
    from gristmill.stages.deduplication.exact.workflow import ExactDeduplicationWorkflow
    from gristmill.stages.deduplication.fuzzy.workflow import FuzzyDeduplicationWorkflow
    from gristmill.stages.deduplication.removal_workflow import TextDuplicatesRemovalWorkflow
    from gristmill.stages.deduplication.repeated.line_workflow import LineDeduplicationWorkflow
    from gristmill.stages.deduplication.repeated.substring_workflow import SubstringDeduplicationWorkflow
    from gristmill.stages.deduplication.semantic.text_workflow import TextSemanticDeduplicationWorkflow
    from gristmill.stages.deduplication.semantic.workflow import SemanticDeduplicationWorkflow
    from gristmill.stages.deduplication.stages import (
        ExactDeduplication,
        FuzzyDeduplication,
        LineDeduplication,
        SemanticDeduplication,
        SubstringDeduplication,
    )

__all__ = [
    "Decontamination",
    "DecontaminationWorkflow",
    "ExactDeduplication",
    "ExactDeduplicationWorkflow",
    "FuzzyDeduplication",
    "FuzzyDeduplicationWorkflow",
    "LineDeduplication",
    "LineDeduplicationWorkflow",
    "SemanticDeduplication",
    "SemanticDeduplicationWorkflow",
    "SubstringDeduplication",
    "SubstringDeduplicationWorkflow",
    "TextDuplicatesRemovalWorkflow",
    "TextSemanticDeduplicationWorkflow",
]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "decontamination.stage": ["Decontamination"],
        "decontamination.workflow": ["DecontaminationWorkflow"],
        "exact.workflow": ["ExactDeduplicationWorkflow"],
        "fuzzy.workflow": ["FuzzyDeduplicationWorkflow"],
        "removal_workflow": ["TextDuplicatesRemovalWorkflow"],
        "repeated.line_workflow": ["LineDeduplicationWorkflow"],
        "repeated.substring_workflow": ["SubstringDeduplicationWorkflow"],
        "semantic.text_workflow": ["TextSemanticDeduplicationWorkflow"],
        "semantic.workflow": ["SemanticDeduplicationWorkflow"],
        "stages": [
            "ExactDeduplication",
            "FuzzyDeduplication",
            "LineDeduplication",
            "SemanticDeduplication",
            "SubstringDeduplication",
        ],
    },
)
