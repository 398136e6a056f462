"""A Ray cluster on the nodes of a Slurm job, under the name in `nemo_curator.core.client`."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import time
from dataclasses import dataclass, field
from pathlib import Path

from gristmill.core.client import RayClient
from gristmill.errors import WorkerError

_POLL_S = 0.5
_END_S = 20.0


@dataclass
class SlurmRayClient(RayClient):
    """A `RayClient` for scripts that `srun` starts once on every node of a job.

    The process on the first node (`SLURM_NODEID=0`) starts the head of the cluster, waits for the others and continues
    with the script. Each other process joins its node to the cluster, waits inside `start` until the head is stopped,
    and exits. Without Slurm it is a `RayClient`; if `RAY_ADDRESS` is set it starts nothing.

    Nodes find the head through a file in a shared folder: `RAY_PORT_BROADCAST_DIR`, by default `.gristmill/slurm` in
    the home folder. It holds the cluster's token, and only its owner can read it.

    Args:
        worker_connect_timeout_s: Seconds to wait for the other nodes, and for the head.
        cleanup_on_start: Accepted; clusters that others started are left alone.

    Example:
        >>> with SlurmRayClient():  # in a script that srun starts on every node
        ...     pipeline.run(executor="ray_data")
    """

    ray_dashboard_host: str = "0.0.0.0"  # noqa: S104 (as in NeMo Curator: seen from the login node)
    worker_connect_timeout_s: int = 300
    cleanup_on_start: bool = True
    _file: Path | None = field(default=None, init=False, repr=False)

    def start(self) -> None:
        if self._running is not None or os.environ.get("RAY_ADDRESS"):
            return
        for name, variable in (("num_cpus", "SLURM_CPUS_ON_NODE"), ("num_gpus", "SLURM_GPUS_ON_NODE")):
            if getattr(self, name) is None and os.environ.get(variable, "").isdigit():
                setattr(self, name, int(os.environ[variable]))
        job = os.environ.get("SLURM_JOB_ID")
        if not job:
            super().start()
            return
        nodes = expand_nodes(os.environ.get("SLURM_JOB_NODELIST", socket.gethostname()))
        restart = os.environ.get("SLURM_RESTART_COUNT", "0")
        folder = Path(os.environ.get("RAY_PORT_BROADCAST_DIR") or Path.home() / ".gristmill" / "slurm")
        file = folder / f"ray-{job}-{os.environ.get('SLURM_STEP_ID', '0')}-{restart}.json"
        if int(os.environ.get("SLURM_NODEID", "0")):
            raise SystemExit(self._serve(file))
        file.unlink(missing_ok=True)
        super().start()
        try:
            self._announce(file)
            self._wait_for(len(nodes))
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        if self._file is not None:
            self._file.unlink(missing_ok=True)  # tells the other nodes that the run is over
            self._file = None
        super().stop()

    def _host(self) -> str:
        return _address() if os.environ.get("SLURM_JOB_ID") else super()._host()

    def _options(self) -> list[str]:
        options = super()._options()
        return [*options, f"--node-ip-address={_address()}"] if os.environ.get("SLURM_JOB_ID") else options

    def _announce(self, file: Path) -> None:
        known = ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN")
        content = {"address": self.address, **{name: os.environ[name] for name in known if name in os.environ}}
        file.parent.mkdir(parents=True, exist_ok=True)
        temporary = file.with_suffix(f".{os.getpid()}")
        with open(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8") as out:
            json.dump(content, out)
        temporary.replace(file)
        self._file = file

    def _wait_for(self, nodes: int) -> None:
        """Wait until this many nodes have joined."""
        import ray

        mine = not ray.is_initialized()
        if mine:
            ray.init(address=self.address, log_to_driver=False)
        try:
            deadline = time.monotonic() + self.worker_connect_timeout_s
            while (found := sum(node["Alive"] for node in ray.nodes())) < nodes:
                if time.monotonic() > deadline:
                    raise WorkerError(
                        f"{found} of {nodes} nodes joined within {self.worker_connect_timeout_s} s. Start the script "
                        "on every node (srun --ntasks-per-node=1), and check that all of them can access "
                        f"{None if self._file is None else self._file.parent}."
                    )
                time.sleep(_POLL_S)
        finally:
            if mine:
                ray.shutdown()

    def _serve(self, file: Path) -> int:
        """Join this node to the cluster and wait for its end; returns the exit code."""
        from gristmill.backends.ray import ray_internals

        deadline = time.monotonic() + self.worker_connect_timeout_s
        while not file.is_file():
            if time.monotonic() > deadline:
                raise WorkerError(f"The head did not appear within {self.worker_connect_timeout_s} s at {file}.")
            time.sleep(_POLL_S)
        found = json.loads(file.read_text(encoding="utf-8"))
        address = found.pop("address")
        options = {"--num-cpus": self.num_cpus, "--num-gpus": self.num_gpus}
        command = [*ray_internals.START_COMMAND, f"--address={address}", "--block", "--disable-usage-stats"]
        command += [f"{name}={value}" for name, value in options.items() if value is not None]
        process = subprocess.Popen(
            command,
            env={**os.environ, **found},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            start_new_session=True,
        )
        try:
            while file.is_file() and process.poll() is None:
                time.sleep(_POLL_S)
            return 0 if not file.is_file() else process.returncode or 1
        finally:
            for kind in (signal.SIGTERM, signal.SIGKILL):
                with contextlib.suppress(ProcessLookupError, subprocess.TimeoutExpired):
                    os.killpg(process.pid, kind)
                    process.wait(_END_S)
                    break


def expand_nodes(names: str) -> list[str]:
    """The nodes in a list in Slurm's notation.

    Example:
        >>> expand_nodes("gpu[08-10,12],login")
        ['gpu08', 'gpu09', 'gpu10', 'gpu12', 'login']
    """
    found = []
    for part in re.findall(r"[^,\[\]]+(?:\[[^\]]*\][^,\[\]]*)?", names):
        match = re.fullmatch(r"([^\[]*)\[([^\]]*)\](.*)", part)
        if match is None:
            found.append(part)
            continue
        before, ranges, after = match.groups()
        for one in ranges.split(","):
            first, _, last = one.partition("-")
            numbers = range(int(first), int(last or first) + 1)
            found += [f"{before}{number:0{len(first)}d}{after}" for number in numbers]
    return found


def _address() -> str:
    """The address at which other nodes reach this one."""
    try:
        return socket.gethostbyname(socket.gethostname())
    except OSError:
        return "127.0.0.1"
