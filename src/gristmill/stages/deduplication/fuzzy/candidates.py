"""The second step: pairs of documents that agree in a band."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from gristmill.kernels.sorting import key_bits, shared_keys, stable_order
from gristmill.kernels.union_find import group_pairs
from gristmill.stages.deduplication.key_ranges import RangeReader
from gristmill.stages.deduplication.sorted_runs import RunFiles, column, open_run

WIDE = 24
"""Groups with at most this many different contents are compared pair by pair; larger ones in linear time."""

CANDIDATES = pa.schema([("document", pa.uint64()), ("other", pa.uint64()), ("equal", pa.bool_())])
"""Each pair is listed twice, once from either side, so that every document finds its pairs by its key."""


class BandGroups(RangeReader):
    """Lists the pairs of a range of band hashes."""

    name = "band_groups"
    fork_safe = True

    def rows_from(self, low: int, high: int) -> Iterator[pa.Table]:
        table = self.runs.read(low, high)
        if table.num_rows > 1:
            yield _both_ways(*_distinct(*_pairs_in(table)))


class NewBandGroups(RangeReader):
    """Lists the pairs of a range of band hashes in which at least one document is new.

    Args:
        known: The bands of documents that were compared before; they come first in source order.
        first_new: The first key of the new documents.
    """

    name = "new_band_groups"
    fork_safe = True

    def __init__(self, known: RunFiles, *, first_new: int) -> None:
        super().__init__()
        self._known = known
        self.known = known.digest
        self.first_new = first_new

    def rows_from(self, low: int, high: int) -> Iterator[pa.Table]:
        new = self.runs.read(low, high)
        if not new.num_rows:
            return
        hashes = column(new, "hash")
        order = stable_order(hashes)
        starts = np.flatnonzero(np.concatenate([[True], np.diff(hashes[order]) != 0]))
        wanted = _read_only(hashes[order[starts]])
        sizes = np.diff(np.append(starts, len(order)))
        shared = sizes > 1
        tables, bits = [], key_bits(wanted)
        for file in self._known.files:
            table = open_run(file.path, storage_options=self._known.storage_options)
            known = column(table, "hash")
            begin, end = np.searchsorted(known, wanted[0]), np.searchsorted(known, wanted[-1], "right")
            table = table.slice(begin, end - begin)
            rows, places = shared_keys(_read_only(known[begin:end]), wanted, *bits)
            shared[places] = True
            tables.append(table.take(pa.array(rows)))
        # Most bands are those of one document only.
        rows = np.sort(order[np.repeat(shared, sizes)])
        firsts_, seconds, equal = _pairs_in(pa.concat_tables([*tables, new.take(pa.array(rows))]))
        # Pairs of documents that were compared before are known.
        fresh = (firsts_ >= np.uint64(self.first_new)) | (seconds >= np.uint64(self.first_new))
        yield _both_ways(*_distinct(firsts_[fresh], seconds[fresh], equal[fresh]))


def _read_only(values: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """A read-only view, so that kernels get the same type for mapped files and others."""
    values = values.view()
    values.flags.writeable = False
    return values


def _pairs_in(table: pa.Table) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.uint64], npt.NDArray[np.bool_]]:
    """The pairs of documents that share a band hash, in any order and possibly several times."""
    if table.num_rows:
        hashes = column(table, "hash")
        order = stable_order(hashes)
        hashes = hashes[order]
        same = hashes[1:] == hashes[:-1]
        shared = np.zeros(len(order), bool)
        shared[1:] |= same
        shared[:-1] |= same
        order, hashes = order[shared], hashes[shared]
        contents, documents = column(table, "content")[order], column(table, "document")[order]
        within = _by_content(hashes, contents)
        return group_pairs(hashes[within], contents[within], documents[within], WIDE)
    return np.empty(0, np.uint64), np.empty(0, np.uint64), np.empty(0, bool)


def _by_content(hashes: npt.NDArray[np.uint64], contents: npt.NDArray[np.uint64]) -> npt.NDArray[np.int64]:
    """An order that keeps groups of equal hashes together, and in each of them the equal contents.

    Documents of equal content stay in source order, as in the files.
    """
    groups = np.zeros(len(hashes), np.uint64)
    groups[1:] = np.cumsum(hashes[1:] != hashes[:-1])
    bits = np.uint64(int(groups[-1]).bit_length() if len(groups) else 0)
    # The rest of the bits is for the contents. Those that agree in all of them may be mixed, and then equal ones are
    # compared as others are.
    return stable_order((groups << (np.uint64(64) - bits)) | (contents >> bits) if bits else contents)


def _distinct(
    firsts: npt.NDArray[np.uint64], seconds: npt.NDArray[np.uint64], equal: npt.NDArray[np.bool_]
) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.uint64], npt.NDArray[np.bool_]]:
    order = np.lexsort((seconds, firsts))
    firsts, seconds, equal = firsts[order], seconds[order], equal[order]
    new = np.ones(len(order), bool)
    new[1:] = (firsts[1:] != firsts[:-1]) | (seconds[1:] != seconds[:-1])
    return firsts[new], seconds[new], equal[new]


def _both_ways(
    firsts: npt.NDArray[np.uint64], seconds: npt.NDArray[np.uint64], equal: npt.NDArray[np.bool_]
) -> pa.Table:
    columns = [
        np.concatenate([firsts, seconds]),
        np.concatenate([seconds, firsts]),
        np.concatenate([equal, equal]),
    ]
    return pa.table([pa.array(values) for values in columns], schema=CANDIDATES)


def distinct_pairs(table: pa.Table) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.uint64], npt.NDArray[np.bool_]]:
    """Each pair of a table of candidates once, the lower document first, in order."""
    firsts, seconds, equal = column(table, "document"), column(table, "other"), column(table, "equal")
    forward = firsts < seconds
    return _distinct(firsts[forward], seconds[forward], equal[forward])
