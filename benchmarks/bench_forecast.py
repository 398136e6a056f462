"""How far forecasts are off: `gristmill plan RECIPE --sample` against the run itself, for shipped recipes.

    python benchmarks/bench_forecast.py --files 'CORPUS/*.jsonl' [--sample 1%] [--recipes english web …] [--rounds 2]

Every forecast and every run is a process of its own, in turns. Errors are shares of what the run took.
"""

from __future__ import annotations

import argparse
import glob
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
RESULT = ROOT / "benchmarks" / "results" / "forecast.json"
FIGURES = {
    "wall_seconds": "wall_seconds",
    "documents_out": "rows_written",
    "output_bytes": "output_bytes",
    "memory_bytes": "peak_memory_bytes",
}


def gristmill(*arguments: str) -> str:
    """What a command prints."""
    return subprocess.run(
        [sys.executable, "-m", "gristmill", *arguments], check=True, capture_output=True, text=True
    ).stdout


def compared(recipe: str, paths: list[str], sample: str, folder: str) -> dict[str, Any]:
    """One forecast and the run that follows."""
    output = f"{folder}/out"
    for old in (output, f"{output}.gristmill"):
        shutil.rmtree(old, ignore_errors=True)
    made = json.loads(gristmill("plan", recipe, *paths, output, "--sample", sample, "--json"))
    gristmill("run", recipe, *paths, output, "-q")
    run = json.loads(Path(f"{output}.gristmill", "run.json").read_text())
    found: dict[str, Any] = {"sample_share": round(made["sample_share"], 4), "load": round(os.getloadavg()[0], 1)}
    for name, actual in FIGURES.items():
        found[name] = {
            "foreseen": round(made[name], 2),
            "came": run[actual],
            "error": round(made[name] / run[actual] - 1, 3) if run[actual] else None,
        }
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--files", required=True)
    parser.add_argument("--sample", default="1%")
    parser.add_argument("--recipes", nargs="+", default=["english", "non_english", "web", "web_dedup"])
    parser.add_argument("--rounds", type=int, default=2)
    options = parser.parse_args()
    paths = sorted(glob.glob(options.files))
    with tempfile.TemporaryDirectory() as folder:
        os.environ["XDG_STATE_HOME"] = folder
        result = {
            "machine": {"processor": platform.processor() or platform.machine(), "processors": os.cpu_count()},
            "bytes": sum(map(os.path.getsize, paths)),
            "sample": options.sample,
            "recipes": {
                name: [compared(name, paths, options.sample, folder) for _ in range(options.rounds)]
                for name in options.recipes
            },
        }
    RESULT.write_text(json.dumps(result, indent=2) + "\n")
    for name, rounds in result["recipes"].items():
        for found in rounds:
            wall = found["wall_seconds"]
            print(f"{name}: {wall['foreseen']} s foreseen, {wall['came']} s came, off by {wall['error']:+.1%}")


if __name__ == "__main__":
    main()
