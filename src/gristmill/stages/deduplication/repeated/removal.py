"""Cuts or marks repeated text in documents: the base of the stages for units and for passages."""

from __future__ import annotations

from abc import abstractmethod
from typing import Generic, Literal, TypeVar

import numpy as np

from gristmill.kernels.text_column import TextColumn
from gristmill.ledger.record.trail import Floats
from gristmill.stages.base import ProcessingStage, Spec
from gristmill.stages.deduplication.repeated.counting import RepeatLists
from gristmill.stages.deduplication.sorted_runs import RunFiles
from gristmill.stages.deduplication.source import Keys, make_keys
from gristmill.stages.text.cutting import Action, Passages, cut_passages, cuttable_texts
from gristmill.tasks.document import DocumentBatch

Rule = TypeVar("Rule")
Keep = Literal["first", "none"]
"""Which occurrence to keep."""


class RepeatRemoval(ProcessingStage[DocumentBatch, DocumentBatch], Generic[Rule]):
    """Cuts repeated passages from documents, or marks them; subclasses find them in `find`.

    Args:
        repeats: The lists of the previous step.
        text_field: Column that holds the text.
        rule: What was compared.
        action: "cut", "mark", or "drop" to drop documents above `max_share` and leave the others unchanged.
        marks_field: Column for marks.
        max_share: Drop documents with a larger share of repeated text.
        reason: The reason in the ledger.
    """

    notes_changes = True
    role = "deduplication"
    fork_safe = True
    by_document = False
    """Whether the lists are per document instead of per partition."""
    widen = True
    """Whether the whitespace around a passage is cut with it."""

    def __init__(
        self,
        repeats: RunFiles,
        text_field: str,
        *,
        rule: Rule,
        action: Action,
        marks_field: str,
        max_share: float | None,
        reason: str,
    ) -> None:
        self._lists = RepeatLists(repeats, by_document=self.by_document)
        self.removals = repeats.digest
        self.text_field = text_field
        self.rule = rule
        self.action: Action = action
        self.marks_field = marks_field
        self.max_share = max_share
        self.reason = reason

    @abstractmethod
    def find(self, task: DocumentBatch, documents: Keys, texts: TextColumn) -> Passages:
        """The passages to cut from these documents; called only if the lists are not empty."""

    def inputs(self) -> Spec:
        return ["data"], []

    def outputs(self) -> Spec:
        return ["data"], [self.text_field, *([self.marks_field] if self.action == "mark" else [])]

    def process(self, task: DocumentBatch) -> DocumentBatch:
        texts = cuttable_texts(task, self.text_field)
        if texts is None or not task.num_items:
            return task
        documents = make_keys(task.partition, task.rows)
        if self._lists.load(documents):
            passages = self.find(task, documents, texts)
        else:
            nothing = np.empty(0, np.int64)
            passages = Passages(nothing, nothing, nothing, nothing)
        cut = float((passages.ends - passages.starts).sum())
        self._log_metrics({"passages": float(len(passages.rows)), "bytes": cut})
        return cut_passages(
            task,
            self.text_field,
            texts,
            passages,
            [self.reason],
            action=self.action,
            marks_field=self.marks_field,
            widen=self.widen,
            shares=_shares_of(texts, passages),
            max_share=self.max_share,
            too_much="too_much_repeated",
        )


def _shares_of(texts: TextColumn, passages: Passages) -> Floats:
    """The share of the bytes of every text that its passages make up."""
    cut = np.bincount(passages.rows, passages.ends - passages.starts, minlength=len(texts))
    return np.asarray(cut / np.maximum(texts.lengths, 1), np.float64)
