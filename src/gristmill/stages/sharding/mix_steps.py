"""The stages of a mixture: measure sources, cap values of a column, and take documents as often as planned."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from gristmill.stages.base import ProcessingStage, Spec
from gristmill.stages.deduplication.key_ranges import RangeReader
from gristmill.stages.deduplication.sorted_runs import RunFiles, column, open_run
from gristmill.stages.deduplication.source import DocumentStage, make_keys
from gristmill.stages.sharding.keys import RANDOM_BITS, RANDOM_MASK, Integers, Keys, mixed, source_seed
from gristmill.stages.sharding.mixture import MixSource
from gristmill.stages.sharding.scatter import document_sizes
from gristmill.tasks.columns import TableColumns, one_chunk
from gristmill.tasks.document import DocumentBatch

BELOW_TIERS = "below_tiers"
OVER_CAP = "over_cap"
NOT_SAMPLED = "not_sampled"
_DRAW = 0x64726177
"""Documents are drawn independently of their position in the shuffle, which uses the plain seed."""


class Draw:
    """Decides the tier of documents and the order in which they are taken.

    Args:
        seed: Seed of the mixture.
        number: The number of the source.
        source: The source.
    """

    def __init__(self, seed: int, number: int, source: MixSource) -> None:
        self.seed = source_seed(seed ^ _DRAW, number)
        self.tier_field = source.tier_field
        self.mins = [tier.min for tier in source.tiers]
        self.cap_field = None if source.cap is None else source.cap.field

    @property
    def columns(self) -> list[str]:
        """The columns that are read."""
        return [name for name in (self.tier_field, self.cap_field) if name is not None]

    def keys(self, batch: DocumentBatch) -> tuple[Keys, npt.NDArray[np.bool_]]:
        """The key of every document, its tier above random bits, and whether it belongs to a tier at all."""
        documents = make_keys(batch.partition, batch.rows)
        tiers = self._tiers(batch)
        placed = np.where(tiers < 0, 0, tiers).astype(np.uint64) << np.uint64(RANDOM_BITS)
        return (mixed(documents, self.seed) & RANDOM_MASK) | placed, tiers >= 0

    def _tiers(self, batch: DocumentBatch) -> Integers:
        if self.tier_field is None:
            return np.zeros(batch.num_items, np.int64)
        values = np.full(batch.num_items, np.nan)
        if batch.columns.has(self.tier_field):
            found = one_chunk(batch.column(self.tier_field))
            if pa.types.is_integer(found.type) or pa.types.is_floating(found.type):
                values = found.cast(pa.float64()).to_numpy(zero_copy_only=False)
        tiers = np.full(batch.num_items, -1, np.int64)
        for number in reversed(range(len(self.mins))):
            low = self.mins[number]
            tiers[np.ones(len(values), bool) if low is None else values >= low] = number
        return tiers

    def cap_groups(self, batch: DocumentBatch) -> Keys:
        """A hash of the capped value; 0 if there is none."""
        from gristmill.kernels.hashing import hash_column

        assert self.cap_field is not None
        if not batch.columns.has(self.cap_field):
            return np.zeros(batch.num_items, np.uint64)
        return hash_column(batch.text(self.cap_field))


class Amounts:
    """Measures documents in bytes and tokens.

    Args:
        token_field: Column that holds token counts; None if they are not counted.
        as_records: Whether documents are written as JSONL.
        drop_fields: Columns that are not written.
    """

    def __init__(self, token_field: str | None, *, as_records: bool, drop_fields: Sequence[str] = ()) -> None:
        self.token_field = token_field
        self.as_records = as_records
        self.drop_fields = tuple(drop_fields)

    def of(self, batch: DocumentBatch) -> tuple[Integers, Integers]:
        """Bytes and tokens of every document."""
        sizes, tokens = document_sizes(batch, self.token_field, self.drop_fields, as_records=self.as_records)
        return sizes, tokens


def in_unit(unit: str, sizes: Integers, tokens: Integers) -> Integers:
    """The amounts for a unit."""
    return {"bytes": sizes, "tokens": tokens, "documents": np.ones(len(sizes), np.int64)}[unit]


class CapAmounts(DocumentStage):
    """Turns documents into the values that are capped, with their keys and amounts."""

    notes_changes = True
    name = "cap_amounts"
    fork_safe = True

    def __init__(self, draw: Draw, amounts: Amounts, unit: str) -> None:
        self.draw = draw
        self.amounts = amounts
        self.unit = unit

    def inputs(self) -> Spec:
        return ["data"], self.draw.columns

    def outputs(self) -> Spec:
        return ["data"], ["group", "key", "amount"]

    def process(self, task: DocumentBatch) -> DocumentBatch:
        _, placed = self.draw.keys(task)
        task = task.drop(~placed, reason=BELOW_TIERS)
        groups = self.draw.cap_groups(task)
        task = task.drop(groups == 0, reason="no_value_to_cap")
        keys, _ = self.draw.keys(task)
        amount = in_unit(self.unit, *self.amounts.of(task))
        table = pa.table({"group": groups[groups != 0], "key": keys & RANDOM_MASK, "amount": amount})
        return task.with_columns(TableColumns(table))


class CapCuts(RangeReader):
    """Lists, for every value that exceeds the cap, the key from which its documents do.

    Args:
        amount: Maximum amount per value.
    """

    name = "cap_cuts"
    fork_safe = True

    def __init__(self, amount: int) -> None:
        super().__init__()
        self.amount = amount

    def rows_from(self, low: int, high: int) -> Iterator[pa.Table]:
        table = self.runs.read(low, high)
        if table.num_rows:
            groups, keys, amounts = (column(table, name) for name in ("group", "key", "amount"))
            yield cap_cuts(groups, keys, amounts, self.amount)


def cap_cuts(groups: Keys, keys: Keys, amounts: Integers, most: int) -> pa.Table:
    """For every group above `most`, the first key that would exceed it, in the order of keys."""
    order = np.lexsort((keys, groups))
    groups, keys, amounts = groups[order], keys[order], amounts[order]
    sums = np.cumsum(amounts)
    first = np.ones(len(groups), bool)
    first[1:] = groups[1:] != groups[:-1]
    heads = np.flatnonzero(first)
    before = np.repeat(sums[heads] - amounts[heads], np.diff(np.append(heads, len(groups))))
    over = sums - before > most
    over_first = over.copy()
    over_first[1:] &= ~(over[:-1] & (groups[1:] == groups[:-1]))
    return pa.table({"group": groups[over_first], "from_key": keys[over_first]})


class Caps:
    """The values that exceed the cap, memory-mapped from files.

    Args:
        runs: The output of the step that found them; None without a cap.
    """

    def __init__(self, runs: RunFiles | None) -> None:
        self._runs = runs
        self.contents = None if runs is None else runs.digest
        self._tables: list[tuple[Keys, Keys]] | None = None

    def over(self, draw: Draw, batch: DocumentBatch, keys: Keys) -> npt.NDArray[np.bool_]:
        """Which documents exceed the cap."""
        over = np.zeros(batch.num_items, bool)
        if self._runs is None:
            return over
        if self._tables is None:
            opened = [open_run(file.path) for file in self._runs.files]
            self._tables = [(column(table, "group"), column(table, "from_key")) for table in opened if table.num_rows]
        groups = draw.cap_groups(batch)
        for known, cuts in self._tables:
            at = np.minimum(np.searchsorted(known, groups), len(known) - 1)
            over |= (known[at] == groups) & (keys & RANDOM_MASK >= cuts[at])
        return over

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_tables": None}


class MixIndex(DocumentStage):
    """Turns documents into the input of planning: hash of the id, key, bytes and tokens."""

    notes_changes = True
    name = "mix_index"
    fork_safe = True

    def __init__(self, draw: Draw, amounts: Amounts, caps: Caps, id_field: str | None) -> None:
        self.draw = draw
        self.amounts = amounts
        self.caps = caps
        self.id_field = id_field

    def inputs(self) -> Spec:
        return ["data"], self.draw.columns

    def outputs(self) -> Spec:
        return ["data"], ["id_hash", "key", "size", "tokens"]

    def process(self, task: DocumentBatch) -> DocumentBatch:
        from gristmill.kernels.hashing import hash_column

        task = _eligible(task, self.draw, self.caps)
        keys, _ = self.draw.keys(task)
        sizes, tokens = self.amounts.of(task)
        ids = np.zeros(task.num_items, np.uint64)
        if self.id_field is not None and task.columns.has(self.id_field):
            ids = hash_column(task.text(self.id_field))
        table = pa.table({"id_hash": ids, "key": keys, "size": sizes, "tokens": tokens})
        return task.with_columns(TableColumns(table))


class MixSelection(ProcessingStage[DocumentBatch, DocumentBatch]):
    """Takes every document as often as planned; documents that are not taken are dropped with the reason.

    Args:
        draw: Tiers and keys.
        caps: The values that exceed the cap.
        cuts: For every tier, the number of times each document is taken, and the key below which it is taken once more.
    """

    notes_changes = True
    name = "mix_selection"
    fork_safe = True

    def __init__(self, draw: Draw, caps: Caps, cuts: Sequence[tuple[int, int]]) -> None:
        self.draw = draw
        self.caps = caps
        self.cuts = [(int(whole), int(cut)) for whole, cut in cuts]

    def inputs(self) -> Spec:
        return ["data"], self.draw.columns

    def outputs(self) -> Spec:
        return ["data"], []

    def process(self, task: DocumentBatch) -> DocumentBatch:
        task = _eligible(task, self.draw, self.caps)
        keys, _ = self.draw.keys(task)
        copies = copies_of(keys, self.cuts)
        task = task.drop(copies == 0, reason=NOT_SAMPLED)
        copies = copies[copies > 0]
        return task if (copies == 1).all() else task.take(np.repeat(np.arange(len(copies)), copies))


def _eligible(task: DocumentBatch, draw: Draw, caps: Caps) -> DocumentBatch:
    _, placed = draw.keys(task)
    task = task.drop(~placed, reason=BELOW_TIERS)
    keys, _ = draw.keys(task)
    return task.drop(caps.over(draw, task, keys), reason=OVER_CAP)


def copies_of(keys: Keys, cuts: Sequence[tuple[int, int]]) -> Integers:
    """The number of times each document is taken."""
    tiers = (keys >> np.uint64(RANDOM_BITS)).astype(np.int64)
    whole = np.array([count for count, _ in cuts], np.int64)
    limits = np.array([min(cut, (1 << 64) - 1) for _, cut in cuts], np.uint64)
    copies: Integers = whole[tiers] + (keys < limits[tiers])
    return copies
