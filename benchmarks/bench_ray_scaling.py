"""Four nodes against one, simulated: a stage that sleeps, so that two cores can stand in for many.

    python benchmarks/bench_ray_scaling.py [--sleep 1.0] [--cpus 2] [--calls 40]

Nodes of Ray on this machine, each with `--cpus` made-up processors. Every partition sleeps; the rate is taken between
the commits of the first 30 % and of 90 % of the partitions, when all workers are up. Goal: at least 3.6 times the
partitions per second of one node.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from foundation_inputs import save
from gristmill.stages.base import ProcessingStage
from ray_runs import Commits, many_nodes


class Sleeps(ProcessingStage[Any, Any]):
    """Stands for work that takes no processor of this machine."""

    name = "sleeps"

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def process(self, task: Any) -> Any:
        time.sleep(self.seconds)
        return task


def rate(nodes: int, options: argparse.Namespace) -> float:
    """Partitions per second on that many nodes."""
    from gristmill.backends.ray_data import RayDataExecutor
    from gristmill.pipeline import Pipeline
    from gristmill.stages.text.io import JsonlReader, JsonlWriter

    commits = Commits()
    with tempfile.TemporaryDirectory() as folder, many_nodes(nodes, options.cpus):
        source = Path(folder) / "in"
        source.mkdir()
        for number in range(nodes * options.cpus * options.calls):
            (source / f"{number:05d}.jsonl").write_text(json.dumps({"id": number, "text": "some words"}) + "\n")
        stages = [
            JsonlReader(str(source), files_per_partition=1),
            Sleeps(options.sleep),
            JsonlWriter(str(Path(folder) / "out")),
        ]
        Pipeline("scaling", stages=stages).run(executor=RayDataExecutor(), listeners=[commits], progress=False)
    return commits.per_second(0.3, 0.9)


def main() -> None:
    """One node, then four."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sleep", type=float, default=1.0)
    parser.add_argument("--cpus", type=int, default=2)
    parser.add_argument("--calls", type=int, default=40)
    options = parser.parse_args()
    rates = {nodes: rate(nodes, options) for nodes in (1, 4)}
    save(
        "ray_scaling",
        {
            "sleep_s": options.sleep,
            "cpus_per_node": options.cpus,
            "partitions_per_s": {str(nodes): round(found, 3) for nodes, found in rates.items()},
            "ideal_per_s": {str(nodes): nodes * options.cpus / options.sleep for nodes in rates},
            "speedup": round(rates[4] / rates[1], 3),
            "goal": "speedup at least 3.6",
        },
    )


if __name__ == "__main__":
    main()
