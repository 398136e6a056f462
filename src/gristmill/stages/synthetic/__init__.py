"""Synthetic data: documents rewritten, graded or made up by a language model."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gristmill.lazy import lazy_names

if TYPE_CHECKING:
    from gristmill.stages.synthetic.grading import EducationalGrade
    from gristmill.stages.synthetic.nemotron_cc.nemotron_cc import (
        DistillStage,
        DiverseQAPostProcessingStage,
        DiverseQAStage,
        ExtractKnowledgeStage,
        KnowledgeListPostProcessingStage,
        KnowledgeListStage,
        WikipediaParaphrasingStage,
    )
    from gristmill.stages.synthetic.qa_multilingual_synthetic import QAMultilingualSyntheticStage
    from gristmill.stages.synthetic.translation import TranslationStage

__all__ = [
    "DistillStage",
    "DiverseQAPostProcessingStage",
    "DiverseQAStage",
    "EducationalGrade",
    "ExtractKnowledgeStage",
    "KnowledgeListPostProcessingStage",
    "KnowledgeListStage",
    "QAMultilingualSyntheticStage",
    "TranslationStage",
    "WikipediaParaphrasingStage",
]

_OTHERS = {
    "EducationalGrade": "grading",
    "QAMultilingualSyntheticStage": "qa_multilingual_synthetic",
    "TranslationStage": "translation",
}
__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "nemotron_cc.nemotron_cc": [name for name in __all__ if name not in _OTHERS],
        **{module: [name] for name, module in _OTHERS.items()},
    },
)
