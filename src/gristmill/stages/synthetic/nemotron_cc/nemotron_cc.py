"""Five ways to rewrite documents, as Nemotron-CC does (Su et al. 2024, arXiv:2412.02595).

The paper rephrases low-quality documents in the style of Wikipedia, and turns high-quality ones into four kinds of
text: question-answer pairs, a distilled passage, extracted knowledge, and a knowledge list.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from gristmill.stages.synthetic.nemotron_cc.base import BaseSyntheticStage
from gristmill.stages.synthetic.nemotron_cc.post_processing import (
    DiverseQAPostProcessingStage,
    KnowledgeListPostProcessingStage,
)
from gristmill.stages.synthetic.nemotron_cc.prompts import (
    DISTILL_PROMPT_TEMPLATE,
    DIVERSE_QA_PREFIX,
    DIVERSE_QA_PROMPT_TEMPLATE,
    EXTRACT_KNOWLEDGE_PROMPT_TEMPLATE,
    KNOWLEDGE_LIST_PROMPT_TEMPLATE,
    NEMOTRON_CC_DISTILL_SYSTEM_PROMPT,
    NEMOTRON_CC_SYSTEM_PROMPT,
    WIKIPEDIA_REPHRASING_PROMPT_TEMPLATE,
)

__all__ = [
    "DistillStage",
    "DiverseQAPostProcessingStage",
    "DiverseQAStage",
    "ExtractKnowledgeStage",
    "KnowledgeListPostProcessingStage",
    "KnowledgeListStage",
    "WikipediaParaphrasingStage",
]


@dataclass(eq=False, repr=False)
class WikipediaParaphrasingStage(BaseSyntheticStage):
    """Rewrites documents in the style of Wikipedia; answers begin with "Here is a paraphrased version:".

    Takes the parameters of `BaseSyntheticStage`.

    Example:
        >>> WikipediaParaphrasingStage(model_name="m", base_url="http://localhost:8000/v1").outputs()[1]
        ['rephrased']
    """

    system_prompt: str | None = NEMOTRON_CC_SYSTEM_PROMPT
    prompt: str | None = WIKIPEDIA_REPHRASING_PROMPT_TEMPLATE
    input_field: str | None = "text"
    output_field: str | None = "rephrased"
    name: str = "WikipediaParaphrasing"


@dataclass(eq=False, repr=False)
class DiverseQAStage(BaseSyntheticStage):
    """Generates diverse questions about a document, with answers; see `DiverseQAPostProcessingStage`.

    Takes the parameters of `BaseSyntheticStage`. `tokenizer`, `prefix` and `max_num_pairs` belong to the
    post-processing, which is a separate stage; they have no effect here.

    Example:
        >>> DiverseQAStage(model_name="m", base_url="http://localhost:8000/v1").outputs()[1]
        ['diverse_qa']
    """

    system_prompt: str | None = NEMOTRON_CC_SYSTEM_PROMPT
    prompt: str | None = DIVERSE_QA_PROMPT_TEMPLATE
    input_field: str | None = "text"
    output_field: str | None = "diverse_qa"
    name: str = "DiverseQA"
    tokenizer: Any = None
    prefix: str = DIVERSE_QA_PREFIX
    max_num_pairs: int = 10

    def __post_init__(self) -> None:
        for unused in ("tokenizer", "prefix", "max_num_pairs"):
            vars(self).pop(unused)
        super().__post_init__()


@dataclass(eq=False, repr=False)
class DistillStage(BaseSyntheticStage):
    """Condenses documents to their key information; answers begin with "Paraphrased Text:".

    Takes the parameters of `BaseSyntheticStage`.

    Example:
        >>> DistillStage(model_name="m", base_url="http://localhost:8000/v1").outputs()[1]
        ['distill']
    """

    system_prompt: str | None = NEMOTRON_CC_DISTILL_SYSTEM_PROMPT
    prompt: str | None = DISTILL_PROMPT_TEMPLATE
    input_field: str | None = "text"
    output_field: str | None = "distill"
    name: str = "Distill"


@dataclass(eq=False, repr=False)
class ExtractKnowledgeStage(BaseSyntheticStage):
    """Rewrites the knowledge in documents as textbook passages.

    Takes the parameters of `BaseSyntheticStage`.

    Example:
        >>> ExtractKnowledgeStage(model_name="m", base_url="http://localhost:8000/v1").outputs()[1]
        ['extract_knowledge']
    """

    system_prompt: str | None = NEMOTRON_CC_SYSTEM_PROMPT
    prompt: str | None = EXTRACT_KNOWLEDGE_PROMPT_TEMPLATE
    input_field: str | None = "text"
    output_field: str | None = "extract_knowledge"
    name: str = "ExtractKnowledge"


@dataclass(eq=False, repr=False)
class KnowledgeListStage(BaseSyntheticStage):
    """Lists the key facts of documents; see `KnowledgeListPostProcessingStage`.

    Takes the parameters of `BaseSyntheticStage`.

    Example:
        >>> KnowledgeListStage(model_name="m", base_url="http://localhost:8000/v1").outputs()[1]
        ['knowledge_list']
    """

    system_prompt: str | None = NEMOTRON_CC_SYSTEM_PROMPT
    prompt: str | None = KNOWLEDGE_LIST_PROMPT_TEMPLATE
    input_field: str | None = "text"
    output_field: str | None = "knowledge_list"
    name: str = "KnowledgeList"
