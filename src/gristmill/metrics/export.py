"""Exports the metrics of a run: on a local port, or to a file."""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import re
import time
from pathlib import Path
from typing import TYPE_CHECKING

from gristmill.errors import UsageError, require_module
from gristmill.metrics.places import listed_run
from gristmill.observe.events import Event, Notice, RunStarted, Sample, TaskFinished

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

ADDRESS = "127.0.0.1"
_FILE_S = 10.0
"""Seconds between two updates of the file."""
_MOST_CHARS = 40
_numbers = itertools.count(1)


class MetricsExport:
    """Exports the metrics of one run from construction until it is closed; add it to the listeners of the run.

    Args:
        name: Name of the run.
        port: A local port, 0 for any free one; None for none. Only reachable from this machine.
        file: A file that is updated every ten seconds and at the end, for the textfile collector of the node exporter
            (which reads `*.prom`); None for none.

    Attributes:
        notice: A sentence that says where the metrics are.

    Raises:
        MissingExtraError: The package prometheus-client is not installed.
        UsageError: The port is in use, or the file cannot be written.

    Example:
        >>> with contextlib.closing(MetricsExport("english", port=0)) as metrics:
        ...     pipeline.run(listeners=[metrics])
    """

    def __init__(self, name: str, *, port: int | None = None, file: str | os.PathLike[str] | None = None) -> None:
        require_module("prometheus_client", "Exporting metrics")
        from prometheus_client import CollectorRegistry

        from gristmill.metrics.run_metrics import RunMetrics

        self._registry: CollectorRegistry = CollectorRegistry()
        self._metrics = RunMetrics(_run_name(name))
        self._registry.register(self._metrics)
        self._file = None if file is None else Path(file).absolute()
        self._written_at = float("-inf")
        self._open = contextlib.ExitStack()
        places = []
        try:
            if self._file is not None:
                self._write(first=True)
                places.append(str(self._file))
            if port is not None:
                places.append(f"http://{ADDRESS}:{self._serve(port)}/metrics")
        except BaseException:
            self._open.close()
            raise
        self.notice = f"Metrics: {' and '.join(places)}"

    def __call__(self, event: Event) -> None:
        """Handle an event."""
        self._metrics(event)
        if self._file is None or not isinstance(event, TaskFinished | Sample | RunStarted):
            return
        if time.monotonic() - self._written_at >= _FILE_S:
            self._write()

    def announce(self) -> Notice:
        """Where the metrics are, as an event."""
        return Notice(self.notice)

    def close(self) -> None:
        """Stop exporting; the file keeps the last figures."""
        if self._file is not None:
            self._write()
        self._open.close()

    def _write(self, *, first: bool = False) -> None:
        from prometheus_client import write_to_textfile

        assert self._file is not None
        self._written_at = time.monotonic()
        try:
            write_to_textfile(str(self._file), self._registry)
        except OSError as error:
            if first:  # later, the run continues without it
                raise UsageError(
                    f"The metrics file {str(self._file)!r} cannot be written: {error.strerror}. Name a file in an "
                    "existing, writable folder.",
                    path=str(self._file),
                ) from error

    def _serve(self, port: int) -> int:
        from prometheus_client import start_http_server

        try:
            server, thread = start_http_server(port, addr=ADDRESS, registry=self._registry)
        except (OSError, OverflowError) as error:
            raise UsageError(_port_problem(port, error), port=port) from error
        self._open.callback(thread.join)
        self._open.callback(server.server_close)
        self._open.callback(server.shutdown)
        # Without the list, a monitor does not find the run by itself, but the metrics are available.
        with contextlib.suppress(OSError):
            self._open.enter_context(listed_run(server.server_port))
        return int(server.server_port)


def _port_problem(port: int, error: Exception) -> str:
    if isinstance(error, OSError) and error.errno == errno.EADDRINUSE:
        return f"Port {port} of this machine is in use. Choose another metrics port, or 0 for any free one."
    if isinstance(error, OSError) and error.errno == errno.EACCES:
        return f"Port {port} is reserved for the system. Choose a metrics port above 1023, or 0 for any free one."
    return f"Port {port} cannot be used for metrics: {error}. Use one from 1024 to 65535, or 0 for any free one."


def _run_name(name: str) -> str:
    """A unique name, even for two runs of the same pipeline in one second."""
    plain = re.sub(r"[^\w.-]+", "-", name)[:_MOST_CHARS].strip("-") or "run"
    return f"{plain}-{time.strftime('%Y%m%d-%H%M%S', time.gmtime())}-{os.getpid()}-{next(_numbers)}"
