"""What does the report of a run cost: the page that every run leaves, and the one made from a whole record?

Runs the recipe `english` in this process over documents made from the shipped sample (cut short, under ids of their
own), and measures the processor time of the run and of the report at its end; for a thousand documents in a new process
each, as a user's run is, for many as a share of the run. Then `gristmill report` in a new process: seconds, peak of
memory and bytes of the page, for decisive scores and for all scores.

    python benchmarks/bench_report.py --documents 1000000
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
RESULTS = Path(__file__).parent / "results" / "report.json"
SAMPLE = ROOT / "src" / "gristmill" / "recipes" / "sample" / "sample.jsonl.gz"
FILES = 20


def corpus(folder: Path, documents: int, *, chars: int, files: int) -> Path:
    """The shipped sample, repeated."""
    folder.mkdir()
    with gzip.open(SAMPLE, "rt", encoding="utf-8") as file:
        texts = [json.loads(line)["text"][:chars] for line in file]
    for part in range(files):
        with (folder / f"part-{part:03}.jsonl").open("w", encoding="utf-8") as file:
            for number in range(part, documents, files):
                record = {"id": f"doc-{number:08}", "language": "en", "text": texts[number % len(texts)]}
                file.write(json.dumps(record, ensure_ascii=False) + "\n")
    return folder


def measured_run(source: str, output: str, scores: str) -> dict[str, Any]:
    """One run in this process; the processor time of all of it, and of the report."""
    from gristmill.backends.local import LocalExecutor
    from gristmill.recipes.loader import find_recipe, load_recipe

    recipe = load_recipe(find_recipe("english"), variables={"input_path": source, "output_path": output})
    pipeline = recipe.pipeline()
    begun = time.process_time()
    pipeline.run(executor=LocalExecutor({"num_cpus": 0}), scores=scores, progress=False, report=False)
    run_s = time.process_time() - begun
    begun = time.process_time()
    # As the end of a run does it: with the import of what only the report needs.
    from gristmill.ledger.record.layout import RunFolder
    from gristmill.observe.events import EventStream
    from gristmill.report.page import write_after_run

    write_after_run(RunFolder(output), EventStream())
    report_s = time.process_time() - begun
    return {"run_s": round(run_s, 4), "report_s": round(report_s, 4), "share": round(report_s / run_s, 4)}


def in_new_process(*arguments: str) -> dict[str, Any]:
    """The result of `measured_run` in a separate process."""
    command = [sys.executable, __file__, "--measure", *arguments]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"The measured run ended with {done.returncode}:\n{done.stderr}")
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def whole_report(output: Path) -> dict[str, Any]:
    """`gristmill report` in a new process."""
    begun = time.perf_counter()
    child = subprocess.Popen(
        [sys.executable, "-m", "gristmill", "report", str(output), "--json"], stdout=subprocess.PIPE, text=True
    )
    assert child.stdout is not None
    answer = json.loads(child.stdout.read())
    _, status, used = os.wait4(child.pid, 0)
    assert status == 0, answer
    return {
        "wall_s": round(time.perf_counter() - begun, 2),
        "processor_s": round(used.ru_utime + used.ru_stime, 2),
        "peak_mb": round(used.ru_maxrss / 1000),
        "page_bytes": answer["bytes"],
    }


def main() -> None:
    """Measure, show and keep the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--documents", type=int, default=1_000_000)
    parser.add_argument("--scored-documents", type=int, default=200_000, help="for the run with all scores")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--measure", nargs=3, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.measure:
        print(json.dumps(measured_run(*given.measure)))
        return
    result: dict[str, Any] = {"limits": {"small_report_s": 0.03, "share": 0.02, "whole_wall_s": 10, "page_bytes": 5e6}}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        small = corpus(folder / "small", 1000, chars=100_000, files=1)
        runs = [in_new_process(str(small), str(folder / f"small-{n}"), "decisive") for n in range(given.repeats + 1)]
        best = min(runs[1:], key=lambda one: one["report_s"])  # the first one may compile
        result["small"] = {"documents": 1000, **best}
        for kind, number, scores in (
            ("large", given.documents, "decisive"),
            ("all_scores", given.scored_documents, "all"),
        ):
            source = corpus(folder / kind, number, chars=400, files=FILES)
            output = folder / f"{kind}-out"
            run = in_new_process(str(source), str(output), scores)
            result[kind] = {"documents": number, **run, "whole": whole_report(output)}
    print(json.dumps(result, indent=2))
    RESULTS.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
