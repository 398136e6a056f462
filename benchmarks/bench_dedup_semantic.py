"""How long does semantic deduplication take to cluster and search, in what memory, and which pairs does it miss?

    python benchmarks/bench_dedup_semantic.py [--vectors 100000] [--dimensions 384] [--memory-budget 6GB]
        [--topics N] [--spectrum 0.35] [--queries 5000] [--folder FOLDER] [--out FILE.json]

Makes vectors that fill the space unevenly, as embeddings do: topics that overlap, and variances that fall like n**-0.7,
as they do in all-MiniLM-L6-v2 on web text. A tenth of them are near-duplicates of others in the file before, at cosines
spread evenly from 0.9 to 1, with differences that fall like n**-0.9. `--spectrum 0.5 --topics 0` makes it harder than
real text ever was: half of all near-duplicates then lie across a border of clusters. By default there are half as many
topics as clusters. The vectors are written as Parquet and deduplicated in a process of its own.

Recall: all vectors are compared with a random sample of them, by brute force in float32. A pair of cosine 0.9 or more
counts as found when the search has compared it. Besides, of the two documents of a pair one must be on the list of
those that go at eps=0.1.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import psutil
import pyarrow as pa
import pyarrow.parquet as pq

SHARD = 50_000
LEAST = 0.9
PLANTED = 0.1
TOPIC = np.float32(0.6)
"""The cosine of a vector with its topic, about as in sentence embeddings of web text."""

_RUN = """
import json, sys
from gristmill.backends.local import LocalExecutor
from gristmill.stages.deduplication import SemanticDeduplicationWorkflow

if __name__ == "__main__":
    source, output, budget = sys.argv[1:]
    workflow = SemanticDeduplicationWorkflow(source, output, eps=0.1)
    facts = workflow.run(executor=LocalExecutor({"memory_budget": budget}), progress=False).metadata
    print(json.dumps({name: value for name, value in facts.items() if isinstance(value, int | float | dict)}))
"""

Matrix = npt.NDArray[np.float32]


def make_vectors(count: int, dimensions: int, topics: int, fall: float, seed: int) -> Iterator[Matrix]:
    """Vectors of length 1, shard by shard."""
    rng = np.random.default_rng(seed)
    turn = np.linalg.qr(rng.standard_normal((dimensions, dimensions)))[0].astype(np.float32)
    spectrum = (np.arange(1, dimensions + 1) ** -fall).astype(np.float32)
    difference = (np.arange(1, dimensions + 1) ** -(max(fall, 0.45))).astype(np.float32)
    centres = _unit((rng.standard_normal((max(1, topics), dimensions), dtype=np.float32) * spectrum) @ turn)
    before: Matrix | None = None
    for start in range(0, count, SHARD):
        rows = min(SHARD, count - start)
        made = _unit((rng.standard_normal((rows, dimensions), dtype=np.float32) * spectrum) @ turn)
        if topics:
            made = _unit(TOPIC * centres[rng.integers(0, topics, rows)] + np.sqrt(1 - TOPIC**2) * made)
        planted = int(rows * PLANTED)
        origin = made if before is None else before
        chosen = origin[rng.integers(0, len(origin), planted)]
        noise = (rng.standard_normal((planted, dimensions), dtype=np.float32) * difference) @ turn
        noise = _unit(noise - np.einsum("ij,ij->i", noise, chosen)[:, None] * chosen)
        cosine = rng.uniform(LEAST, 1, (planted, 1)).astype(np.float32)
        places = rng.choice(rows, planted, replace=False)
        if before is not None:
            made[places] = cosine * chosen + np.sqrt(1 - cosine**2) * noise
        before = made
        yield made


def _unit(matrix: Matrix) -> Matrix:
    return matrix / np.linalg.norm(matrix, axis=1, keepdims=True)


def write_vectors(folder: Path, count: int, dimensions: int, topics: int, fall: float, seed: int) -> None:
    folder.mkdir(parents=True)
    done = 0
    for number, matrix in enumerate(make_vectors(count, dimensions, topics, fall, seed)):
        column = pa.FixedSizeListArray.from_arrays(pa.array(matrix.reshape(-1)), dimensions)
        ids = [str(done + row) for row in range(len(matrix))]
        table = pa.table({"id": ids, "embeddings": column})
        pq.write_table(table, folder / f"{number:04d}.parquet", compression="none", row_group_size=10_000)
        done += len(matrix)


def read_vectors(folder: Path) -> Iterator[tuple[int, Matrix]]:
    done = 0
    for path in sorted(folder.glob("*.parquet")):
        column = pq.read_table(path, columns=["embeddings"]).column(0).combine_chunks()
        flat = column.flatten().to_numpy()
        matrix = flat.reshape(len(column), -1)
        yield done, matrix
        done += len(matrix)


def run(source: Path, output: Path, budget: str) -> tuple[dict[str, Any], dict[str, float]]:
    """The facts of a run; its seconds, those of processors, and the peak of PSS over its processes."""
    begun, before = time.perf_counter(), os.times()
    process = subprocess.Popen(
        [sys.executable, "-c", _RUN, str(source), str(output), budget], stdout=subprocess.PIPE, text=True
    )
    watched, peak = psutil.Process(process.pid), 0
    while process.poll() is None:
        peak = max(peak, _tree_pss(watched))
        time.sleep(2.0)
    seconds = time.perf_counter() - begun
    assert process.returncode == 0
    assert process.stdout is not None
    after = os.times()
    spent = after.children_user + after.children_system - before.children_user - before.children_system
    cost = {"seconds": round(seconds, 1), "cpu_seconds": round(spent, 1), "peak_gb": round(peak / 1e9, 2)}
    return json.loads(process.stdout.read()), cost


def _tree_pss(process: psutil.Process) -> int:
    try:
        return sum(one.memory_full_info().pss for one in [process, *process.children(recursive=True)])
    except (psutil.NoSuchProcess, psutil.AccessDenied):
        return 0


def recall(source: Path, output: Path, count: int, queries: int, seed: int) -> dict[str, Any]:
    """What of the pairs of a sample was compared, and what of it is on the list."""
    chosen = np.sort(np.random.default_rng(seed).choice(count, min(queries, count), replace=False))
    asked = np.concatenate(
        [matrix[chosen[(chosen >= at) & (chosen < at + len(matrix))] - at] for at, matrix in read_vectors(source)]
    )
    ones, others = [], []
    for at, matrix in read_vectors(source):
        for start in range(0, len(matrix), 10_000):
            rows, columns = np.nonzero(matrix[start : start + 10_000] @ asked.T >= LEAST)
            ones.append(chosen[columns])
            others.append(rows + start + at)
    one, other = np.concatenate(ones), np.concatenate(others)
    one, other = one[one != other], other[one != other]
    steps = Path(f"{output}.gristmill", "steps")
    home, visits = np.full(count, -1), set()
    for path in sorted((steps / "members").glob("*.arrow")):
        with pa.memory_map(str(path)) as file:
            table = pa.ipc.open_file(file).read_all().select(["cluster", "visitor", "id"])
        names = np.array(table.column("id").to_pylist(), np.int64)
        clusters, visitor = table.column("cluster").to_numpy(), table.column("visitor").to_numpy()
        home[names[~visitor]] = clusters[~visitor]
        visits.update(zip(names[visitor].tolist(), clusters[visitor].tolist(), strict=True))
    compared = [
        home[a] == home[b] or (a, home[b]) in visits or (b, home[a]) in visits
        for a, b in zip(one.tolist(), other.tolist(), strict=True)
    ]
    listed = np.zeros(count, bool)
    for path in sorted((output / "duplicates").glob("*.parquet")):
        listed[np.array(pq.read_table(path).column("id").to_pylist(), np.int64)] = True
    return {
        "queries": len(chosen),
        "pairs": len(one),
        "recall_of_pairs": round(float(np.mean(compared)), 5),
        "recall_within_clusters_alone": round(float(np.mean(home[one] == home[other])), 5),
        "listed": round(float(np.mean(listed[one] | listed[other])), 5),
        "visits_per_vector": round(len(visits) / count, 2),
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--vectors", type=int, default=100_000)
    parser.add_argument("--dimensions", type=int, default=384)
    parser.add_argument("--memory-budget", default="6GB")
    parser.add_argument("--queries", type=int, default=5000)
    parser.add_argument("--spectrum", type=float, default=0.35)
    parser.add_argument("--topics", type=int)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    if options.topics is None:
        options.topics = round(options.vectors**0.5 / 2)
    folder = options.folder or Path(tempfile.mkdtemp(prefix="gristmill-semantic-"))
    source, output = folder / "in", folder / "out"
    try:
        if not source.exists():
            write_vectors(source, options.vectors, options.dimensions, options.topics, options.spectrum, options.seed)
        shutil.rmtree(output, ignore_errors=True)
        shutil.rmtree(f"{output}.gristmill", ignore_errors=True)
        facts, cost = run(source, output, options.memory_budget)
        steps = {name.removesuffix("_time"): round(value, 1) for name, value in facts.items() if name.endswith("_time")}
        disk = sum(path.stat().st_size for path in Path(f"{output}.gristmill").rglob("*") if path.is_file()) / 1e9
        result = {
            "vectors": options.vectors,
            "dimensions": options.dimensions,
            "topics": options.topics,
            "spectrum": options.spectrum,
            "clusters": facts["n_clusters"],
            **cost,
            "seconds_by_step": steps,
            "memory_budget": options.memory_budget,
            "intermediate_gb": round(disk, 2),
            "duplicates_by_eps": facts["duplicates_by_eps"],
            "recall": recall(source, output, options.vectors, options.queries, options.seed),
        }
        print(json.dumps(result, indent=2))
        if options.out:
            options.out.write_text(json.dumps(result, indent=2) + "\n")
    finally:
        if options.folder is None:
            shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
