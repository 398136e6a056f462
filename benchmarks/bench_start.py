"""How much of a command is not its work? Exact deduplication beside a bare Polars script, and a job of 1,000 documents.

    python benchmarks/bench_start.py [--megabytes 200] [--rounds 5] [--old TREE]

The input of the deduplication is made of the real texts in ../shared/data, or of those in tests/data/corpus: whole
documents, a tenth of them once more, in files of 12 MB. Both sides read it, keep one of every group of equal texts and
write the rest; every run is a process of its own, timed from outside, and the sides take turns after a first round that
fills the caches. The small job is `gristmill run english` on 1,000 documents of the shipped sample. With `--old`, an
earlier version's tree takes turns too. Medians and the fastest round are kept; on a busy machine only the latter says
something.

What a deduplication spends: `steps` are its three pipelines, by its own record, `before_and_after` is the rest of the
process. `work` is what reading, hashing and writing take in one process that has everything loaded (the second of two
deduplications in it), shared out to as many workers as there are processors; `but_for_the_work` is all else.

Goals: at most 0.8 s but for the work, at most 1.3 times the Polars script, and 0.6 s for the small job.
"""

from __future__ import annotations

import argparse
import gzip
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

sys.path.insert(0, str(Path(__file__).parent))

from foundation_inputs import ROOT, make_input, save

SHARED = ROOT.parent / "shared" / "data"
TEXTS = (SHARED if SHARED.is_dir() else ROOT / "tests" / "data" / "corpus") / "texts"
FILE_BYTES = 12_000_000
POLARS = """
import sys
import polars as pl
source, output = sys.argv[1:]
pl.scan_ndjson(source).unique("text", keep="first", maintain_order=True).collect().write_ndjson(output)
"""
WORK = """
import sys
from gristmill.backends.local import LocalExecutor
from gristmill.stages.deduplication import ExactDeduplicationWorkflow
for output in sys.argv[2:]:
    workflow = ExactDeduplicationWorkflow(output, sys.argv[1], perform_removal=True)
    result = workflow.run(LocalExecutor({"num_cpus": 0}), progress=False)
print(result.get_metadata("signatures_time") + result.get_metadata("removal_time"))
"""
"""Reading and hashing, reading and writing, in one process."""
Figures = dict[str, list[float]]


def make_corpus(folder: Path, megabytes: float) -> tuple[int, int]:
    """Real documents in files of 12 MB, every tenth of them twice; returns bytes and documents."""
    records: list[dict[str, Any]] = []
    for path in sorted(TEXTS.glob("*.jsonl.gz")):
        with gzip.open(path, "rt", encoding="utf-8") as lines:
            records.extend(json.loads(line) for line in lines)
    folder.mkdir(parents=True)
    size = count = turn = 0
    waiting: list[str] = []
    file = (folder / "part-000.jsonl").open("w", encoding="utf-8")
    while size < megabytes * 1e6:
        for number, record in enumerate(records):
            # From the second time on every text is another one, so that only the planted copies are duplicates.
            text = record["text"] if not turn else f"{turn} {record['text']}"
            line = json.dumps({"id": f"{turn}-{count}", "text": text}, ensure_ascii=False) + "\n"
            waiting = [*waiting, line] if number % 10 == 0 else waiting
            for one in (line, waiting.pop(0)) if len(waiting) > 50 else (line,):
                if file.tell() > FILE_BYTES:
                    file.close()
                    file = (folder / f"part-{int(size // FILE_BYTES):03d}.jsonl").open("w", encoding="utf-8")
                file.write(one)
                size += len(one.encode())
                count += 1
            if size >= megabytes * 1e6:
                break
        turn += 1
    file.close()
    return size, count


def run(command: list[str], tree: Path) -> tuple[float, str]:
    """Wall seconds and output of a process that uses this tree's sources."""
    # Compiled modules may be kept, as on any machine where the packages are installed.
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}
    begun = time.perf_counter()
    done = subprocess.run(
        command, check=True, env={**environment, "PYTHONPATH": str(tree / "src")}, stdout=subprocess.PIPE, text=True
    )
    return time.perf_counter() - begun, done.stdout


def in_turns(rounds: int, sides: dict[str, Callable[[], dict[str, float]]]) -> dict[str, Figures]:
    """The figures of every side in every round but the first."""
    figures: dict[str, Figures] = {name: {} for name in sides}
    for number in range(rounds + 1):
        for name, side in sides.items():
            for key, value in side().items():
                if number:
                    figures[name].setdefault(key, []).append(value)
    return figures


def summary(figures: Figures) -> dict[str, Any]:
    """Median and least of every figure, and all seconds."""
    found = {
        key: {"median": round(statistics.median(values), 3), "least": round(min(values), 3)}
        for key, values in figures.items()
    }
    return {**found, "rounds": [round(one, 3) for one in figures["seconds"]]}


def main() -> None:
    """Measure all and keep the result."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=float, default=200)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--old", type=Path, help="The tree of an earlier version, to be measured in turns.")
    options = parser.parse_args()
    trees = {"ours": ROOT} if options.old is None else {"ours": ROOT, "earlier": options.old.resolve()}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        size, count = make_corpus(folder / "in", options.megabytes)
        make_input(folder / "small.jsonl", documents=1000)
        output = folder / "out"

        def clear() -> None:
            for path in folder.glob("out*"):
                shutil.rmtree(path)

        def gristmill(tree: Path, *arguments: str) -> float:
            clear()
            return run([sys.executable, "-m", "gristmill", *arguments, str(output), "-q"], tree)[0]

        def dedup(tree: Path) -> dict[str, float]:
            seconds = gristmill(tree, "dedup", "exact", str(folder / "in"))
            told = json.loads(Path(f"{output}.gristmill", "deduplication.json").read_text())
            steps = sum(told[f"{step}_time"] for step in ("signatures", "groups", "removal"))
            clear()
            _, alone = run([sys.executable, "-c", WORK, str(folder / "in"), str(output), f"{output}-2"], tree)
            work = float(alone) / (os.cpu_count() or 1)
            parts = {"steps": steps, "before_and_after": seconds - steps, "work": work}
            return {"seconds": seconds, **parts, "but_for_the_work": seconds - work}

        def polars() -> dict[str, float]:
            source, target = str(folder / "in" / "*.jsonl"), str(folder / "polars.jsonl")
            Path(target).unlink(missing_ok=True)
            return {"seconds": run([sys.executable, "-c", POLARS, source, target], ROOT)[0]}

        def small(tree: Path) -> dict[str, float]:
            return {"seconds": gristmill(tree, "run", "english", str(folder / "small.jsonl"))}

        sides: dict[str, Callable[[], dict[str, float]]] = {"polars": polars}
        sides |= {side: lambda tree=tree: dedup(tree) for side, tree in trees.items()}  # type: ignore[misc]
        exact = in_turns(options.rounds, sides)
        gristmill(ROOT, "dedup", "exact", str(folder / "in"))
        kept = sum(path.read_bytes().count(b"\n") for path in output.glob("*.jsonl"))
        assert kept == (folder / "polars.jsonl").read_bytes().count(b"\n"), "the two sides keep different documents"
        jobs = in_turns(2 * options.rounds, {side: lambda tree=tree: small(tree) for side, tree in trees.items()})  # type: ignore[misc]
    ratios = {
        side: {
            of.__name__: round(of(exact[side]["seconds"]) / of(exact["polars"]["seconds"]), 2)
            for of in (statistics.median, min)
        }
        for side in trees
    }
    save(
        "start",
        {
            "input_mb": round(size / 1e6, 1),
            "documents": count,
            "kept": kept,
            "exact": {side: summary(figures) for side, figures in exact.items()},
            "times_polars": ratios,
            "thousand_documents": {side: summary(figures) for side, figures in jobs.items()},
            "goals": {"but_for_the_work": 0.8, "times_polars": 1.3, "thousand_documents": 0.6},
        },
    )


if __name__ == "__main__":
    main()
