"""One run of a side in `compare_peers.py`: a process with everything it starts, its time, memory and end."""

from __future__ import annotations

import os
import re
import resource
import signal
import subprocess
import threading
import time
import uuid
from dataclasses import dataclass, field
from pathlib import Path

import psutil

MARK = "GRISTMILL_PEER_RUN"
"""An environment variable that all processes of a run inherit: daemons of Ray leave the tree of their parents."""

_RAY_TASK = re.compile(r"ray::_?\w*Map")
"""How workers of Ray Data call themselves while they work."""


@dataclass(slots=True)
class Ended:
    """How a run ended.

    Attributes:
        wall_s: From the start of the process to its exit.
        cpu_s: Processor time of the whole run; of processes that outlive their parents as last seen.
        peak_mb: The highest sum of PSS over all its processes.
        code: The exit code; None where the time was up.
        output: The end of what it printed.
    """

    wall_s: float
    cpu_s: float
    peak_mb: float
    code: int | None
    output: str


@dataclass(slots=True)
class Run:
    """A running process; `wait` returns how it ended, and ends what it left behind."""

    command: list[str]
    folder: Path
    environment: dict[str, str] = field(default_factory=dict)
    process: subprocess.Popen[bytes] = field(init=False)
    _token: str = field(default_factory=lambda: uuid.uuid4().hex)
    _ours: dict[tuple[int, float], bool] = field(default_factory=dict)
    _cpu: dict[tuple[int, float], float] = field(default_factory=dict)
    _peak: float = 0.0
    _begun: float = 0.0
    _before: float = 0.0
    _over: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread = field(init=False)

    def start(self, log: Path) -> Run:
        """Start it, with all that it prints in `log`."""
        self._begun, self._before = time.perf_counter(), _children_seconds()
        with log.open("wb") as file:
            self.process = subprocess.Popen(
                self.command, cwd=self.folder, stdout=file, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL,
                env={**os.environ, **self.environment, MARK: self._token}, start_new_session=True,
            )  # fmt: skip
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()
        return self

    def wait(self, log: Path, *, limit_s: float) -> Ended:
        """Wait until it ends or the time is up."""
        code: int | None
        try:
            code = self.process.wait(max(0.1, limit_s - (time.perf_counter() - self._begun)))
        except subprocess.TimeoutExpired:
            code = None
        finally:  # also when the comparison itself is interrupted
            wall = time.perf_counter() - self._begun
            self._over.set()
            self._thread.join()
            self.end_all()
        cpu = max(_children_seconds() - self._before, sum(self._cpu.values()))
        return Ended(wall, cpu, self._peak / 1e6, code, log.read_text(errors="replace")[-4000:])

    def processes(self) -> list[psutil.Process]:
        """All processes of the run that live."""
        found = []
        for process in psutil.process_iter():
            try:
                key = (process.pid, process.create_time())
                if key not in self._ours:
                    self._ours[key] = process.environ().get(MARK) == self._token
                if self._ours[key]:
                    found.append(process)
            except (psutil.Error, OSError):
                continue
        return found

    def worker(self, *, on_ray: bool) -> psutil.Process | None:
        """The process that has worked most, apart from the one that was started; on Ray, of those that run a task."""
        best: tuple[float, psutil.Process] | None = None
        for process in self.processes():
            try:
                title = " ".join(process.cmdline())
                if process.pid == self.process.pid or "resource_tracker" in title:
                    continue
                if on_ray and not _RAY_TASK.match(title):
                    continue
                times = process.cpu_times()
                spent = times.user + times.system
            except (psutil.Error, OSError):
                continue
            if best is None or spent > best[0]:
                best = (spent, process)
        return None if best is None else best[1]

    def end_all(self) -> None:
        """Kill what is left of the run, process by process."""
        for _ in range(3):
            left = self.processes()
            for process in left:
                try:
                    process.send_signal(signal.SIGKILL)
                except (psutil.Error, OSError):
                    continue
            psutil.wait_procs(left, timeout=5)
        if self.process.poll() is None:
            self.process.wait(10)

    def _watch(self) -> None:
        while not self._over.wait(0.2):
            total = 0
            for process in self.processes():
                try:
                    times = process.cpu_times()
                    self._cpu[process.pid, process.create_time()] = times.user + times.system
                    total += _pss_bytes(process.pid)
                except (psutil.Error, OSError):
                    continue
            self._peak = max(self._peak, total)


def _children_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _pss_bytes(pid: int) -> int:
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) * 1024
    return 0
