"""Adding a snapshot to an index, beside one run over everything.

    python benchmarks/bench_dedup_incremental.py CORPUS

CORPUS holds `corpus-*.jsonl` as build_corpus.py writes them. The last tenth of its lines is the new snapshot. Measured
are one fuzzy deduplication of everything, and the run that adds the snapshot to an index of the rest, each in one
process (wall and processor time). Goals: at most 0.15 of the full run, and the same survivors. Both include the start
of the process, which is most of an addition to a small corpus; `cpu_share_without_start` leaves out what a run over
fifty documents takes. Takes about a minute for 300 MB and writes results/dedup_incremental.json.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

SHARE = 0.1


def main() -> None:
    """Measure and save."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("corpus", type=Path)
    options = parser.parse_args()
    sys.path.insert(0, str(Path(__file__).parent))
    from foundation_inputs import save

    with tempfile.TemporaryDirectory() as folder:
        save("dedup_incremental", measure(options.corpus, Path(folder)))


def measure(corpus: Path, folder: Path) -> dict[str, Any]:
    """One run over everything, one over the rest, and one that adds the snapshot."""
    lines = [line for path in sorted(corpus.glob("corpus-*.jsonl")) for line in path.open(encoding="utf-8")]
    assert lines, f"{corpus} holds no corpus-*.jsonl"
    cut = round(len(lines) * (1 - SHARE))
    for name, part in (("s0", lines[:cut]), ("s1", lines[cut:])):
        for place in (folder / name / "part.jsonl", folder / "all" / name / "part.jsonl"):
            place.parent.mkdir(parents=True)
            place.write_text("".join(part), encoding="utf-8")
    (folder / "warm").mkdir()
    (folder / "warm" / "a.jsonl").write_text("".join(lines[:50]), encoding="utf-8")
    call("index", "create", str(folder / "warm-index"))
    dedup(folder, "warm", "warm-out", "--against", str(folder / "warm-index"))  # compiles
    call("index", "create", str(folder / "start-index"))
    start = dedup(folder, "warm", "start-out", "--against", str(folder / "start-index"))
    full = dedup(folder, "all", "full")
    call("index", "create", str(folder / "index"))
    first = dedup(folder, "s0", "o0", "--against", str(folder / "index"))
    added = dedup(folder, "s1", "o1", "--against", str(folder / "index"))
    survivors = (kept(folder / "o0") | kept(folder / "o1")) - set(added["facts"]["retracted"])
    size = sum(len(line.encode()) for line in lines)
    return {
        "corpus_mb": round(size / 1e6, 1),
        "documents": len(lines),
        "new_documents": len(lines) - cut,
        "start": figures(start),
        "full": figures(full),
        "first_snapshot": figures(first),
        "added_snapshot": figures(added),
        "retracted": added["facts"]["num_retracted"],
        "survivors": len(survivors),
        "survivors_equal": survivors == kept(folder / "full"),
        "wall_share": round(added["wall_s"] / full["wall_s"], 3),
        "cpu_share": round(added["cpu_s"] / full["cpu_s"], 3),
        "cpu_share_without_start": round((added["cpu_s"] - start["cpu_s"]) / (full["cpu_s"] - start["cpu_s"]), 3),
        "goal_share": 0.15,
    }


def call(*arguments: str) -> str:
    """Run a command of ours; what it prints."""
    return subprocess.run(
        [sys.executable, "-m", "gristmill", *arguments], check=True, capture_output=True, text=True
    ).stdout


def dedup(folder: Path, source: str, output: str, *options: str) -> dict[str, Any]:
    """Deduplicate in one process."""
    before, begun = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    arguments = ("dedup", "fuzzy", str(folder / source), str(folder / output), "--workers", "0", "--json", *options)
    facts = json.loads(call(*arguments))
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return {"facts": facts, "wall_s": time.perf_counter() - begun, "cpu_s": used}


def figures(run: dict[str, Any]) -> dict[str, Any]:
    """What is kept of a run."""
    steps = {key: round(value, 2) for key, value in run["facts"].items() if key.endswith("_time")}
    return {"wall_s": round(run["wall_s"], 2), "cpu_s": round(run["cpu_s"], 2), **steps}


def kept(folder: Path) -> set[str]:
    """The ids of the documents in an output."""
    rows = (json.loads(line) for path in folder.rglob("*.jsonl") for line in path.open(encoding="utf-8"))
    return {row["id"] for row in rows}


if __name__ == "__main__":
    main()
