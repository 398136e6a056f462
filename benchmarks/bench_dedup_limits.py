"""What deduplication can take: much data in little memory, a million copies, one huge document; and how fast it hashes.

    python benchmarks/bench_dedup_limits.py CORPUS [--parts exact copies document signatures] [--gigabytes 4]

CORPUS holds `corpus-*.jsonl`. The parts, each of whose runs is a process of its own:

- exact: some gigabytes, made of copies of the corpus that differ, within a budget of 1 GB. The peak is that of PSS
  over the process tree, taken in a run of its own. Goals: at most the budget, and in every copy as many removals.
- copies: a million copies of one document by fuzzy deduplication, and a quarter of that. Goals: one comparison for
  each copy, and at most 4.4 times the time for four times the copies.
- document: a document of 100 MB and one that differs from it in a few words, by fuzzy deduplication. Goal: one goes.
- signatures: shingles and signatures of 140 hashes (and of 112) by the kernel alone, on one processor, and by the stage
  in a run, from its busy time in run.json. Goal: 60 MB of text a second and processor.

Takes about four minutes with a corpus of 200 MB on two processors and 13 GB of disk, and writes
results/dedup_limits.json; parts that are not requested keep their earlier results.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from bench_dedup_speed import measure
from foundation_inputs import RESULTS, save

RUN = """
import json, sys
from gristmill.backends.local import LocalExecutor
from gristmill.stages.deduplication import ExactDeduplicationWorkflow, FuzzyDeduplicationWorkflow
kind, source, output, budget, facts = sys.argv[1:]
config = {"memory_budget": budget} if budget else {}
workflow = {"exact": ExactDeduplicationWorkflow, "fuzzy": FuzzyDeduplicationWorkflow}[kind]
workflow = workflow(input_path=source, output_path=output, perform_removal=True)
result = workflow.run(executor=LocalExecutor(config), progress=False)
wanted = ("documents", "num_removed", "pairs_compared")
open(facts, "w").write(json.dumps({name: result.get_metadata(name) for name in wanted}))
"""
BUDGET = "1GB"
BUDGET_MB = 1000.0
MOST_GROWTH = 4.4
LEAST_RATE = 60.0


def run(kind: str, source: str, folder: Path, *, budget: str = "", memory: bool = False) -> dict[str, Any]:
    """Seconds or peak of one run, and its result."""
    output, facts = folder / "output", folder / "facts.json"
    shutil.rmtree(output, ignore_errors=True)
    shutil.rmtree(f"{output}.gristmill", ignore_errors=True)
    found = measure([sys.executable, "-c", RUN, kind, source, str(output), budget, str(facts)], memory=memory)
    return {**{key: round(value, 2) for key, value in found.items()}, **json.loads(facts.read_text())}


def copies_of(corpus: Path, target: Path, count: int) -> int:
    """This many copies of the corpus, each document marked with the number of its copy; returns the bytes.

    The mark is put into the lines as they are, file by file, so a copy is made as fast as it is written.
    """
    target.mkdir()
    size = 0
    for copy in range(count):
        for path in sorted(corpus.glob("corpus-*.jsonl")):
            lines = path.read_bytes()
            marked = lines.replace(b'"text": "', b'"text": "copy %d ' % copy).replace(b'"id": "', b'"id": "%d-' % copy)
            assert len(marked) > len(lines), f'{path} has no "text": "…" to mark'
            size += (target / f"{copy:02d}-{path.name}").write_bytes(marked)
    return size


def exact(corpus: Path, folder: Path, options: Any) -> dict[str, Any]:
    """Many times the corpus within the budget."""
    once = sum(path.stat().st_size for path in corpus.glob("corpus-*.jsonl"))
    count = max(2, round(options.gigabytes * 1e9 / once))
    single = run("exact", str(corpus / "corpus-*.jsonl"), folder)
    begun = time.perf_counter()
    size = copies_of(corpus, folder / "copies", count)
    made = time.perf_counter() - begun
    timed = run("exact", str(folder / "copies"), folder, budget=BUDGET)
    peak = run("exact", str(folder / "copies"), folder, budget=BUDGET, memory=True)["peak_mb"]
    return {
        "input_mb": round(size / 1e6, 1),
        "copies": count,
        "seconds_to_make_copies": round(made, 1),
        "memory_budget": BUDGET,
        **timed,
        "mb_per_s": round(size / 1e6 / timed["wall_s"], 1),
        "peak_mb": peak,
        "peak_by_budget": round(peak / BUDGET_MB, 2),
        "removed_in_one_copy": single["num_removed"],
        "as_many_in_each_copy": timed["num_removed"] == count * single["num_removed"],
    }


def copies(corpus: Path, folder: Path, options: Any) -> dict[str, Any]:
    """A million copies of one document, beside a quarter of that."""
    del corpus
    result: dict[str, Any] = {}
    text = " ".join(f"word{number}" for number in range(60))
    for name, count in (("quarter", options.copies // 4), ("all", options.copies)):
        source = folder / name
        source.mkdir()
        for part in range(4):
            share = range(part * count // 4, (part + 1) * count // 4)
            lines = "".join(f'{{"id": "{number}", "text": "{text}"}}\n' for number in share)
            (source / f"{part}.jsonl").write_text(lines)
        result[name] = run("fuzzy", str(source), folder)
    growth = result["all"]["wall_s"] / result["quarter"]["wall_s"]
    return {
        **result,
        "comparisons_per_copy": round(result["all"]["pairs_compared"] / result["all"]["documents"], 6),
        "growth_of_time": round(growth, 2),
        "growth_goal": MOST_GROWTH,
        "growth_by_goal": round(growth / MOST_GROWTH, 2),
    }


def document(corpus: Path, folder: Path, options: Any) -> dict[str, Any]:
    """One huge document, and one that is nearly the same."""
    del corpus
    source = folder / "huge"
    source.mkdir()
    size = round(options.document_mb * 1e6)
    # Words of eleven letters with the space; all of them differ, so that nothing repeats.
    words = [f"w{number:09d}" for number in range(size // 11)]
    for name in ("a", "b"):
        if name == "b":
            words[:: max(1, len(words) // 20)] = ["other"] * len(words[:: max(1, len(words) // 20)])
        (source / f"{name}.jsonl").write_text(json.dumps({"id": name, "text": " ".join(words)}) + "\n")
    timed = run("fuzzy", str(source), folder)
    peak = run("fuzzy", str(source), folder, memory=True)["peak_mb"]
    return {"document_mb": options.document_mb, **timed, "peak_mb": peak, "one_goes": timed["num_removed"] == 1}


KERNEL = """
import glob, json, sys, time
import numpy as np, orjson, pyarrow as pa
from gristmill.kernels.minhash import band_hashes, hash_factors
from gristmill.kernels.shingles import WORDS, word_tables
from gristmill.kernels.text_column import text_column
lines = (line for path in sorted(glob.glob(sys.argv[1]))[:4] for line in open(path, "rb"))
data, offsets, _ = text_column(pa.array([orjson.loads(line)["text"] for line in lines], pa.large_string()))
rates, nothing = {}, np.empty(0, np.uint32)
for bands, rows in ((20, 7), (14, 8)):
    seconds = []
    for _ in range(6):
        begun = time.process_time()
        band_hashes(data, offsets, *word_tables(), 5, WORDS, *hash_factors(bands * rows, 42), bands, rows, nothing)
        seconds.append(time.process_time() - begun)
    rates[str(bands * rows)] = round(len(data) / 1e6 / min(seconds[1:]), 1)
print(json.dumps(rates))
"""


def signatures(corpus: Path, folder: Path, options: Any) -> dict[str, Any]:
    """Megabytes of text a second, by the kernel and by the stage."""
    del options
    pattern = str(corpus / "corpus-*.jsonl")
    done = subprocess.run([sys.executable, "-c", KERNEL, pattern], check=True, stdout=subprocess.PIPE)
    kernel = json.loads(done.stdout)
    size = sum(sum(map(len, texts_of(path))) for path in sorted(corpus.glob("corpus-*.jsonl")))
    rates = []
    for _ in range(3):
        run("fuzzy", pattern, folder)
        record = json.loads((folder / "output.gristmill/steps/signatures/_gristmill/run.json").read_text())
        (busy,) = (stage["busy_seconds"] for stage in record["stages"] if stage["stage"] == "minhashes")
        rates.append(size / 1e6 / busy)
    return {
        "text_mb": round(size / 1e6, 1),
        "kernel_mb_per_s_by_hashes": kernel,
        "stage_mb_per_s": [round(rate, 1) for rate in rates],
        "goal": LEAST_RATE,
        "kernel_by_goal": round(min(kernel.values()) / LEAST_RATE, 2),
        "stage_by_goal": round(max(rates) / LEAST_RATE, 2),
    }


def texts_of(path: Path) -> Iterator[bytes]:
    """The texts of a file in UTF-8."""
    with path.open("rb") as file:
        for line in file:
            yield json.loads(line)["text"].encode()


PARTS = {"exact": exact, "copies": copies, "document": document, "signatures": signatures}


def main() -> None:
    """Measure the parts that are asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("corpus", type=Path)
    parser.add_argument("--parts", nargs="+", choices=list(PARTS), default=list(PARTS))
    parser.add_argument("--gigabytes", type=float, default=4.0)
    parser.add_argument("--copies", type=int, default=1_000_000)
    parser.add_argument("--document-mb", type=float, default=100.0)
    options = parser.parse_args()
    place = RESULTS / "dedup_limits.json"
    result: dict[str, Any] = json.loads(place.read_text()) if place.exists() else {}
    for part in options.parts:
        with tempfile.TemporaryDirectory() as folder:
            result[part] = PARTS[part](options.corpus, Path(folder), options)
    save("dedup_limits", result)


if __name__ == "__main__":
    main()
