"""Differences between two texts in a ledger: a duplicate and its survivor, or a document before and after."""

from __future__ import annotations

import difflib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from gristmill import notebook
from gristmill.errors import GristmillError
from gristmill.ledger.ask.lookup import Record, output_record, source_record, text_of
from gristmill.ledger.ask.why import KEPT, DocumentHistory
from gristmill.ledger.record.trail import DUPLICATE

if TYPE_CHECKING:
    from gristmill.ledger.ask.ledger import Ledger


_MAX_CUTS = 50
_MAX_CHARS = 200


@dataclass(slots=True)
class TextDiff:
    """Two texts compared.

    Attributes:
        before: Where the first text comes from.
        after: Where the second one comes from.
        lines: The differences in the form of a unified diff; empty if the texts are equal.
        cuts: The passages that a stage cut from the first text or marked in it, each with its stage and reason.
        equal: Whether the texts are the same.
        notes: Why a text could not be found, or what limits the comparison.
    """

    before: str
    after: str
    lines: list[str] = field(default_factory=list)
    cuts: list[str] = field(default_factory=list)
    equal: bool = False
    notes: list[str] = field(default_factory=list)

    _repr_html_ = notebook.as_text

    def __str__(self) -> str:
        if self.notes:
            return "\n".join(self.notes)
        if self.equal and not self.cuts:
            return f"{self.before} and {self.after} are the same text"
        return "\n".join([*self.lines, *self.cuts])


def text_diff(
    ledger: Ledger, history: DocumentHistory, *, text_field: str = "text", max_chars: int | None = None
) -> TextDiff | None:
    """What differs between a document and its survivor, or between a changed document and its result.

    A document that was removed is looked up in its input file, by partition and row; a survivor in the output.

    Args:
        ledger: The ledger to query.
        history: A duplicate, or a document that stages changed or cut; others have nothing to compare with.
        text_field: The field with the text.
        max_chars: Longer texts are not compared; the answer says so.
    """
    survivor = next((decision.survivor for decision in history.decisions if decision.outcome == DUPLICATE), None)
    here = f"{history.partition}#{history.row} in the input"
    if survivor is not None:
        diff = TextDiff(here, f"survivor {survivor}")
        other = _survivor_text(ledger, survivor, text_field, diff)
    elif history.status == KEPT and history.changes:
        diff = TextDiff(here, "the output")
        record = _output_record(ledger, history)
        other = None if record is None else _text(record, text_field, diff, diff.after)
        if record is None:
            diff.notes.append("The document was not found in the output: it needs an id to be looked up there.")
    elif history.cuts:
        diff, other = TextDiff(here, here), None
    else:
        return None
    entry = ledger.entry(history.partition)
    own = None
    if entry is not None:
        try:
            found = source_record(entry, history.row)
            if found is None:
                diff.notes.append(f"Row {history.row} of partition {history.partition} is no longer in the input.")
            else:
                own = _text(found, text_field, diff, diff.before)
        except (OSError, GristmillError) as error:
            diff.notes.append(f"The input can no longer be read: {error}")
    if own is not None:
        diff.cuts = _cut_passages(own, history, text_field)
    if own is not None and other is not None:
        diff.equal = own == other
        longest = max(len(own), len(other))
        if max_chars is not None and longest > max_chars and not diff.equal:
            diff.notes.append(f"The texts differ, but are too long to compare here ({longest:,} characters).")
            return diff
        diff.lines = _unified(own, other, diff)
    return diff


def _cut_passages(text: str, history: DocumentHistory, text_field: str) -> list[str]:
    """The passages cut from the input text; later stages saw another text, so only the first to cut it counts."""
    cuts = [cut for cut in history.cuts if cut.field == text_field]
    changed = [change.stage for change in history.changes if change.field == text_field]
    first = next(iter(changed), cuts[0].stage if cuts else "")
    shown = [cut for cut in cuts if cut.stage == first and cut.end <= len(text)]
    lines = [f"{cut.reason} ({cut.stage}, characters {cut.start}-{cut.end}): {_clipped(text[cut.start : cut.end])}"
             for cut in shown[:_MAX_CUTS]]  # fmt: skip
    return lines + ([f"… and {len(shown) - _MAX_CUTS} more"] if len(shown) > _MAX_CUTS else [])


def _clipped(text: str) -> str:
    return repr(text if len(text) <= _MAX_CHARS else f"{text[:_MAX_CHARS]}…")


def _survivor_text(ledger: Ledger, survivor: str, text_field: str, diff: TextDiff) -> str | None:
    documents = ledger.why(survivor).documents
    kept = [history for history in documents if history.status == KEPT] or documents
    if not kept:
        diff.notes.append(f"The survivor {survivor!r} is not a document of this run, so its text cannot be found.")
        return None
    record = _output_record(ledger, kept[0], name=survivor) if kept[0].status == KEPT else None
    diff.after += " in the output"
    if record is None:
        diff.after = f"survivor {survivor} in the input"
        entry = ledger.entry(kept[0].partition)
        try:
            record = None if entry is None else source_record(entry, kept[0].row)
        except (OSError, GristmillError) as error:
            diff.notes.append(f"The input of the survivor can no longer be read: {error}")
            return None
    if record is None:
        diff.notes.append(f"The text of the survivor {survivor!r} is neither in the output nor in the input.")
        return None
    return _text(record, text_field, diff, diff.after)


def _output_record(ledger: Ledger, history: DocumentHistory, *, name: str | None = None) -> Record | None:
    """The record of a kept document in the output files of its partition, found by its id."""
    entry = ledger.entry(history.partition)
    if entry is None:
        return None
    known = history.id or name
    if known is not None and "#" in known:  # perhaps a partition#row, which is not in the output
        known = None
    return output_record(ledger, entry, history.row, name=known)


def _text(record: Record, text_field: str, diff: TextDiff, where: str) -> str | None:
    text = text_of(record, text_field)
    if text is not None:
        return text
    there = ", ".join(sorted(record))
    diff.notes.append(f"{where} has no text in the field {text_field!r}; it has {there}. Name the field.")
    return None


def _unified(own: str, other: str, diff: TextDiff) -> list[str]:
    # A text without line breaks would be one changed line; sentences show more.
    left, right = _pieces(own), _pieces(other)
    return list(difflib.unified_diff(left, right, diff.before, diff.after, lineterm="", n=1))


def _pieces(text: str) -> list[str]:
    return [piece for line in text.split("\n") for piece in line.replace(". ", ".\n").split("\n")]
