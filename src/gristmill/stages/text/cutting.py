"""Removes passages from the texts of a batch, or marks them, and records each one in the ledger."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from gristmill.errors import UsageError, did_you_mean
from gristmill.kernels.text_column import Integers, TextColumn, text_column
from gristmill.kernels.text_cuts import character_places, cut_spans
from gristmill.kernels.text_edit import build_column
from gristmill.ledger.record.trail import DROPPED, Decisions, Floats
from gristmill.tasks.document import DocumentBatch

Action = Literal["cut", "mark", "drop"]
NOTHING_LEFT = "nothing_left"
MARKS = pa.list_(pa.struct([("start", pa.int64()), ("end", pa.int64()), ("reason", pa.string())]))
"""Type of the marks column: start and end in characters, and the rule."""


@dataclass(frozen=True, slots=True)
class Passages:
    """Passages of a column of texts, sorted by row and position, without overlaps.

    Attributes:
        rows: The row of each.
        starts: Where each begins in the bytes of the column.
        ends: Where each ends.
        reasons: The number of each one's reason.
    """

    rows: Integers
    starts: Integers
    ends: Integers
    reasons: Integers


def check_action(action: str, max_share: float | None, *, name: str, option: str = "max_share") -> None:
    """Check an action and its share.

    Raises:
        UsageError: The action is unknown, the share is not between 0 and 1, or an action needs a share.
    """
    if action not in get_args(Action):
        raise UsageError(
            f"{name}(action={action!r}): must be 'cut', 'mark' or 'drop'.{did_you_mean(action, get_args(Action))}"
        )
    if max_share is not None and not 0 <= max_share <= 1:
        raise UsageError(f"{name}({option}={max_share!r}): a share must be between 0 and 1, or None for no limit.")
    if action == "drop" and max_share is None:
        raise UsageError(f"{name}(action='drop'): set {option} to the share above which documents are dropped.")


def cuttable_texts(batch: DocumentBatch, field: str) -> TextColumn | None:
    """The texts of a column; values that are not strings count as missing. None if the batch has no such column."""
    if not batch.columns.has(field):
        return None
    return text_column(batch.strings(field))


def cut_passages(
    batch: DocumentBatch,
    field: str,
    texts: TextColumn,
    passages: Passages,
    reasons: Sequence[str],
    *,
    action: Action = "cut",
    marks_field: str | None = None,
    widen: bool = True,
    shares: Floats,
    max_share: float | None = None,
    too_much: str = "too_much_cut",
) -> DocumentBatch:
    """The batch without the passages (or with marks), and without documents that lost too much.

    Args:
        batch: The documents.
        field: Column of `texts`.
        texts: The result of `cuttable_texts`.
        passages: Passages to cut or mark.
        reasons: The names of the reasons.
        action: "cut", "mark" (write positions to `marks_field` and drop nothing), or "drop" (only drop documents above
            `max_share`).
        marks_field: Column for marks.
        widen: Also cut the whitespace around a passage.
        shares: The share of every document that the passages make up.
        max_share: Documents with a higher share are dropped, with the reason `too_much`.
        too_much: The reason for dropping a document above `max_share`.
    """
    starts, ends = character_places(texts.data, texts.offsets, passages.rows, passages.starts, passages.ends)
    if len(passages.rows):
        for number in np.unique(passages.reasons).tolist():
            mine = passages.reasons == number
            batch.note_cuts(field, passages.rows[mine], starts[mine], ends[mine], reason=reasons[number])
    if action == "mark":
        assert marks_field is not None
        batch = batch.with_column(marks_field, _marks(len(texts), passages, starts, ends, reasons))
    gone = np.zeros(len(texts), bool) if max_share is None or action == "mark" else shares > max_share
    empty = np.zeros(len(texts), bool)
    if action == "cut" and len(passages.rows):
        data, offsets = cut_spans(texts.data, texts.offsets, passages.rows, passages.starts, passages.ends, widen)
        values = build_column(data, offsets, texts.valid)
        changed = np.zeros(len(texts), bool)
        changed[passages.rows] = True
        empty = changed & (np.diff(offsets) == 0)
        batch.note_change(field, changed, _growth(texts, values))
        batch = batch.with_text(field, values, changed=changed)
    decisions = []
    for mask, reason, score in ((gone, too_much, shares), (empty & ~gone, NOTHING_LEFT, None)):
        if mask.any():
            threshold = max_share if score is not None else None
            given = None if score is None else score[mask]
            decisions.append(Decisions("", DROPPED, reason, batch.rows[mask], given, threshold))
    return batch.drop_decided(gone | empty, decisions)


def _growth(texts: TextColumn, values: pa.Array) -> Integers:
    before, after = build_column(*texts), values
    sizes = [pc.fill_null(pc.utf8_length(column), 0).to_numpy(zero_copy_only=False) for column in (before, after)]
    grown: Integers = np.subtract(sizes[1], sizes[0], dtype=np.int64)
    return grown


def _marks(rows: int, passages: Passages, starts: Integers, ends: Integers, reasons: Sequence[str]) -> pa.Array:
    names = pa.DictionaryArray.from_arrays(pa.array(passages.reasons), pa.array(list(reasons), pa.string()))
    entries = pa.StructArray.from_arrays(
        [pa.array(starts), pa.array(ends), names.cast(pa.string())], fields=list(MARKS.value_type)
    )
    bounds = np.searchsorted(passages.rows, np.arange(rows + 1)).astype(np.int32)
    return pa.ListArray.from_arrays(pa.array(bounds), entries)
