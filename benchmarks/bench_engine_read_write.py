"""How fast does the local engine read and write JSONL on two cores, beside two bare Polars processes?

Two gigabytes of real documents in ten files. Each Polars process reads and writes half of the files with one thread,
parses every value, and keeps no record of what it did. The goal is at least 0.6 of its speed.

    python benchmarks/bench_engine_read_write.py [--megabytes 2000] [--repeat 2]
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from engine_runs import make_files
from foundation_inputs import best_of, save

POLARS = """
import sys, polars as pl
for path in sys.argv[2:]:
    pl.read_ndjson(path).write_ndjson(sys.argv[1] + "/" + path.rsplit("/", 1)[1])
"""


def main() -> None:
    """Run both sides in turns and keep the ratio."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=float, default=2000)
    parser.add_argument("--files", type=int, default=10)
    parser.add_argument("--repeat", type=int, default=2)
    options = parser.parse_args()
    from gristmill.backends.local import LocalExecutor
    from gristmill.pipeline import Pipeline
    from gristmill.stages.text.io import JsonlReader, JsonlWriter

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        size = make_files(folder / "in", megabytes=options.megabytes, files=options.files)
        make_files(folder / "small", megabytes=5, files=2)

        def ours(source: str = "in") -> None:
            shutil.rmtree(folder / "out", ignore_errors=True)
            shutil.rmtree(folder / "out.gristmill", ignore_errors=True)
            stages = [JsonlReader(str(folder / source), blocksize="32MB"), JsonlWriter(str(folder / "out"))]
            Pipeline("read_write", stages=stages).run(executor=LocalExecutor(config={"num_cpus": 2}))

        def polars(source: str = "in") -> None:
            shutil.rmtree(folder / "polars", ignore_errors=True)
            (folder / "polars").mkdir()
            paths = [str(path) for path in sorted((folder / source).iterdir())]
            env = {**os.environ, "POLARS_MAX_THREADS": "1"}
            halves = [
                subprocess.Popen([sys.executable, "-c", POLARS, str(folder / "polars"), *paths[half::2]], env=env)
                for half in range(2)
            ]
            if sum(one.wait() for one in halves):
                raise SystemExit("Polars failed.")

        ours("small")
        polars("small")
        mine, theirs = best_of(options.repeat, ours, polars)
        written = sum(path.stat().st_size for path in (folder / "out").glob("*.jsonl"))
    save(
        "engine_read_write",
        {
            "bytes": size,
            "bytes_written": written,
            "gristmill_s": mine["wall_s"],
            "polars_two_processes_s": theirs["wall_s"],
            "speed_ratio": round(theirs["wall_s"] / mine["wall_s"], 3),
            "goal": "at least 0.6",
        },
    )


if __name__ == "__main__":
    main()
