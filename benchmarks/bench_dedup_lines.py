"""Repeated lines from files to files: speed, exactness, and datatrove's sentence deduplication beside it.

    python benchmarks/bench_dedup_lines.py [--mb 150] [--rounds 3] [--peer-mb 12] [--datatrove-python PYTHON]

Builds a corpus of real documents, plants lines in it, and cuts every line that occurs twice, in one process. The
output is compared, line by line, with that of a plain loop with a dictionary. Then both sides in turns, ours and
datatrove's three steps (`n_sentences=1`): by lines, and by sentences on `--peer-mb`, where it takes about a minute.
Goals: at least 30 MB per second of processor time from start to exit, and 10 times datatrove's sentence deduplication.
Writes results/dedup_lines.json.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

from foundation_inputs import save
from repeated_text import POOL, build_corpus, gristmill, measured, plant, speed, texts_of

LINES = [f"Planted line number {number}: all rights reserved by its owners." for number in range(40)]
SPEED_GOAL, PEER_GOAL = 30.0, 10.0


def main() -> None:
    """Measure, or be the peer."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mb", type=float, default=150)
    parser.add_argument("--peer-mb", type=float, default=12)
    parser.add_argument("--datatrove-python", default=os.environ.get("DATATROVE_PYTHON", sys.executable))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--pool", type=Path, default=POOL)
    parser.add_argument("--peer", nargs=2, type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--unit", default="line", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.peer:
        run_datatrove(*options.peer, options.unit == "sentence")
        return
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        files = build_corpus(options.pool, folder / "corpus", options.mb)
        planted = plant(files, LINES, share=0.3)
        runs = []
        for _ in range(options.rounds + 1):  # the first one compiles
            shutil.rmtree(folder / "out", ignore_errors=True)
            shutil.rmtree(folder / "out.gristmill", ignore_errors=True)
            runs.append(measured(gristmill("lines", folder / "corpus", folder / "out", "--min-chars", "1")))
        best = min(runs[1:], key=lambda run: run["cpu_s"])
        ours = speed(files, best)
        result: dict[str, Any] = {
            "input_mb": round(sum(path.stat().st_size for path in files) / 1e6, 1),
            "planted_lines": planted,
            "ours": ours,
            "runs": runs[1:],
            "goal_mb_per_cpu_s": SPEED_GOAL,
            "share_of_goal": round(ours["mb_per_cpu_s"] / SPEED_GOAL, 2),
            **compared(texts_of(files), texts_of(sorted((folder / "out").glob("*.jsonl")))),
        }
        for unit in ("line", "sentence"):
            result[f"datatrove_{unit}s"] = against_datatrove(options, folder, unit)
    save("dedup_lines", result)


def compared(before: dict[str, str], after: dict[str, str]) -> dict[str, int]:
    """How many lines differ from what a plain loop leaves."""
    lines = {name: [plain(line) for line in text.split("\n")] for name, text in before.items()}
    counts = Counter(line for found in lines.values() for line in found if line)
    seen: set[str] = set()
    wrong = cut = 0
    for name, found in lines.items():
        kept = []
        for line in found:
            if line and (counts[line] == 1 or line not in seen):
                kept.append(line)
                seen.add(line)
            cut += bool(line) and (not kept or kept[-1] is not line)
        left = [plain(line) for line in after.get(name, "").split("\n")]
        wrong += [line for line in left if line] != kept
    return {"lines_cut": cut, "documents_unlike_a_plain_loop": wrong}


def plain(line: str) -> str:
    """A line as it is compared: without white space around it, and with runs of ASCII white space as one space."""
    return re.sub("[ \t\v\f\r\x1c-\x1f]+", " ", line.strip())


def against_datatrove(options: Any, folder: Path, unit: str) -> dict[str, Any]:
    """Both sides on the same smaller corpus, in turns."""
    source = folder / ("corpus" if unit == "line" else "small")  # its sentences take too long for the whole
    files = sorted(source.glob("corpus-*.jsonl"))
    if not files:
        files = build_corpus(options.pool, source, options.peer_mb)
        plant(files, LINES, share=0.3)
    turns: dict[str, list[dict[str, float]]] = {"ours": [], "datatrove": []}
    for turn in range(1 if unit == "line" else 2):
        for side, found in turns.items():
            output = folder / f"{side}-{unit}-{turn}"
            command = [options.datatrove_python, __file__, "--peer", str(source), str(output), "--unit", unit]
            if side == "ours":
                command = gristmill("lines", source, output, "--min-chars", "1", "--unit", unit)
            found.append(measured(command))
    best = {side: min(found, key=lambda run: run["cpu_s"]) for side, found in turns.items()}
    ratio = {kind: round(best["datatrove"][kind] / best["ours"][kind], 1) for kind in ("cpu_s", "wall_s")}
    return {
        "input_mb": round(sum(path.stat().st_size for path in files) / 1e6, 1),
        "runs": turns,
        "times_ours": ratio,
        "goal": PEER_GOAL,
        "share_of_goal": round(ratio["cpu_s"] / PEER_GOAL, 2),
    }


def run_datatrove(source: Path, output: Path, sentences: bool) -> None:
    """Signatures, duplicates and filter on lines or sentences, one task and one worker."""
    from datatrove.executor import LocalPipelineExecutor
    from datatrove.pipeline.dedup import SentenceDedupFilter, SentenceDedupSignature, SentenceFindDedups
    from datatrove.pipeline.dedup.sentence_dedup import SentDedupConfig
    from datatrove.pipeline.readers import JsonlReader
    from datatrove.pipeline.writers import JsonlWriter
    from datatrove.utils.hashing import HashConfig

    config = SentDedupConfig(
        n_sentences=1,
        split_sentences=sentences,
        only_dedup_in_index=False,
        min_doc_words=0,
        min_num_sentences=0,
        hash_config=HashConfig(hash_fc="sha1"),  # its xxhash fails on texts with the installed version of that package
    )

    def read() -> Any:
        return JsonlReader(str(source), glob_pattern="corpus-*.jsonl")

    def run(step: str, stages: list[Any]) -> None:
        LocalPipelineExecutor(pipeline=stages, tasks=1, workers=1, logging_dir=str(output / "logs" / step)).run()

    signatures, found = str(output / "signatures"), str(output / "duplicates")
    run("1", [read(), SentenceDedupSignature(output_folder=signatures, config=config)])
    run("2", [SentenceFindDedups(data_folder=signatures, output_folder=found, config=config)])
    kept = JsonlWriter(str(output / "kept"), compression=None)
    run("3", [read(), SentenceDedupFilter(data_folder=found, config=config), kept])


if __name__ == "__main__":
    main()
