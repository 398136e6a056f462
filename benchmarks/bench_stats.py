"""How fast `gristmill stats` reads: bytes of JSONL files per second on two processors.

    python benchmarks/bench_stats.py --files 'CORPUS/*.jsonl' [--rounds 3]

Wall time from the start of the process to its exit, with compiled kernels; the load of the machine stands beside it.
"""

from __future__ import annotations

import argparse
import glob
import json
import os
import platform
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
RESULT = ROOT / "benchmarks" / "results" / "stats.json"


def measured(paths: list[str]) -> tuple[float, dict[str, Any]]:
    """Wall time and answer of one run."""
    begun = time.perf_counter()
    command = [sys.executable, "-m", "gristmill", "stats", *paths, "--workers", "2", "--json", "-q"]
    answer = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    wall = time.perf_counter() - begun
    return wall, json.loads(answer)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--files", required=True)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    paths = sorted(glob.glob(options.files))
    size = sum(map(os.path.getsize, paths))
    measured(paths[:1])
    rounds = [measured(paths) for _ in range(options.rounds)]
    result = {
        "machine": {"processor": platform.processor() or platform.machine(), "processors": os.cpu_count()},
        "load": os.getloadavg()[0],
        "files": len(paths),
        "bytes": size,
        "documents": rounds[0][1]["documents"],
        "wall_seconds": [round(wall, 2) for wall, _ in rounds],
        "mb_per_second": round(size / 1e6 / min(wall for wall, _ in rounds), 1),
    }
    RESULT.write_text(json.dumps(result, indent=2) + "\n")
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
