"""Fuzzy deduplication from files to files, beside datatrove's four MinHash steps and a plain pipeline on rensa.

    python benchmarks/bench_dedup_peers.py CORPUS --datatrove-python PYTHON [--rensa-python PYTHON] [--rounds 3]

CORPUS holds `corpus-*.jsonl`. Every side reads the same files and writes the documents that it keeps, with word 5-grams
and 112 to 140 hashes; wall time runs from the start of a process to its exit, so start-up counts. Ours is the median of
runs before and after those of the peers. Goals: at least 35 times as fast as datatrove 0.10.1 with two workers, and
faster than rensa, whose pipeline compares signatures only, holds everything in memory and records nothing.

The interpreters may also be named by DATATROVE_PYTHON and RENSA_PYTHON; rensa's is datatrove's unless given. A peer
without an interpreter is left out. Takes about ten minutes for 200 MB on two processors and writes
results/dedup_peers.json.
"""

from __future__ import annotations

import argparse
import glob
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

WORKERS = 2
BANDS, ROWS = 20, 7
"""What our side derives from a threshold of 0.8; rensa is given the same, datatrove its own 14 bands of 8."""
THRESHOLD = 0.8
DATATROVE_GOAL = 35.0


def main() -> None:
    """Measure all sides, or be one of the peers."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("corpus", type=Path)
    parser.add_argument("--datatrove-python", default=os.environ.get("DATATROVE_PYTHON"))
    parser.add_argument("--rensa-python", default=os.environ.get("RENSA_PYTHON"))
    parser.add_argument("--rounds", type=int, default=3, help="Of our side before and after the peers, and of rensa.")
    parser.add_argument("--role", choices=["driver", *PEERS], default="driver", help=argparse.SUPPRESS)
    parser.add_argument("--output", default="", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.role != "driver":
        PEERS[options.role](options.corpus, Path(options.output))
        return
    sys.path.insert(0, str(Path(__file__).parent))
    from foundation_inputs import save

    with tempfile.TemporaryDirectory() as folder:
        save("dedup_peers", measure(options, Path(folder)))


def measure(options: Any, folder: Path) -> dict[str, Any]:
    """All sides on the same files, ours before and after the others."""
    files = sorted(options.corpus.glob("corpus-*.jsonl"))
    assert files, f"{options.corpus} holds no corpus-*.jsonl"

    def ours(turn: int) -> float:
        source, output = str(options.corpus / "corpus-*.jsonl"), str(folder / f"ours-{turn}")
        return timed([sys.executable, "-m", "gristmill", "dedup", "fuzzy", source, output, "-q"])

    def peer(name: str, python: str, turn: int) -> float:
        output = str(folder / f"{name}-{turn}")
        return timed([python, __file__, str(options.corpus), "--role", name, "--output", output])

    rensa_python = options.rensa_python or options.datatrove_python
    # The first run of each fast side fills the caches of files and of compiled code.
    ours(0)
    times = [ours(turn + 1) for turn in range(options.rounds)]
    rensa: list[float] = []
    if rensa_python:
        rensa = [peer("rensa", rensa_python, turn) for turn in range(options.rounds + 1)][1:]
    datatrove = peer("datatrove", options.datatrove_python, 0) if options.datatrove_python else None
    times += [ours(turn + 1 + options.rounds) for turn in range(options.rounds)]
    here = statistics.median(times)
    size = sum(path.stat().st_size for path in files)
    result: dict[str, Any] = {
        "input_mb": round(size / 1e6, 1),
        "files": len(files),
        "ours": {
            "seconds": [round(one, 2) for one in times],
            "median": round(here, 2),
            "mb_per_s": round(size / 1e6 / here, 1),
            "kept": count(folder / "ours-1"),
        },
    }
    if datatrove is not None:
        result["datatrove"] = {
            "seconds": round(datatrove, 2),
            "kept": count(folder / "datatrove-0" / "kept"),
            "times_ours": round(datatrove / here, 1),
            "goal": DATATROVE_GOAL,
            "share_of_goal": round(datatrove / here / DATATROVE_GOAL, 2),
        }
    if rensa:
        there = statistics.median(rensa)
        result["rensa"] = {
            "seconds": [round(one, 2) for one in rensa],
            "median": round(there, 2),
            "kept": count(folder / "rensa-1"),
            "times_ours": round(there / here, 2),
            "goal": 1.0,
            "share_of_goal": round(there / here, 2),
        }
    return result


def timed(command: list[str]) -> float:
    """Wall seconds of a process."""
    begun = time.perf_counter()
    done = subprocess.run(command, check=False, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    seconds = time.perf_counter() - begun
    if done.returncode:
        sys.exit(f"{' '.join(command)} failed:\n{done.stderr.decode()[-3000:]}")
    return seconds


def count(folder: Path) -> int:
    """How many documents a side has kept."""
    paths = [path for path in folder.rglob("*.jsonl") if not any(part.endswith(".gristmill") for part in path.parts)]
    return sum(path.read_bytes().count(b"\n") for path in paths)


def run_datatrove(corpus: Path, output: Path) -> None:
    """Signatures, buckets, clusters and filter, with one task per file and two workers."""
    from datatrove.executor import LocalPipelineExecutor
    from datatrove.pipeline.dedup import (
        MinhashDedupBuckets,
        MinhashDedupCluster,
        MinhashDedupFilter,
        MinhashDedupSignature,
    )
    from datatrove.pipeline.dedup.minhash import MinhashConfig
    from datatrove.pipeline.readers import JsonlReader
    from datatrove.pipeline.writers import JsonlWriter

    config = MinhashConfig()
    tasks = len(glob.glob(str(corpus / "corpus-*.jsonl")))

    def read() -> Any:
        return JsonlReader(str(corpus), glob_pattern="corpus-*.jsonl")

    def run(step: str, stages: list[Any], count: int) -> None:
        logs = str(output / "logs" / step)
        LocalPipelineExecutor(pipeline=stages, tasks=count, workers=min(WORKERS, count), logging_dir=logs).run()

    signatures, buckets, removals = (str(output / name) for name in ("signatures", "buckets", "removals"))
    run("1", [read(), MinhashDedupSignature(output_folder=signatures, config=config)], tasks)
    run("2", [MinhashDedupBuckets(signatures, buckets, config=config)], config.num_buckets)
    run("3", [MinhashDedupCluster(buckets, removals, config=config)], 1)
    kept = JsonlWriter(str(output / "kept"), compression=None)
    run("4", [read(), MinhashDedupFilter(removals), kept], tasks)


def run_rensa(corpus: Path, output: Path) -> None:
    """One pass in one process: a document goes if an earlier one that shares a band has nearly its signature."""
    import re

    import orjson
    from rensa import RMinHash, RMinHashLSH

    words_of = re.compile(r"\w+").findall
    output.mkdir(parents=True)
    index = RMinHashLSH(THRESHOLD, BANDS * ROWS, BANDS)
    signatures: list[Any] = []
    for path in sorted(corpus.glob("corpus-*.jsonl")):
        with path.open("rb") as source, (output / path.name).open("wb") as sink:
            for line in source:
                words = words_of(orjson.loads(line)["text"].lower())
                signature = RMinHash(BANDS * ROWS, 42)
                signature.update([" ".join(words[at : at + 5]) for at in range(max(1, len(words) - 4))])
                if any(signature.jaccard(signatures[other]) >= THRESHOLD for other in index.query(signature)):
                    continue
                index.insert(len(signatures), signature)
                signatures.append(signature)
                sink.write(line)


PEERS = {"datatrove": run_datatrove, "rensa": run_rensa}


if __name__ == "__main__":
    main()
