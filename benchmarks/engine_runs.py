"""Runs of the local engine that its benchmarks share: inputs of many files, memory of the whole process tree."""

from __future__ import annotations

import hashlib
import os
import shutil
import sys
import threading
from pathlib import Path
from types import TracebackType

sys.path.insert(0, str(Path(__file__).parent))

from foundation_inputs import make_input


def make_files(folder: Path, *, megabytes: float, files: int) -> int:
    """Real documents in `files` files of about `megabytes` in total; returns the bytes."""
    size, _ = make_input(folder / "part000.jsonl", megabytes=megabytes / files)
    for number in range(1, files):
        shutil.copyfile(folder / "part000.jsonl", folder / f"part{number:03d}.jsonl")
    return size * files


def digest(folder: Path) -> str:
    """One hash over the names and bytes of all committed files."""
    found = hashlib.blake2b(digest_size=16)
    for path in sorted(folder.glob("*.jsonl")):
        found.update(path.name.encode())
        with path.open("rb") as file:
            while block := file.read(1 << 20):
                found.update(block)
    return found.hexdigest()


class PeakMemory:
    """The highest sum of PSS over this process and all it started, while it is entered.

    Shared-memory files that no process has mapped are not included; pipelines of one segment make none.
    """

    def __init__(self, period_s: float = 0.1) -> None:
        self.peak_bytes = 0
        self._period_s = period_s
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> PeakMemory:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        self._thread.join()

    def _watch(self) -> None:
        import psutil

        from gristmill.observe.memory import measure_tree

        while not self._over.wait(self._period_s):
            pids = [os.getpid(), *(child.pid for child in psutil.Process().children(recursive=True))]
            self.peak_bytes = max(self.peak_bytes, measure_tree(pids).pss_bytes)
