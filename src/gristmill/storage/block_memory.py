"""Reuses the memory of blocks."""

from __future__ import annotations

import sys
import threading

import numpy as np
import numpy.typing as npt

_rooms: list[npt.NDArray[np.uint8]] = []
_lock = threading.Lock()
_LEAST_ROOM, _MOST_ROOM, _MOST_ROOMS = 4 << 20, 32 << 20, 4
_UNUSED = 2  # References from the list and the caller.


def room_for(nbytes: int) -> npt.NDArray[np.uint8]:
    """This many uninitialised bytes, if possible in memory that an earlier block no longer needs.

    Otherwise the allocator fills the gaps that blocks leave with small long-lived objects, so that the next block needs
    new memory. Returns a view, whose memory is free again when only this module refers to its base.
    """
    if not _LEAST_ROOM <= nbytes <= _MOST_ROOM:
        return np.empty(nbytes, np.uint8)
    with _lock:
        free = [at for at in range(len(_rooms)) if sys.getrefcount(_rooms[at]) == _UNUSED]
        for at in free:
            if len(_rooms[at]) >= nbytes:
                return _rooms[at][:nbytes]
        if free:
            del _rooms[free[0]]
        room = np.empty(-(-nbytes // _LEAST_ROOM) * _LEAST_ROOM, np.uint8)
        if len(_rooms) < _MOST_ROOMS:
            _rooms.append(room)
        return room[:nbytes]
