"""NeMo Curator and datatrove beside Gristmill: the same work on the same files, in one session, taking turns.

    make bench-peers                      # makes the environments below .venv-peers, then runs this program
    python benchmarks/compare_peers.py --nemo-curator PYTHON --datatrove PYTHON [--megabytes 24] [--rounds 3]

Speed: the English cascade of 28 filters (NeMo Curator's), the rules of Gopher, C4 and FineWeb (datatrove's), exact and
fuzzy deduplication with their quality against planted duplicates, and 1,000 documents through three filters, which is
mostly start-up. Each side runs `--rounds` times, in turn; the figures are medians of wall and processor time from the
start of a process to its exit. Then the peak memory at three sizes, and three faults: a malformed line, a killed
worker, a killed driver. What a side cannot do is in the result with the reason.

The corpus comes from `build_corpus.py` beside the repository (`--data`). Writes results/peers.json and the table in the
README. About 15 minutes on two idle cores; `--megabytes 200` takes hours, because the peers do.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from bench_dedup_quality import jaccard, shingles
from foundation_inputs import ROOT, save
from peer_process import Ended, Run
from peer_work import THREE_FILTERS
from peers_table import RESULT, SMALL, write_table

OURS = "gristmill"
WORKS = {
    "english": (OURS, "nemo-curator"),
    "published": (OURS, "datatrove"),
    "exact": (OURS, "datatrove", "nemo-curator"),
    "fuzzy": (OURS, "datatrove", "nemo-curator"),
    "small": (OURS, "datatrove", "nemo-curator"),
}
"""Who does what; the others have no such filters."""
FAULT_WORK = {OURS: "english", "nemo-curator": "english", "datatrove": "published"}
RIGHT = 0.7
"""A removed document is a near-duplicate if it is at least this similar to another one."""


@dataclass(slots=True)
class Sides:
    """Runs the sides."""

    pythons: dict[str, str]
    folder: Path
    limit_s: float
    runs: int = 0
    recipe: Path = field(init=False)
    filters: Path = field(init=False)

    def __post_init__(self) -> None:
        from gristmill.recipes import load_recipe
        from gristmill.recipes.names import FILTER, NAMES

        entries = load_recipe("english", variables={"input_path": "", "output_path": ""}).stages
        cascade = [
            [entry.name, {key: value for key, value in entry.parameters.items() if key != "text_field"}]
            for entry in entries
            if NAMES[entry.name].kind == FILTER
        ]
        self.filters = self.folder / "filters.json"
        self.filters.write_text(json.dumps(cascade))
        self.recipe = self.folder / "three.yaml"
        stages = [
            {"JsonlReader": {"file_paths": "${input_path}"}},
            *({name: parameters} for name, parameters in THREE_FILTERS),
            {"JsonlWriter": {"path": "${output_path}"}},
        ]
        self.recipe.write_text(json.dumps({"name": "three", "stages": stages}))

    def command(self, side: str, work: str, source: Path, output: Path) -> list[str]:
        """What a user would type."""
        if side != OURS:
            job = "three_filters" if work == "small" else work
            return [self.pythons[side], str(ROOT / "benchmarks" / "peer_work.py"), side, job, str(source), str(output)]
        ours = [sys.executable, "-m", "gristmill"]
        kept = str(output / "kept")
        if work in ("exact", "fuzzy"):
            return [*ours, "dedup", work, str(source), kept, "-q"]
        recipe = {"english": "english", "published": "web", "small": str(self.recipe)}[work]
        return [*ours, "run", recipe, str(source), kept, "-q"]

    def begin(self, side: str, work: str, source: Path, output: Path | None = None) -> tuple[Run, Path, Path]:
        """Start a run; returns it with its log and its output."""
        self.runs += 1
        log = self.folder / f"run-{self.runs}.log"
        output = output or self.folder / f"out-{self.runs}"
        output.mkdir(exist_ok=True)
        environment = {"PEER_FILTERS": str(self.filters)}
        if side != OURS:  # NeMo Curator starts the program 'ray' of its environment by name
            environment["PATH"] = f"{Path(self.pythons[side]).parent}{os.pathsep}{os.environ['PATH']}"
            # Where a token of Ray lies in the home folder, its clusters ask for it, and NeMo Curator does not send it.
            environment["RAY_AUTH_MODE"] = "disabled"
        return Run(self.command(side, work, source, output), self.folder, environment).start(log), log, output

    def whole(self, side: str, work: str, source: Path, output: Path | None = None) -> tuple[Ended, Path]:
        """One run from start to end."""
        run, log, folder = self.begin(side, work, source, output)
        return run.wait(log, limit_s=self.limit_s), folder


def kept_ids(output: Path) -> Counter[str]:
    """The ids of the documents in an output."""
    found: Counter[str] = Counter()
    for path in sorted((output / "kept").rglob("*.jsonl")):
        with path.open(encoding="utf-8") as file:
            found.update(json.loads(line)["id"] for line in file if line.strip())
    return found


def last_words(output: str) -> str:
    """The error in the end of what a program printed."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    errors = [line for line in lines if re.match(r"[\w.]*(Error|Exception)\b", line)]
    told = (errors or lines or ["no message"])[-1]
    return re.sub(r"(/[\w.@+-]+){2,}", "…", told)[:200]


# --- speed ---


def compare(sides: Sides, work: str, source: Path, rounds: int) -> dict[str, Any]:
    """One work on all sides, taking turns."""
    found: dict[str, dict[str, Any]] = {}
    ends: dict[str, list[Ended]] = {}
    documents: dict[str, Counter[str]] = {}
    able = [side for side in WORKS[work] if side == OURS or side in sides.pythons]
    for turn in range(rounds):
        for side in list(able):
            end, output = sides.whole(side, work, source)
            if end.code != 0:
                found[side] = {
                    "cannot": f"timed out after {end.wall_s:.0f} s" if end.code is None else last_words(end.output)
                }
                able.remove(side)
            else:
                ends.setdefault(side, []).append(end)
                if not turn:
                    documents[side] = kept_ids(output)
            shutil.rmtree(output)
            print(f"{work}, round {turn + 1}, {side}: {end.wall_s:.1f} s", file=sys.stderr, flush=True)
    for side in able:
        found[side] = {
            "wall_s": round(statistics.median(end.wall_s for end in ends[side]), 2),
            "cpu_s": round(statistics.median(end.cpu_s for end in ends[side]), 2),
            "peak_mb": round(max(end.peak_mb for end in ends[side])),
            "rounds": [round(end.wall_s, 2) for end in ends[side]],
            "kept": documents[side].total(),
        }
        if work in ("exact", "fuzzy"):
            found[side] |= quality(work, source, set(documents[side]))
        elif side != OURS:
            theirs, ours = documents[side], documents[OURS]
            found[side]["kept_differently_than_ours"] = ((theirs - ours) + (ours - theirs)).total()
        if side != OURS:
            found[side]["times_ours"] = round(found[side]["wall_s"] / found[OURS]["wall_s"], 2)
            found[side]["cpu_times_ours"] = round(found[side]["cpu_s"] / found[OURS]["cpu_s"], 2)
    return found


def quality(work: str, source: Path, kept: set[str]) -> dict[str, Any]:
    """What a deduplication missed and what it removed for nothing, told from its output alone."""
    texts: dict[str, str] = {}
    for path in sorted(source.glob("*.jsonl")):
        with path.open(encoding="utf-8") as file:
            texts |= {row["id"]: row["text"] for row in map(json.loads, file)}
    if work == "exact":
        unique = {text for text in texts.values() if text}
        left = Counter(texts[one] for one in kept if texts[one])
        return {"missed": left.total() - len(left), "lost": len(unique) - len(left)}
    pairs = [json.loads(line) for line in (source.parent / "pairs.jsonl").read_text().splitlines()]
    near = [pair for pair in pairs if pair["j_word5"] >= 0.8]
    hit = sum(not (pair["a"] in kept and pair["b"] in kept) for pair in near)
    removed = {one: shingles(texts[one]) for one in texts if one not in kept}
    right = sum(_has_near(one, parts, texts) for one, parts in removed.items())
    return {
        "planted_pairs": len(near),
        "recall": round(hit / max(1, len(near)), 4),
        "removed": len(removed),
        "precision": round(right / max(1, len(removed)), 4),
    }


_INDEX: dict[tuple[str, ...], list[str]] = {}
_SETS: dict[str, set[tuple[str, ...]]] = {}


def _has_near(one: str, parts: set[tuple[str, ...]], texts: dict[str, str]) -> bool:
    """Whether a removed document is near to any other document of the corpus."""
    if _SETS.keys() != texts.keys():
        _SETS.clear()
        _INDEX.clear()
        for name, text in texts.items():
            _SETS[name] = shingles(text)
            for part in _SETS[name]:
                _INDEX.setdefault(part, []).append(name)
    shared: Counter[str] = Counter()
    for part in parts:
        shared.update(_INDEX[part][:1000])
    del shared[one]
    return any(jaccard(parts, _SETS[other]) >= RIGHT for other, _ in shared.most_common(5))


# --- memory and faults ---


def memory(sides: Sides, corpora: list[Path]) -> dict[str, dict[str, int]]:
    """The peak memory of three filters at several sizes."""
    found: dict[str, dict[str, int]] = {}
    for source in corpora:
        size = f"{sum(path.stat().st_size for path in source.glob('*.jsonl')) / 1e6:.0f}"
        for side in (OURS, *sides.pythons):
            end, output = sides.whole(side, "small", source)
            shutil.rmtree(output)
            found.setdefault(side, {})[size] = round(end.peak_mb) if end.code == 0 else -1
            print(f"memory, {size} MB, {side}: {end.peak_mb:.0f} MB", file=sys.stderr, flush=True)
    return found


def faults(sides: Sides, side: str, source: Path) -> dict[str, Any]:
    """A malformed line, a killed worker and a killed driver, beside an undisturbed run."""
    work = FAULT_WORK[side]
    calm, output = sides.whole(side, work, source)
    wanted = kept_ids(output)
    shutil.rmtree(output)
    found: dict[str, Any] = {"undisturbed_s": round(calm.wall_s, 1), "kept": wanted.total()}

    broken = source.parent / "broken"
    shutil.copytree(source, broken, dirs_exist_ok=True)
    victim = min(broken.glob("*.jsonl"))
    lines = victim.read_bytes().splitlines(keepends=True)
    lines.insert(len(lines) // 2, b'{"id": "malformed", "text": "this line does not end\n')
    victim.write_bytes(b"".join(lines))
    end, output = sides.whole(side, work, broken)
    there = kept_ids(output) if (output / "kept").is_dir() else Counter[str]()
    found["malformed_line"] = {
        "exit_code": end.code,
        "documents_missing": (wanted - there).total(),
        "output_names_the_file": victim.name in end.output or _quarantine_names(output, victim.name),
    }
    shutil.rmtree(output)
    shutil.rmtree(broken)

    run, log, output = sides.begin(side, work, source)
    time.sleep(0.4 * calm.wall_s)
    on_ray = side == "nemo-curator"
    worker = run.worker(on_ray=on_ray)
    while worker is None and run.process.poll() is None:
        time.sleep(0.05)
        worker = run.worker(on_ray=on_ray)
    if worker is not None:
        worker.kill()
    end = run.wait(log, limit_s=min(sides.limit_s, 60 + 4 * calm.wall_s))
    there = kept_ids(output) if (output / "kept").is_dir() else Counter[str]()
    found["killed_worker"] = {
        "killed": worker is not None,
        "finished": end.code == 0,
        "seconds": round(end.wall_s, 1),
        "documents_missing": (wanted - there).total(),
        "documents_twice": (there - wanted).total(),
    }
    shutil.rmtree(output)

    run, log, output = sides.begin(side, work, source)
    time.sleep(0.6 * calm.wall_s)
    run.process.kill()
    run.wait(log, limit_s=5)
    left = kept_files(output)
    end, output = sides.whole(side, work, source, output)
    there = kept_ids(output) if (output / "kept").is_dir() else Counter[str]()
    found["killed_driver"] = {
        "files_left": left,
        "second_run_finished": end.code == 0,
        "second_run_s": round(end.wall_s, 1),
        "documents_missing": (wanted - there).total(),
        "documents_twice": (there - wanted).total(),
    }
    shutil.rmtree(output)
    return found


def kept_files(output: Path) -> int:
    """Files that an ended run has left under the names of outputs."""
    return len(list((output / "kept").rglob("*.jsonl")))


def _quarantine_names(output: Path, name: str) -> bool:
    if not Path(f"{output}/kept.gristmill").is_dir():
        return False
    told = subprocess.run(
        [sys.executable, "-m", "gristmill", "quarantine", str(output / "kept")],
        capture_output=True,
        text=True,
        check=False,
    )
    return name in told.stdout


# --- all of it ---


def make_corpus(data: Path, folder: Path, megabytes: float, seed: int) -> Path:
    """A corpus of this size in eight files or more; returns the folder of its documents."""
    program = [sys.executable, str(data / "build_corpus.py"), "--pool", str(data), "--out", str(folder)]
    shard = str(megabytes / 8)
    subprocess.run(
        [*program, "--mb", str(megabytes), "--seed", str(seed), "--shard-mb", shard],
        check=True,
        stdout=subprocess.DEVNULL,
    )
    documents = folder / "documents"
    documents.mkdir()
    for path in folder.glob("corpus-*.jsonl"):
        path.rename(documents / path.name)
    return documents


def first_documents(source: Path, folder: Path, count: int) -> Path:
    """The first documents of a corpus in two files."""
    folder.mkdir()
    lines: list[bytes] = []
    for path in sorted(source.glob("*.jsonl")):
        lines += path.read_bytes().splitlines(keepends=True)
    half = count // 2
    (folder / "a.jsonl").write_bytes(b"".join(lines[:half]))
    (folder / "b.jsonl").write_bytes(b"".join(lines[half:count]))
    return folder


def versions(pythons: dict[str, str]) -> dict[str, str]:
    """The versions of the peers."""
    program = "import sys; from importlib.metadata import version; print(version(sys.argv[1]))"
    return {
        name: subprocess.run([python, "-c", program, name], check=True, capture_output=True, text=True).stdout.strip()
        for name, python in pythons.items()
    }


def merged(result: dict[str, Any]) -> dict[str, Any]:
    """A part of the comparison together with the parts that were measured before, on the same documents."""
    if not RESULT.exists():
        return result
    before: dict[str, Any] = json.loads(RESULT.read_text(encoding="utf-8"))
    known = {**before["versions"], **result["versions"]}
    if before["megabytes"] != result["megabytes"] or {**known, **before["versions"]} != known:
        return result
    works = {work: {**before["works"], **result["works"]}.get(work) for work in WORKS}
    works = {work: found for work, found in works.items() if found}
    minutes = round(before["minutes"] + result["minutes"], 1)
    return {**before, **result, "versions": known, "works": works, "minutes": minutes}


def main() -> None:
    """Measure everything, and write the result and the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nemo-curator", metavar="PYTHON", help="Python of an environment with NeMo Curator")
    parser.add_argument("--datatrove", metavar="PYTHON", help="Python of an environment with datatrove")
    parser.add_argument("--data", type=Path, default=ROOT.parent / "shared" / "data")
    parser.add_argument("--megabytes", type=float, default=24, help="size of the corpus [default: 24]")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--limit", type=float, default=900, metavar="SECONDS", help="of one run [default: 900]")
    parser.add_argument(
        "--only", nargs="*", choices=[*WORKS, "memory", "faults"], help="measure a part, keep the rest of the result"
    )
    parser.add_argument("--table", action="store_true", help="only write the README's table from the last result")
    options = parser.parse_args()
    if options.table:
        write_table()
        return
    pythons = {"datatrove": options.datatrove, "nemo-curator": options.nemo_curator}
    pythons = {name: os.path.abspath(python) for name, python in pythons.items() if python}
    wanted = options.only or [*WORKS, "memory", "faults"]
    begun = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="peers-") as name:
        folder = Path(name)
        sides = Sides(pythons, folder, options.limit)
        source = make_corpus(options.data, folder / "corpus", options.megabytes, seed=1)
        small = first_documents(source, folder / "small", SMALL)
        warm, output = sides.whole(OURS, "fuzzy", small)  # compiles the kernels if that has not been done yet
        assert warm.code == 0, warm.output
        shutil.rmtree(output)
        works = {
            work: compare(sides, work, small if work == "small" else source, options.rounds)
            for work in WORKS
            if work in wanted
        }
        result: dict[str, Any] = {
            "megabytes": options.megabytes,
            "documents": sum(path.read_bytes().count(b"\n") for path in source.glob("*.jsonl")),
            "rounds": options.rounds,
            "versions": versions(pythons),
            "works": works,
        }
        if "memory" in wanted:
            sizes = [options.megabytes / 2, options.megabytes, options.megabytes * 2]
            corpora = [
                make_corpus(options.data, folder / f"memory-{place}", size, seed=2) for place, size in enumerate(sizes)
            ]
            result["memory_mb"] = memory(sides, corpora)
        if "faults" in wanted:
            result["faults"] = {side: faults(sides, side, source) for side in (OURS, *pythons)}
    result["minutes"] = round((time.perf_counter() - begun) / 60, 1)
    save("peers", merged(result) if options.only else result)
    write_table()


if __name__ == "__main__":
    main()
