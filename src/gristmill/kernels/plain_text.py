"""Which rows hold anything besides plain ASCII text: a filter before costly repairs."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from gristmill.kernels.compiler import kernel
from gristmill.kernels.text_column import Bytes, Integers, text_column


@kernel
def suspicious_rows(data: Bytes, offsets: Integers) -> npt.NDArray[np.bool_]:
    """True where a row has a byte outside ASCII, a control character other than tab and newline, or an `&`."""
    rows = len(offsets) - 1
    found = np.zeros(rows, np.bool_)
    for row in range(rows):
        for i in range(offsets[row], offsets[row + 1]):
            byte = data[i]
            if byte >= 127 or byte == 38 or (byte < 32 and byte != 9 and byte != 10):
                found[row] = True
                break
    return found


def warm() -> None:
    """Load or compile the kernels of this file."""
    suspicious_rows(*text_column(["a"])[:2])
