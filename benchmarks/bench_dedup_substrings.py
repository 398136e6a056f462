"""Repeated passages of 50 words from files to files: exactness on planted truth, speed and memory.

    pip install --no-deps --target PEER pydivsufsort
    python benchmarks/bench_dedup_substrings.py [--mb 1000] [--check-mb 8] [--peer PEER --peer-mb 60]

First a corpus of `--check-mb` with planted passages of 50 to 120 words: what is marked is compared with a plain
search that compares all windows of 50 words, so that passages which repeat by themselves count too. Then a corpus of
`--mb`, of which whole documents and passages repeat, in one process: time, and the highest memory of all processes
(goal: 4 GB for 1 GB).

With `--peer`, passages of 250 bytes are cut on both sides, in turns: ours, and a plain program on pydivsufsort
(suffix and LCP arrays in memory, a mask of all bytes), which must leave the same bytes. The code of Lee et al.
(2021), which text-dedup calls too, needs a Rust program built from source; its authors state two hours on one core
for the suffix array of LM1B's training set (about 4 GB), and for C4 (about 300 GB) 96 cores and more than 600 GB of
memory. Writes results/dedup_substrings.json.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
from pathlib import Path
from typing import Any

from foundation_inputs import save
from repeated_text import POOL, build_corpus, gristmill, measured, plant, speed, texts_of

LENGTH = 50
BYTES = 250
MEMORY_GOAL_MB = 4000


def main() -> None:
    """Check, then measure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mb", type=float, default=1000)
    parser.add_argument("--check-mb", type=float, default=8)
    parser.add_argument("--pool", type=Path, default=POOL)
    parser.add_argument("--peer", type=Path, help="Where pydivsufsort was installed.")
    parser.add_argument("--peer-mb", type=float, default=60)
    parser.add_argument("--role", nargs=2, type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.role:
        run_suffix_array(options.peer, *options.role)
        return
    rng = random.Random(3)
    passages = [made_passage(rng) for _ in range(60)]
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        small = build_corpus(options.pool, folder / "small", options.check_mb)
        planted = plant(small, passages, share=0.2)
        measured(gristmill("substrings", folder / "small", folder / "marked", "--action", "mark"))
        check = {"planted_passages": planted, **checked(small, sorted((folder / "marked").glob("*.jsonl")))}
        large = build_corpus(options.pool, folder / "large", options.mb)
        plant(large, passages, share=0.05)
        cost = measured(
            gristmill("substrings", folder / "large", folder / "out", "--memory-budget", f"{MEMORY_GOAL_MB}MB")
        )
        result: dict[str, Any] = {
            "input_mb": round(sum(path.stat().st_size for path in large) / 1e6, 1),
            "check": check,
            "ours": speed(large, cost),
            "goal_peak_mb": MEMORY_GOAL_MB,
            "within_memory": cost["peak_mb"] <= MEMORY_GOAL_MB,
        }
        if options.peer:
            result["pydivsufsort"] = against_suffix_array(options, folder, passages)
    save("dedup_substrings", result)


def made_passage(rng: random.Random) -> str:
    """50 to 120 words that occur nowhere else."""
    starts = [f"{one}{other}" for one in "bcdfglmnprst" for other in "aeiou"]
    return " ".join(f"{rng.choice(starts)}{rng.randrange(10**4)}" for _ in range(rng.randint(50, 120)))


def checked(before: list[Path], after: list[Path]) -> dict[str, int]:
    """The marks against all windows of words that occur before."""
    seen: dict[int, tuple[str, int]] = {}
    wanted: dict[str, set[int]] = {}
    words = {name: text.split() for name, text in texts_of(before).items()}
    for name, found in words.items():
        cut = wanted.setdefault(name, set())
        for at in range(len(found) - LENGTH + 1):
            first = seen.setdefault(hash(tuple(found[at : at + LENGTH])), (name, at))
            if first != (name, at):
                cut.update(range(max(at, first[1] + LENGTH) if first[0] == name else at, at + LENGTH))
    missed = extra = marked = 0
    for path in after:
        for row in map(json.loads, path.open("rb")):
            text, name = row["text"], row["id"]
            inside: set[int] = set()
            for mark in row["repeated"]:
                first = len(text[: mark["start"]].split())
                inside.update(range(first, first + len(text[mark["start"] : mark["end"]].split())))
            missed += len(wanted[name] - inside)
            extra += len(inside - wanted[name])
            marked += len(inside)
    return {"words_marked": marked, "words_missed": missed, "words_marked_wrongly": extra}


def against_suffix_array(options: Any, folder: Path, passages: list[str]) -> dict[str, Any]:
    """Both sides on the same corpus, in turns; and whether they leave the same."""
    source = folder / "peer"
    files = build_corpus(options.pool, source, options.peer_mb)
    plant(files, passages, share=0.1)
    turns: dict[str, list[dict[str, float]]] = {"ours": [], "peer": []}
    for turn in range(2):
        for side, found in turns.items():
            output = folder / f"{side}-{turn}"
            command = [sys.executable, __file__, "--peer", str(options.peer), "--role", str(source), str(output)]
            if side == "ours":
                command = gristmill(
                    "substrings", source, output, "--unit", "byte", "--min-length", str(BYTES), "--keep", "none"
                )
            found.append(measured(command))
    left = {side: texts_of(sorted((folder / f"{side}-0").glob("*.jsonl"))) for side in turns}
    unlike = sum(left["ours"].get(name, "") != text for name, text in left["peer"].items())
    best = {side: min(found, key=lambda run: run["cpu_s"]) for side, found in turns.items()}
    return {
        "input_mb": round(sum(path.stat().st_size for path in files) / 1e6, 1),
        "runs": turns,
        "documents_unlike": unlike,
        "times_ours": {
            kind: round(best["peer"][kind] / best["ours"][kind], 2) for kind in ("cpu_s", "wall_s", "peak_mb")
        },
        "goal": 1.0,
    }


def run_suffix_array(peer: Path, source: Path, output: Path) -> None:
    """Cut every passage of BYTES bytes that occurs twice, all in memory."""
    import numpy as np

    sys.path.insert(0, str(peer))
    from pydivsufsort import divsufsort, kasai

    files = sorted(source.glob("corpus-*.jsonl"))
    rows = [[json.loads(line) for line in path.open("rb")] for path in files]
    texts = [row["text"].encode() for part in rows for row in part]
    # A byte that no UTF-8 text has ends every document; what spans it is not a passage.
    whole = np.frombuffer(b"\xff".join(texts) + b"\xff", np.uint8).copy()
    order = divsufsort(whole)
    common = kasai(whole, order)
    ends = np.flatnonzero(whole == 0xFF)
    room = ends[np.searchsorted(ends, order)] - order
    after = np.minimum(np.minimum(common, room), np.append(room[1:], 0))
    repeated = after >= BYTES
    repeated[1:] |= after[:-1] >= BYTES
    marks = np.zeros(len(whole) + 1, np.int64)
    starts = order[repeated]
    np.add.at(marks, starts, 1)
    np.add.at(marks, starts + BYTES, -1)
    cut = np.cumsum(marks)[:-1] > 0
    # Characters that are cut in part stay, as on our side.
    first = (whole & 0xC0) != 0x80
    character = np.cumsum(first) - 1
    partly = np.bincount(character, ~cut) > 0
    cut &= ~partly[character]
    output.mkdir(parents=True)
    at = 0
    for path, part in zip(files, rows, strict=True):
        with (output / path.name).open("w", encoding="utf-8") as sink:
            for row in part:
                size = len(row["text"].encode())
                kept = whole[at : at + size][~cut[at : at + size]]
                row["text"] = kept.tobytes().decode()
                at += size + 1
                sink.write(json.dumps(row, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
