"""Chains of pairs: a document may be a duplicate of another, which duplicates a third; the survivor ends the chain.

A chain may contain all documents and span all files, so chains are shortened in rounds: in each, every document is
linked to the target of its target, which at least halves all chains. A round holds one range of documents in memory and
looks the others up in mapped files.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from gristmill.kernels.vector_search import chain_ends
from gristmill.stages.deduplication.key_ranges import RANGE_BYTES, KeyRanges, RangeReader, document_cuts, range_count
from gristmill.stages.deduplication.semantic.neighbours import PAIRS
from gristmill.stages.deduplication.sorted_runs import RunFiles, column, open_run, sorted_by_key
from gristmill.stages.deduplication.source import Keys

if TYPE_CHECKING:
    from gristmill.stages.deduplication.workflow_steps import Steps

Integers = npt.NDArray[np.int64]
SLICE = 1 << 14
_TARGET = ("other", "other_hash", "other_id")


def find_ends(steps: Steps, pairs: RunFiles, *, eps: float, range_bytes: int = RANGE_BYTES) -> KeyRanges:
    """Shorten the chains of pairs at most `eps` apart, until none leads from one range into another.

    Returns the ranges in which `chain_pairs` finds the end of every chain.
    """
    cuts = document_cuts(pairs, range_count(pairs.size, range_bytes))
    for number in range(1, 66):
        source = KeyRanges(pairs, cuts)
        if source.count == 1:
            return source
        step = f"chains-{eps!r}-{number}"
        steps.run(step, [source, ShorterChains(eps=eps), steps.writer(step)], id_field=None)
        shorter = steps.runs(step)
        if shorter.digest == pairs.digest:
            return source
        pairs = shorter
    raise AssertionError("a chain that was halved this often has ended")


def chain_pairs(table: pa.Table, *, eps: float) -> pa.Table:
    """The pairs at most `eps` apart, sorted by document, each with the end of its chain within the table.

    If the end of the chain changed, the similarity is unknown: NaN.
    """
    table = sorted_by_key(table.filter(pa.array(~(column(table, "similarity") < 1.0 - eps))))
    ends = chain_ends(_parents(column(table, "document"), column(table, "other")))
    return _handed_on(table, ends != np.arange(len(ends)), table, ends)


class ShorterChains(RangeReader):
    """Lists the pairs of a range of documents, each advanced along its chain.

    Args:
        eps: Maximum distance (1 - cosine) of duplicates.
    """

    name = "shorter_chains"
    fork_safe = True

    def __init__(self, *, eps: float) -> None:
        super().__init__()
        self.eps = eps

    def rows_from(self, low: int, high: int) -> Iterator[pa.Table]:
        table = self.runs.read(low, high)
        if not table.num_rows:
            return
        table = chain_pairs(table, eps=self.eps)
        for start in range(0, table.num_rows, SLICE):
            yield self._beyond(table.slice(start, SLICE))

    def _beyond(self, table: pa.Table) -> pa.Table:
        """The pairs with each target replaced by its own target, looked up in all files."""
        for file in self.runs.files:
            there = open_run(file.path, storage_options=self.runs.storage_options)
            if not there.num_rows:
                continue
            keys, others = column(there, "document"), column(table, "other")
            places = np.minimum(np.searchsorted(keys, others), len(keys) - 1).astype(np.int64)
            goes = (keys[places] == others) & ~(column(there, "similarity")[places] < 1.0 - self.eps)
            # Two steps of a chain in one round do no harm.
            table = _handed_on(table, goes, there, places)
        return table


def _parents(documents: Keys, others: Keys) -> Integers:
    """For each document, the position of its target among the sorted documents; its own if the target is not there."""
    if not len(documents):
        return np.empty(0, np.int64)
    places = np.minimum(np.searchsorted(documents, others), len(documents) - 1).astype(np.int64)
    return np.where(documents[places] == others, places, np.arange(len(documents)))


def _handed_on(table: pa.Table, moved: npt.NDArray[np.bool_], target: pa.Table, places: Integers) -> pa.Table:
    """The table in which the rows in `moved` take over the targets of the rows of `target` at `places`."""
    if not moved.any():
        return table
    mask = pa.array(moved)
    chosen = target.select(list(_TARGET)).take(pa.array(places[moved])).combine_chunks()
    table = table.combine_chunks()
    columns = {name: table.column(name) for name in table.column_names}
    for name in _TARGET:
        columns[name] = pc.replace_with_mask(columns[name], mask, chosen.column(name).combine_chunks())
    columns["similarity"] = pc.replace_with_mask(
        columns["similarity"], mask, pa.array(np.full(int(moved.sum()), np.nan))
    )
    return pa.table(columns, schema=PAIRS)
