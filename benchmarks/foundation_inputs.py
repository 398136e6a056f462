"""Inputs and clocks shared by the benchmarks of the foundation: real documents, repeated; wall and processor time."""

from __future__ import annotations

import gzip
import json
import os
import platform
import resource
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
SAMPLE = ROOT / "src" / "gristmill" / "recipes" / "sample" / "sample.jsonl.gz"
RESULTS = ROOT / "benchmarks" / "results"


def sample_lines() -> list[bytes]:
    """The shipped documents, one JSON line each."""
    return gzip.decompress(SAMPLE.read_bytes()).splitlines()


def make_input(path: Path, megabytes: float | None = None, documents: int | None = None) -> tuple[int, int]:
    """Write real documents to `path` until it has this size or number; returns bytes and documents."""
    lines = sample_lines()
    size = count = 0
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        while (megabytes is not None and size < megabytes * 1e6) or (documents is not None and count < documents):
            line = lines[count % len(lines)] + b"\n"
            file.write(line)
            size += len(line)
            count += 1
    return size, count


def _processor_seconds() -> float:
    own, children = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return own.ru_utime + own.ru_stime + children.ru_utime + children.ru_stime


def best_of(times: int, *works: Callable[[], object]) -> list[dict[str, float]]:
    """The best wall and processor seconds of each work; they take turns, so that a busy moment hits all alike."""
    best = [{"wall_s": float("inf"), "cpu_s": float("inf")} for _ in works]
    for _ in range(times):
        for place, work in enumerate(works):
            wall, cpu = time.perf_counter(), _processor_seconds()
            work()
            best[place]["wall_s"] = min(best[place]["wall_s"], time.perf_counter() - wall)
            best[place]["cpu_s"] = min(best[place]["cpu_s"], _processor_seconds() - cpu)
    return [{key: round(value, 4) for key, value in one.items()} for one in best]


def save(name: str, result: dict[str, Any]) -> None:
    """Keep the result beside the program, with what is known of the machine, and print it."""
    facts = {
        "cpus": os.cpu_count(),
        "load_1m": round(os.getloadavg()[0], 1),
        "python": platform.python_version(),
        "machine": platform.machine(),
    }
    text = json.dumps({**result, "machine": facts}, indent=2) + "\n"
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / f"{name}.json").write_text(text)
    print(text, end="")
