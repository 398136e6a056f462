"""How fast is reading and writing JSONL in one process, beside Polars with one thread?

Reads 200 MB of real documents and writes them again; start-up and the first call of each side are not counted.
The goal is at least half the speed of Polars, which parses every value, keeps no record of the run and loses what its
types cannot hold.

    python benchmarks/bench_foundation_read_write.py [--megabytes 200] [--repeat 3]
"""

from __future__ import annotations

import os

os.environ["POLARS_MAX_THREADS"] = "1"  # before Polars is imported

import argparse
import shutil
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from foundation_inputs import best_of, make_input, save


def main() -> None:
    """Run both sides in turns and keep the ratio."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=float, default=200)
    parser.add_argument("--repeat", type=int, default=3)
    options = parser.parse_args()
    import polars as pl

    from gristmill.backends.local import LocalExecutor
    from gristmill.pipeline import Pipeline
    from gristmill.stages.text.io import JsonlReader, JsonlWriter

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        size, documents = make_input(folder / "in" / "a.jsonl", megabytes=options.megabytes)
        make_input(folder / "small" / "a.jsonl", documents=100)

        def ours(source: str = "in") -> None:
            shutil.rmtree(folder / "out", ignore_errors=True)
            shutil.rmtree(folder / "out.gristmill", ignore_errors=True)
            stages = [JsonlReader(str(folder / source)), JsonlWriter(str(folder / "out"))]
            Pipeline("read_write", stages=stages).run(executor=LocalExecutor(config={"num_cpus": 0}))

        def polars(source: str = "in") -> None:
            pl.read_ndjson(folder / source / "a.jsonl").write_ndjson(folder / "polars.jsonl")

        ours("small")
        polars("small")
        mine, theirs = best_of(options.repeat, ours, polars)
        written = b"".join(path.read_bytes() for path in sorted((folder / "out").glob("*.jsonl")))
        same = written == (folder / "in" / "a.jsonl").read_bytes()
    save(
        "foundation_read_write",
        {
            "bytes": size,
            "documents": documents,
            "gristmill": mine,
            "polars_one_thread": theirs,
            "speed_ratio_wall": round(theirs["wall_s"] / mine["wall_s"], 3),
            "speed_ratio_cpu": round(theirs["cpu_s"] / mine["cpu_s"], 3),
            "goal": "at least 0.5",
            "bytes_identical": same,
        },
    )


if __name__ == "__main__":
    main()
