"""Files to files on two processors: the English cascade against NeMo Curator, the published sets against datatrove.

    python benchmarks/bench_filters_speed.py --files 'CORPUS/*.jsonl' [--nemo PYTHON] [--datatrove PYTHON]

Wall time from the start of a process to its exit, best of the rounds (each peer runs once), with compiled kernels.
NeMo Curator 1.4.0 runs on its Ray Data executor, datatrove 0.10.1 with two workers; each in its own environment, whose
interpreter may also be named by NEMO_PYTHON and DATATROVE_PYTHON. Without one, only our side is measured. The kept
documents are compared too: for the cascade they are to be the same but for ties among n-grams.
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
from collections import Counter
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
RESULT = ROOT / "benchmarks" / "results" / "filters_speed.json"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--files", required=True)
    parser.add_argument("--nemo", default=os.environ.get("NEMO_PYTHON"))
    parser.add_argument("--datatrove", default=os.environ.get("DATATROVE_PYTHON"))
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--role", choices=["driver", *PEERS], default="driver")
    parser.add_argument("--output", default="")
    options = parser.parse_args()
    if options.role != "driver":
        PEERS[options.role](options.files, options.output)
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
        for peer, python, recipe in (("nemo", options.nemo, "english"), ("datatrove", options.datatrove, "web")):
            if python:
                output = f"{folder}/{peer}"
                seconds = timed([python, __file__, "--role", peer, "--files", options.files, "--output", output])
                result[peer] = {"seconds": round(seconds, 2), "times_ours": round(seconds / result[recipe]["best"], 1)}
                result[peer].update(compare(f"{folder}/{recipe}", output))
    RESULT.write_text(json.dumps(result, indent=2) + "\n")
    print(json.dumps(result, indent=2))


def timed(command: list[str]) -> float:
    begun = time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return time.perf_counter() - begun


def compare(ours: str, theirs: str) -> dict[str, int]:
    """How many documents each side kept, and how many only one of them did."""
    import orjson

    def ids(folder: str) -> Counter[str]:
        paths = [path for path in Path(folder).rglob("*.jsonl") if "_gristmill" not in path.parts]
        return Counter(str(orjson.loads(line)["id"]) for path in paths for line in path.read_bytes().splitlines())

    here, there = ids(ours), ids(theirs)
    return {
        "kept_here": here.total(),
        "kept_there": there.total(),
        "only_here": (here - there).total(),
        "only_there": (there - here).total(),
    }


def machine() -> dict[str, Any]:
    return {"cpus": os.cpu_count(), "load_1m": round(os.getloadavg()[0], 1), "python": platform.python_version()}


def run_nemo(files: str, output: str) -> None:
    """The English cascade by NeMo Curator, built from our recipe's list of filters."""
    import importlib

    from nemo_curator.backends.ray_data import RayDataExecutor
    from nemo_curator.pipeline import Pipeline
    from nemo_curator.stages.text.filters import ScoreFilter
    from nemo_curator.stages.text.io.reader import JsonlReader
    from nemo_curator.stages.text.io.writer import JsonlWriter

    parts = ("string", "repetition")
    modules = [importlib.import_module(f"nemo_curator.stages.text.filters.heuristic.{part}") for part in parts]
    known = {name: value for module in modules for name, value in vars(module).items()}
    pipeline = Pipeline(name="cascade")
    pipeline.add_stage(JsonlReader(file_paths=sorted(glob.glob(files)), files_per_partition=1))
    recipe = (ROOT / "src/gristmill/recipes/shipped/english.yaml").read_text()
    for name, text in re.findall(r"- (\w+Filter): \{(.*)\}", recipe):
        values = dict(pair.split(": ", 1) for pair in text.split(", "))
        plain = {
            key: json.loads(value.lower()) for key, value in values.items() if key not in ("text_field", "score_field")
        }
        pipeline.add_stage(ScoreFilter(known[name](**plain)))
    pipeline.add_stage(JsonlWriter(path=output))
    pipeline.run(executor=RayDataExecutor())


def run_datatrove(files: str, output: str) -> None:
    """Gopher, C4 and FineWeb by datatrove, in the order of our recipe."""
    from datatrove.executor import LocalPipelineExecutor
    from datatrove.pipeline.filters import (
        C4QualityFilter,
        FineWebQualityFilter,
        GopherQualityFilter,
        GopherRepetitionFilter,
    )
    from datatrove.pipeline.readers import JsonlReader
    from datatrove.pipeline.writers import JsonlWriter

    folder, pattern = os.path.split(files)
    LocalPipelineExecutor(
        pipeline=[
            JsonlReader(folder, glob_pattern=pattern),
            GopherRepetitionFilter(),
            GopherQualityFilter(),
            C4QualityFilter(),
            FineWebQualityFilter(),
            JsonlWriter(f"{output}/data", compression=None),
        ],
        logging_dir=f"{output}/logs",
        tasks=len(glob.glob(files)),
        workers=2,
    ).run()


PEERS = {"nemo": run_nemo, "datatrove": run_datatrove}


if __name__ == "__main__":
    main()
