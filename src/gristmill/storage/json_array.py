"""A file that is one JSON array, presented as lines: a byte source between the file and the line reader."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from gristmill.kernels.json_array import AFTER, PHASE, STATE_SIZE, USED, cut_elements
from gristmill.kernels.machine import WIDTH
from gristmill.storage.compression import ByteSource, DamagedArchiveError

_PIECE_BYTES = 1 << 20


class ArraySource:
    """The elements of an array, each on a line that starts where the element does in the file.

    Args:
        source: The remaining content of the file.
        first: The bytes already read.
        path: Path for error messages.
    """

    def __init__(self, source: ByteSource, first: NDArray[np.uint8], *, path: str) -> None:
        self._source = source
        self._path = path
        self._input = first
        self._piece = np.empty(_PIECE_BYTES, np.uint8)
        self._lines = np.empty(_PIECE_BYTES + 2 * WIDTH, np.uint8)
        self._output = memoryview(b"")
        self._consumed = len(first)
        self._state = np.zeros(STATE_SIZE, np.int64)

    def readinto(self, target: memoryview, /) -> int:
        """Fill the front of `target`; 0 at the end.

        Raises:
            DamagedArchiveError: The file ends before the array does, or is damaged; everything before that was
                delivered.
        """
        while not self._output:
            if not len(self._input):
                count = self._source.readinto(memoryview(self._piece.data)) or 0
                if not count and self._state[PHASE] == AFTER:
                    return 0
                if not count:
                    detail = "the JSON array is not closed: the file ends before its ']'"
                    raise DamagedArchiveError(detail, cause="truncated_file", path=self._path, consumed=self._consumed)
                self._input = self._piece[:count]
                self._consumed += count
            lines = self._lines
            count = cut_elements(self._input.ctypes.data, len(self._input), lines.ctypes.data, len(lines), self._state)
            self._input = self._input[int(self._state[USED]) :]
            self._output = memoryview(lines.data)[:count]
        count = min(len(target), len(self._output))
        target[:count] = self._output[:count]
        self._output = self._output[count:]
        return count

    def close(self) -> None:
        """Close the underlying file."""
        self._source.close()
