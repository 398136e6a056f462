"""The folders of a user's monitor, and how running pipelines are found.

Every run with a metrics port keeps a small file while it runs, which Prometheus watches. Folders are those of one user
on one machine: home folders may be shared by several.
"""

from __future__ import annotations

import contextlib
import os
import platform
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path

from gristmill.observe.memory import process_start_time
from gristmill.storage.atomic import write_json_atomic

JOB = "gristmill"
_TARGET = re.compile(r"run-(?P<pid>\d+)-(?P<started>\d+)-\d+\.json")
RAY_DISCOVERY_FILE = "prom_metrics_service_discovery.json"
"""Name of the file in Ray's temporary folder that lists the endpoints of its metrics."""


def monitor_folder(metrics_dir: str | os.PathLike[str] | None = None) -> Path:
    """The folder of the monitor: the one passed, or that of this user on this machine."""
    if metrics_dir is not None:
        return Path(metrics_dir).expanduser().absolute()
    state = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(state, "gristmill", "monitor", platform.node() or "localhost").absolute()


def targets_folder() -> Path:
    """Where running pipelines of this user are listed, for any of the user's monitors."""
    return monitor_folder() / "targets"


def make_private(folder: Path) -> Path:
    """A folder that only its user can read; its parents are created as usual."""
    folder.mkdir(parents=True, exist_ok=True)
    folder.chmod(0o700)
    return folder


@contextlib.contextmanager
def listed_run(port: int) -> Iterator[None]:
    """List this process among the running pipelines, with the port of its metrics.

    Raises:
        OSError: The folder cannot be written.
    """
    folder = make_private(targets_folder())
    sweep_targets(folder)
    file = folder / f"run-{os.getpid()}-{process_start_time(os.getpid())}-{port}.json"
    write_json_atomic(str(file), [{"targets": [f"127.0.0.1:{port}"], "labels": {"job": JOB}}])
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            file.unlink(missing_ok=True)


def sweep_targets(folder: Path | None = None) -> list[Path]:
    """Remove leftovers of killed runs; returns the files of running ones."""
    running = []
    for file in sorted((folder or targets_folder()).glob("run-*.json")):
        match = _TARGET.fullmatch(file.name)
        if match is None:
            continue
        if process_start_time(int(match["pid"])) == int(match["started"]):
            running.append(file)
        else:
            with contextlib.suppress(OSError):
                file.unlink(missing_ok=True)
    return running


def ray_folders() -> list[Path]:
    """Where Ray lists its metrics: its default folder, that of `RAY_TMPDIR`, and that of clusters Gristmill starts."""
    temporary = Path(tempfile.gettempdir())
    names = [Path("/tmp/ray"), temporary / f"gristmill-ray-{os.getuid()}", Path(f"/tmp/gristmill-ray-{os.getuid()}")]  # noqa: S108
    if "RAY_TMPDIR" in os.environ:
        names.append(Path(os.environ["RAY_TMPDIR"], "ray"))
    return list(dict.fromkeys(names))
