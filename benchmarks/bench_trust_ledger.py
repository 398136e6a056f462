"""What does the record of a run cost: time, bytes per document, and the wait for an answer?

Three questions: which share of a run's processor time goes into identities, accounting, ledger, index and commit; how
many bytes a dropped and a kept document take beside the output when documents have one id; and how long
`gristmill why` takes in a new process on a million decisions. Without a corpus the shipped sample is repeated under
new ids.

    python benchmarks/bench_trust_ledger.py --corpus FOLDER_WITH_JSONL
"""

from __future__ import annotations

import argparse
import gzip
import json
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

ROOT = Path(__file__).resolve().parents[1]
RESULTS = Path(__file__).parent / "results" / "trust_ledger.json"
SAMPLE = ROOT / "src" / "gristmill" / "recipes" / "sample" / "sample.jsonl.gz"
PARTITIONS, ROWS = 20, 100_000


class Clock:
    """Adds up the processor time of functions, without counting a function inside another twice."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._depth = 0

    def wrap(self, module: Any, name: str, label: str) -> None:
        """Measure a function where others look it up."""
        inner: Callable[..., Any] = getattr(module, name)

        def measured(*values: Any, **options: Any) -> Any:
            if self._depth:
                return inner(*values, **options)
            self._depth += 1
            begun = time.process_time()
            try:
                return inner(*values, **options)
            finally:
                self.seconds[label] = self.seconds.get(label, 0.0) + time.process_time() - begun
                self._depth -= 1

        setattr(module, name, measured)


def sample_corpus(folder: Path, megabytes: int = 40) -> Path:
    """The shipped sample, repeated, every document with its own id and URL."""
    folder.mkdir()
    with gzip.open(SAMPLE, "rt", encoding="utf-8") as file:
        records = [json.loads(line) for line in file]
    number = size = part = 0
    while size < megabytes * 1_000_000:
        with (folder / f"part-{part:03}.jsonl").open("w", encoding="utf-8") as file:
            part += 1
            for record in records:
                number += 1
                record |= {"id": f"doc-{number:08}", "url": f"https://example.org/{number}"}
                size += file.write(json.dumps(record, ensure_ascii=False) + "\n")
    return folder


def stages(*, cheap: bool) -> list[Any]:
    """One filter, so that the record weighs most, or a usual set of them."""
    from gristmill.stages.text.filters import (
        MeanWordLengthFilter,
        NonAlphaNumericFilter,
        RepeatedLinesFilter,
        RepeatingTopNGramsFilter,
        ScoreFilter,
        SymbolsToWordsFilter,
        WordCountFilter,
    )

    made = [ScoreFilter(WordCountFilter(min_words=50))]
    if not cheap:
        made += [
            ScoreFilter(MeanWordLengthFilter()),
            ScoreFilter(NonAlphaNumericFilter()),
            ScoreFilter(SymbolsToWordsFilter()),
            ScoreFilter(RepeatedLinesFilter()),
            ScoreFilter(RepeatingTopNGramsFilter(n=2)),
        ]
    return made


def run(corpus: Path, output: Path, *, cheap: bool) -> None:
    """One run in this process."""
    from gristmill.backends.local import LocalExecutor
    from gristmill.pipeline import Pipeline
    from gristmill.stages.text.io import JsonlReader, JsonlWriter

    reader = JsonlReader(str(corpus / "*.jsonl"), files_per_partition=1)
    pipeline = Pipeline("ledger", stages=[reader, *stages(cheap=cheap), JsonlWriter(str(output))])
    # URLs are left out: the bytes are those of documents with one id.
    pipeline.run(executor=LocalExecutor(config={"num_cpus": 0}), url_field=None, error_budget=None, progress=False)


def time_and_bytes(corpus: Path, folder: Path, *, repeats: int) -> dict[str, Any]:
    """Shares of processor time and bytes per document."""
    import gristmill.execution.partition_output as parts
    import gristmill.execution.runner as runner
    import gristmill.execution.stage_call as stage_call
    import gristmill.ledger.record.tables as tables
    from gristmill.ledger.ask.ledger import Ledger

    run(corpus, folder / "warm", cheap=False)
    clock = Clock()
    clock.wrap(parts, "commit_partition", "commit_ledger_index")
    clock.wrap(tables, "make_identity", "identity")
    clock.wrap(runner, "account", "accounting")
    clock.wrap(stage_call, "account", "accounting")
    found: dict[str, Any] = {}
    for cheap in (False, True):
        best: dict[str, Any] = {}
        for number in range(repeats):
            clock.seconds.clear()
            output = folder / f"out-{cheap}-{number}"
            begun = time.process_time()
            run(corpus, output, cheap=cheap)
            total = time.process_time() - begun
            share = sum(clock.seconds.values()) / total
            if not best or share < best["share"]:
                parts_of_it = {name: round(seconds / total, 5) for name, seconds in clock.seconds.items()}
                best = {"share": round(share, 5), "parts": parts_of_it, "total_cpu_s": round(total, 3)}
        found["one_filter" if cheap else "six_filters"] = best
    ledger = Ledger(output)
    entries = list(ledger.entries().values())
    sizes = {kind: sum(e.records[kind].size for e in entries if kind in e.records) for kind in ("ledger", "ids")}
    read, dropped = sum(e.rows_read for e in entries), sum(e.rows_dropped for e in entries)
    manifest = sum(
        path.stat().st_size for path in (output.with_name(f"{output.name}.gristmill") / "manifest").iterdir()
    )
    found["documents"] = read
    found["dropped"] = dropped
    found["bytes_per_kept"] = round(sizes["ids"] / read, 2)
    found["bytes_per_dropped"] = round(sizes["ledger"] / dropped + sizes["ids"] / read, 2)
    found["manifest_bytes_per_partition"] = round(manifest / len(entries))
    return found


def million_decisions(folder: Path) -> dict[str, Any]:
    """A run of two million documents, every second one dropped, and the wait for answers about some of them."""
    from gristmill.kernels.hashing import hash_column
    from gristmill.ledger.record.commit import commit_partition
    from gristmill.ledger.record.layout import RunFolder
    from gristmill.ledger.record.plan_record import write_plan
    from gristmill.ledger.record.trail import Decisions, Identity, Trail
    from gristmill.storage.atomic import WrittenFile
    from gristmill.storage.partitions import FileRange, Partition

    output = RunFolder(folder / "million")
    order = ["read", "words", "write"]
    digest = write_plan(output, {"version": "0", "stages": [{"name": name} for name in order], "settings": {}})
    for part in range(PARTITIONS):
        rows = np.arange(ROWS)
        ids = pa.array([f"doc-{part:03}-{row:08}" for row in rows], pa.large_string())
        gone = rows[::2]
        trail = Trail(output_rows=ROWS - len(gone))
        trail.identities.append(Identity(rows, hash_column(ids), None, ids))
        scores = np.random.default_rng(part).integers(0, 50, len(gone)).astype(np.float64)
        trail.decisions.append(Decisions("words", "dropped", "too_few_words", gone, scores, 50.0))
        trail.counts["read"].created = trail.counts["read"].rows_out = ROWS
        words = trail.counts["words"]
        words.rows_in, words.rows_out, words.dropped = ROWS, ROWS - len(gone), {"too_few_words": len(gone)}
        trail.counts["write"].rows_in = trail.counts["write"].rows_out = ROWS - len(gone)
        name = f"part-{part:03}"
        staged = folder / f"{name}.jsonl"
        staged.write_bytes(b"{}\n" * (ROWS - len(gone)))
        written = WrittenFile(str(staged), staged.stat().st_size, ROWS - len(gone), "xxh3:" + "0" * 32)
        source = FileRange(f"{name}.jsonl", f"{name}.jsonl", 1, "0", 0, 1, True)
        commit_partition(
            output, Partition(part, name, (source,)), staged_files=[written], trail=trail, plan_digest=digest,
            stage_order=order,
        )  # fmt: skip
    asked = {"dropped": "doc-013-00045678", "kept": "doc-007-00012345", "never seen": "doc-999-00000001"}
    wall: dict[str, float] = {}
    processor: dict[str, float] = {}
    for _ in range(4):
        for status, name in asked.items():
            begun, used = time.perf_counter(), _children_s()
            done = subprocess.run(
                [str(Path(sys.executable).with_name("gristmill")), "why", output.path, name, "--json"],
                capture_output=True,
                text=True,
                check=False,
            )
            wall[status] = round(min(wall.get(status, 1e9), time.perf_counter() - begun), 3)
            processor[status] = round(min(processor.get(status, 1e9), _children_s() - used), 3)
            assert json.loads(done.stdout)["status"] == status, done
    return {
        "documents": PARTITIONS * ROWS,
        "decisions": PARTITIONS * ROWS // 2,
        "why_wall_s": wall,
        "why_processor_s": processor,
    }


def _children_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def main() -> None:
    """Measure, show and keep the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--corpus", type=Path, help="a folder of JSONL files with ids; by default made from the sample")
    parser.add_argument("--repeats", type=int, default=3)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        corpus = given.corpus or sample_corpus(folder / "corpus")
        result = {
            "corpus": "given" if given.corpus else "sample",
            "record": time_and_bytes(corpus, folder, repeats=given.repeats),
            "why": million_decisions(folder),
            "limits": {"share": 0.05, "bytes_per_dropped": 40, "bytes_per_kept": 10, "why_wall_s": 1.0},
        }
    print(json.dumps(result, indent=2))
    RESULTS.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
