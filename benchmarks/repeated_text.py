"""Corpora with planted lines and passages for the benchmarks of repeated text, and processes with their cost."""

from __future__ import annotations

import json
import os
import random
import resource
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

POOL = Path(__file__).resolve().parent.parent.parent / "shared" / "data"


def build_corpus(pool: Path, folder: Path, megabytes: float) -> list[Path]:
    """Real documents without planted copies of whole ones; returns the files."""
    options: dict[str, object] = {
        "pool": pool,
        "out": folder,
        "mb": megabytes,
        "seed": 19,
        "exact": 0.02,
        "near": 0,
        "garbage": 0.02,
    }
    options["shard-mb"] = 32
    given = [text for name, value in options.items() for text in (f"--{name}", str(value))]
    subprocess.run([sys.executable, str(pool / "build_corpus.py"), *given], check=True, stdout=subprocess.DEVNULL)
    return sorted(folder.glob("corpus-*.jsonl"))


def plant(files: list[Path], pieces: list[str], *, share: float, seed: int = 7) -> int:
    """Put one of the pieces on a line of its own into a share of the documents; returns how many were planted."""
    rng = random.Random(seed)
    planted = 0
    for path in files:
        rows = [json.loads(line) for line in path.open("rb")]
        with path.open("w", encoding="utf-8") as sink:
            for row in rows:
                if rng.random() < share:
                    lines = row["text"].split("\n")
                    lines.insert(rng.randint(0, len(lines)), rng.choice(pieces))
                    row["text"] = "\n".join(lines)
                    planted += 1
                sink.write(json.dumps(row, ensure_ascii=False) + "\n")
    return planted


def texts_of(files: list[Path]) -> dict[str, str]:
    """The texts by id, in source order."""
    return {row["id"]: row["text"] for path in files for row in map(json.loads, path.open("rb"))}


def measured(command: list[str]) -> dict[str, float]:
    """Wall and processor seconds of a process with its children, and the highest memory of all of them (PSS)."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    begun = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    peak = [0]
    watch = threading.Thread(target=_watch, args=(process, peak), daemon=True)
    watch.start()
    _, errors = process.communicate()
    wall = time.perf_counter() - begun
    watch.join()
    if process.returncode:
        sys.exit(f"{' '.join(command)} failed:\n{errors.decode()[-3000:]}")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return {"wall_s": round(wall, 2), "cpu_s": round(cpu, 2), "peak_mb": round(peak[0] / 1e6)}


def _watch(process: subprocess.Popen[bytes], peak: list[int]) -> None:
    import psutil  # not in the environments of peers, which import this module too

    while process.poll() is None:
        total = 0
        try:
            tree = psutil.Process(process.pid)
            for one in [tree, *tree.children(recursive=True)]:
                with open(f"/proc/{one.pid}/smaps_rollup", encoding="ascii") as rollup:
                    total += next(int(line.split()[1]) << 10 for line in rollup if line.startswith("Pss:"))
        except (psutil.Error, OSError, StopIteration):
            pass
        peak[0] = max(peak[0], total)
        time.sleep(0.2)


def gristmill(kind: str, source: Path, output: Path, *options: str) -> list[str]:
    """The command that deduplicates a corpus in one process."""
    files = str(source / "corpus-*.jsonl")
    return [sys.executable, "-m", "gristmill", "dedup", kind, files, str(output), "-q", "--workers", "0", *options]


def speed(files: list[Path], cost: dict[str, float]) -> dict[str, Any]:
    """A cost with the MB of text and JSON that each second of a processor and of the clock got through."""
    size = sum(os.path.getsize(path) for path in files) / 1e6
    return {**cost, "mb_per_cpu_s": round(size / cost["cpu_s"], 1), "mb_per_wall_s": round(size / cost["wall_s"], 1)}
