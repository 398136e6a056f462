"""One number for every document of an input: its partition and its row there, so that numbers sort in source order."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Keys = npt.NDArray[np.uint64]

_ROW_BITS = 40


def make_keys(partition: int, rows: npt.NDArray[np.int64]) -> Keys:
    """The keys of some rows of the partition number `partition`."""
    return rows.astype(np.uint64) | np.uint64(partition << _ROW_BITS)


def first_key(partition: int) -> int:
    """The key of row 0 of a partition; that of the next partition is one past its last."""
    return partition << _ROW_BITS


def partitions_of(keys: Keys) -> npt.NDArray[np.int64]:
    """The partition number of every key."""
    return (keys >> np.uint64(_ROW_BITS)).astype(np.int64)


def rows_of(keys: Keys) -> npt.NDArray[np.int64]:
    """The row number of every key within its partition."""
    return (keys & np.uint64((1 << _ROW_BITS) - 1)).astype(np.int64)
