"""What does a profile cost? The English cascade with and without `--profile`, in turns.

    python benchmarks/bench_profile_cost.py [--rounds 5] [--megabytes 300]

Processor time is that of the command and of all it started. Samples are taken by the clock, so that on a busy machine,
where a run takes longer than its processor time, there are more of them and the ratio says little. The share below it
holds there too: what the thread that samples takes for each sample, times the samples of a second.
"""

from __future__ import annotations

import argparse
import ctypes
import shutil
import statistics
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from bench_monitor_cost import _SUBREAPER, processor_seconds
from engine_runs import make_files
from foundation_inputs import save
from gristmill.backends.local import LocalExecutor
from gristmill.observe.profile.sampler import INTERVAL_S, Sampler
from gristmill.recipes import load_recipe


def sampler_share(folder: Path) -> dict[str, float]:
    """What the thread that samples takes in a run in this process."""
    spent: list[float] = []
    taken: list[int] = []
    sample = Sampler._run

    def timed(sampler: Sampler) -> None:
        sample(sampler)
        spent.append(time.thread_time())
        taken.append(sampler._samples)

    Sampler._run = timed  # type: ignore[method-assign]
    places = {"input_path": str(folder / "in"), "output_path": str(folder / "share")}
    try:
        load_recipe("english", variables=places).pipeline().run(
            LocalExecutor(config={"num_cpus": 0}), progress=False, profile=True
        )
    finally:
        Sampler._run = sample  # type: ignore[method-assign]
    each = spent[0] / taken[0]
    return {"microseconds_per_sample": round(1e6 * each, 1), "share_of_one_processor": round(each / INTERVAL_S, 5)}


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
