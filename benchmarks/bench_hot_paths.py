"""How much faster are the hot paths than in an earlier version? Both run in turns, each in processes of its own.

    git worktree add ../earlier REVISION
    python benchmarks/bench_hot_paths.py CORPUS --old ../earlier [--only english web fuzzy …] [--rounds 5]

CORPUS holds `corpus-*.jsonl` (distinct documents; `../shared/data/build_corpus.py` makes it of real texts). Every
measurement is a command from its start to its end, after one that does not count, because it fills the caches. A recipe
runs in one process, so that its processor seconds are those of one core; what it takes for 1,000 documents is measured
too and subtracted, which leaves the steady state. Deduplication runs on all cores. `speedup` is old / new of the
medians; `same` says whether the documents that came out are the same bytes. The peak of memory (PSS of all processes,
two workers) is taken in rounds of its own, because looking costs time.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import psutil

sys.path.insert(0, str(Path(__file__).parent))

from engine_runs import digest
from foundation_inputs import ROOT, save

COPY = """\
import sys
from gristmill.backends.local import LocalExecutor
from gristmill.pipeline import Pipeline
from gristmill.stages.text.io import JsonlReader, JsonlWriter, ParquetReader, ParquetWriter

reader, writer = {"jsonl": (JsonlReader, JsonlWriter), "parquet": (ParquetReader, ParquetWriter)}[sys.argv[3]]
stages = [reader(sys.argv[1]), writer(sys.argv[2])]
Pipeline("copy", stages=stages).run(executor=LocalExecutor(config={"num_cpus": 0}), report=False)
"""
PATHS = {
    "english": ["-m", "gristmill", "run", "english", "IN", "OUT", "-q", "--workers", "0", "--no-report"],
    "web": ["-m", "gristmill", "run", "web", "IN", "OUT", "-q", "--workers", "0", "--no-report"],
    "fuzzy": ["-m", "gristmill", "dedup", "fuzzy", "IN", "OUT", "-q"],
    "exact": ["-m", "gristmill", "dedup", "exact", "IN", "OUT", "-q"],
    "copy_jsonl": ["COPY", "IN", "OUT", "jsonl"],
    "copy_parquet": ["COPY", "PARQUET", "OUT", "parquet"],
    "thousand_documents": ["-m", "gristmill", "run", "english", "FEW", "OUT", "-q"],
}
STEADY = ("english", "web")
Rounds = dict[str, list[float]]


class Versions:
    """Two versions of the package and the inputs that both are given."""

    def __init__(self, trees: dict[str, Path], folder: Path, rounds: int) -> None:
        self.trees = trees
        self.folder = folder
        self.rounds = rounds

    def command(self, path: str, version: str, *, few: bool = False) -> list[str]:
        """A hot path as a command of this version, into an empty folder."""
        output = self.folder / f"{path}-{version}"
        for place in self.folder.glob(f"{output.name}*"):
            shutil.rmtree(place)
        source = self.folder / ("few" if few else "in")
        places = {
            "IN": f"{source}/*.jsonl", "FEW": f"{self.folder}/few/*.jsonl", "PARQUET": f"{self.folder}/parquet",
            "OUT": str(output), "COPY": str(self.folder / "read_and_write.py"),
        }  # fmt: skip
        return [sys.executable, *(places.get(word, word) for word in PATHS[path])]

    def timed(self, path: str, version: str, *, few: bool = False) -> tuple[float, float]:
        """Wall and processor seconds of a command and all that it starts."""
        command, before, begun = self.command(path, version, few=few), os.times(), time.perf_counter()
        done = subprocess.run(command, env=self.environment(version), check=False, capture_output=True)
        wall, after = time.perf_counter() - begun, os.times()
        if done.returncode not in (0, 3):
            raise SystemExit(f"{' '.join(command)} of {version} ended with {done.returncode}: {done.stderr.decode()}")
        return wall, after.children_user + after.children_system - before.children_user - before.children_system

    def environment(self, version: str) -> dict[str, str]:
        """Where this version's package is found."""
        return {**os.environ, "PYTHONPATH": str(self.trees[version] / "src")}

    def compare(self, path: str) -> dict[str, Any]:
        """The times of both versions, in turns."""
        walls: Rounds = {name: [] for name in self.trees}
        processor: Rounds = {name: [] for name in self.trees}
        start: Rounds = {name: [] for name in self.trees}
        for number in range(self.rounds + 1):
            for name in self.trees:
                few = self.timed(path, name, few=True)[1] if path in STEADY else 0.0
                wall, seconds = self.timed(path, name)
                if number:
                    walls[name].append(round(wall, 3))
                    processor[name].append(round(seconds, 3))
                    start[name].append(few)
        found: dict[str, Any] = {"wall_s": walls, "processor_s": processor, "speedup": {}}
        for key, times in (("wall", walls), ("processor", processor)):
            found["speedup"][key] = round(_median(times["old"]) / _median(times["new"]), 2)
        if path in STEADY:
            steady = {name: _median(processor[name]) - _median(start[name]) for name in self.trees}
            found["speedup"]["steady"] = round(steady["old"] / steady["new"], 2)
        old, new = (self.folder / f"{path}-{name}" for name in ("old", "new"))
        found["same"] = same_rows(old, new) if path == "copy_parquet" else digest(old) == digest(new)
        return found

    def peak_megabytes(self, version: str) -> float:
        """The peak of memory of the English cascade with two workers."""
        command = self.command("english", version)
        command[command.index("--workers") + 1] = "2"
        process = subprocess.Popen(command, env=self.environment(version), stderr=subprocess.DEVNULL)
        root, peak = psutil.Process(process.pid), 0
        while process.poll() is None:
            held = 0
            for one in [root, *_children(root)]:
                try:
                    held += one.memory_full_info().pss
                except (psutil.NoSuchProcess, psutil.AccessDenied):
                    continue  # it ended while it was looked at
            peak = max(peak, held)
            time.sleep(0.1)
        return round(peak / 1e6, 1)


def _children(root: psutil.Process) -> list[psutil.Process]:
    try:
        found: list[psutil.Process] = root.children(recursive=True)
    except psutil.NoSuchProcess:
        return []
    return found


def same_rows(old: Path, new: Path) -> bool:
    """Whether two folders of Parquet files hold the same rows in the same order."""
    import pyarrow.parquet as pq

    names = [sorted(path.name for path in folder.glob("*.parquet")) for folder in (old, new)]
    return names[0] == names[1] and all(
        pq.read_table(old / name).equals(pq.read_table(new / name)) for name in names[0]
    )


def _median(values: list[float]) -> float:
    return statistics.median(values)


def make_inputs(corpus: Path, folder: Path) -> dict[str, float]:
    """Links to the corpus, its first 1,000 documents, and the same documents as Parquet; returns the sizes."""
    import pyarrow.json
    import pyarrow.parquet as pq

    for name in ("in", "few", "parquet"):
        (folder / name).mkdir()
    (folder / "read_and_write.py").write_text(COPY)
    files = sorted(corpus.glob("corpus-*.jsonl"))
    if not files:
        raise SystemExit(f"{corpus} holds no corpus-*.jsonl. Make it with ../shared/data/build_corpus.py.")
    for file in files:
        (folder / "in" / file.name).symlink_to(file.resolve())
        table = pyarrow.json.read_json(file, pyarrow.json.ReadOptions(block_size=64 << 20))
        pq.write_table(table, folder / "parquet" / f"{file.stem}.parquet", compression="zstd", row_group_size=10_000)
    with files[0].open("rb") as source, (folder / "few" / "few.jsonl").open("wb") as target:
        for _, line in zip(range(1000), source, strict=False):
            target.write(line)
    return {"megabytes": round(sum(file.stat().st_size for file in files) / 1e6, 1), "files": len(files)}


def main() -> None:
    """Measure both versions and keep the ratios."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("corpus", type=Path)
    parser.add_argument("--old", type=Path, required=True)
    parser.add_argument("--new", type=Path, default=ROOT)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", nargs="+", choices=[*PATHS, "memory"], default=[*PATHS, "memory"])
    options = parser.parse_args()
    trees = {"old": options.old.resolve(), "new": options.new.resolve()}
    kept = ROOT / "benchmarks" / "results" / "hot_paths.json"
    result: dict[str, Any] = json.loads(kept.read_text()) if kept.exists() else {}
    result.pop("machine", None)
    for name, tree in trees.items():
        revision = ["git", "-C", str(tree), "rev-parse", "--short", "HEAD"]
        result[name] = subprocess.run(revision, check=True, capture_output=True, text=True).stdout.strip()
    with tempfile.TemporaryDirectory(dir=options.corpus.parent) as place:
        size = make_inputs(options.corpus, Path(place))
        versions = Versions(trees, Path(place), options.rounds)
        for path in PATHS:
            if path in options.only:
                result[path] = {**size, **versions.compare(path)}
                print(path, result[path]["speedup"], "same" if result[path]["same"] else "", flush=True)
        if "memory" in options.only:
            result["peak_mb"] = {**size} | {name: versions.peak_megabytes(name) for name in trees}
    save("hot_paths", result)


if __name__ == "__main__":
    main()
