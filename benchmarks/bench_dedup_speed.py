"""How fast is deduplication, beside Polars on the same files, and what does it cost in memory as the data grows?

    python benchmarks/bench_dedup_speed.py CORPUS [--rounds 3] [--scale 4] [--memory-budget 1GB] [--out FILE.json]

CORPUS holds `corpus-*.jsonl`. Every measurement is a process of its own, from start to exit; the best of the rounds
counts. Wall and processor seconds are both given, because on a busy machine only the latter say anything. Memory is the
peak of PSS over the process tree, in a round of its own. With `--scale N` the same is measured on N copies of the
corpus whose texts differ.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import psutil

_OURS = """
import sys
from gristmill.backends.local import LocalExecutor
from gristmill.stages.deduplication import ExactDeduplicationWorkflow, FuzzyDeduplicationWorkflow
kind, source, output, budget = sys.argv[1:]
config = {"memory_budget": budget} if budget else {}
workflow = {"exact": ExactDeduplicationWorkflow, "fuzzy": FuzzyDeduplicationWorkflow}[kind]
workflow = workflow(input_path=source, output_path=output, perform_removal=True)
result = workflow.run(executor=LocalExecutor(config), progress=False)
print(result.get_metadata("num_removed"))
"""
_POLARS = """
import sys
import polars as pl
source, output = sys.argv[1:]
frame = pl.scan_ndjson(source).with_columns(pl.col("text").hash().alias("_hash"))
kept = frame.unique("_hash", keep="first", maintain_order=True).drop("_hash").collect()
kept.write_ndjson(output)
"""
_START = "import gristmill.stages.deduplication.exact.workflow, polars"


def measure(command: list[str], *, memory: bool = False) -> dict[str, float]:
    """Wall and processor seconds of a process and all that it starts, or instead its peak of PSS.

    Never both at once: to add up PSS the kernel walks the page tables of the processes, which slows them down.
    """
    if not memory:
        return _timed(command)
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    watched = psutil.Process(process.pid)
    peak = 0
    while process.poll() is None:
        peak = max(peak, _tree_pss(watched))
        time.sleep(0.1)
    assert process.returncode == 0, command
    return {"peak_mb": peak / 1e6}


def _timed(command: list[str]) -> dict[str, float]:
    before = os.times()
    begun = time.perf_counter()
    subprocess.run(command, stdout=subprocess.PIPE, check=True)
    wall = time.perf_counter() - begun
    after = os.times()
    spent = after.children_user + after.children_system - before.children_user - before.children_system
    return {"wall_s": wall, "cpu_s": spent}


def _tree_pss(process: psutil.Process) -> int:
    total = 0
    try:
        for one in [process, *process.children(recursive=True)]:
            total += one.memory_full_info().pss
    except (psutil.NoSuchProcess, psutil.AccessDenied):
        pass
    return total


def best(commands: Any, rounds: int) -> dict[str, float]:
    """The best times of several rounds, figure by figure, and the memory of one more."""
    found = [measure(commands()) for _ in range(rounds)]
    times = {key: round(min(one[key] for one in found), 2) for key in found[0]}
    return {**times, "peak_mb": round(measure(commands(), memory=True)["peak_mb"], 1)}


def enlarge(corpus: Path, target: Path, copies: int) -> Path:
    """This many copies of the corpus, each with marked documents, so that copies are not duplicates of each other."""
    target.mkdir(parents=True, exist_ok=True)
    for copy in range(copies):
        for path in sorted(corpus.glob("corpus-*.jsonl")):
            with path.open(encoding="utf-8") as source, (target / f"{copy}-{path.name}").open("w") as sink:
                for line in source:
                    row = json.loads(line)
                    words = row["text"].split(" ")
                    row["text"] = " ".join(f"{word}{copy}" if copy else word for word in words)
                    row["id"] = f"{copy}-{row['id']}"
                    sink.write(json.dumps(row, ensure_ascii=False) + "\n")
    return target


def measure_all(source: str, folder: Path, rounds: int, budget: str) -> dict[str, Any]:
    """All contenders on one set of files."""

    def ours(kind: str) -> Any:
        def command() -> list[str]:
            shutil.rmtree(folder / kind, ignore_errors=True)
            shutil.rmtree(f"{folder / kind}.gristmill", ignore_errors=True)
            return [sys.executable, "-c", _OURS, kind, source, str(folder / kind), budget]

        return command

    polars = [sys.executable, "-c", _POLARS, source, str(folder / "polars.jsonl")]
    return {
        "exact": best(ours("exact"), rounds),
        "fuzzy": best(ours("fuzzy"), rounds),
        "polars_exact": best(lambda: polars, rounds),
    }


def main() -> None:
    """Measure and print one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("corpus", type=Path)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--scale", type=int, default=0)
    parser.add_argument("--memory-budget", default="")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        source = str(arguments.corpus / "corpus-*.jsonl")
        size = sum(path.stat().st_size for path in arguments.corpus.glob("corpus-*.jsonl"))
        result: dict[str, Any] = {
            "input_mb": round(size / 1e6, 1),
            "processors": os.cpu_count(),
            "load": os.getloadavg()[0],
            "start": best(lambda: [sys.executable, "-c", _START], arguments.rounds),
            "once": measure_all(source, folder, arguments.rounds, arguments.memory_budget),
        }
        if arguments.scale:
            large = enlarge(arguments.corpus, folder / "large", arguments.scale)
            result["scale"] = arguments.scale
            result["large"] = measure_all(str(large / "*.jsonl"), folder, arguments.rounds, arguments.memory_budget)
    text = json.dumps(result, indent=2)
    print(text)
    if arguments.out:
        arguments.out.write_text(text + "\n")


if __name__ == "__main__":
    main()
