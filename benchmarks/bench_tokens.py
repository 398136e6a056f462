"""How fast are tokenization and writing, against the bare `tokenizers` library and datatrove's DocumentTokenizer?

    python benchmarks/bench_tokens.py [--megabytes 40] [--rounds 3]

The input is real text of ../shared/data/texts as JSONL in eight files; the tokenizer is a byte-level BPE with 32,000
tokens trained on a part of it. Every round runs each contender once, in a process of its own, on two cores:

- `raw`: `encode_batch` of the package tokenizers with its own threads, on texts that are already in memory; nothing is
  done with the tokens. Only the calls are timed.
- `gristmill`: JSONL to Megatron's `.bin` and `.idx` with two workers, everything from planning to the commit.
- `datatrove`: JSONL to its `.ds` files with `DocumentTokenizer` (no shuffle), two workers, two tasks.
- `count`: `gristmill tokens count` on the same input.

Wall and processor time are of the work, without starting the interpreter and importing; processor time is that of the
whole tree. Memory is the largest proportional set size of the tree (`smaps_rollup`), sampled 10 times a second.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import psutil

ROOT = Path(__file__).resolve().parent.parent
RESULT = ROOT / "benchmarks" / "results" / "tokens.json"
TEXTS = ROOT.parent / "shared" / "data" / "texts"
SOURCES = ("ng20", "wcxb_main", "wiki_en", "c4", "movie_reviews", "manpages", "install_guide", "anarchist_faq")
FILES = 8
END = "<|endoftext|>"
CONTENDERS = ("raw", "gristmill", "datatrove", "count")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=int, default=40)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--contender", choices=CONTENDERS, help=argparse.SUPPRESS)
    parser.add_argument("--folder", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.contender:
        print(json.dumps(run_one(options.contender, Path(options.folder))))
        return
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        size, documents = make_input(folder, options.megabytes * 1_000_000)
        make_tokenizer(folder)
        rounds = []
        for number in range(options.rounds):
            order = CONTENDERS if number % 2 == 0 else CONTENDERS[::-1]
            rounds.append({one: measured(one, folder) for one in order})
            print(json.dumps(rounds[-1]), file=sys.stderr)
    tokens = rounds[0]["raw"]["tokens"]
    found: dict[str, Any] = {
        one: {
            "wall_s": statistics.median(each[one]["wall_s"] for each in rounds),
            "cpu_s": statistics.median(each[one]["cpu_s"] for each in rounds),
            "tokens_per_s": round(tokens / statistics.median(each[one]["wall_s"] for each in rounds)),
            "tokens": rounds[0][one]["tokens"],
            "peak_mb": max(each[one]["peak_mb"] for each in rounds),
        }
        for one in CONTENDERS
    }
    result = {
        "input": {"bytes": size, "documents": documents, "tokens": tokens, "vocabulary": 32_000},
        "contenders": found,
        "gristmill_of_raw": {
            "wall": ratio(rounds, "raw", "gristmill", "wall_s"),
            "cpu": ratio(rounds, "raw", "gristmill", "cpu_s"),
        },
        "gristmill_of_datatrove": {
            "wall": ratio(rounds, "datatrove", "gristmill", "wall_s"),
            "cpu": ratio(rounds, "datatrove", "gristmill", "cpu_s"),
        },
        "count_of_raw": {
            "wall": ratio(rounds, "raw", "count", "wall_s"),
            "cpu": ratio(rounds, "raw", "count", "cpu_s"),
        },
        "machine": {"cores": psutil.cpu_count(), "processor": platform.processor() or platform.machine()},
        "rounds": options.rounds,
    }
    RESULT.write_text(json.dumps(result, indent=2) + "\n")
    print(json.dumps(result, indent=2))


def ratio(rounds: list[dict[str, Any]], other: str, own: str, what: str) -> float:
    """How many times as fast `own` is, as the median over rounds."""
    return round(statistics.median(each[other][what] / each[own][what] for each in rounds), 3)


def make_input(folder: Path, size: int) -> tuple[int, int]:
    """Write about `size` bytes of documents into eight files; returns the bytes of text and the documents."""
    lines, total = [], 0
    while total < size:
        for name in SOURCES:
            with gzip.open(TEXTS / f"{name}.jsonl.gz", "rt", encoding="utf-8") as file:
                for line in file:
                    if total >= size:
                        break
                    record = json.loads(line)
                    lines.append(json.dumps({"id": f"{len(lines)}", "text": record["text"]}))
                    total += len(record["text"].encode())
    (folder / "in").mkdir()
    for number in range(FILES):
        (folder / "in" / f"{number}.jsonl").write_text("\n".join(lines[number::FILES]) + "\n")
    return total, len(lines)


def make_tokenizer(folder: Path) -> None:
    """Train the tokenizer."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    texts = []
    with (folder / "in" / "0.jsonl").open() as file:
        texts = [json.loads(line)["text"] for line in file]
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    tokenizer.train_from_iterator(
        texts,
        trainers.BpeTrainer(vocab_size=32_000, special_tokens=[END], initial_alphabet=alphabet, show_progress=False),
    )
    (folder / "tokenizer").mkdir()
    tokenizer.save(str(folder / "tokenizer" / "tokenizer.json"))


def measured(contender: str, folder: Path) -> dict[str, Any]:
    """Run a contender in a process of its own."""
    command = [sys.executable, __file__, "--contender", contender, "--folder", str(folder)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return dict(json.loads(done.stdout.strip().splitlines()[-1]))


def run_one(contender: str, folder: Path) -> dict[str, Any]:
    """One run, measured in this process."""
    work = {"raw": raw, "gristmill": gristmill, "datatrove": datatrove, "count": count}[contender](folder)
    process = psutil.Process()
    peak, over = [0], threading.Event()
    spent: dict[tuple[int, float], float] = {}  # by process, as it was seen last

    def watch() -> None:
        while not over.wait(0.1):
            total = 0
            for one in process.children(recursive=True):
                try:
                    total += one.memory_full_info().pss
                    spent[one.pid, one.create_time()] = sum(one.cpu_times()[:2])
                except (psutil.Error, OSError):
                    continue
            peak[0] = max(peak[0], total + process.memory_full_info().pss)

    watcher = threading.Thread(target=watch)
    watcher.start()
    own, begun = time.process_time(), time.perf_counter()
    tokens = work()
    wall = time.perf_counter() - begun
    over.set()
    watcher.join()
    cpu = time.process_time() - own + sum(spent.values())
    return {"wall_s": round(wall, 3), "cpu_s": round(cpu, 3), "tokens": tokens, "peak_mb": round(peak[0] / 1e6)}


def raw(folder: Path) -> Any:
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(folder / "tokenizer" / "tokenizer.json"))
    texts = [json.loads(line)["text"] for path in sorted((folder / "in").iterdir()) for line in path.open()]
    os.environ["TOKENIZERS_PARALLELISM"] = "true"

    def work() -> int:
        tokens = 0
        for start in range(0, len(texts), 1000):
            found = tokenizer.encode_batch(texts[start : start + 1000], add_special_tokens=False)
            tokens += sum(map(len, found))
        return tokens + len(texts)  # with the end tokens that the others write

    return work


def gristmill(folder: Path) -> Any:
    from gristmill import Pipeline
    from gristmill.backends.local import LocalExecutor
    from gristmill.stages.text.io.reader import JsonlReader
    from gristmill.stages.text.io.writer import TokenWriter

    output = folder / "out"
    for place in (output, folder / "out.gristmill"):
        shutil.rmtree(place, ignore_errors=True)

    def work() -> int:
        stages = [JsonlReader(str(folder / "in")), TokenWriter(str(output), str(folder / "tokenizer"))]
        Pipeline("tokens", stages=stages).run(LocalExecutor({"num_cpus": 2}), progress=False)
        return int(json.loads((folder / "out.gristmill" / "summary.json").read_text())["tokens"])

    return work


def datatrove(folder: Path) -> Any:
    from datatrove.executor import LocalPipelineExecutor
    from datatrove.pipeline.readers import JsonlReader
    from datatrove.pipeline.tokens import DocumentTokenizer

    for place in (folder / "trove", folder / "logs"):
        shutil.rmtree(place, ignore_errors=True)

    def work() -> int:
        LocalPipelineExecutor(
            pipeline=[
                JsonlReader(str(folder / "in")),
                DocumentTokenizer(
                    str(folder / "trove"),
                    str(folder / "tokenizer" / "tokenizer.json"),
                    eos_token=END,
                    shuffle_documents=False,
                ),
            ],
            tasks=2,
            workers=2,
            logging_dir=str(folder / "logs"),
        ).run()
        return sum(path.stat().st_size // 2 for path in (folder / "trove").rglob("*.ds"))

    return work


def count(folder: Path) -> Any:
    from gristmill.advice.token_counts import count_tokens
    from gristmill.backends.local import LocalExecutor

    def work() -> int:
        found = count_tokens([str(folder / "in")], str(folder / "tokenizer"), LocalExecutor({"num_cpus": 2}))
        return found.total.tokens + found.total.documents

    return work


if __name__ == "__main__":
    main()
