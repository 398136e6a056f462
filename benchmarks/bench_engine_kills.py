"""What does it cost when workers are killed?

A run of about 30 seconds, once undisturbed and once with a random worker killed every second. Goals: the same bytes,
and less than 20 % of the throughput lost.

    python benchmarks/bench_engine_kills.py [--seconds 30]
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from engine_runs import digest, make_files
from foundation_inputs import save
from gristmill.stages.base import ProcessingStage

BATCH_S = 0.05


class Work(ProcessingStage[Any, Any]):
    """Needs a processor for a while for each batch."""

    name = "work"

    def process(self, task: Any) -> Any:
        until = time.process_time() + BATCH_S
        while time.process_time() < until:
            sum(range(500))
        return task


class Killer:
    """Kills a random worker every second from the first one on."""

    def __init__(self) -> None:
        self.living: dict[int, int] = {}
        self.killed = 0
        self._over = threading.Event()
        self._chance = random.Random(7)

    def __call__(self, event: Any) -> None:
        from gristmill.observe.events import WorkerStarted, WorkerStopped

        if isinstance(event, WorkerStarted):
            self.living[event.worker] = event.pid
        elif isinstance(event, WorkerStopped):
            self.living.pop(event.worker, None)

    def __enter__(self) -> Killer:
        threading.Thread(target=self._work, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()

    def _work(self) -> None:
        while not self._over.wait(1.0):
            if self.living:
                os.kill(self._chance.choice(list(self.living.values())), signal.SIGKILL)
                self.killed += 1


def main() -> None:
    """Run undisturbed and disturbed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=30)
    options = parser.parse_args()
    from gristmill.backends.local import LocalExecutor
    from gristmill.pipeline import Pipeline
    from gristmill.stages.text.io import JsonlReader, JsonlWriter

    batches = int(2 * options.seconds / BATCH_S)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        make_files(folder / "in", megabytes=batches * 0.1, files=4)

        def run(out: str, listeners: list[Any]) -> float:
            read = {"batch_bytes": "100KB"}
            stages = [
                JsonlReader(str(folder / "in"), blocksize="500KB", read_kwargs=read),
                Work(),
                JsonlWriter(str(folder / out)),
            ]
            begun = time.monotonic()
            Pipeline("kills", stages=stages).run(executor=LocalExecutor(config={"num_cpus": 2}), listeners=listeners)
            return time.monotonic() - begun

        calm = run("calm", [])
        with Killer() as killer:
            disturbed = run("disturbed", [killer])
        same = digest(folder / "calm") == digest(folder / "disturbed")
    save(
        "engine_kills",
        {
            "undisturbed_s": round(calm, 2),
            "disturbed_s": round(disturbed, 2),
            "killed": killer.killed,
            "throughput_lost": round(1 - calm / disturbed, 3),
            "same_bytes": same,
            "goal": "throughput_lost below 0.2, the same bytes",
        },
    )


if __name__ == "__main__":
    main()
