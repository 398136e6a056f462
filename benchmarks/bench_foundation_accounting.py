"""What do accounting and origins cost?

The same stages once in a pipeline, which follows every row, notes the identity of every document, checks that rows add
up and commits a ledger, and once in a plain loop that reads, calls the stages and writes. The goals are at most 5 % for
built-in stages and at most 15 % for stages written with pandas.

    python benchmarks/bench_foundation_accounting.py [--megabytes 60] [--repeat 5]
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from foundation_inputs import best_of, make_input, save


def built_in() -> list[Any]:
    """Filters that share a pass, and two modifiers."""
    from gristmill.stages.text.filters import ScoreFilter, SymbolsToWordsFilter, WordCountFilter
    from gristmill.stages.text.modifiers import MarkdownRemover, Modify, UrlRemover

    return [
        ScoreFilter(WordCountFilter(min_words=20)),
        ScoreFilter(SymbolsToWordsFilter()),
        Modify(UrlRemover()),
        Modify(MarkdownRemover()).with_(name="markdown"),
    ]


def pandas_stages() -> list[Any]:
    """A filter, a change and a new column, as a user writes them."""
    from gristmill.stages.function_decorators import processing_stage
    from gristmill.tasks import DocumentBatch

    @processing_stage(name="long_enough")
    def long_enough(batch: DocumentBatch) -> DocumentBatch:
        frame = batch.to_pandas()
        return DocumentBatch(data=frame[frame["text"].str.split().str.len() >= 20])

    @processing_stage(name="lower")
    def lower(batch: DocumentBatch) -> DocumentBatch:
        frame = batch.to_pandas()
        return DocumentBatch(data=frame.assign(text=frame["text"].str.lower().str.replace("http", "", regex=False)))

    @processing_stage(name="count")
    def count(batch: DocumentBatch) -> DocumentBatch:
        frame = batch.to_pandas()
        return DocumentBatch(data=frame.assign(letters=frame["text"].str.count("[a-z]")))

    return [long_enough, lower, count]


def plain_loop(source: Path, target: Path, stages: Sequence[Any]) -> None:
    """Read, call the stages, write: what would be left without a pipeline."""
    from gristmill.stages.text.io import JsonlReader, JsonlWriter
    from gristmill.tasks import EmptyTask

    partitioning, reader = JsonlReader(str(source)).decompose()
    writer = JsonlWriter(str(target))
    for number, task in enumerate(partitioning.process(EmptyTask())):
        part = writer.open_part(f"{target}/{number}.jsonl")
        for batch in reader.process(task):
            for stage in stages:
                batch = stage.process(batch)
            part.append(writer.encode(batch), rows=batch.num_items)
        part.close()


def main() -> None:
    """Measure both kinds of stages both ways."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=float, default=60)
    parser.add_argument("--repeat", type=int, default=5)
    options = parser.parse_args()
    from gristmill.backends.local import LocalExecutor
    from gristmill.pipeline import Pipeline
    from gristmill.pipeline.planner import fuse_stages
    from gristmill.stages.text.io import JsonlReader, JsonlWriter

    result: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        size, documents = make_input(folder / "in" / "a.jsonl", megabytes=options.megabytes)

        def measure(stages: list[Any]) -> dict[str, Any]:
            fused = fuse_stages(stages)

            def pipeline() -> None:
                shutil.rmtree(folder / "out", ignore_errors=True)
                shutil.rmtree(folder / "out.gristmill", ignore_errors=True)
                every = [JsonlReader(str(folder / "in")), *stages, JsonlWriter(str(folder / "out"))]
                Pipeline("accounting", stages=every).run(executor=LocalExecutor(config={"num_cpus": 0}))

            def loop() -> None:
                shutil.rmtree(folder / "plain", ignore_errors=True)
                (folder / "plain").mkdir()
                plain_loop(folder / "in", folder / "plain", fused)

            pipeline()
            loop()
            with_accounting, without = best_of(options.repeat, pipeline, loop)
            return {
                "pipeline": with_accounting,
                "plain_loop": without,
                "cost_wall": round(with_accounting["wall_s"] / without["wall_s"] - 1, 3),
                "cost_cpu": round(with_accounting["cpu_s"] / without["cpu_s"] - 1, 3),
            }

        kinds: dict[str, Callable[[], list[Any]]] = {"built_in": built_in, "pandas": pandas_stages}
        for kind, make in kinds.items():
            result[kind] = measure(make())
    goal = {"built_in": "at most 0.05", "pandas": "at most 0.15"}
    save("foundation_accounting", {"bytes": size, "documents": documents, **result, "goal": goal})


if __name__ == "__main__":
    main()
