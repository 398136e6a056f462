"""Samples what this process is doing and counts the stacks.

There are two clocks. The kernel interrupts the process (SIGPROF) for every 10 ms of CPU time; Python handles the signal
as soon as it can, which is at once in Python code, and at the end of a call in compiled code: the running function gets
the sample either way. A thread checks every 40 ms whether the sampled thread is asleep, and counts what it waits for.
The thread alone would not suffice: it must wait for the interpreter, which it gets mostly when compiled code or a wait
releases it, and so it misses Python code in between. If the signal is not available, it is better than nothing.

Every sample is weighted by the time since the previous one, so that the seconds add up to the time of the process.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from types import CodeType, FrameType
from typing import Any

import orjson

from gristmill.observe.profile.call_site import called_frame

INTERVAL_S = 0.01
"""CPU time between two samples of working code."""
WAIT_INTERVAL_S = 0.04
"""Time between two checks for waiting code."""
_SWITCH_S = 0.0005
"""How long the thread waits for the interpreter before requesting it, if it samples alone."""
_FIRST_WRITE_S = 0.25
_WRITE_SHARE = 0.005
"""Maximum share of its time that a process spends on saving its samples for the driver."""
_NUMBA_RETURN = "_numba_unpickle"
"""Called by numba at the end of kernels that return arrays; signals that arrive in the kernel are handled there."""
_DEEPEST = 200
_MOST_STACKS = 20_000
"""Maximum number of stacks (recursion creates many); of further ones only the innermost frame is kept."""


class Sampler:
    """Samples the process inside a `with` block; its time is that of the entering thread.

    Args:
        name: Name of the process.
        stages: The names of the stages that `place` counts; may grow.
        place: Returns the number of the active stage, -1 for none.
        path: File to save samples to about every second, for a reader that may outlive this process.
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
        self._by_signal = False
        self._samples = 0
        self._begun = self._last = self._write_at = 0.0
        # Seconds that belong to the next sample; the part on a CPU, and the part waiting for one.
        self._owed = self._worked = self._queued = 0.0
        self._delayed = 0.0
        self._schedule = -1
        self._waited_in: list[float] | None = None  # the counts of the last wait, until something works
        self._counting = threading.Lock()
        self._over = threading.Lock()
        self._thread: threading.Thread | None = None
        self._switch = 0.0

    def __enter__(self) -> Sampler:
        self._main = threading.get_ident()
        native = threading.get_native_id()
        self._has_clocks = _processor_s(native) is not None
        self._clocks[self._main] = [native, _processor_s(native) or 0.0]
        with contextlib.suppress(OSError):
            self._schedule = os.open(f"/proc/self/task/{native}/schedstat", os.O_RDONLY)
        self._delayed = self._delay()
        self._begun = self._last = time.perf_counter()
        self._write_at = self._begun + _FIRST_WRITE_S
        self._switch = sys.getswitchinterval()
        # A program that uses the signal itself is left alone, and only the main thread receives signals.
        in_main_thread = threading.current_thread() is threading.main_thread()
        self._by_signal = self._has_clocks and in_main_thread and signal.getsignal(signal.SIGPROF) == signal.SIG_DFL
        self._over.acquire()
        self._thread = threading.Thread(target=self._run, daemon=True, name="profile-sampler")
        self._thread.start()
        if self._by_signal:
            signal.signal(signal.SIGPROF, self._interrupted)
            signal.siginterrupt(signal.SIGPROF, False)
            signal.setitimer(signal.ITIMER_PROF, INTERVAL_S, INTERVAL_S)
        else:
            sys.setswitchinterval(min(self._switch, _SWITCH_S))
        return self

    def __exit__(self, *_: object) -> None:
        if self._by_signal:
            signal.setitimer(signal.ITIMER_PROF, 0)
            signal.signal(signal.SIGPROF, signal.SIG_IGN)  # discards a pending one, which would end the process
            signal.signal(signal.SIGPROF, signal.SIG_DFL)
        self._over.release()
        if self._thread is not None:
            self._thread.join()
        sys.setswitchinterval(self._switch)
        self._sample(sys._getframe(1))
        if self._schedule >= 0:
            os.close(self._schedule)
        self._write()

    def snapshot(self) -> dict[str, Any]:
        """The samples so far, as plain values.

        Frames are file, name and line. A stack is the stage, whether it belongs to another thread than the entering
        one, its frames starting with the innermost, its seconds, its CPU seconds, and its number of samples. Other
        threads have only CPU seconds.
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

    # --- two clocks ---

    def _interrupted(self, number: int, frame: FrameType | None) -> None:
        """The handler of the signal, in the sampled thread."""
        if self._counting.acquire(blocking=False):  # else the thread is sampling; the next one gets this time
            try:
                with contextlib.suppress(Exception):  # the sampled code must not see errors from here
                    self._sample(frame)
            finally:
                self._counting.release()

    def _run(self) -> None:
        """The thread that samples waiting code."""
        own = threading.get_ident()
        while not self._over.acquire(timeout=WAIT_INTERVAL_S if self._by_signal else INTERVAL_S):
            with self._counting:
                frames = sys._current_frames()
                if not self._by_signal:
                    self._sample(frames.get(self._main))
                elif not self._pass() or self._is_asleep():
                    self._wait(frames.get(self._main))
                for ident, frame in frames.items():
                    if ident not in (self._main, own) and (spent := self._spent(ident)):
                        self._count(1, frame, 0.0, spent)
                if len(self._clocks) > len(frames):
                    self._clocks = {ident: clock for ident, clock in self._clocks.items() if ident in frames}
                del frames
                if self._last >= self._write_at:
                    self._write()

    def _pass(self) -> float:
        """Assign the time since the last sample to the next one; returns its CPU time."""
        now, spent = time.perf_counter(), self._spent(self._main)
        self._owed += now - self._last
        self._worked += spent
        delay = self._delay()
        self._queued += delay - self._delayed
        self._delayed = delay
        self._last = now
        return spent

    def _sample(self, frame: FrameType | None) -> None:
        """Count the running code; the rest of a wait before it is assigned to the wait."""
        self._pass()
        if self._waited_in is not None:
            rest = max(0.0, self._owed - self._worked - self._queued)
            self._waited_in[0] += rest
            self._owed -= rest
            self._waited_in = None
        self._count(0, frame, self._owed, self._worked)
        self._owed = self._worked = self._queued = 0.0

    def _wait(self, frame: FrameType | None) -> None:
        """Count the waiting code; CPU time is assigned to the next sample."""
        waited = max(0.0, self._owed - self._worked - self._queued)
        self._waited_in = self._count(0, frame, waited, 0.0)
        self._owed -= waited

    def _delay(self) -> float:
        """Total time that the sampled thread has waited for a processor; 0 if the system does not report it."""
        try:
            return 0.0 if self._schedule < 0 else int(os.pread(self._schedule, 64, 0).split()[1]) / 1e9
        except (OSError, ValueError, IndexError):
            return self._delayed

    def _is_asleep(self) -> bool:
        """Whether the sampled thread waits for something other than a processor."""
        try:
            with open(f"/proc/self/task/{int(self._clocks[self._main][0])}/stat", "rb", buffering=0) as file:
                return file.read(512).rpartition(b")")[2].split()[0] in (b"S", b"D")
        except (OSError, KeyError, IndexError):
            return False

    def _count(self, beside: int, frame: FrameType | None, seconds: float, spent: float) -> list[float]:
        self._samples += not beside
        key = (self._place(), beside, *self._stack(frame))
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
        if frame is not None and frame.f_code.co_name == _NUMBA_RETURN:
            frame = frame.f_back
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
        """CPU seconds of a thread since the last call."""
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
        # Without disk space the samples are lost and the work continues.
        with contextlib.suppress(OSError):
            beside = f"{self._path}.new"
            with open(beside, "wb") as file:
                file.write(orjson.dumps(self.snapshot(), default=list))
            os.replace(beside, self._path)
        took = time.perf_counter() - begun
        self._write_at = begun + max(1.0, took / _WRITE_SHARE)


def _processor_s(native: int) -> float | None:
    """CPU time of a thread; None if it has ended or the system does not report it.

    Uses Linux's number for the clock of a thread, since it is not safe to query the thread library about a thread that
    has just ended.
    """
    if sys.platform != "linux":
        return None
    try:
        return time.clock_gettime(~native << 3 | 6)
    except OSError:
        return None
