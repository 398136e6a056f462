"""Starts a Ray cluster for several runs, and stops that cluster and no other."""

from __future__ import annotations

import atexit
import contextlib
import os
import re
import secrets
import signal
import socket
import subprocess
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from gristmill.errors import OutputError, WorkerError

_START_S = 300.0
_STOP_S = 20.0
_RETRIES = 3
_PORT_TAKEN = re.compile(
    r"address already in use|port \S+ is already in use|failed to bind|port number \S+ that is used|already running at",
    re.IGNORECASE,
)
"""What Ray prints when a port is in use, as far as it says so."""


@dataclass
class RayClient:
    """A Ray cluster on this machine that runs from `start` to `stop`, at most until the script ends.

    Runs in between find it through `RAY_ADDRESS`, which `start` sets and `stop` restores. A port that is in use is
    replaced by a free one, so that several clusters can run on one machine.

    Args:
        ray_port: The port of the cluster.
        ray_dashboard_port: The port of the dashboard.
        ray_client_server_port: The port for Ray Client.
        ray_temp_dir: Where Ray keeps its files; None for a short path below the temporary folder.
        include_dashboard: Whether to start the dashboard.
        ray_metrics_port: The port of Ray's metrics.
        ray_dashboard_host: The address that the dashboard listens on.
        num_gpus: Number of GPUs of the cluster; None for all.
        num_cpus: Number of CPU cores of the cluster; None for all.
        object_store_memory: Size of the object store in bytes; None lets Ray choose.
        enable_object_spilling: Accepted; Ray spills to disk by itself.
        ray_stdouterr_capture_file: A new file for the output of Ray.
        metrics_dir: Accepted for scripts that set it.

    Example:
        >>> with RayClient(num_cpus=4):
        ...     first.run(executor="ray_data")
        ...     second.run(executor="ray_data")
    """

    ray_port: int = 6379
    ray_dashboard_port: int = 8265
    ray_client_server_port: int = 10001
    ray_temp_dir: str | None = None
    include_dashboard: bool = True
    ray_metrics_port: int = 8080
    ray_dashboard_host: str = "127.0.0.1"
    num_gpus: int | None = None
    num_cpus: int | None = None
    object_store_memory: int | None = None
    enable_object_spilling: bool = False
    ray_stdouterr_capture_file: str | None = None
    metrics_dir: str | None = None

    address: str | None = field(default=None, init=False)
    _running: contextlib.ExitStack | None = field(default=None, init=False, repr=False)

    @property
    def dashboard_url(self) -> str | None:
        """URL of the dashboard, once the cluster is running."""
        if self.address is None or not self.include_dashboard:
            return None
        return f"http://{self.ray_dashboard_host}:{self.ray_dashboard_port}"

    def start(self) -> None:
        """Start the cluster and wait until it responds; does nothing if it is already running.

        Raises:
            OutputError: `ray_stdouterr_capture_file` exists.
            WorkerError: The cluster did not start.
        """
        if self._running is not None:
            return
        from gristmill.backends.ray import cluster, ray_internals

        with contextlib.ExitStack() as stack:
            log = stack.enter_context(self._open_log())
            self.ray_temp_dir = self.ray_temp_dir or cluster.short_temp_dir()
            stack.enter_context(cluster.restored_variables("RAY_ADDRESS"))
            if "RAY_AUTH_MODE" not in os.environ:
                # A separate token: no other user of the machine can use this cluster, and no stored token is touched.
                stack.callback(ray_internals.reread_authentication)
                stack.enter_context(cluster.restored_variables("RAY_AUTH_MODE", "RAY_AUTH_TOKEN"))
                os.environ.update(RAY_AUTH_MODE="token", RAY_AUTH_TOKEN=secrets.token_hex(32))
                ray_internals.reread_authentication()
            for last in (*[False] * _RETRIES, True):
                process = self._launch(list(ray_internals.START_COMMAND), log)
                try:
                    _wait(process, log, ray_internals.STARTED_MESSAGE)
                    break
                except BaseException as error:
                    self._end(process)
                    # Another program may have taken a port since it was found free.
                    if last or not isinstance(error, WorkerError) or not _PORT_TAKEN.search(str(error)):
                        raise
                    os.ftruncate(log.fileno(), 0)
            stack.callback(self._end, process)
            self.address = os.environ["RAY_ADDRESS"] = f"{self._host()}:{self.ray_port}"
            self._running = stack.pop_all()
        atexit.register(self.stop)

    def _launch(self, command: list[str], log: IO[bytes]) -> subprocess.Popen[bytes]:
        """Start Ray on currently free ports, in its own session, so that exactly its processes can be stopped."""
        taken: set[int] = set()
        for name in ("ray_port", "ray_dashboard_port", "ray_client_server_port", "ray_metrics_port"):
            setattr(self, name, _free_port(getattr(self, name), taken))
        return subprocess.Popen(
            [*command, *self._options()], stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
        )

    def _host(self) -> str:
        """The address of the head node."""
        return "127.0.0.1"

    def stop(self) -> None:
        """Stop the cluster; does nothing if it is not running. Other clusters on the machine are not touched."""
        running, self._running, self.address = self._running, None, None
        if running is not None:
            atexit.unregister(self.stop)
            running.close()

    def __enter__(self) -> RayClient:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _options(self) -> list[str]:
        options: dict[str, Any] = {
            "--port": self.ray_port,
            "--ray-client-server-port": self.ray_client_server_port,
            "--metrics-export-port": self.ray_metrics_port,
            "--temp-dir": self.ray_temp_dir,
            "--include-dashboard": str(self.include_dashboard).lower(),
            "--dashboard-host": self.ray_dashboard_host,
            "--dashboard-port": self.ray_dashboard_port,
            "--num-cpus": self.num_cpus,
            "--num-gpus": self.num_gpus,
            "--object-store-memory": self.object_store_memory,
        }
        given = [f"{name}={value}" for name, value in options.items() if value is not None]
        return ["--head", "--block", "--disable-usage-stats", *given]

    def _open_log(self) -> IO[bytes]:
        if self.ray_stdouterr_capture_file is None:
            return tempfile.TemporaryFile()
        try:
            return Path(self.ray_stdouterr_capture_file).open("x+b")
        except FileExistsError as error:
            raise FileExistsError(
                f"ray_stdouterr_capture_file={self.ray_stdouterr_capture_file!r} exists; pass a new file, so that "
                "nothing is overwritten."
            ) from error
        except OSError as error:
            raise OutputError(
                f"ray_stdouterr_capture_file={self.ray_stdouterr_capture_file!r} cannot be written: {error}",
                path=self.ray_stdouterr_capture_file,
            ) from error

    def _end(self, process: subprocess.Popen[bytes]) -> None:
        """Disconnect this process if it is connected to this cluster, and stop the cluster."""
        import ray

        if ray.is_initialized() and str(ray.get_runtime_context().gcs_address).endswith(f":{self.ray_port}"):
            ray.shutdown()
        for kind in (signal.SIGTERM, signal.SIGKILL):
            with contextlib.suppress(ProcessLookupError, subprocess.TimeoutExpired):
                os.killpg(process.pid, kind)
                process.wait(_STOP_S)
                break


def _wait(process: subprocess.Popen[bytes], log: IO[bytes], message: str) -> None:
    """Wait until the process has printed `message`."""
    deadline = time.monotonic() + _START_S
    while True:
        printed = os.pread(log.fileno(), 1 << 20, 0).decode(errors="replace")
        if message in printed:
            return
        if process.poll() is not None:
            raise WorkerError(f"Ray did not start (exit code {process.returncode}).\n{printed[-2000:]}")
        if time.monotonic() > deadline:
            raise WorkerError(f"Ray did not start within {_START_S:g} s.\n{printed[-2000:]}")
        time.sleep(0.1)


def _free_port(wanted: int, taken: set[int]) -> int:
    """`wanted`, or a free port if it is in use."""
    for port in (wanted, 0, 0, 0, 0):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                # On all addresses: Ray's head listens on the node's own address, not only on localhost.
                probe.bind(("", port))
            except OSError:
                continue
            found = int(probe.getsockname()[1])
            if found not in taken:
                taken.add(found)
                return found
    raise WorkerError(f"No free port was found in place of {wanted}.")
