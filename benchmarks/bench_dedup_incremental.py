"""Adding a snapshot to an index, beside one run over everything.

    python benchmarks/bench_dedup_incremental.py CORPUS [--rounds 3]

CORPUS holds `corpus-*.jsonl` as build_corpus.py writes them; 3 GB or more: the start of a run takes half a second
however little it reads, which is a sixth of a run over 400 MB. The benchmark needs five times as much disk. The last
tenth of the documents is the new snapshot. Measured are one fuzzy deduplication of everything, and the run that adds
the snapshot to an index of the rest, in turns, each in one process (wall and processor time; the lowest of all rounds
counts). Goals: at most 0.15 of the full run, and the same survivors.

`cpu_share` includes the start of the process on both sides. `cpu_share_without_start` subtracts what it takes to add
200 documents, half of them edited copies, to an index of 2,000: imports, loading kernels and the set-up of the steps,
which do not depend on the size of the corpus. Writes results/dedup_incremental.json.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
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
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    sys.path.insert(0, str(Path(__file__).parent))
    from foundation_inputs import save

    with tempfile.TemporaryDirectory(dir=options.corpus) as folder:
        save("dedup_incremental", measure(options.corpus, Path(folder), options.rounds))


def measure(corpus: Path, folder: Path, rounds: int) -> dict[str, Any]:
    """An index of nine tenths; then one run over everything and one that adds the snapshot, in turns."""
    sizes = split(corpus, folder)
    call("index", "create", str(folder / "warm-index"))
    dedup(folder, "warm", "warm-out", "--against", str(folder / "warm-index"))
    linked(folder / "warm-index", folder / "compiling-index")
    dedup(folder, "few", "compiling", "--against", str(folder / "compiling-index"))
    call("index", "create", str(folder / "index"))
    first = dedup(folder, "s0", "o0", "--against", str(folder / "index"))
    turns: dict[str, list[dict[str, Any]]] = {"start": [], "full": [], "added": []}
    for turn in range(rounds):
        small = linked(folder / "warm-index", folder / f"start-index-{turn}")
        turns["start"].append(dedup(folder, "few", f"start-{turn}", "--against", str(small)))
        turns["full"].append(dedup(folder, "all", f"full-{turn}"))
        index = linked(folder / "index", folder / f"index-{turn}")
        turns["added"].append(dedup(folder, "s1", f"o1-{turn}", "--against", str(index)))
        if turn == 0:
            survivors = kept(folder / "o0") | kept(folder / "o1-0")
            survivors -= set(turns["added"][0]["facts"]["retracted"])
            equal = survivors == kept(folder / "full-0")
        for left in (f"full-{turn}", f"o1-{turn}"):
            shutil.rmtree(folder / left)
            shutil.rmtree(folder / f"{left}.gristmill")
    start, full, added = (min(found, key=lambda run: run["cpu_s"]) for found in turns.values())
    return {
        **sizes,
        "first_snapshot": figures(first),
        **{name: [figures(run) for run in found] for name, found in turns.items()},
        "retracted": added["facts"]["num_retracted"],
        "survivors": len(survivors),
        "survivors_equal": equal,
        "wall_share": round(added["wall_s"] / full["wall_s"], 3),
        "cpu_share": round(added["cpu_s"] / full["cpu_s"], 3),
        "cpu_share_without_start": round((added["cpu_s"] - start["cpu_s"]) / (full["cpu_s"] - start["cpu_s"]), 3),
        "goal_share": 0.15,
    }


def split(corpus: Path, folder: Path) -> dict[str, Any]:
    """Write everything, the first nine tenths, the rest, and a few documents; returns how much there is."""
    files = sorted(corpus.glob("corpus-*.jsonl"))
    assert files, f"{corpus} holds no corpus-*.jsonl"
    total = sum(sum(1 for _ in path.open("rb")) for path in files)
    cut = round(total * (1 - SHARE))
    for name in ("all/s0", "all/s1", "warm", "few"):
        (folder / name).mkdir(parents=True)
    done = 0
    for path in files:
        parts: dict[str, list[bytes]] = {"s0": [], "s1": []}
        for line in path.open("rb"):
            parts["s0" if done < cut else "s1"].append(line)
            done += 1
        for name, lines in parts.items():
            if lines:
                (folder / "all" / name / path.name).write_bytes(b"".join(lines))
        if path is files[0]:
            some = parts["s0"]
            (folder / "warm" / "a.jsonl").write_bytes(b"".join(some[:2000]))
            rows = [json.loads(line) for line in some[:100]]
            edited = [{"id": f"edited {row['id']}", "text": f"{row['text']} and more"} for row in rows]
            lines = [*some[2000:2100], *(json.dumps(row).encode() + b"\n" for row in edited)]
            (folder / "few" / "a.jsonl").write_bytes(b"".join(lines))
    for name in ("s0", "s1"):
        linked(folder / "all" / name, folder / name)
    size = sum(path.stat().st_size for path in files)
    return {"corpus_mb": round(size / 1e6, 1), "documents": total, "new_documents": total - cut}


def linked(folder: Path, target: Path) -> Path:
    """A copy of a folder, of the same files."""
    return Path(shutil.copytree(folder, target, copy_function=os.link))


def call(*arguments: str) -> str:
    """Run one of our commands, with bytecode cached as in an installation; returns its output."""
    command = [sys.executable, "-m", "gristmill", *arguments]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return subprocess.run(command, check=True, capture_output=True, text=True, env=environment).stdout


def dedup(folder: Path, source: str, output: str, *options: str) -> dict[str, Any]:
    """Deduplicate in one process."""
    os.sync()  # or this run pays for writing the output of the one before to the disk
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
