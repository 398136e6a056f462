"""Files to files on two processors: the English cascade against NeMo Curator, the published sets against datatrove.

    python benchmarks/bench_filters_speed.py --files 'CORPUS/*.jsonl' [--nemo PYTHON] [--datatrove PYTHON]

Wall time from the start of a process to its exit, with compiled kernels: our median against the one run of the peer.
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
import statistics
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
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--recipes", nargs="+", choices=["english", "web"], default=["english", "web"])
    parser.add_argument("--role", choices=["driver", *PEERS], default="driver")
    parser.add_argument("--output", default="")
    options = parser.parse_args()
    if options.role != "driver":
        PEERS[options.role](options.files, options.output)
        return
    size = sum(os.path.getsize(path) for path in glob.glob(options.files))
    result: dict[str, Any] = json.loads(RESULT.read_text()) if RESULT.exists() else {}
    if result.get("bytes") != size:
        result = {"bytes": size, "files": len(glob.glob(options.files))}
    peers = {"english": ("nemo", options.nemo), "web": ("datatrove", options.datatrove)}
    for recipe in options.recipes:
        with tempfile.TemporaryDirectory() as folder:
            result[recipe] = measure(recipe, options, folder, size, *peers[recipe])
        RESULT.write_text(json.dumps(result, indent=2) + "\n")
    print(json.dumps(result, indent=2))


def measure(recipe: str, options: Any, folder: str, size: int, peer: str, python: str | None) -> dict[str, Any]:
    """Our times before and after the peer's one, so that a machine that changes its pace shows in them."""

    def ours() -> float:
        shutil.rmtree(f"{folder}/ours", ignore_errors=True)
        shutil.rmtree(f"{folder}/ours.gristmill", ignore_errors=True)
        return timed([sys.executable, "-m", "gristmill", "run", recipe, options.files, f"{folder}/ours", "-q"])

    ours()
    times = [ours() for _ in range(options.rounds)]
    found: dict[str, Any] = {}
    if python:
        output = f"{folder}/{peer}"
        found["seconds"] = timed([python, __file__, "--role", peer, "--files", options.files, "--output", output])
        times += [ours() for _ in range(options.rounds)]
        # The median: a peer that runs once has no best round either.
        found["times_ours"] = round(found["seconds"] / statistics.median(times), 1)
        found["seconds"] = round(found["seconds"], 2)
        found.update(compare(f"{folder}/ours", output))
    return {
        "machine": machine(),
        "seconds": [round(value, 3) for value in times],
        "best": round(min(times), 3),
        "median": round(statistics.median(times), 3),
        "mb_per_s": round(size / 1e6 / min(times), 1),
        **({peer: found} if found else {}),
    }


def timed(command: list[str]) -> float:
    begun = time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return time.perf_counter() - begun


def compare(ours: str, theirs: str) -> dict[str, int]:
    """How many documents each side kept, how many only one of them did, and how many of these ties do not explain."""
    import orjson

    def texts(folder: str) -> dict[str, str]:
        found = Path(folder).rglob("*.jsonl")
        paths = [path for path in found if not any(part.endswith(".gristmill") for part in path.parts)]
        records = (orjson.loads(line) for path in paths for line in path.read_bytes().splitlines())
        return {record["id"]: record["text"] for record in records}

    here, there = texts(ours), texts(theirs)
    different = {**here, **there}.items()
    return {
        "kept_here": len(here),
        "kept_there": len(there),
        "only_here": len(here.keys() - there.keys()),
        "only_there": len(there.keys() - here.keys()),
        "not_explained_by_ties": sum(
            not undecided(text) for name, text in different if (name in here) != (name in there)
        ),
    }


def undecided(text: str) -> bool:
    """Whether it depends on the choice among equally frequent n-grams if the cascade keeps a text."""
    limits = {2: 0.2, 3: 0.18, 4: 0.16}
    words = text.split()
    least, greatest = [], []
    for n, limit in limits.items():
        counts = Counter(zip(*(words[start:] for start in range(n)), strict=False))
        most = max(counts.values(), default=0)
        ties = [" ".join(ngram) for ngram, count in counts.items() if count == most]
        shares = [(len(text) - len(text.replace(ngram, ""))) / len(text) for ngram in ties] or [1.0]
        least.append(min(shares) <= limit)
        greatest.append(max(shares) > limit)
    return all(least) and any(greatest)


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
