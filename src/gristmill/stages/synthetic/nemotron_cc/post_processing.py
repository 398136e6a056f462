"""Turns a model's answers into training text: pairs appended to their document, lists without their bullets."""

from __future__ import annotations

import hashlib
import random
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from gristmill.errors import UsageError
from gristmill.stages.base import ProcessingStage, Spec
from gristmill.stages.synthetic.nemotron_cc.prompts import DIVERSE_QA_PREFIX
from gristmill.tasks.document import DocumentBatch

if TYPE_CHECKING:
    from gristmill.backends.base import WorkerMetadata

_BULLET = re.compile(r"^\s*(?:[-*•]\s+)?")
_PAIR = re.compile(r"Question:(?P<question>.*?)\nAnswer:(?P<answer>.*)", re.DOTALL)
_TOKENS_PER_SHARE = 150
"""Number of tokens from which a text may get `max_num_pairs` pairs; a shorter text gets proportionally fewer."""


class _AnswerStage(ProcessingStage[DocumentBatch, DocumentBatch]):
    """Replaces the answers in one column; drops no document."""

    answer_field: str

    def outputs(self) -> Spec:
        """The column of the answers."""
        return ["data"], [self.answer_field]

    def _replaced(self, batch: DocumentBatch, made: list[str | None]) -> DocumentBatch:
        given = batch.text(self.answer_field).to_pylist()
        changed = np.array([old != new for old, new in zip(given, made, strict=True)], bool)
        if not changed.any():
            return batch
        grown = np.array([len(new or "") - len(old or "") for old, new in zip(given, made, strict=True)], np.int64)
        batch.note_change(self.answer_field, changed, grown)
        return batch.with_text(self.answer_field, pa.array(made, pa.large_string()), changed=changed)


class DiverseQAPostProcessingStage(_AnswerStage):
    r"""Appends question-answer pairs to their source text, as in Nemotron-CC (Su et al. 2024).

    The pairs are parsed from the model's answer and shuffled, and a random number of them is kept: at most
    `max_num_pairs`, and with a tokenizer in proportion to the length of the text. Randomness depends only on the text,
    so a second run has the same result. An answer without a complete pair becomes an empty text.

    Args:
        input_field: Column that holds the text.
        qa_field: Column that holds the model's answer, which is replaced by the text and its pairs.
        tokenizer: A tokenizer, or the path of its file, to measure the text; None ignores its length.
        prefix: Opening line of the answer; it is removed.
        max_num_pairs: Maximum number of pairs per document.
        name: Name of the stage in reports.

    Example:
        >>> answer = "- Question: Is water wet?\n- Answer: Yes."
        >>> batch = DocumentBatch(data=pa.table({"text": ["Water is wet."], "diverse_qa": [answer]}))
        >>> DiverseQAPostProcessingStage().process(batch).to_pyarrow()["diverse_qa"][0].as_py()
        'Water is wet.\n\nQuestion: Is water wet?\nAnswer: Yes.'
    """

    never_drops = True
    notes_changes = True
    text_parameter = "input_field"

    def __init__(
        self,
        input_field: str = "text",
        qa_field: str = "diverse_qa",
        tokenizer: Any = None,
        prefix: str = DIVERSE_QA_PREFIX,
        max_num_pairs: int = 10,
        name: str = "DiverseQAPostProcessing",
    ) -> None:
        if not isinstance(max_num_pairs, int) or isinstance(max_num_pairs, bool) or max_num_pairs < 1:
            raise UsageError(f"max_num_pairs={max_num_pairs!r}: must be a whole number of pairs, at least 1.")
        self.input_field = input_field
        self.qa_field = self.answer_field = qa_field
        self.tokenizer = tokenizer
        self.prefix = prefix
        self.max_num_pairs = max_num_pairs
        self.name = name
        self._count: Callable[[list[str]], list[int]] | None = None

    def inputs(self) -> Spec:
        """The text and the answer."""
        return ["data"], [self.input_field, self.qa_field]

    def setup(self, worker_metadata: WorkerMetadata | None = None) -> None:
        """Load the tokenizer."""
        if self.tokenizer is not None:
            from gristmill.stages.text.filters.tokens import token_counter

            self._count = token_counter(self.tokenizer)

    def process(self, batch: DocumentBatch) -> DocumentBatch:
        """The batch with pairs appended to texts."""
        if self.tokenizer is not None and self._count is None:
            self.setup()
        texts = [text or "" for text in batch.text(self.input_field).to_pylist()]
        answers = batch.text(self.qa_field).to_pylist()
        most = [self.max_num_pairs] * len(texts)
        if self._count is not None:
            most = [max(1, self.max_num_pairs * tokens // _TOKENS_PER_SHARE) for tokens in self._count(texts)]
        made = [
            None if answer is None else self._appended(text, answer, min(limit, self.max_num_pairs))
            for text, answer, limit in zip(texts, answers, most, strict=True)
        ]
        return self._replaced(batch, made)

    def _appended(self, text: str, answer: str, limit: int) -> str:
        pairs = question_answer_pairs(answer, prefix=self.prefix)
        if not pairs:
            return ""
        chance = random.Random(hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest())  # noqa: S311
        chance.shuffle(pairs)
        return "\n\n".join([text, *pairs[: chance.randint(1, limit)]])

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_count": None}


class KnowledgeListPostProcessingStage(_AnswerStage):
    r"""Turns a list written by a model into plain lines, without bullets, indentation and an opening line.

    Args:
        input_field: Column that holds the model's answer, which is replaced.
        name: Name of the stage in reports.

    Example:
        >>> batch = DocumentBatch(data=pa.table({"knowledge_list": ["Facts:\n- Water is wet.\n- Ice\n  is cold."]}))
        >>> KnowledgeListPostProcessingStage().process(batch).to_pyarrow()["knowledge_list"][0].as_py()
        'Water is wet.\nIce\nis cold.'
    """

    never_drops = True
    notes_changes = True
    text_parameter = "input_field"

    def __init__(self, input_field: str = "knowledge_list", name: str = "KnowledgeListPostProcessing") -> None:
        self.input_field = self.answer_field = input_field
        self.name = name

    def inputs(self) -> Spec:
        """The answer."""
        return ["data"], [self.input_field]

    def process(self, batch: DocumentBatch) -> DocumentBatch:
        """The batch with plain lines."""
        answers = batch.text(self.input_field).to_pylist()
        return self._replaced(batch, [None if answer is None else plain_list(answer) for answer in answers])


def question_answer_pairs(answer: str, *, prefix: str = DIVERSE_QA_PREFIX) -> list[str]:
    r"""The complete pairs in a model's answer, with `Question: …` and `Answer: …` on separate lines.

    Text before the first question is skipped, and so is a question without an answer, as at the end of a truncated
    answer.

    Example:
        >>> question_answer_pairs("- Question: Why?\n- Answer: So.\n- Question: And")
        ['Question: Why?\nAnswer: So.']
    """
    lines = [_BULLET.sub("", line).rstrip() for line in answer.removeprefix(prefix).splitlines()]
    whole = "\n".join(line for line in lines if line)
    found = []
    for part in re.split(r"(?m)^(?=Question:)", whole):
        match = _PAIR.match(part)
        if match and match["question"].strip() and match["answer"].strip():
            found.append(f"Question: {match['question'].strip()}\nAnswer: {match['answer'].strip()}")
    return found


def plain_list(answer: str) -> str:
    r"""The items of a list without bullets; an opening line before the first item is omitted.

    Example:
        >>> plain_list("Here is the list:\n- one\n- two")
        'one\ntwo'
    """
    lines = [line for line in answer.splitlines() if line.strip()]
    if lines and _BULLET.sub("", lines[0]) == lines[0].strip() and any(_is_item(line) for line in lines[1:]):
        lines = lines[1:]
    return "\n".join(_BULLET.sub("", line).rstrip() for line in lines)


def _is_item(line: str) -> bool:
    return line.lstrip().startswith(("- ", "* ", "• "))
