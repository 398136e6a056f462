"""The work of `compare_peers.py` as written for each peer; runs in the peer's own environment, as one process.

    PYTHON benchmarks/peer_work.py nemo-curator|datatrove WORK INPUT OUTPUT

INPUT is a folder of JSONL files, OUTPUT a new folder; the kept documents end up in OUTPUT/kept. Both peers get two
workers, as ours do, and are called the way their own documentation does it.
"""

from __future__ import annotations

import json
import os
import re
import sys
from pathlib import Path
from typing import Any

WORKERS = 2
THREE_FILTERS = [
    ["WordCountFilter", {"min_words": 50, "max_words": 100000}],
    ["MeanWordLengthFilter", {"min_mean_word_length": 3, "max_mean_word_length": 10}],
    ["NonAlphaNumericFilter", {"max_non_alpha_numeric_to_text_ratio": 0.25}],
]
"""Name and parameters, the same in NeMo Curator and here."""


def nemo_filters(filters: list[list[Any]], source: Path, output: Path) -> None:
    """Filters in order, on Ray Data, which is the fastest of its executors here."""
    from nemo_curator.backends.ray_data import RayDataExecutor
    from nemo_curator.core.client import RayClient
    from nemo_curator.pipeline import Pipeline
    from nemo_curator.stages.text import filters as known
    from nemo_curator.stages.text.filters import ScoreFilter
    from nemo_curator.stages.text.io.reader import JsonlReader
    from nemo_curator.stages.text.io.writer import JsonlWriter

    client = RayClient(num_cpus=WORKERS, num_gpus=0, include_dashboard=False)
    client.start()
    try:
        pipeline = Pipeline("filters")
        pipeline.add_stage(JsonlReader(str(source), files_per_partition=1))
        for name, parameters in filters:
            pipeline.add_stage(ScoreFilter(_find(known, name)(**parameters), text_field="text"))
        pipeline.add_stage(JsonlWriter(str(output / "kept")))
        pipeline.run(RayDataExecutor())
    finally:
        client.stop()


def _find(known: Any, name: str) -> Any:
    if hasattr(known, name):
        return getattr(known, name)
    from nemo_curator.stages.text.filters.heuristic import code, repetition, string

    return next(getattr(module, name) for module in (string, repetition, code) if hasattr(module, name))


def nemo_exact(source: Path, output: Path) -> None:
    """Its workflow for exact duplicates."""
    from nemo_curator.stages.deduplication.exact.workflow import ExactDeduplicationWorkflow

    ExactDeduplicationWorkflow(
        input_path=str(source), output_path=str(output / "kept"), input_filetype="jsonl", text_field="text",
        assign_id=True, perform_removal=False,
    ).run()  # fmt: skip


def nemo_fuzzy(source: Path, output: Path) -> None:
    """Its workflow for near-duplicates."""
    from nemo_curator.stages.deduplication.fuzzy.workflow import FuzzyDeduplicationWorkflow

    FuzzyDeduplicationWorkflow(
        input_path=str(source), output_path=str(output / "kept"), cache_path=str(output / "cache"),
        input_filetype="jsonl", text_field="text", perform_removal=False,
    ).run()  # fmt: skip


class Datatrove:
    """Its local executor: one task per file, two workers."""

    def __init__(self, source: Path, output: Path) -> None:
        self.source, self.output = source, output
        self.tasks = len(list(source.glob("*.jsonl")))

    def read(self) -> Any:
        """A reader of the input."""
        from datatrove.pipeline.readers import JsonlReader

        return JsonlReader(str(self.source), glob_pattern="*.jsonl")

    def kept(self) -> Any:
        """A writer of the kept documents, one file for each task."""
        from datatrove.pipeline.writers import JsonlWriter

        return JsonlWriter(str(self.output / "kept"), compression=None)

    def run(self, step: str, stages: list[Any], tasks: int | None = None) -> None:
        """Run one pipeline."""
        from datatrove.executor import LocalPipelineExecutor

        count = self.tasks if tasks is None else tasks
        logs = str(self.output / "logs" / step)
        LocalPipelineExecutor(
            pipeline=stages, tasks=count, workers=min(WORKERS, count), logging_dir=logs, randomize_start_duration=0
        ).run()

    def three_filters(self) -> None:
        """The rules of `THREE_FILTERS`, as functions, which is how one adds a rule."""
        from datatrove.pipeline.filters import LambdaFilter

        stages = [LambdaFilter(rule) for rule in (_enough_words, _usual_words, _mostly_letters)]
        self.run("filters", [self.read(), *stages, self.kept()])

    def published(self) -> None:
        """Gopher's quality and repetition, C4 and FineWeb."""
        from datatrove.pipeline.filters import (
            C4QualityFilter,
            FineWebQualityFilter,
            GopherQualityFilter,
            GopherRepetitionFilter,
        )

        filters = [GopherQualityFilter(), GopherRepetitionFilter(), C4QualityFilter(), FineWebQualityFilter()]
        self.run("filters", [self.read(), *filters, self.kept()])

    def exact(self) -> None:
        """Signatures, duplicates, filter."""
        from datatrove.pipeline.dedup import ExactDedupFilter, ExactDedupSignature, ExactFindDedups
        from datatrove.pipeline.dedup.exact_dedup import ExactDedupConfig

        config = ExactDedupConfig(content_getter=_text)
        signatures, found = str(self.output / "signatures"), str(self.output / "duplicates")
        self.run("1", [self.read(), ExactDedupSignature(signatures, config, finder_workers=WORKERS)])
        self.run("2", [ExactFindDedups(signatures, found, config)], WORKERS)
        self.run("3", [self.read(), ExactDedupFilter(found, config), self.kept()])

    def fuzzy(self) -> None:
        """Its four MinHash steps with the defaults: 14 bands of 8, word 5-grams."""
        from datatrove.pipeline.dedup import (
            MinhashDedupBuckets,
            MinhashDedupCluster,
            MinhashDedupFilter,
            MinhashDedupSignature,
        )
        from datatrove.pipeline.dedup.minhash import MinhashConfig

        config = MinhashConfig()
        signatures, buckets, removals = (str(self.output / name) for name in ("signatures", "buckets", "removals"))
        self.run("1", [self.read(), MinhashDedupSignature(output_folder=signatures, config=config)])
        self.run("2", [MinhashDedupBuckets(signatures, buckets, config=config)], config.num_buckets)
        self.run("3", [MinhashDedupCluster(buckets, removals, config=config)], 1)
        self.run("4", [self.read(), MinhashDedupFilter(removals), self.kept()])


def _text(document: Any) -> str:
    return str(document.text)


def _enough_words(document: Any) -> bool:
    return 50 <= len(document.text.split()) <= 100_000


def _usual_words(document: Any) -> bool:
    words = document.text.split()
    return 3 <= sum(map(len, words)) / max(1, len(words)) <= 10


def _mostly_letters(document: Any) -> bool:
    text = document.text
    return len(re.sub(r"[a-zA-Z0-9\n?!,.]", "", text)) <= 0.25 * len(text)


def main() -> None:
    """Do the work that the arguments name."""
    peer, work, source, output = sys.argv[1:5]
    folder, target = Path(source), Path(output)
    if peer == "datatrove":
        getattr(Datatrove(folder, target), work)()
        return
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    if work == "english":
        nemo_filters(json.loads(Path(os.environ["PEER_FILTERS"]).read_text()), folder, target)
    elif work == "three_filters":
        nemo_filters(THREE_FILTERS, folder, target)
    else:
        {"exact": nemo_exact, "fuzzy": nemo_fuzzy}[work](folder, target)


if __name__ == "__main__":
    main()
