"""Which neighbours of a sorted column belong together when their total size is limited."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from gristmill.kernels.compiler import kernel


@kernel
def limited_groups(
    documents: npt.NDArray[np.int64], lengths: npt.NDArray[np.int64], between: int, limit: int
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """For each row the row that begins its group, and the size of the group up to it.

    A row continues the group before it when both have the same document and the sizes, with `between` for each joint,
    stay within `limit`.
    """
    heads = np.empty(len(documents), np.int64)
    totals = np.empty(len(documents), np.int64)
    for row in range(len(documents)):
        heads[row], totals[row] = row, lengths[row]
        if row and documents[row] == documents[row - 1]:
            joined = totals[row - 1] + between + lengths[row]
            if joined <= limit:
                heads[row], totals[row] = heads[row - 1], joined
    return heads, totals


def warm() -> None:
    """Load or compile the kernels of this file."""
    ones = np.ones(1, np.int64)
    limited_groups(ones, ones, 1, 1)
