"""Does a GPU ever wait on Ray? A simulated slot behind stages on processors.

    python benchmarks/bench_ray_gpu.py [--batches 400] [--executors ray_data,xenna]

A stage holds its slot for 50 ms per batch, behind a stage that needs 20 ms of a processor. The share of time that it is
held, from the first tenth of the batches to the last one. Goal on Ray Data, with a made-up GPU: at least 97 %. Xenna
takes its GPUs from the driver library and cannot be given made-up ones: there the stage only sleeps.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from bench_engine_streaming import Busy, Gpu, tasks
from foundation_inputs import save
from gristmill.stages.resources import Resources
from ray_runs import one_node

FEED_S = 0.02


def busy_share(executor: Any, batches: int, *, gpus: float, one_worker: bool) -> dict[str, Any]:
    from gristmill.pipeline import Pipeline

    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "log"
        gpu = Gpu(str(log)).with_(resources=Resources(cpus=0.1, gpus=gpus))
        if one_worker:
            gpu = gpu.with_(num_workers=1)
        Pipeline("slot", stages=[Busy("feed", FEED_S), gpu]).run(
            executor=executor, initial_tasks=tasks(batches), progress=False
        )
        spans = sorted(tuple(map(float, line.split())) for line in log.read_text().splitlines())
    warm = len(spans) // 10
    held = sum(end - begin for begin, end in spans[warm + 1 :])
    gaps = sorted((after[0] - before[1] for before, after in zip(spans[warm:], spans[warm + 1 :], strict=False)))
    return {
        "batches": len(spans),
        "busy_share": round(held / (spans[-1][1] - spans[warm][1]), 4),
        "longest_waits_s": [round(gap, 3) for gap in gaps[-5:]],
    }


def main() -> None:
    """Run the executors one after the other."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batches", type=int, default=400)
    parser.add_argument("--executors", default="ray_data,xenna")
    options = parser.parse_args()
    result: dict[str, Any] = {"goal": "busy_share of ray_data at least 0.97"}
    with one_node(cpus=2, gpus=1):
        for name in options.executors.split(","):
            if name == "xenna":
                from gristmill.backends.xenna import XennaExecutor

                executor: Any = XennaExecutor(config={"cpu_allocation_percentage": 1.0})
                result[name] = busy_share(executor, options.batches, gpus=0, one_worker=True)
            else:
                from gristmill.backends.ray_data import RayDataExecutor

                result[name] = busy_share(RayDataExecutor(), options.batches, gpus=1, one_worker=False)
    save("ray_gpu", result)


if __name__ == "__main__":
    main()
