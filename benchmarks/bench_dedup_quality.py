"""How well do exact and fuzzy deduplication find the planted duplicates of a corpus, and nothing else?

    python benchmarks/bench_dedup_quality.py CORPUS [CORPUS…] [--threshold 0.8] [--verify pairs]

A CORPUS is a folder made by `build_corpus.py` of the shared data, with `corpus-*.jsonl`, `truth.jsonl`, `pairs.jsonl`
and `summary.json`, whose seed names it in the result. Fuzzy: recall of planted pairs by similarity, and precision over
all pairs within clusters, where a pair is right if it was planted, is equal, or has a true word 5-gram Jaccard
similarity of at least 0.7. Goals: recall of 0.985 for pairs of 0.8 and above, precision of 0.99. Exact: what goes are
exactly the documents whose text occurs before.

Takes about a minute for a corpus of 200 MB and writes results/dedup_quality.json; corpora of other seeds stay there.
"""

from __future__ import annotations

import argparse
import itertools
import json
import re
import sys
import tempfile
from collections import defaultdict
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

sys.path.insert(0, str(Path(__file__).parent))

from foundation_inputs import RESULTS, save
from gristmill.stages.deduplication import ExactDeduplicationWorkflow, FuzzyDeduplicationWorkflow

_CJK = re.compile("[\u3040-\u30ff\u3400-\u9fff]")
_RIGHT = 0.7
RECALL_GOAL, PRECISION_GOAL = 0.985, 0.99


def shingles(text: str, size: int = 5) -> set[tuple[str, ...]]:
    """The word 5-grams of a text as the corpus defines them; characters where it is mostly CJK."""
    mostly_cjk = len(_CJK.findall(text[:2000])) > 0.2 * min(len(text), 2000)
    words = list(re.sub(r"\W+", "", text.lower())) if mostly_cjk else re.findall(r"\w+", text.lower())
    return {tuple(words[at : at + size]) for at in range(max(1, len(words) - size + 1))}


def jaccard(one: set[Any], other: set[Any]) -> float:
    """The Jaccard similarity of two sets."""
    shared = len(one & other)
    return shared / (len(one) + len(other) - shared)


def clusters_of(output: Path) -> dict[str, str]:
    """Document id → id of the survivor, out of the ledger."""
    found: dict[str, str] = {}
    for path in sorted(Path(f"{output}.gristmill", "ledger").glob("*.parquet")):
        table = pq.read_table(path, columns=["id", "outcome", "survivor"])
        for row in table.to_pylist():
            if row["outcome"] == "duplicate":
                found[row["id"]] = row["survivor"]
    return found


def measure(corpus: Path, output: Path) -> dict[str, Any]:
    """Recall of planted pairs and precision of all pairs within clusters."""
    lost_to = clusters_of(output)
    truth = {row["id"]: row for row in map(json.loads, (corpus / "truth.jsonl").read_text().splitlines())}
    members: dict[str, list[str]] = defaultdict(list)
    for document in truth:
        members[lost_to.get(document, document)].append(document)
    home = {document: head for head, group in members.items() for document in group}
    recall: dict[str, list[int]] = defaultdict(lambda: [0, 0])
    for pair in map(json.loads, (corpus / "pairs.jsonl").read_text().splitlines()):
        level = pair["j_word5"]
        together = home[pair["a"]] == home[pair["b"]]
        for name, within in (("0.8 and above", level >= 0.8), (f"{int(level * 10) / 10:.1f}", True)):
            if within:
                recall[name][0] += together
                recall[name][1] += 1
    wanted = {document for group in members.values() if len(group) > 1 for document in group}
    texts: dict[str, str] = {}
    for path in sorted(corpus.glob("corpus-*.jsonl")):
        with path.open(encoding="utf-8") as file:
            for line in file:
                row = json.loads(line)
                if row["id"] in wanted:
                    texts[row["id"]] = row["text"]
    pairs = right = 0
    wrong = []
    for group in members.values():
        sets = {document: shingles(texts[document]) for document in group} if len(group) > 1 else {}
        for one, other in itertools.combinations(group, 2):
            pairs += 1
            good = truth[one]["group"] == truth[other]["group"] or jaccard(sets[one], sets[other]) >= _RIGHT
            right += good
            if not good and len(wrong) < 20:
                wrong.append([one, other, round(jaccard(sets[one], sets[other]), 3)])
    return {
        "recall": {name: [round(hit / total, 4), total] for name, (hit, total) in sorted(recall.items())},
        "pairs": pairs,
        "precision": round(right / max(1, pairs), 4),
        "largest_cluster": max(len(group) for group in members.values()),
        "wrong": wrong,
    }


def measure_exact(corpus: Path, output: Path) -> dict[str, Any]:
    """What an exact deduplication removes beside what a plain loop over the texts would."""
    ExactDeduplicationWorkflow(str(output), str(corpus / "corpus-*.jsonl"), perform_removal=True).run(progress=False)
    seen: set[str] = set()
    expected = set()
    for path in sorted(corpus.glob("corpus-*.jsonl")):
        with path.open(encoding="utf-8") as file:
            for row in map(json.loads, file):
                if row["text"] in seen:
                    expected.add(row["id"])
                elif row["text"]:
                    seen.add(row["text"])
    removed = set(clusters_of(output))
    return {
        "duplicates": len(expected),
        "removed": len(removed),
        "missed": len(expected - removed),
        "wrongly_removed": len(removed - expected),
    }


def measure_fuzzy(corpus: Path, output: Path, options: dict[str, Any]) -> dict[str, Any]:
    """Run and measure a fuzzy deduplication."""
    workflow = FuzzyDeduplicationWorkflow(
        input_path=str(corpus / "corpus-*.jsonl"), output_path=str(output), perform_removal=True, **options
    )
    result = workflow.run(progress=False)
    # Times are for bench_dedup_speed.py; here they would only say how busy the machine was.
    facts = {
        key: value for key, value in result.metadata.items() if key not in ("output", "notes") and "_time" not in key
    }
    found = measure(corpus, output)
    recall = found["recall"]["0.8 and above"][0]
    goals = {
        "recall": RECALL_GOAL,
        "recall_by_goal": round(recall / RECALL_GOAL, 4),
        "precision": PRECISION_GOAL,
        "precision_by_goal": round(found["precision"] / PRECISION_GOAL, 4),
    }
    return {**found, "goals": goals, "run": facts}


def main() -> None:
    """Measure the corpora that are named."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("corpora", type=Path, nargs="+", metavar="CORPUS")
    parser.add_argument("--threshold", type=float, default=0.8)
    parser.add_argument("--verify", default="pairs")
    arguments = parser.parse_args()
    place = RESULTS / "dedup_quality.json"
    results: dict[str, Any] = json.loads(place.read_text()) if place.exists() else {}
    for corpus in arguments.corpora:
        seed = json.loads((corpus / "summary.json").read_text())["options"]["seed"]
        with tempfile.TemporaryDirectory() as folder:
            results[f"seed-{seed}"] = {
                "exact": measure_exact(corpus, Path(folder) / "exact"),
                "fuzzy": measure_fuzzy(
                    corpus, Path(folder) / "fuzzy", {"threshold": arguments.threshold, "verify": arguments.verify}
                ),
            }
    save("dedup_quality", {key: value for key, value in results.items() if key.startswith("seed-")})


if __name__ == "__main__":
    main()
