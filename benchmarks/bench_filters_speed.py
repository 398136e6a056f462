"""The English cascade of 28 filters, files to files on two processors, against NeMo Curator on its Ray Data executor.

    python benchmarks/bench_filters_speed.py --files 'CORPUS/*.jsonl' [--peer PYTHON_WITH_NEMO_CURATOR]

Wall time from the start of a process to its exit, best of the rounds (the peer runs once); kernels are compiled before.
The peer's interpreter may also be named by NEMO_PYTHON. Without one, only our side is measured.
"""

from __future__ import annotations

import argparse
import glob
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
RESULT = ROOT / "benchmarks" / "results" / "filters_speed.json"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--files", required=True)
    parser.add_argument("--peer", default=os.environ.get("NEMO_PYTHON"))
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--role", choices=["driver", "peer"], default="driver")
    parser.add_argument("--output", default="")
    options = parser.parse_args()
    if options.role == "peer":
        run_peer(options.files, options.output)
        return
    size = sum(os.path.getsize(path) for path in glob.glob(options.files))
    result: dict[str, Any] = {"bytes": size, "files": len(glob.glob(options.files)), "machine": machine()}
    with tempfile.TemporaryDirectory() as folder:
        for recipe in ("english", "web"):
            times = []
            for _ in range(options.rounds + 1):
                output = f"{folder}/{recipe}"
                shutil.rmtree(output, ignore_errors=True)
                times.append(
                    timed([sys.executable, "-m", "gristmill.cli.main", "run", recipe, options.files, output, "-q"])
                )
            best = min(times[1:])
            result[recipe] = {"seconds": [round(value, 3) for value in times], "best": round(best, 3)}
            result[recipe]["mb_per_s"] = round(size / 1e6 / best, 1)
        if options.peer:
            command = [options.peer, __file__, "--role", "peer", "--files", options.files, "--output", f"{folder}/peer"]
            seconds = timed(command)
            result["nemo_curator"] = {"seconds": round(seconds, 2), "executor": "RayDataExecutor"}
            result["english"]["times_nemo_curator"] = round(seconds / result["english"]["best"], 1)
    RESULT.write_text(json.dumps(result, indent=2) + "\n")
    print(json.dumps(result, indent=2))


def timed(command: list[str]) -> float:
    begun = time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return time.perf_counter() - begun


def machine() -> dict[str, Any]:
    return {"cpus": os.cpu_count(), "load_1m": round(os.getloadavg()[0], 1), "python": platform.python_version()}


def run_peer(files: str, output: str) -> None:
    """The same cascade by the peer, built from our recipe's list of filters."""
    import importlib

    from nemo_curator.backends.ray_data import RayDataExecutor
    from nemo_curator.pipeline import Pipeline
    from nemo_curator.stages.text.filters import ScoreFilter
    from nemo_curator.stages.text.io.reader import JsonlReader
    from nemo_curator.stages.text.io.writer import JsonlWriter

    module = importlib.import_module("nemo_curator.stages.text.filters.heuristic")
    pipeline = Pipeline(name="cascade")
    pipeline.add_stage(JsonlReader(file_paths=sorted(glob.glob(files)), files_per_partition=1))
    recipe = (ROOT / "src/gristmill/recipes/shipped/english.yaml").read_text()
    for name, text in re.findall(r"- (\w+Filter): \{(.*)\}", recipe):
        values = dict(pair.split(": ", 1) for pair in text.split(", "))
        plain = {
            key: json.loads(value.lower()) for key, value in values.items() if key not in ("text_field", "score_field")
        }
        pipeline.add_stage(ScoreFilter(getattr(module, name)(**plain)))
    pipeline.add_stage(JsonlWriter(path=output))
    pipeline.run(executor=RayDataExecutor())


if __name__ == "__main__":
    main()
