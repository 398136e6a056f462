"""Prometheus and Grafana as processes: finding the programs, starting and stopping them."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from gristmill.errors import UsageError
from gristmill.observe.memory import process_start_time

ADDRESS = "127.0.0.1"
_START_S = 60.0
_END_S = 20.0
_PORTS = 100
"""Number of ports to try after the default one before using any free port."""
_GRAFANA_HOMES = ("/usr/share/grafana", "/opt/grafana", "/usr/local/share/grafana")
_LOG_CHARS = 600
_started: list[subprocess.Popen[bytes]] = []
"""Processes that this one started, to notice their end; they outlive this process."""


@dataclass(frozen=True, slots=True)
class Server:
    """A server that was started by a monitor, identified by the id and start time of its process."""

    pid: int
    started: int
    port: int

    @property
    def url(self) -> str:
        """Its URL."""
        return f"http://{ADDRESS}:{self.port}"

    @property
    def runs(self) -> bool:
        """Whether it is running."""
        for child in _started:
            child.poll()  # an ended process is a zombie until it is polled
        return process_start_time(self.pid) == self.started

    def record(self) -> dict[str, Any]:
        """As plain values."""
        return asdict(self)

    @classmethod
    def of(cls, record: Any) -> Server | None:
        """From plain values; None if they are invalid."""
        try:
            return cls(**{key: int(record[key]) for key in ("pid", "started", "port")})
        except (KeyError, TypeError, ValueError):
            return None

    def stop(self) -> bool:
        """Stop it; returns whether it was running. A different process with the same id is left alone."""
        if not self.runs:
            return False
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGTERM)
            until = time.monotonic() + _END_S
            while self.runs and time.monotonic() < until:
                time.sleep(0.05)
            if self.runs:
                os.kill(self.pid, signal.SIGKILL)
        return True

    def reload(self) -> None:
        """Make it reload its configuration."""
        if self.runs:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGHUP)


def start(name: str, command: Sequence[str], *, port: int, log: Path, ready: str) -> Server:
    """Start a server that outlives this process, and wait until it responds.

    Args:
        name: Its name in messages.
        command: The program and its arguments.
        port: The port it will listen on.
        log: A file for its output.
        ready: The path of a page that exists once it is ready.

    Raises:
        UsageError: It does not start.
    """
    with open(log, "wb") as output:
        try:
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True
            )
        except OSError as error:
            raise UsageError(f"{name} cannot be started as {command[0]}: {error.strerror}.") from error
    _started.append(process)
    begun = process_start_time(process.pid)
    until = time.monotonic() + _START_S
    while process.poll() is None and begun is not None and time.monotonic() < until:
        with contextlib.suppress(OSError, urllib.error.URLError):
            with urllib.request.urlopen(f"http://{ADDRESS}:{port}{ready}", timeout=2):
                pass
            if process.poll() is None:  # otherwise another program responds there
                return Server(process.pid, begun, port)
        time.sleep(0.1)
    ended = process.poll() is not None
    if not ended:
        process.kill()
        process.wait()
    told = log.read_text(errors="replace")[-_LOG_CHARS:].strip()
    what = "exited immediately" if ended else f"did not respond within {_START_S:g} s"
    raise UsageError(f"{name} {what}. The end of its log, {log}:\n{told}", log=str(log))


def choose_port(wanted: int | None, usual: int, *, option: str, taken: Sequence[int] = ()) -> int:
    """A free port: the requested one, or else the default or one of the next.

    Raises:
        UsageError: The requested port is in use.
    """
    if wanted is not None:
        if not is_free(wanted):
            raise UsageError(f"Port {wanted} is already in use. Choose another one with {option}, or omit the option.")
        return wanted
    for port in range(usual, usual + _PORTS):
        if port not in taken and is_free(port):
            return port
    with socket.create_server((ADDRESS, 0)) as free:
        return int(free.getsockname()[1])


def is_free(port: int) -> bool:
    """Whether a port of this machine is free."""
    try:
        with socket.create_server((ADDRESS, port)):
            return True
    except (OSError, OverflowError):
        return False


def find_prometheus(folder: str | os.PathLike[str] | None = None) -> str | None:
    """The program of Prometheus: in `folder`, or on the PATH."""
    return shutil.which("prometheus", path=None if folder is None else os.fspath(folder))


def find_grafana(folder: str | os.PathLike[str] | None = None) -> list[str] | None:
    """The command of Grafana's server, with the folder of its own files: in `folder`, or on the PATH."""
    path = None if folder is None else os.pathsep.join((os.path.join(folder, "bin"), os.fspath(folder)))
    for name, more in (("grafana", ["server"]), ("grafana-server", [])):
        program = shutil.which(name, path=path)
        if program is None:
            continue
        beside = Path(program).resolve().parent.parent
        homes = [beside, *map(Path, _GRAFANA_HOMES)]
        home = next((str(one) for one in homes if (one / "conf" / "defaults.ini").is_file()), None)
        return [program, *more, *([] if home is None else ["--homepath", home])]
    return None
