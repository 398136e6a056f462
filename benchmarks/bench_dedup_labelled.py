"""How well does fuzzy deduplication find the labelled near-duplicates of real collections?

    python benchmarks/bench_dedup_labelled.py DATA [--threshold 0.8] [--verify pairs]

DATA is the folder of shared data; its `neardup/` holds real documents and all pairs above a word 5-gram Jaccard
similarity, found by brute force. Recall counts the labelled pairs at or above the threshold that end up in one cluster,
precision the pairs within clusters that are labelled with at least 0.7.

The figures by which text-dedup describes itself are computed too: macro-F1 over documents that have a duplicate or have
none, and the adjusted Rand index of the clusters (Hubert and Arabie 1985). It states 0.953 for CORE and 0.742 for
NEWS-COPY; neither set is among the shared data, so these figures are the goals for the sets that are.

Takes about half a minute and writes results/dedup_labelled.json.
"""

from __future__ import annotations

import argparse
import gzip
import itertools
import json
import math
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from bench_dedup_quality import clusters_of
from foundation_inputs import save
from gristmill.stages.deduplication import FuzzyDeduplicationWorkflow

SETS = {
    "install_guide": "neardup/install_guide.docs.jsonl.gz",
    "plag_articles": "neardup/plag_articles.docs.jsonl.gz",
    "ng20": "texts/ng20.jsonl.gz",
}
_RIGHT = 0.7
GOALS = {"recall": 0.985, "precision": 0.99, "macro_f1": 0.953, "adjusted_rand_index": 0.742}


def rows_of(path: Path) -> list[dict[str, Any]]:
    with gzip.open(path, "rt", encoding="utf-8") as file:
        return [json.loads(line) for line in file]


def macro_f1(documents: Collection[str], expected: set[str], found: set[str]) -> float:
    """The mean F1 of two classes: documents with a duplicate and documents without."""
    rest, rest_found = set(documents) - expected, set(documents) - found
    scores = []
    for wanted, got in ((expected, found), (rest, rest_found)):
        scores.append(2 * len(wanted & got) / (len(wanted) + len(got)) if wanted or got else 1.0)
    return sum(scores) / 2


def adjusted_rand_index(one: dict[str, str], other: dict[str, str]) -> float:
    """How far two clusterings of the same documents agree, 0 for chance and 1 for the same."""

    def pairs(counts: Iterable[int]) -> int:
        return sum(math.comb(count, 2) for count in counts)

    both = pairs(Counter((one[name], other[name]) for name in one).values())
    first, second = pairs(Counter(one.values()).values()), pairs(Counter(other.values()).values())
    chance = first * second / math.comb(len(one), 2)
    most = (first + second) / 2
    return 1.0 if most == chance else (both - chance) / (most - chance)


def joined(documents: Iterable[str], pairs: Iterable[tuple[str, ...]]) -> dict[str, str]:
    """Every document with the name of its cluster, which pairs connect."""
    head = {name: name for name in documents}

    def top(name: str) -> str:
        while head[name] != name:
            name = head[name]
        return name

    for first, second in pairs:
        head[top(first)] = top(second)
    return {name: top(name) for name in head}


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
    documents = [row["id"] for row in rows_of(data / SETS[name])]
    for document in documents:
        members[lost_to.get(document, document)].append(document)
    found = {tuple(sorted(pair)) for group in members.values() for pair in itertools.combinations(group, 2)}
    wanted = {pair for pair, similarity in labelled.items() if similarity >= workflow.threshold}
    right = sum(labelled.get(pair, 0.0) >= _RIGHT for pair in found)
    clusters = {document: lost_to.get(document, document) for document in documents}
    figures = {
        "recall": len(found & wanted) / max(1, len(wanted)),
        "precision": right / max(1, len(found)),
        "macro_f1": macro_f1(
            documents, {name for pair in wanted for name in pair}, {name for pair in found for name in pair}
        ),
        "adjusted_rand_index": adjusted_rand_index(joined(documents, wanted), clusters),
    }
    return {
        "documents": facts["documents"],
        "labelled_pairs": len(wanted),
        "pairs_found": len(found),
        **{figure: round(value, 4) for figure, value in figures.items()},
        "by_goal": {figure: round(value / GOALS[figure], 3) for figure, value in figures.items()},
        "estimated_recall": facts["recall"],
        "estimated_precision": facts["precision"],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("--threshold", type=float, default=0.8)
    parser.add_argument("--verify", default="pairs")
    arguments = parser.parse_args()
    options = {"threshold": arguments.threshold, "verify": arguments.verify}
    save("dedup_labelled", {"goals": GOALS, **{name: measure(arguments.data, name, options) for name in SETS}})


if __name__ == "__main__":
    main()
