"""How fast is a global shuffle beside a plain copy of the same files, and what memory does it take?

    python benchmarks/bench_shuffle.py [--mb 10000] [--budget 1GB] [--rounds 2] [--folder FOLDER] [--out FILE.json]

Writes `--mb` of JSONL (documents of 200 bytes to 40 KB), then in turns copies it (cp and fsync of every file) and
shuffles it with two workers (from start to exit, with fsync of every shard, as in the copy). The floor of a shuffle
larger than its memory is two copies: every byte is written twice and read twice. Before each of them the input is
evicted from the page cache, so that both read it from the disk; one more round, `cached`, has it in memory, where a
copy reads nothing from the disk at all. Memory is the peak that the run itself samples (PSS of the process tree). The
shards of one worker and of two are compared, and processor seconds are measured in a run without workers, on all data
or on 1 GB of it where there is more. Everything is written below FOLDER and removed.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

_SHUFFLE = """
import json, sys
from gristmill.backends.local import LocalExecutor
from gristmill.observe.events import Sample
from gristmill.stages.sharding import ShuffleWorkflow
source, output, workers, budget = sys.argv[1:]
peak = [0]
def watch(event):
    if isinstance(event, Sample):
        peak[0] = max(peak[0], event.memory_bytes)
executor = LocalExecutor({"num_cpus": int(workers), "memory_budget": budget})
result = ShuffleWorkflow(output, source, seed=1).run(executor, listeners=[watch], progress=False)
print(json.dumps({"peak_mb": round(peak[0] / 1e6), "times": result.get_metadata("times"),
                  "documents": result.get_metadata("totals")["documents"]}))
"""
_FILE_MB = 250


def make_input(folder: Path, megabytes: int) -> None:
    """JSONL of random words; every document is different."""
    folder.mkdir(parents=True)
    draw = np.random.default_rng(1)
    words = np.array([f"{word:x}" for word in draw.integers(1 << 12, 1 << 30, 20_000)])
    pool = [" ".join(words[draw.integers(0, len(words), int(size / 8))]) for size in draw.lognormal(7.5, 1.1, 3000)]
    number = 0
    for file in range(-(-megabytes // _FILE_MB)):
        size = min(_FILE_MB, megabytes - file * _FILE_MB) * 1_000_000
        with (folder / f"part-{file:04d}.jsonl").open("wb") as out:
            written = 0
            while written < size:
                lines = []
                for place in draw.integers(0, len(pool), 500).tolist():
                    lines.append(f'{{"id": "d{number}", "text": "{number} {pool[place]}"}}\n')
                    number += 1
                written += out.write("".join(lines).encode())
            out.flush()
            os.fsync(out.fileno())


def sync(folder: Path) -> None:
    """Wait until the files of a folder are on the disk."""
    for path in sorted(folder.glob("*.jsonl")):
        with path.open("rb") as file:
            os.fsync(file.fileno())


def evict(folder: Path) -> None:
    """Drop the files of a folder from the page cache."""
    for path in folder.iterdir():
        with path.open("rb") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def load(folder: Path) -> None:
    """Read the files of a folder into the page cache."""
    for path in folder.iterdir():
        with path.open("rb") as file:
            while file.read(1 << 24):
                pass


def timed(command: list[str], output: Path) -> tuple[dict[str, float], str]:
    """Wall and processor seconds of a command, its files on the disk."""
    before, begun = os.times(), time.perf_counter()
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    sync(output)
    wall, after = time.perf_counter() - begun, os.times()
    spent = after.children_user + after.children_system - before.children_user - before.children_system
    return {"wall_s": round(wall, 2), "cpu_s": round(spent, 2)}, done.stdout


def digest(folder: Path) -> str:
    """A hash of all shards."""
    found = hashlib.blake2b()
    for path in sorted(folder.glob("*.jsonl")):
        with path.open("rb") as file:
            found.update(hashlib.file_digest(file, "blake2b").digest())
    return found.hexdigest()[:32]


def clear(output: Path) -> None:
    """Remove an output with its record."""
    shutil.rmtree(output, ignore_errors=True)
    shutil.rmtree(output.with_name(f"{output.name}.gristmill"), ignore_errors=True)


def shuffle(source: str, output: Path, workers: int, budget: str) -> tuple[dict[str, float], dict[str, Any]]:
    """One shuffle in a process of its own."""
    command = [sys.executable, "-c", _SHUFFLE, source, str(output), str(workers), budget]
    times, told = timed(command, output)
    return times, json.loads(told)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--mb", type=int, default=10_000)
    parser.add_argument("--budget", default="1GB")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--folder")
    parser.add_argument("--out")
    given = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="bench-shuffle-", dir=given.folder))
    try:
        source = folder / "in"
        make_input(source, given.mb)
        size = sum(path.stat().st_size for path in source.iterdir())
        rounds = []
        same = ""
        for prepare in [*[evict] * given.rounds, load]:
            prepare(source)
            copied, _ = timed(["cp", "-r", str(source), str(folder / "copy")], folder / "copy")
            shutil.rmtree(folder / "copy")
            prepare(source)
            shuffled, told = shuffle(str(source), folder / "out", 2, given.budget)
            same = digest(folder / "out") if given.mb <= 1000 else ""
            clear(folder / "out")
            rounds.append(
                {
                    "input": "on disk" if prepare is evict else "cached",
                    "copy": copied,
                    "shuffle": shuffled,
                    "rate_to_copy": round(copied["wall_s"] / shuffled["wall_s"], 3),
                    "shuffle_mb_s": round(size / 1e6 / shuffled["wall_s"], 1),
                    "copy_mb_s": round(size / 1e6 / copied["wall_s"], 1),
                    **told,
                }
            )
            print(json.dumps(rounds[-1]))
        few = sorted(source.iterdir())[: max(1, 1000 // _FILE_MB)]
        compared = str(source) if given.mb <= 1000 else str(folder / "few")
        if given.mb > 1000:
            (folder / "few").mkdir()
            for path in few:
                path.rename(folder / "few" / path.name)
            shuffle(compared, folder / "two", 2, given.budget)
            same = digest(folder / "two")
        shuffle(compared, folder / "one", 1, given.budget)
        alone, _ = shuffle(compared, folder / "none", 0, given.budget)
        result = {
            "input_mb": round(size / 1e6),
            "budget": given.budget,
            "goal": "rate_to_copy >= 0.5, peak_mb <= 1000, the same bytes for 1 and 2 workers",
            "rounds": rounds,
            "rate_to_copy": round(
                statistics.median(one["rate_to_copy"] for one in rounds if one["input"] == "on disk"), 3
            ),
            "rate_to_copy_cached": rounds[-1]["rate_to_copy"],
            "same_bytes_for_1_and_2_workers": digest(folder / "one") == same,
            "compared_mb": min(given.mb, 1000),
            "cpu_s_per_gb": round(alone["cpu_s"] / min(given.mb, 1000) * 1000, 2),
        }
        print(json.dumps(result, indent=2))
        if given.out:
            Path(given.out).write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
