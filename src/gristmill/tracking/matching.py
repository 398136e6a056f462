"""Matches output rows of a stage to input rows by content.

Used when user code returns rows without labels. Rows are never matched by position: two different documents must not be
confused. Rows that cannot be distinguished safely stay unmatched.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import pyarrow as pa

if TYPE_CHECKING:
    from gristmill.tasks.columns import Columns, Indices

Hashes = npt.NDArray[np.uint64]

_MIX = np.uint64(0x9E3779B97F4A7C15)


def match_rows(before: Columns, after: pa.Table) -> Indices:
    """For each row of `after`, the row of `before` with the same content, or -1.

    Whole rows are compared first. The remaining rows are identified by the columns whose values all occur on both sides
    (an unchanged id beside a changed text), provided that these are unique.
    """
    positions = np.full(after.num_rows, -1, np.int64)
    if not after.num_rows or not before.num_rows:
        return positions
    old, new = _common_hashes(before, after)
    if not old:
        return positions
    every = list(old)
    complete = len(every) == len(before.names)
    _fill(positions, _combined(old, every), _combined(new, every), interchangeable=complete)
    open_rows = np.flatnonzero(positions < 0)
    if len(open_rows):
        stable = [name for name in every if bool(np.isin(new[name][open_rows], old[name]).all())]
        if stable and len(stable) < len(every):
            rest = positions[open_rows]
            _fill(rest, _combined(old, stable), _combined(new, stable)[open_rows], interchangeable=False)
            # A row that was matched completely is not also the origin of another one that only resembles it.
            rest[np.isin(rest, positions[positions >= 0])] = -1
            claims = rest[rest >= 0]
            if before.num_rows > 1 and len(claims) > 1 and len(np.unique(claims)) == 1:
                # Everything seems to come from one row: a column was filled with a constant that happens to occur
                # there.
                rest[:] = -1
            positions[open_rows] = rest
    return positions


def _common_hashes(before: Columns, after: pa.Table) -> tuple[dict[str, Hashes], dict[str, Hashes]]:
    old: dict[str, Hashes] = {}
    new: dict[str, Hashes] = {}
    shared = [name for name in after.column_names if before.has(name)]
    table = before.table(shared)
    for name in shared:
        theirs, ours = after.column(name), table.column(name)
        if theirs.type != ours.type:
            try:
                theirs = theirs.cast(ours.type)
            except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
                continue
        old[name], new[name] = _hashes(ours), _hashes(theirs)
    return old, new


def _hashes(column: pa.ChunkedArray) -> Hashes:
    import polars as pl

    series = pl.from_arrow(column)
    assert isinstance(series, pl.Series)
    if isinstance(series.dtype, pl.Null):
        return np.zeros(len(series), np.uint64)
    return series.hash(seed=1).to_numpy()


def _combined(hashes: dict[str, Hashes], names: list[str]) -> Hashes:
    total = np.zeros(len(hashes[names[0]]), np.uint64)
    for name in names:
        total = (total ^ hashes[name]) * _MIX
        total ^= total >> np.uint64(29)
    return total


def _fill(positions: Indices, old: Hashes, new: Hashes, *, interchangeable: bool) -> None:
    """Set `positions` where a key of `new` is found in `old`.

    A key that occurs once in `old` identifies its row. A key that occurs more often belongs to rows with the same
    content: these are assigned in order if `interchangeable`, otherwise not at all.
    """
    order = np.argsort(old, kind="stable")
    keys, first, counts = np.unique(old[order], return_index=True, return_counts=True)
    place = np.searchsorted(keys, new)
    place[place == len(keys)] = 0
    found = keys[place] == new
    if not interchangeable:
        found &= counts[place] == 1
        positions[found] = order[first[place[found]]]
        return
    hits = np.flatnonzero(found)
    groups = place[hits]
    by_group = np.argsort(groups, kind="stable")
    sorted_groups = groups[by_group]
    starts = np.searchsorted(sorted_groups, sorted_groups, side="left")
    nth = np.arange(len(hits)) - starts
    # A copy beyond the number of originals continues the first of them.
    nth = np.where(nth < counts[sorted_groups], nth, 0)
    positions[hits[by_group]] = order[first[sorted_groups] + nth]
