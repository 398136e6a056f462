"""Samples what the threads of this process are doing, a hundred times a second, and counts the stacks.

A thread does it, so that work in compiled code goes on meanwhile and no system call is interrupted. It needs the
interpreter for a moment each time; asking for it sooner than usual (`_SWITCH_S`) keeps Python code between two calls
that release it from being overlooked. Every sample counts as long as it is since the one before, so that the seconds
add up to the time of the process.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from collections.abc import Callable, Sequence
from types import CodeType, FrameType
from typing import Any

import orjson

from gristmill.observe.profile.call_site import called_frame

INTERVAL_S = 0.01
_IDLE_INTERVAL_S = 0.04
"""The same while nothing happens: a process that waits need not be woken so often."""
_SWITCH_S = 0.0005
_FIRST_WRITE_S = 0.25
_WRITE_SHARE = 0.005
"""The most of its time that a process spends on leaving its samples where the driver finds them."""
_DEEPEST = 200
_MOST_STACKS = 20_000
"""Beyond so many stacks (recursion makes many), of new ones only the innermost frame is kept."""


class Sampler:
    """Samples the process while it is entered; its time is that of the thread that enters.

    Args:
        name: What the process is called.
        stages: The names of the stages that `place` counts; may grow.
        place: Gives the number of the stage that is at work, -1 for none.
        path: A file that is renewed every second or so, for somebody who may outlive this process.
    """

    def __init__(self, name: str, stages: Sequence[str], place: Callable[[], int], path: str | None = None) -> None:
        self.name = name
        self.stages = stages
        self._place = place
        self._path = path
        self._main = threading.main_thread().ident or 0
        self._numbers: dict[int, int] = {}  # frame by the address of its code, which `_codes` keeps alive
        self._codes: list[CodeType] = []
        self._frames: list[tuple[str, str, int]] = []
        self._calls: dict[tuple[int, int], int | None] = {}
        self._stacks: dict[tuple[int, ...], list[float]] = {}
        self._clocks: dict[int, list[float]] = {}  # native number and processor time of threads
        self._has_clocks = False
        self._samples = 0
        self._idle: list[float] | None = None  # the counts of what the process has been waiting in
        self._pause = INTERVAL_S
        self._begun = self._last = self._write_at = 0.0
        self._over = threading.Lock()
        self._thread: threading.Thread | None = None
        self._switch = 0.0

    def __enter__(self) -> Sampler:
        self._main = threading.get_ident()
        self._begun = self._last = time.perf_counter()
        self._write_at = self._begun + _FIRST_WRITE_S
        native = threading.get_native_id()
        self._clocks[self._main] = [native, _processor_s(native) or 0.0]
        self._has_clocks = _processor_s(native) is not None
        self._switch = sys.getswitchinterval()
        sys.setswitchinterval(min(self._switch, _SWITCH_S))
        self._over.acquire()
        self._thread = threading.Thread(target=self._run, daemon=True, name="profile-sampler")
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.release()
        if self._thread is not None:
            self._thread.join()
        sys.setswitchinterval(self._switch)
        self._sample()
        self._write()

    def snapshot(self) -> dict[str, Any]:
        """What there is so far, as plain values.

        Frames are file, name and line. A stack is the stage, whether it is of another thread than the one that
        entered, its frames from the innermost on, its seconds, those on a processor, and how often it was seen. Other
        threads have no seconds but those on a processor.
        """
        return {
            "process": self.name,
            "pid": os.getpid(),
            "seconds": self._last - self._begun,
            "samples": self._samples,
            "has_processor_time": self._has_clocks,
            "stages": list(self.stages),
            "frames": self._frames,
            "stacks": [[key[0], key[1], key[2:], *cell] for key, cell in self._stacks.items()],
        }

    # --- in the thread that samples ---

    def _run(self) -> None:
        own = threading.get_ident()
        while not self._over.acquire(timeout=self._pause):
            self._sample(own)
            if self._last >= self._write_at:
                self._write()

    def _sample(self, own: int = 0) -> None:
        frames = sys._current_frames()
        now, place = time.perf_counter(), self._place()
        elapsed, self._last = now - self._last, now
        self._samples += 1
        spent = self._spent(self._main)
        if self._idle is not None:  # what is longer than the work since then was still waiting
            waited = max(0.0, elapsed - max(spent, INTERVAL_S))
            self._idle[0] += waited
            elapsed -= waited
        cell = self._count(place, 0, frames.get(self._main), elapsed, spent)
        self._idle = cell if self._has_clocks and not spent else None
        self._pause = INTERVAL_S if self._idle is None else min(2 * self._pause, _IDLE_INTERVAL_S)
        for ident, frame in frames.items():
            if ident not in (self._main, own):
                spent = self._spent(ident)
                if spent:
                    self._count(place, 1, frame, 0.0, spent)
        if len(self._clocks) > len(frames):
            self._clocks = {ident: clock for ident, clock in self._clocks.items() if ident in frames}

    def _count(self, place: int, beside: int, frame: FrameType | None, seconds: float, spent: float) -> list[float]:
        key = (place, beside, *self._stack(frame))
        cell = self._stacks.get(key)
        if cell is None:
            if len(self._stacks) >= _MOST_STACKS:
                key = key[:3]
                cell = self._stacks.get(key)
            if cell is None:
                cell = self._stacks[key] = [0.0, 0.0, 0]
        cell[0] += seconds
        cell[1] += spent
        cell[2] += 1
        return cell

    def _stack(self, frame: FrameType | None) -> list[int]:
        found: list[int] = []
        numbers = self._numbers
        if frame is not None:
            site = (id(frame.f_code), frame.f_lasti)
            if site not in self._calls:
                self._number(frame.f_code)  # keeps the code, so that no other gets its address
                made = called_frame(frame.f_code, frame.f_lasti, frame.f_globals)
                self._calls[site] = None if made is None else self._new(made)
            called = self._calls[site]
            if called is not None:
                found.append(called)
        while frame is not None and len(found) < _DEEPEST:
            code = frame.f_code
            number = numbers.get(id(code))
            found.append(self._number(code) if number is None else number)
            frame = frame.f_back
        return found

    def _number(self, code: CodeType) -> int:
        if id(code) not in self._numbers:
            self._codes.append(code)
            self._numbers[id(code)] = self._new((code.co_filename, code.co_qualname, code.co_firstlineno))
        return self._numbers[id(code)]

    def _new(self, frame: tuple[str, str, int]) -> int:
        file, name, line = frame
        # File names need not be UTF-8; what is written is.
        self._frames.append((file.encode("utf-8", "backslashreplace").decode(), name, line))
        return len(self._frames) - 1

    def _spent(self, ident: int) -> float:
        """Seconds that a thread was on a processor since it was last asked."""
        if not self._has_clocks:
            return 0.0
        clock = self._clocks.get(ident)
        now = None if clock is None else _processor_s(int(clock[0]))
        if clock is None or now is None:
            native = next((one.native_id for one in threading.enumerate() if one.ident == ident), None)
            if native is not None and (now := _processor_s(native)) is not None:
                self._clocks[ident] = [native, now]
            return 0.0
        spent, clock[1] = now - clock[1], now
        return max(0.0, spent)

    def _write(self) -> None:
        if self._path is None:
            return
        begun = time.perf_counter()
        # Without room for it, the samples are lost and the work goes on.
        with contextlib.suppress(OSError):
            beside = f"{self._path}.new"
            with open(beside, "wb") as file:
                file.write(orjson.dumps(self.snapshot(), default=list))
            os.replace(beside, self._path)
        took = time.perf_counter() - begun
        self._write_at = begun + max(1.0, took / _WRITE_SHARE)


def _processor_s(native: int) -> float | None:
    """How long a thread was on a processor; None where it is gone or the system does not say.

    By the number that Linux has for the clock of a thread, since asking the thread library about a thread that has
    just ended is not safe.
    """
    if sys.platform != "linux":
        return None
    try:
        return time.clock_gettime(~native << 3 | 6)
    except OSError:
        return None
