"""How fast are the compiled passes of the English cascade alone, on one processor?

Measures, on texts held in memory: every statistic of the 28 filters on every document (goal: 40 MB/s), the statistics
of characters alone on ASCII (goal: 150 MB/s), a byte of a document of 1 MB against a byte of one of 2 kB (goal: at most
1.3 times), the whole cascade against its most expensive filter alone (goal: at most 3 times), and the first use with an
empty cache of kernels (goal: 30 s).

    python benchmarks/bench_filters_kernels.py --files 'CORPUS/*.jsonl' [--megabytes 24]
"""

from __future__ import annotations

import argparse
import glob
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa

ROOT = Path(__file__).resolve().parent.parent
RESULT = ROOT / "benchmarks" / "results" / "filters_kernels.json"

FIRST_USE = """
import time
begun = time.perf_counter()
import pyarrow as pa
from gristmill.recipes.loader import load_recipe
from gristmill.recipes.loader import find_recipe
recipe = load_recipe(find_recipe("english"), variables={"input_path": "in", "output_path": "out"})
for stage in recipe.pipeline().stages:
    stage.warm_up()
print(time.perf_counter() - begun)
"""


def main() -> None:
    """Measure everything and keep it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--files", required=True)
    parser.add_argument("--megabytes", type=float, default=24)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    from gristmill.kernels.text_characters import character_counts
    from gristmill.kernels.text_column import text_column
    from gristmill.stages.text.filters.cascade import FilterCascade

    texts = list(real_texts(options.files, int(options.megabytes * 1e6)))
    size = sum(len(text.encode()) for text in texts) / 1e6
    column = text_column(pa.array(texts, pa.large_string()))
    filters = english_filters()
    cascade = FilterCascade(filters)
    every = best(options.rounds, lambda: cascade.evaluate(column, every_score=True))
    alone = {
        f"{one.name}": best(options.rounds, lambda one=one: FilterCascade([one]).evaluate(column)) for one in filters
    }
    dearest = max(alone, key=lambda name: alone[name])
    fused = best(options.rounds, lambda: cascade.evaluate(column))

    plain = [text.encode("ascii", "ignore").decode() for text in texts]
    ascii_column = text_column(pa.array(plain, pa.large_string()))
    ascii_size = sum(map(len, plain)) / 1e6
    living = ascii_column_mask(len(plain))
    characters = best(options.rounds, lambda: character_counts(ascii_column, living))

    joined = "\n\n".join(texts)
    pieces = {length: cut(joined, length) for length in (2_000, 1_000_000)}
    per_byte = {}
    for length, documents in pieces.items():
        whole = text_column(pa.array(documents, pa.large_string()))
        seconds = best(options.rounds, lambda whole=whole: cascade.evaluate(whole, every_score=True))
        per_byte[length] = seconds / sum(len(document.encode()) for document in documents)
    result: dict[str, Any] = {
        "machine": {
            "cpus": os.cpu_count(),
            "load_1m": round(os.getloadavg()[0], 1),
            "python": platform.python_version(),
        },
        "megabytes": round(size, 1),
        "every_statistic_mb_per_s": round(size / every, 1),
        "characters_ascii_mb_per_s": round(ascii_size / characters, 1),
        "long_over_short_per_byte": round(per_byte[1_000_000] / per_byte[2_000], 3),
        "cascade_mb_per_s": round(size / fused, 1),
        "dearest_filter": dearest,
        "cascade_over_dearest_filter": round(fused / alone[dearest], 2),
        "every_score_over_dearest_filter": round(every / alone[dearest], 2),
        "first_use_s": round(first_use(), 1),
        "goals": {
            "every_statistic_mb_per_s": 40,
            "characters_ascii_mb_per_s": 150,
            "long_over_short_per_byte": 1.3,
            "cascade_over_dearest_filter": 3,
            "first_use_s": 30,
        },
    }
    RESULT.write_text(json.dumps(result, indent=2) + "\n")
    print(json.dumps(result, indent=2))


def real_texts(files: str, limit: int) -> Iterator[str]:
    """The first texts of the corpus, up to this many bytes."""
    taken = 0
    for path in sorted(glob.glob(files)):
        with open(path, "rb") as lines:
            for line in lines:
                text = orjson.loads(line)["text"]
                if taken >= limit:
                    return
                if text:
                    taken += len(text.encode())
                    yield text


def english_filters() -> list[Any]:
    """The filters of the shipped recipe, in their order."""
    from gristmill.recipes.loader import find_recipe, load_recipe

    recipe = load_recipe(find_recipe("english"), variables={"input_path": "in", "output_path": "out"})
    return [one for stage in recipe.pipeline().stages for one in getattr(stage, "filter_obj", ())]


def ascii_column_mask(rows: int) -> Any:
    """A mask with every document in it."""
    import numpy as np

    return np.ones(rows, dtype=np.bool_)


def cut(text: str, length: int) -> list[str]:
    """The text in pieces of a length."""
    return [text[start : start + length] for start in range(0, len(text) - length, length)]


def best(rounds: int, work: Callable[[], object]) -> float:
    """The shortest of several timings, after one that is not counted."""
    work()
    times = []
    for _ in range(rounds):
        begun = time.perf_counter()
        work()
        times.append(time.perf_counter() - begun)
    return min(times)


def first_use() -> float:
    """Seconds until the kernels of the cascade are there, in a process that finds none in its cache."""
    with tempfile.TemporaryDirectory() as folder:
        environment = {**os.environ, "NUMBA_CACHE_DIR": folder}
        done = subprocess.run(
            [sys.executable, "-c", FIRST_USE], check=True, capture_output=True, text=True, env=environment
        )
    return float(done.stdout.split()[-1])


if __name__ == "__main__":
    main()
