"""Finds repeated windows of words or bytes, and removes the passages that they cover."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np

from gristmill.errors import UsageError, did_you_mean
from gristmill.kernels.repeats import Hashes, first_and_counts
from gristmill.kernels.text_column import Integers, Mask, TextColumn, text_column
from gristmill.kernels.windows import BYTE, CANDIDATES, CHOSEN, REPEATS, TOKEN, scan_windows
from gristmill.stages.base import Spec
from gristmill.stages.deduplication.repeated.counting import RepeatLists, listed_parts, lookup_arrays
from gristmill.stages.deduplication.repeated.removal import RepeatRemoval
from gristmill.stages.deduplication.sorted_runs import RunFiles
from gristmill.stages.deduplication.source import DocumentStage, Keys, make_keys
from gristmill.stages.text.cutting import Passages, cuttable_texts
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
        unit: "token" (whitespace-separated words) or "byte".
        length: Minimum length of a passage, in units.
    """

    unit: WindowUnit = "token"
    length: int = 50

    def __post_init__(self) -> None:
        if self.unit not in get_args(WindowUnit):
            allowed = get_args(WindowUnit)
            raise UsageError(f"unit={self.unit!r}: must be 'token' or 'byte'.{did_you_mean(str(self.unit), allowed)}")
        if self.length < _SHORTEST[self.unit]:
            raise UsageError(
                f"min_length={self.length!r}: must be at least {_SHORTEST[self.unit]} {self.unit}s; nearly everything "
                "shorter repeats somewhere."
            )

    def scan(
        self, texts: TextColumn, mode: int, documents: Keys, wanted: Mask, lists: RepeatLists | None = None
    ) -> tuple[Integers, Hashes, Hashes, Integers, Integers]:
        """`scan_windows` for a column of texts."""
        part = (self.length + 1) // 2
        none = np.empty(0, np.uint64)
        nowhere = np.empty(0, np.int64)
        arrays = lookup_arrays(nowhere, none, none, none, none, nowhere) if lists is None else lists.arrays
        return scan_windows(
            texts.data, texts.offsets, wanted, mode, _KINDS[self.unit], self.length, part, documents, *arrays
        )


class WindowHashes(DocumentStage):
    """Turns documents into hashes: of the sequences that their windows select, or of windows that may repeat.

    Args:
        text_field: Column that holds the text.
        rule: What counts as a passage.
        chosen: The sequences that repeat; None to list those that windows select.
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


class PassageRemoval(RepeatRemoval[WindowRule]):
    """Cuts the passages that repeated windows cover from documents, or marks them."""

    name = "substring_deduplication"
    notes_changes = True
    fork_safe = True
    by_document = True

    @property
    def widen(self) -> bool:  # type: ignore[override]
        """A passage of bytes is cut as it is."""
        return self.rule.unit == "token"

    def find(self, task: DocumentBatch, documents: Keys, texts: TextColumn) -> Passages:
        wanted = np.isin(documents, self._lists.documents)
        rows, _, _, starts, ends = self.rule.scan(texts, REPEATS, documents, wanted, self._lists)
        if self.rule.unit == "byte":
            starts, ends = whole_characters(texts, rows, starts, ends)
        there = starts < ends
        return Passages(rows[there], starts[there], ends[there], np.zeros(int(there.sum()), np.int64))


def whole_characters(texts: TextColumn, rows: Integers, starts: Integers, ends: Integers) -> tuple[Integers, Integers]:
    """Passages without partial characters at their edges."""
    limits = texts.offsets[1:][rows]
    padded = np.concatenate([texts.data, np.zeros(1, np.uint8)])
    for _ in range(3):
        starts = starts + ((padded[starts] & 0xC0 == _CONTINUATION) & (starts < ends))
        ends = ends - ((ends < limits) & (padded[ends] & 0xC0 == _CONTINUATION) & (ends > starts))
    return starts, ends
