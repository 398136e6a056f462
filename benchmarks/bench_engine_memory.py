"""Does memory depend on the amount of data?

Reads and writes 200 MB and 2 GB with the same block size on two workers, without and with a memory budget, and takes
the peak PSS of the whole process tree. Goals: at most 1.15 times as much for ten times the data, at most 600 MB, and
never above the budget.

    python benchmarks/bench_engine_memory.py [--megabytes 2000]
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from engine_runs import PeakMemory, make_files
from foundation_inputs import save


def one_run(source: str, out: str, budget: str | None) -> int:
    """The peak of one run in this process."""
    from gristmill.backends.local import LocalExecutor
    from gristmill.pipeline import Pipeline
    from gristmill.stages.text.filters import ScoreFilter, WordCountFilter
    from gristmill.stages.text.io import JsonlReader, JsonlWriter

    config = {"num_cpus": 2} if budget is None else {"num_cpus": 2, "memory_budget": budget}
    stages = [JsonlReader(source, blocksize="32MB"), ScoreFilter(WordCountFilter(5)), JsonlWriter(out)]
    with PeakMemory() as memory:
        Pipeline("memory", stages=stages).run(executor=LocalExecutor(config=config))
    return memory.peak_bytes


def main() -> None:
    """Run each case in a process of its own, because a process keeps memory that it once had."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=float, default=2000)
    parser.add_argument("--budget", default="400MB", help="Below what the run takes without one.")
    parser.add_argument("--one", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        source, out, budget = options.one
        print(json.dumps(one_run(source, out, None if budget == "-" else budget)))
        return
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        make_files(folder / "large", megabytes=options.megabytes, files=10)
        (folder / "small").mkdir()
        (folder / "small" / "part000.jsonl").symlink_to(folder / "large" / "part000.jsonl")
        peaks: dict[str, int] = {}
        for label, source, budget in (
            ("small", "small", "-"),
            ("large", "large", "-"),
            ("large_with_budget", "large", options.budget),
        ):
            command = [sys.executable, __file__, "--one", str(folder / source), str(folder / f"out_{label}"), budget]
            done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
            peaks[label] = json.loads(done.stdout.splitlines()[-1])
    save(
        "engine_memory",
        {
            "peak_mb": {label: round(peak / 1e6, 1) for label, peak in peaks.items()},
            "ratio": round(peaks["large"] / peaks["small"], 3),
            "budget": options.budget,
            "goal": "ratio at most 1.15, peak at most 600 MB, within the budget",
        },
    )


if __name__ == "__main__":
    main()
