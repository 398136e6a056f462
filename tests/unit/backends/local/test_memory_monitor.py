"""The memory of a worker is that of its whole tree."""

from __future__ import annotations

import os
import subprocess
import sys
import time

from gristmill.backends.local.driver_support import MemoryMonitor

_HELD = 64 << 20
_CHILD = f"held = b'x' * {_HELD}; print(1, flush=True); input()"
_WORKER = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {_CHILD!r}])"


def test_what_a_worker_has_started_counts_with_it() -> None:
    with subprocess.Popen([sys.executable, "-c", _WORKER], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as worker:
        assert worker.stdout is not None
        worker.stdout.readline()  # by now its child holds the memory
        monitor = MemoryMonitor(lambda: [os.getpid()], lambda: [worker.pid])
        until = time.monotonic() + 30
        while not monitor.per_pid and time.monotonic() < until:
            time.sleep(0.01)
        monitor.close()
        held = dict(monitor.per_pid)
        worker.communicate(b"\n")
    assert set(held) == {os.getpid(), worker.pid}
    assert held[worker.pid] > _HELD
