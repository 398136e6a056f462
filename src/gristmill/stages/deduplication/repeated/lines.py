"""Hashes the lines, paragraphs or sentences of documents, and removes those that repeat."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
import numpy.typing as npt

from gristmill.errors import UsageError, did_you_mean
from gristmill.kernels.repeats import Hashes, first_and_counts
from gristmill.kernels.text_column import Bytes, Integers, TextColumn, text_column
from gristmill.kernels.text_units import LINE, PARAGRAPH, SENTENCE, find_units, letter_table, unit_hashes, unit_tables
from gristmill.kernels.url_parts import HOST, HOST_END, url_parts
from gristmill.stages.base import Spec
from gristmill.stages.deduplication.repeated.counting import listed_parts
from gristmill.stages.deduplication.repeated.removal import RepeatRemoval
from gristmill.stages.deduplication.source import DocumentStage, Keys, make_keys, texts_of
from gristmill.stages.text.cutting import Passages, cuttable_texts
from gristmill.tasks.columns import TableColumns
from gristmill.tasks.document import DocumentBatch

Unit = Literal["line", "paragraph", "sentence"]
Scope = Literal["document", "domain", "all"]

_KINDS = {"line": LINE, "paragraph": PARAGRAPH, "sentence": SENTENCE}
_SPREAD = np.uint64(0x9E3779B185EBCA87)
_WWW = b"www."


@dataclass(frozen=True)
class UnitRule:
    """What is compared with what.

    Attributes:
        unit: "line", "paragraph" or "sentence".
        scope: Where repetitions count: within a "document", a "domain" (the host of the URL) or "all".
        min_chars: Shorter units are ignored.
        loose: Ignore case and ASCII punctuation, and treat all digits as equal.
        url_field: Column that holds the URL, for scope="domain".
    """

    unit: Unit = "line"
    scope: Scope = "all"
    min_chars: int = 1
    loose: bool = False
    url_field: str = "url"

    def __post_init__(self) -> None:
        for option, value, allowed in (("unit", self.unit, get_args(Unit)), ("scope", self.scope, get_args(Scope))):
            if value not in allowed:
                raise UsageError(
                    f"{option}={value!r}: must be one of {', '.join(allowed)}.{did_you_mean(str(value), allowed)}"
                )
        if self.min_chars < 1:
            raise UsageError(f"min_chars={self.min_chars!r}: must be a whole number, at least 1.")

    @property
    def columns(self) -> list[str]:
        """The columns it reads, besides the text."""
        return [self.url_field] if self.scope == "domain" else []

    def units(self, texts: TextColumn) -> tuple[Integers, Integers, Integers]:
        """Starts and ends of all units, and the bounds of each document's units."""
        return find_units(texts.data, texts.offsets, _KINDS[self.unit], self.min_chars, *unit_tables())

    def hashes(
        self, batch: DocumentBatch, documents: Keys, texts: TextColumn, units: tuple[Integers, Integers, Integers]
    ) -> tuple[Hashes, Hashes]:
        """Two hashes of every unit; equal units of different scopes have different hashes."""
        return unit_hashes(texts.data, *units, self._salts(batch, documents), self._letters)

    @property
    def _letters(self) -> Bytes:
        return letter_table(case=False, punctuation=False, digits=False) if self.loose else letter_table()

    def _salts(self, batch: DocumentBatch, documents: Keys) -> Hashes:
        if self.scope == "all":
            return np.zeros(len(documents), np.uint64)
        own = (documents + np.uint64(1)) * _SPREAD
        if self.scope == "document":
            return own
        hosts = host_hashes(text_column(texts_of(batch, self.url_field)))
        # A document without a host has no domain to share with others.
        return np.where(hosts == 0, own, hosts)


def host_hashes(urls: TextColumn) -> Hashes:
    """A hash of the host of every URL, without `www.` and in lower case; 0 if there is none."""
    parts = url_parts(urls.data, urls.offsets[:-1], urls.offsets[1:], urls.valid, False)
    starts, ends = parts[:, HOST].copy(), parts[:, HOST_END].copy()
    table = letter_table(case=False)
    padded = np.concatenate([table[urls.data], np.zeros(len(_WWW), np.uint8)])
    www = ends - starts > len(_WWW)
    for at, byte in enumerate(_WWW):
        www &= padded[starts + at] == byte
    starts[www] += len(_WWW)
    bounds = np.arange(len(starts) + 1)
    found, _ = unit_hashes(urls.data, starts, ends, bounds, np.zeros(len(starts), np.uint64), table)
    found[ends <= starts] = 0
    return found


class UnitHashes(DocumentStage):
    """Turns documents into the hashes of their units, each with its first position in the batch and its count.

    Args:
        text_field: Column that holds the text.
        rule: What is compared.
        max_count: Maximum number of occurrences that does not count as repetition.
    """

    notes_changes = True
    name = "unit_hashes"
    fork_safe = True
    text_parameter = "text_field"

    def __init__(self, text_field: str, *, rule: UnitRule, max_count: int) -> None:
        self.text_field = text_field
        self.rule = rule
        self.max_count = max_count

    def inputs(self) -> Spec:
        return ["data"], [self.text_field]

    def outputs(self) -> Spec:
        return ["data"], ["document", "hash", "hash_2", "place", "count"]

    def process(self, task: DocumentBatch) -> DocumentBatch:
        documents = make_keys(task.partition, task.rows)
        texts = cuttable_texts(task, self.text_field)
        if texts is None:
            texts = text_column([None] * task.num_items)
        units = self.rule.units(texts)
        first, second = self.rule.hashes(task, documents, texts, units)
        bounds = units[2]
        chosen, counts = first_and_counts(first, second, np.zeros(len(first), np.int64))
        if self.rule.scope == "document":
            # Nothing elsewhere counts, so what is not repeated here is not repeated at all.
            repeated = counts > self.max_count
            chosen, counts = chosen[repeated], counts[repeated]
        rows = np.searchsorted(bounds, chosen, side="right") - 1
        table = listed_parts(
            documents, np.searchsorted(rows, np.arange(len(documents) + 1)), first[chosen], second[chosen],
            chosen - bounds[rows], counts,
        )  # fmt: skip
        return task.with_columns(TableColumns(table))


class UnitRemoval(RepeatRemoval[UnitRule]):
    """Cuts the units on the list of their partition from the documents, or marks them."""

    name = "line_deduplication"
    notes_changes = True
    fork_safe = True

    def find(self, task: DocumentBatch, documents: Keys, texts: TextColumn) -> Passages:
        starts, ends, bounds = units = self.rule.units(texts)
        first, second = self.rule.hashes(task, documents, texts, units)
        rows: npt.NDArray[np.int64] = np.repeat(np.arange(len(documents)), np.diff(bounds))
        owners = documents[rows]
        repeated, kept, kept_places = self._lists.find(first, second, owners)
        stays = (kept == owners) & (kept_places == np.arange(len(rows)) - bounds[rows])
        cut = np.flatnonzero(repeated & ~stays)
        return Passages(rows[cut], starts[cut], ends[cut], np.zeros(len(cut), np.int64))
