"""What a run of very many partitions costs the driver: its memory, and its time per partition.

    python benchmarks/bench_ray_driver.py [--partitions 100000]

Files of one document each, read, filtered and written on Ray Data with two processors. The highest memory of the
driver process, beside what it needs without a run. Goal: at most 500 MB for 100,000 partitions.
"""

from __future__ import annotations

import argparse
import json
import resource
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from foundation_inputs import save
from ray_runs import Commits, one_node


def peak_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e6


def main() -> None:
    """Make the files, run, look at the highest memory."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--partitions", type=int, default=100_000)
    options = parser.parse_args()
    from gristmill.backends.ray_data import RayDataExecutor
    from gristmill.pipeline import Pipeline
    from gristmill.stages.text.filters import ScoreFilter, WordCountFilter
    from gristmill.stages.text.io import JsonlReader, JsonlWriter

    result: dict[str, Any] = {"partitions": options.partitions}
    with tempfile.TemporaryDirectory() as folder, one_node(cpus=2):
        source = Path(folder) / "in"
        for number in range(options.partitions):
            part = source / f"{number // 1000:03d}"
            if number % 1000 == 0:
                part.mkdir(parents=True)
            (part / f"{number:06d}.jsonl").write_text(json.dumps({"id": number, "text": "some words"}) + "\n")
        result["before_mb"] = round(peak_mb())
        commits = Commits()
        stages = [
            JsonlReader(str(source), files_per_partition=1),
            ScoreFilter(WordCountFilter(min_words=1)),
            JsonlWriter(str(Path(folder) / "out")),
        ]
        begun = time.perf_counter()
        Pipeline("many", stages=stages).run(executor=RayDataExecutor(), listeners=[commits], progress=False)
        result["seconds"] = round(time.perf_counter() - begun, 1)
        result["partitions_per_s"] = round(commits.per_second(0.2, 1.0))
        result["peak_mb"] = round(peak_mb())
    result["goal"] = "peak_mb at most 500 for 100,000 partitions"
    save("ray_driver", result)


if __name__ == "__main__":
    main()
