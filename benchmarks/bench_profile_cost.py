"""What does a profile cost? The English cascade with and without `--profile`, in turns.

    python benchmarks/bench_profile_cost.py [--rounds 5] [--megabytes 300]

Processor time is that of the command and of all it started. Waits are looked at by the clock, so that on a busy
machine, where a run takes longer than its processor time, there are more such looks and the ratio says little. The
share below it is what samples take, as measured, at full speed: on a quiet machine both should agree.
"""

from __future__ import annotations

import argparse
import ctypes
import shutil
import statistics
import sys
import tempfile
import threading
import time
from pathlib import Path
from types import FrameType

sys.path.insert(0, str(Path(__file__).parent))

from bench_monitor_cost import _SUBREAPER, processor_seconds
from engine_runs import make_files
from foundation_inputs import save
from gristmill.backends.local import LocalExecutor
from gristmill.observe.profile.sampler import INTERVAL_S, WAIT_INTERVAL_S, Sampler
from gristmill.recipes import load_recipe


def sampler_share(folder: Path) -> dict[str, float]:
    """What samples take in a run in this process: by the signal, and by the thread that looks at what waits."""
    spent, number = {"signal": 0.0, "thread": 0.0}, {"signal": 0, "thread": 0}
    by_signal, in_thread, look = Sampler._interrupted, Sampler._run, Sampler._pass

    def interrupted(sampler: Sampler, signal: int, frame: FrameType | None) -> None:
        begun = time.thread_time()
        by_signal(sampler, signal, frame)
        spent["signal"] += time.thread_time() - begun
        number["signal"] += 1

    def run(sampler: Sampler) -> None:
        in_thread(sampler)
        spent["thread"] += time.thread_time()

    def passed(sampler: Sampler) -> float:
        number["thread"] += threading.current_thread() is not threading.main_thread()
        return look(sampler)

    patched = {"_interrupted": interrupted, "_run": run, "_pass": passed}
    before = {name: getattr(Sampler, name) for name in patched}
    for name, function in patched.items():
        setattr(Sampler, name, function)
    places = {"input_path": str(folder / "in"), "output_path": str(folder / "share")}
    try:
        load_recipe("english", variables=places).pipeline().run(
            LocalExecutor(config={"num_cpus": 0}), progress=False, profile=True
        )
    finally:
        for name, function in before.items():
            setattr(Sampler, name, function)
    each = {kind: spent[kind] / max(1, number[kind]) for kind in spent}
    return {
        "microseconds_per_signal": round(1e6 * each["signal"], 1),
        "microseconds_per_look": round(1e6 * each["thread"], 1),
        "share_of_one_processor": round(each["signal"] / INTERVAL_S + each["thread"] / WAIT_INTERVAL_S, 5),
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--megabytes", type=float, default=300)
    options = parser.parse_args()
    found: dict[str, dict[str, list[float]]] = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "in").mkdir()
        size = make_files(folder / "in", megabytes=options.megabytes, files=12)
        ctypes.CDLL(None).prctl(_SUBREAPER, 1, 0, 0, 0)
        for number in range(options.rounds + 1):
            for workers in ("0", "2"):
                for kind, more in (("without", []), ("with", ["--profile"])):
                    shutil.rmtree(folder / "out", ignore_errors=True)
                    shutil.rmtree(folder / "out.gristmill", ignore_errors=True)
                    arguments = ["run", "english", str(folder / "in"), str(folder / "out"), "--workers", workers]
                    seconds = processor_seconds(["gristmill", *arguments, "--quiet", *more])
                    if number:
                        found.setdefault(workers, {}).setdefault(kind, []).append(round(seconds, 3))
        share = sampler_share(folder)
    results = {}
    for workers, kinds in found.items():
        pairs = [one / other for one, other in zip(kinds["with"], kinds["without"], strict=True)]
        results[f"{workers} workers"] = {
            "processor_seconds": kinds,
            "ratio_of_least": round(min(kinds["with"]) / min(kinds["without"]), 4),
            "median_of_ratios": round(statistics.median(pairs), 4),
        }
    save("profile_cost", {"megabytes": round(size / 1e6, 1), "runs": results, "sampler": share})


if __name__ == "__main__":
    main()
