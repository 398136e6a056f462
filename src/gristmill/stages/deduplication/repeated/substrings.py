"""Finds windows of words or bytes that repeat, and takes the passages that they cover out of documents."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np

from gristmill.errors import UsageError, did_you_mean
from gristmill.kernels.repeats import Hashes, first_and_counts
from gristmill.kernels.text_column import Integers, Mask, TextColumn, text_column
from gristmill.kernels.windows import BYTE, CANDIDATES, CHOSEN, REPEATS, TOKEN, scan_windows
from gristmill.stages.base import ProcessingStage, Spec
from gristmill.stages.deduplication.repeated.counting import RepeatLists, listed_parts, lookup_arrays
from gristmill.stages.deduplication.repeated.lines import shares_of
from gristmill.stages.deduplication.sorted_runs import RunFiles
from gristmill.stages.deduplication.source import DocumentStage, Keys, make_keys
from gristmill.stages.text.cutting import Action, Passages, cut_passages, cuttable_texts
from gristmill.tasks.columns import TableColumns
from gristmill.tasks.document import DocumentBatch

WindowUnit = Literal["token", "byte"]
_KINDS = {"token": TOKEN, "byte": BYTE}
_SHORTEST = {"token": 2, "byte": 8}
_CONTINUATION = 0x80


@dataclass(frozen=True)
class WindowRule:
    """What counts as a passage.

    Attributes:
        unit: "token" (words that white space separates) or "byte".
        length: The units of the shortest passage.
    """

    unit: WindowUnit = "token"
    length: int = 50

    def __post_init__(self) -> None:
        if self.unit not in get_args(WindowUnit):
            allowed = get_args(WindowUnit)
            raise UsageError(f"unit={self.unit!r}: give 'token' or 'byte'.{did_you_mean(str(self.unit), allowed)}")
        if self.length < _SHORTEST[self.unit]:
            raise UsageError(
                f"min_length={self.length!r}: give at least {_SHORTEST[self.unit]} {self.unit}s; nearly everything "
                "shorter repeats somewhere."
            )

    def scan(
        self, texts: TextColumn, mode: int, documents: Keys, wanted: Mask, lists: RepeatLists | None = None
    ) -> tuple[Integers, Hashes, Hashes, Integers, Integers]:
        """As `scan_windows`, for a column of texts."""
        part = (self.length + 1) // 2
        none = np.empty(0, np.uint64)
        nowhere = np.empty(0, np.int64)
        arrays = lookup_arrays(nowhere, none, none, none, none, nowhere) if lists is None else lists.arrays
        return scan_windows(
            texts.data, texts.offsets, wanted, mode, _KINDS[self.unit], self.length, part, documents, *arrays
        )


class WindowHashes(DocumentStage):
    """Turns documents into hashes: of the sequences that their windows choose, or of windows that may repeat.

    Args:
        text_field: The column with the text.
        rule: What counts as a passage.
        chosen: The sequences that repeat; None to list those that windows choose.
    """

    notes_changes = True
    name = "window_hashes"
    fork_safe = True
    text_parameter = "text_field"

    def __init__(self, text_field: str, *, rule: WindowRule, chosen: RunFiles | None = None) -> None:
        self.text_field = text_field
        self.rule = rule
        self.chosen = None if chosen is None else chosen.digest
        self._lists = None if chosen is None else RepeatLists(chosen, by_document=True)

    def inputs(self) -> Spec:
        return ["data"], [self.text_field]

    def outputs(self) -> Spec:
        return ["data"], ["document", "hash", "hash_2", "place", "count"]

    def process(self, task: DocumentBatch) -> DocumentBatch:
        documents = make_keys(task.partition, task.rows)
        texts = cuttable_texts(task, self.text_field)
        if texts is None:
            texts = text_column([None] * task.num_items)
        wanted = np.ones(len(documents), bool)
        if self._lists is not None:
            wanted = self._lists.load(documents) & np.isin(documents, self._lists.documents)
        mode = CHOSEN if self._lists is None else CANDIDATES
        rows, first, second, places, _ = self.rule.scan(texts, mode, documents, wanted, self._lists)
        kept, counts = first_and_counts(first, second, rows)
        bounds = np.searchsorted(rows[kept], np.arange(len(documents) + 1))
        table = listed_parts(documents, bounds, first[kept], second[kept], places[kept], counts)
        return task.with_columns(TableColumns(table))


class PassageRemoval(ProcessingStage[DocumentBatch, DocumentBatch]):
    """Cuts the passages that repeated windows cover from documents, or marks them.

    Args:
        repeats: The lists of the step before.
        text_field: The column with the text.
        rule: What counts as a passage.
        action: "cut", "mark", or "drop" to drop documents above `max_share` and leave the others as they are.
        marks_field: The column for marks.
        max_share: Documents of which a higher share repeats are dropped.
    """

    notes_changes = True
    role = "deduplication"
    name = "substring_deduplication"
    fork_safe = True

    def __init__(
        self,
        repeats: RunFiles,
        text_field: str,
        *,
        rule: WindowRule,
        action: Action,
        marks_field: str,
        max_share: float | None,
    ) -> None:
        self._lists = RepeatLists(repeats, by_document=True)
        self.removals = repeats.digest
        self.text_field = text_field
        self.rule = rule
        self.action: Action = action
        self.marks_field = marks_field
        self.max_share = max_share

    def inputs(self) -> Spec:
        return ["data"], []

    def outputs(self) -> Spec:
        return ["data"], [self.text_field, *([self.marks_field] if self.action == "mark" else [])]

    def process(self, task: DocumentBatch) -> DocumentBatch:
        texts = cuttable_texts(task, self.text_field)
        if texts is None or not task.num_items:
            return task
        passages = self._repeated(make_keys(task.partition, task.rows), texts)
        self._log_metrics(
            {"passages": float(len(passages.rows)), "bytes": float((passages.ends - passages.starts).sum())}
        )
        return cut_passages(
            task,
            self.text_field,
            texts,
            passages,
            ["repeated_passage"],
            action=self.action,
            marks_field=self.marks_field,
            widen=self.rule.unit == "token",
            shares=shares_of(texts, passages),
            max_share=self.max_share,
            too_much="too_much_repeated",
        )

    def _repeated(self, documents: Keys, texts: TextColumn) -> Passages:
        if not self._lists.load(documents):
            nothing = np.empty(0, np.int64)
            return Passages(nothing, nothing, nothing, nothing)
        wanted = np.isin(documents, self._lists.documents)
        rows, _, _, starts, ends = self.rule.scan(texts, REPEATS, documents, wanted, self._lists)
        if self.rule.unit == "byte":
            starts, ends = whole_characters(texts, rows, starts, ends)
        there = starts < ends
        return Passages(rows[there], starts[there], ends[there], np.zeros(int(there.sum()), np.int64))


def whole_characters(texts: TextColumn, rows: Integers, starts: Integers, ends: Integers) -> tuple[Integers, Integers]:
    """Passages without the parts of characters at their edges."""
    limits = texts.offsets[1:][rows]
    padded = np.concatenate([texts.data, np.zeros(1, np.uint8)])
    for _ in range(3):
        starts = starts + ((padded[starts] & 0xC0 == _CONTINUATION) & (starts < ends))
        ends = ends - ((ends < limits) & (padded[ends] & 0xC0 == _CONTINUATION) & (ends > starts))
    return starts, ends
