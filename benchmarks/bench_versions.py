"""Is this version as fast as an earlier one? Both run in turns, each in processes of its own.

    git worktree add ../earlier REVISION
    python benchmarks/bench_versions.py --old ../earlier [--only cascade start …]

Measured from outside, after one run of each that fills the caches: the English cascade from files to files with two
workers and its peak memory (PSS of the whole process tree), reading and writing in one process, a command with 1,000
documents. Loss by killed workers and the ratio of Ray Data to the local engine are taken from each version's own
programs. A ratio is new / old of the medians; the spread says how far the rounds of one version lie apart.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil

sys.path.insert(0, str(Path(__file__).parent))

from bench_foundation_small_job import RECIPE
from engine_runs import digest, make_files
from foundation_inputs import ROOT, make_input, save

COPY = """\
import sys
from gristmill.backends.local import LocalExecutor
from gristmill.pipeline import Pipeline
from gristmill.stages.text.io import JsonlReader, JsonlWriter

stages = [JsonlReader(sys.argv[1]), JsonlWriter(sys.argv[2])]
Pipeline("copy", stages=stages).run(executor=LocalExecutor(config={"num_cpus": 0}))
"""

Figures = dict[str, list[float]]


def environment(tree: Path) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(tree / "src")}


def timed(tree: Path, command: list[str]) -> dict[str, float]:
    """Wall seconds and peak memory of a command and all it starts."""
    begun = time.perf_counter()
    process = subprocess.Popen(
        [sys.executable, *command], env=environment(tree), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    root, peak = psutil.Process(process.pid), 0
    while process.poll() is None:
        held = 0
        try:
            for one in [root, *root.children(recursive=True)]:
                held += one.memory_full_info().pss
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            pass  # it ended while it was looked at
        peak = max(peak, held)
        time.sleep(0.02)
    if process.returncode:
        raise SystemExit(f"{' '.join(command)} ended with {process.returncode} on {tree}")
    return {"seconds": time.perf_counter() - begun, "peak_mb": peak / 1e6}


def in_turns(trees: dict[str, Path], rounds: int, work: Callable[[str, Path], dict[str, float]]) -> dict[str, Figures]:
    """The figures of every round of each version, after a first one that does not count."""
    figures: dict[str, Figures] = {name: {} for name in trees}
    for number in range(rounds + 1):
        for name, tree in trees.items():
            for key, value in work(name, tree).items():
                if number:
                    figures[name].setdefault(key, []).append(round(value, 4))
    return figures


def compared(figures: dict[str, Figures]) -> dict[str, Any]:
    """Medians, their ratio and their spread."""
    found: dict[str, Any] = {}
    for key in figures["old"]:
        old, new = (statistics.median(figures[name][key]) for name in ("old", "new"))
        found[key] = {
            "old": figures["old"][key],
            "new": figures["new"][key],
            "ratio": round(new / old, 3),
            "spread": round(max((max(figures[name][key]) / min(figures[name][key])) for name in figures) - 1, 3),
        }
    return found


def own_program(tree: Path, arguments: list[str]) -> dict[str, Any]:
    """What a program of that version prints as its result."""
    program = str(tree / "benchmarks" / arguments[0])
    done = subprocess.run(
        [sys.executable, program, *arguments[1:]], env=environment(tree), check=True, capture_output=True, text=True
    )
    result: dict[str, Any] = json.loads(done.stdout[done.stdout.index("{") :])
    return result


def main() -> None:
    """Measure both versions and keep the ratios."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--old", type=Path, required=True)
    parser.add_argument("--new", type=Path, default=ROOT)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--megabytes", type=float, default=100)
    every = ["cascade", "copy", "start", "kills", "ray"]
    parser.add_argument("--only", nargs="+", choices=every, default=every)
    options = parser.parse_args()
    trees = {"old": options.old.resolve(), "new": options.new.resolve()}
    kept = ROOT / "benchmarks" / "results" / "versions.json"
    result: dict[str, Any] = json.loads(kept.read_text()) if kept.exists() else {}
    result.pop("machine", None)
    for name, tree in trees.items():
        revision = ["git", "-C", str(tree), "rev-parse", "--short", "HEAD"]
        result[name] = subprocess.run(revision, check=True, capture_output=True, text=True).stdout.strip()
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        make_files(folder / "in", megabytes=options.megabytes, files=8)
        make_input(folder / "few" / "in" / "a.jsonl", documents=1000)
        (folder / "recipe.yaml").write_text(RECIPE)
        (folder / "read_and_write.py").write_text(COPY)

        def cascade(name: str, tree: Path) -> dict[str, float]:
            shutil.rmtree(folder / f"cascade-{name}", ignore_errors=True)
            shutil.rmtree(folder / f"cascade-{name}.gristmill", ignore_errors=True)
            return timed(tree, ["-m", "gristmill", "run", "english", f"{folder}/in", f"{folder}/cascade-{name}", "-q"])

        def copy(name: str, tree: Path) -> dict[str, float]:
            shutil.rmtree(folder / f"copy-{name}", ignore_errors=True)
            shutil.rmtree(folder / f"copy-{name}.gristmill", ignore_errors=True)
            return timed(tree, [str(folder / "read_and_write.py"), f"{folder}/in", f"{folder}/copy-{name}"])

        def start(name: str, tree: Path) -> dict[str, float]:
            settings = ["--set", f"folder={folder / 'few'}"]
            return timed(tree, ["-m", "gristmill", "run", "--quiet", str(folder / "recipe.yaml"), *settings])

        if "cascade" in options.only:
            result["cascade"] = compared(in_turns(trees, options.rounds, cascade))
            result["cascade"]["same_bytes"] = digest(folder / "cascade-old") == digest(folder / "cascade-new")
        if "copy" in options.only:
            result["read_and_write"] = compared(in_turns(trees, options.rounds, copy))
            result["read_and_write"]["same_bytes"] = digest(folder / "copy-old") == digest(folder / "copy-new")
        if "start" in options.only:
            result["start_of_1000_documents"] = compared(in_turns(trees, 3 * options.rounds, start))
    if "kills" in options.only:
        found = {name: own_program(tree, ["bench_engine_kills.py", "--seconds", "15"]) for name, tree in trees.items()}
        result["killed_workers"] = {
            name: {key: one[key] for key in ("throughput_lost", "killed", "same_bytes")} for name, one in found.items()
        }
    if "ray" in options.only:
        found = {name: own_program(tree, ["bench_ray_cascade.py", "--rounds", "2"]) for name, tree in trees.items()}
        result["ray_of_local_engine"] = {
            name: {key: one[key] for key in ("of_local_engine", "same_files")} for name, one in found.items()
        }
    save("versions", {**result, "goal": "ratios within the spread of 1"})


if __name__ == "__main__":
    main()
