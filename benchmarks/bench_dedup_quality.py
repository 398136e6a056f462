"""Measures the quality of a fuzzy deduplication on a corpus with planted duplicates.

Usage: python benchmarks/bench_dedup_quality.py CORPUS OUTPUT [--threshold 0.8] [--verify pairs] [--out FILE.json]

CORPUS is a folder made by `build_corpus.py` of the shared data, with `corpus-*.jsonl`, `truth.jsonl` and `pairs.jsonl`.
Prints one JSON object: recall of planted pairs by similarity, and the precision over all pairs within clusters, where a
pair is right if it was planted, is equal, or has a true word 5-gram Jaccard similarity of at least 0.7.
"""

from __future__ import annotations

import argparse
import itertools
import json
import re
from collections import defaultdict
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from gristmill.stages.deduplication import FuzzyDeduplicationWorkflow

_CJK = re.compile("[\u3040-\u30ff\u3400-\u9fff]")
_RIGHT = 0.7


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
    for path in sorted((output / "_gristmill" / "ledger").glob("*.parquet")):
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


def main() -> None:
    """Run and measure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("corpus", type=Path)
    parser.add_argument("output", type=Path)
    parser.add_argument("--threshold", type=float, default=0.8)
    parser.add_argument("--verify", default="pairs")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    workflow = FuzzyDeduplicationWorkflow(
        input_path=str(arguments.corpus / "corpus-*.jsonl"),
        output_path=str(arguments.output),
        perform_removal=True,
        threshold=arguments.threshold,
        verify=arguments.verify,
    )
    result = workflow.run(progress=False)
    # Times are for bench_dedup_speed.py; here they would only say how busy the machine was.
    facts = {
        key: value for key, value in result.metadata.items() if key not in ("output", "notes") and "_time" not in key
    }
    text = json.dumps({**measure(arguments.corpus, arguments.output), "run": facts}, indent=2)
    print(text)
    if arguments.out:
        arguments.out.write_text(text + "\n")


if __name__ == "__main__":
    main()
