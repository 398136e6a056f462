"""The monitor of a user: a Prometheus, and a Grafana if installed, that find and monitor all runs automatically."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gristmill.errors import OutputError, UsageError
from gristmill.metrics.configs import MonitorFiles
from gristmill.metrics.places import make_private, monitor_folder, sweep_targets
from gristmill.metrics.servers import Server, choose_port, find_grafana, find_prometheus, start
from gristmill.storage.atomic import write_json_atomic

PROMETHEUS_PORT = 9090
GRAFANA_PORT = 3000
INTERVAL_S = 10.0
_NAMES = ("prometheus", "grafana")
_GET_GRAFANA = "https://grafana.com/grafana/download"
_GET_PROMETHEUS = "https://prometheus.io/download"


@dataclass(frozen=True, slots=True)
class MonitorStatus:
    """The running services of a monitor, and the pipelines that it monitors.

    Attributes:
        files: Its files.
        prometheus: The Prometheus that was started; None if none runs.
        grafana: The same for Grafana.
        targets: The addresses of the runs that currently serve metrics.
    """

    files: MonitorFiles
    prometheus: Server | None
    grafana: Server | None
    targets: tuple[str, ...]

    def record(self) -> dict[str, Any]:
        """As plain values."""
        servers = {"prometheus": self.prometheus, "grafana": self.grafana}
        return {
            "folder": str(self.files.folder),
            **{name: None if one is None else {"url": one.url, "pid": one.pid} for name, one in servers.items()},
            "runs": list(self.targets),
        }

    def __str__(self) -> str:
        shown = "does not run" if self.prometheus is None else f"{self.prometheus.url} (process {self.prometheus.pid})"
        lines = [f"Prometheus: {shown}"]
        if self.grafana is not None:
            lines.append(f"Grafana: {self.grafana.url} (process {self.grafana.pid})")
        elif find_grafana() is None:
            lines.append(
                f"Grafana: not installed ({_GET_GRAFANA}). Everything it needs is in {self.files.grafana}; with "
                f"Docker: docker compose -f {self.files.compose} up -d grafana"
            )
        else:
            lines.append("Grafana: not running")
        runs = ", ".join(self.targets) or "none (start them with --metrics-port 0)"
        lines.append(f"Watched runs: {runs}")
        lines.append(f"Files: {self.files.folder}")
        return "\n".join(lines)


class Monitor:
    """A Prometheus and a Grafana of one user, which run until they are stopped.

    Args:
        folder: Folder of its files and data; None for this user's folder on this machine.

    Example:
        >>> monitor = Monitor()
        >>> print(monitor.up())
        >>> monitor.down()
    """

    def __init__(self, folder: str | os.PathLike[str] | None = None) -> None:
        self.files = MonitorFiles(monitor_folder(folder))

    def up(
        self, *, prometheus_port: int | None = None, grafana_port: int | None = None, interval_s: float = INTERVAL_S
    ) -> MonitorStatus:
        """Write all files and start the services that are not running yet.

        Args:
            prometheus_port: The port of Prometheus; by default 9090 or the next free one.
            grafana_port: The port of Grafana; by default 3000 or the next free one.
            interval_s: Seconds between two scrapes of a run.

        Raises:
            UsageError: There is no Prometheus on this machine, a port is in use, or a server does not start.
        """
        with self._changed() as state:
            prometheus, grafana = self._server(state, "prometheus"), self._server(state, "grafana")
            port = _port(prometheus, prometheus_port, PROMETHEUS_PORT, "Prometheus", "--port")
            look = _port(grafana, grafana_port, GRAFANA_PORT, "Grafana", "--grafana-port", taken=port)
            state["interval_s"] = interval_s
            self.files.write_prometheus(interval_s=interval_s, ray=state.get("ray", ()))
            self.files.write_grafana(port=look, prometheus_port=port, interval_s=interval_s)
            self.files.write_compose(port=port, grafana_port=look)
            if prometheus is None:
                prometheus = self.start_prometheus(port)
                state["prometheus"] = prometheus.record()
                self._save(state)  # from now on it can be stopped
            else:
                prometheus.reload()
            if grafana is None and find_grafana() is not None:
                state["grafana"] = self.start_grafana(look).record()
        return self.status()

    def start_prometheus(self, port: int, folder: str | os.PathLike[str] | None = None) -> Server:
        """Start Prometheus with the existing files; `folder` contains the program, if it is not on the PATH.

        Raises:
            UsageError: There is none, or it does not start.
        """
        program = find_prometheus(folder)
        if program is None:
            where = "on the path" if folder is None else f"in {folder}"
            raise UsageError(
                f"There is no Prometheus {where}. Install it (Debian and Ubuntu: apt install prometheus; others: "
                f"{_GET_PROMETHEUS}) and run this again. Your own Prometheus can use "
                f"{self.files.prometheus}; with Docker: docker compose -f {self.files.compose} up -d",
                config=str(self.files.prometheus),
            )
        log = self.files.folder / "prometheus.log"
        command = [program, *self.files.prometheus_options(port)]
        return start("Prometheus", command, port=port, log=log, ready="/-/ready")

    def start_grafana(
        self, port: int, folder: str | os.PathLike[str] | None = None, ini: str | os.PathLike[str] | None = None
    ) -> Server:
        """The same for Grafana; `ini` is its configuration, if it is not ours.

        Raises:
            UsageError: There is none, or it does not start.
        """
        program = find_grafana(folder)
        if program is None:
            raise UsageError(f"Grafana is not installed on this machine. Install it from {_GET_GRAFANA}.")
        command = [*program, "--config", str(ini or self.files.grafana_ini)]
        log = self.files.folder / "grafana.log"
        return start("Grafana", command, port=port, log=log, ready="/api/health")

    def down(self) -> list[str]:
        """End the servers that this monitor has started, and nothing else; returns their names."""
        if not self._state_file.exists():
            return []
        with self._changed() as state:
            servers = {name: Server.of(state.pop(name, None)) for name in reversed(_NAMES)}
            return [name for name, server in servers.items() if server is not None and server.stop()]

    def status(self) -> MonitorStatus:
        """The running services."""
        state = self._read()
        targets = []
        for file in sweep_targets():
            with contextlib.suppress(OSError, ValueError, LookupError, TypeError):
                targets += json.loads(file.read_text())[0]["targets"]
        servers = [self._server(state, name) for name in _NAMES]
        return MonitorStatus(self.files, servers[0], servers[1], tuple(targets))

    def note_server(self, name: str, server: Server) -> None:
        """Remember a server that was started for this monitor, so that it can be stopped."""
        with self._changed() as state:
            state[name] = server.record()

    def watch_ray(self, folder: str | os.PathLike[str], *, watch: bool = True) -> None:
        """Start or stop watching the Ray cluster with this temporary folder."""
        with self._changed() as state:
            others = [one for one in state.get("ray", ()) if one != os.fspath(folder)]
            state["ray"] = [*others, os.fspath(folder)] if watch else others
            self.files.write_prometheus(interval_s=state.get("interval_s", INTERVAL_S), ray=state["ray"])
            server = self._server(state, "prometheus")
            if server is not None:
                server.reload()

    # --- what is remembered ---

    @property
    def _state_file(self) -> Path:
        return self.files.folder / "servers.json"

    @staticmethod
    def _server(state: dict[str, Any], name: str) -> Server | None:
        server = Server.of(state.get(name))
        return server if server is not None and server.runs else None

    def _read(self) -> dict[str, Any]:
        try:
            state = json.loads(self._state_file.read_text())
        except (OSError, ValueError):
            return {}
        return state if isinstance(state, dict) else {}

    def _save(self, state: dict[str, Any]) -> None:
        write_json_atomic(str(self._state_file), state)

    @contextlib.contextmanager
    def _changed(self) -> Iterator[dict[str, Any]]:
        """The stored state, for changes; concurrent changes wait for each other."""
        try:
            make_private(self.files.folder)
            lock = (self.files.folder / "lock").open("wb")
        except OSError as error:
            raise OutputError(
                f"The folder of the monitor, {self.files.folder}, cannot be written: {error.strerror}. Set "
                "XDG_STATE_HOME to a writable folder.",
                path=str(self.files.folder),
                errno=error.errno,
            ) from error
        with lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            state = self._read()
            yield state
            self._save(state)


def _port(running: Server | None, wanted: int | None, usual: int, name: str, option: str, *, taken: int = -1) -> int:
    """The port of a server: that of the one that runs, or a free one."""
    if running is None:
        return choose_port(wanted, usual, option=option, taken=[taken])
    if wanted is not None and wanted != running.port:
        raise UsageError(f"{name} is already running on port {running.port}. Stop it first: gristmill monitor down.")
    return running.port
