"""How well does fuzzy deduplication find the labelled near-duplicates of real collections?

    python benchmarks/bench_dedup_labelled.py DATA [--threshold 0.8] [--verify pairs] [--out FILE.json]

DATA is the folder of shared data; its `neardup/` holds real documents and all pairs above a word 5-gram Jaccard
similarity, found by brute force. Recall counts the labelled pairs at or above the threshold that end up in one cluster,
precision the pairs within clusters that are labelled with at least 0.7.
"""

from __future__ import annotations

import argparse
import gzip
import itertools
import json
import tempfile
from collections import defaultdict
from pathlib import Path
from typing import Any

from bench_dedup_quality import clusters_of
from gristmill.stages.deduplication import FuzzyDeduplicationWorkflow

SETS = {
    "install_guide": "neardup/install_guide.docs.jsonl.gz",
    "plag_articles": "neardup/plag_articles.docs.jsonl.gz",
    "ng20": "texts/ng20.jsonl.gz",
}
_RIGHT = 0.7


def rows_of(path: Path) -> list[dict[str, Any]]:
    with gzip.open(path, "rt", encoding="utf-8") as file:
        return [json.loads(line) for line in file]


def measure(data: Path, name: str, options: dict[str, Any]) -> dict[str, Any]:
    labelled = {
        tuple(sorted((pair["a"], pair["b"]))): pair["j_word5"]
        for pair in rows_of(data / f"neardup/{name}.pairs.jsonl.gz")
    }
    with tempfile.TemporaryDirectory() as folder:
        workflow = FuzzyDeduplicationWorkflow(
            input_path=str(data / SETS[name]), output_path=folder, perform_removal=True, **options
        )
        facts = workflow.run(progress=False).metadata
        lost_to = clusters_of(Path(folder))
    members: dict[str, list[str]] = defaultdict(list)
    for document in [row["id"] for row in rows_of(data / SETS[name])]:
        members[lost_to.get(document, document)].append(document)
    found = {tuple(sorted(pair)) for group in members.values() for pair in itertools.combinations(group, 2)}
    wanted = {pair for pair, similarity in labelled.items() if similarity >= workflow.threshold}
    right = sum(labelled.get(pair, 0.0) >= _RIGHT for pair in found)
    return {
        "documents": facts["documents"],
        "labelled_pairs": len(wanted),
        "recall": round(len(found & wanted) / max(1, len(wanted)), 4),
        "pairs_found": len(found),
        "precision": round(right / max(1, len(found)), 4),
        "estimated_recall": facts["recall"],
        "estimated_precision": facts["precision"],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("--threshold", type=float, default=0.8)
    parser.add_argument("--verify", default="pairs")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    options = {"threshold": arguments.threshold, "verify": arguments.verify}
    result = {name: measure(arguments.data, name, options) for name in SETS}
    text = json.dumps(result, indent=2)
    print(text)
    if arguments.out:
        arguments.out.write_text(text + "\n")


if __name__ == "__main__":
    main()
