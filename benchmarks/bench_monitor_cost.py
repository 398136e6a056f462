"""What does it cost to be watched? The English cascade with and without metrics, in turns.

    python benchmarks/bench_monitor_cost.py [--rounds 5] [--megabytes 300]

With metrics, a real Prometheus (that of `gristmill monitor up`, in a folder of its own) looks every ten seconds, as it
does by default. Processor time is that of the command and of all it started; Prometheus' own is not in it. On a busy
machine the ratio says little; the shares below it are processor time of single threads and hold there too: what the
listener takes of a run, and how long an answer to Prometheus takes.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from engine_runs import make_files
from foundation_inputs import ROOT, save
from gristmill.backends.local import LocalExecutor
from gristmill.metrics.export import MetricsExport
from gristmill.metrics.monitor import INTERVAL_S, Monitor
from gristmill.observe.events import Event
from gristmill.recipes import load_recipe

_SUBREAPER = 36
"""Of prctl: processes whose parent has ended become our children, so that their time is counted with ours."""


def processor_seconds(command: list[str]) -> float:
    """Processor time of a command and of everything it starts."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    subprocess.run([sys.executable, "-m", *command], env=environment, check=True, capture_output=True)
    with contextlib.suppress(ChildProcessError):
        while True:
            os.wait()
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def shares(folder: Path) -> dict[str, float]:
    """What metrics take of a run in this process, and how long an answer takes at its end."""
    spent = 0.0
    export = MetricsExport("cost", port=0)

    def listener(event: Event) -> None:
        nonlocal spent
        begun = time.thread_time()
        export(event)
        spent += time.thread_time() - begun

    places = {"input_path": str(folder / "in"), "output_path": str(folder / "shares")}
    pipeline = load_recipe("english", variables=places).pipeline()
    begun = time.process_time()
    with contextlib.closing(export):
        pipeline.run(LocalExecutor(config={"num_cpus": 0}), listeners=[listener], progress=False)
        total = time.process_time() - begun
        begun = time.process_time()
        for _ in range(20):
            with urllib.request.urlopen(export.notice.removeprefix("Metrics: ")) as answer:
                answer.read()
        answered = (time.process_time() - begun) / 20
    return {
        "processor_seconds": round(total, 3),
        "listener_share": round(spent / total, 6),
        "answer_ms": round(1000 * answered, 2),
        "answers_share_of_one_processor": round(answered / INTERVAL_S, 6),
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--megabytes", type=float, default=300)
    options = parser.parse_args()
    found: dict[str, dict[str, list[float]]] = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        os.environ["XDG_STATE_HOME"] = str(folder / "state")
        (folder / "in").mkdir()
        size = make_files(folder / "in", megabytes=options.megabytes, files=12)
        # Started by another process: its cost is not ours.
        subprocess.run([sys.executable, "-m", "gristmill", "monitor", "up"], check=True)
        ctypes.CDLL(None).prctl(_SUBREAPER, 1, 0, 0, 0)
        try:
            for number in range(options.rounds + 1):
                for workers in ("0", "2"):
                    for kind, more in (("without", []), ("with", ["--metrics-port", "0"])):
                        shutil.rmtree(folder / "out", ignore_errors=True)
                        shutil.rmtree(folder / "out.gristmill", ignore_errors=True)
                        arguments = ["run", "english", str(folder / "in"), str(folder / "out"), "--workers", workers]
                        seconds = processor_seconds(["gristmill", *arguments, "--quiet", *more])
                        if number:
                            found.setdefault(workers, {}).setdefault(kind, []).append(round(seconds, 3))
            inside = shares(folder)
        finally:
            Monitor().down()
    results = {}
    for workers, kinds in found.items():
        medians = {kind: statistics.median(values) for kind, values in kinds.items()}
        pairs = [one / other for one, other in zip(kinds["with"], kinds["without"], strict=True)]
        results[f"{workers} workers"] = {
            "processor_seconds": kinds,
            "ratio_of_medians": round(medians["with"] / medians["without"], 4),
            "median_of_ratios": round(statistics.median(pairs), 4),
        }
    save("monitor_cost", {"megabytes": round(size / 1e6, 1), "runs": results, "in_one_process": inside})


if __name__ == "__main__":
    main()
