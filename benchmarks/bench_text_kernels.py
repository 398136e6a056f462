"""Are the kernels over text faster than those of an earlier version, with the same results?

    git worktree add ../earlier REVISION
    python benchmarks/bench_text_kernels.py --old ../earlier --files 'CORPUS/*.jsonl' [--only words lines …]

Both versions are loaded into one process and take turns on the same batches, each kernel alone: the shortest processor
time of several rounds, after one that is not counted. The results of both are compared on every document.
"""

from __future__ import annotations

import argparse
import glob
import importlib
import json
import os
import platform
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import orjson

ROOT = Path(__file__).resolve().parent.parent
RESULT = ROOT / "benchmarks" / "results" / "text_kernels.json"
MODULES = ("text_characters", "text_clean", "text_column", "text_layout", "text_lines", "text_tokens", "text_words")
STOP_WORDS = ("the", "be", "to", "of", "and", "that", "have", "with")
POLICY = ("terms of use", "privacy policy", "cookie policy", "uses cookies", "use of cookies", "use cookies")

Version = dict[str, Any]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--old", type=Path, required=True)
    parser.add_argument("--files", required=True)
    parser.add_argument("--megabytes", type=float, default=24)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--only", nargs="+", choices=list(KERNELS), default=list(KERNELS))
    options = parser.parse_args()
    texts = real_texts(options.files, options.megabytes * 1e6)
    size = sum(len(text.encode()) for text in texts) / 1e6
    versions = [load(options.old.resolve() / "src"), load(ROOT / "src")]
    batches = [texts[start : start + 1000] for start in range(0, len(texts), 1000)]
    columns = [[version["text_column"].text_column(batch) for batch in batches] for version in versions]
    result: dict[str, Any] = {
        "machine": {
            "cpus": os.cpu_count(),
            "load_1m": round(os.getloadavg()[0], 1),
            "python": platform.python_version(),
        },
        "megabytes": round(size, 1),
        "documents": len(texts),
        "milliseconds_per_megabyte": {},
    }
    for name in options.only:
        times: list[list[float]] = [[], []]
        for _ in range(options.rounds + 1):
            found = [[], []]
            for number, version in enumerate(versions):
                begun = time.process_time()
                found[number] = [KERNELS[name](version, column) for column in columns[number]]
                times[number].append(time.process_time() - begun)
            if not all(map(same, *found)):
                raise SystemExit(f"The two versions of {name} differ.")
        old, new = (min(some[1:]) / size * 1e3 for some in times)
        row = {"old": round(old, 3), "new": round(new, 3), "times_as_fast": round(old / new, 2)}
        result["milliseconds_per_megabyte"][name] = row
        print(name, row, flush=True)
    RESULT.write_text(json.dumps(result, indent=2) + "\n")


def load(source: Path) -> Version:
    """The kernels of a version, whatever other version this process has imported before."""
    for name in [name for name in sys.modules if name.partition(".")[0] == "gristmill"]:
        del sys.modules[name]
    sys.path.insert(0, str(source))
    try:
        return {name: importlib.import_module(f"gristmill.kernels.{name}") for name in MODULES}
    finally:
        sys.path.remove(str(source))


def real_texts(files: str, limit: float) -> list[str]:
    """The first texts of the corpus, up to this many bytes."""
    texts: list[str] = []
    for path in sorted(glob.glob(files)):
        with open(path, "rb") as lines:
            for line in lines:
                texts.append(orjson.loads(line)["text"])
                limit -= len(texts[-1])
                if limit < 0:
                    return texts
    return texts


def same(one: tuple[Any, ...], other: tuple[Any, ...]) -> bool:
    return all(map(np.array_equal, one, other))


def every(column: Any) -> Any:
    return np.ones(len(column), dtype=np.bool_)


def clean(version: Version, column: Any) -> tuple[Any, ...]:
    """What C4's cleaning makes; sentences are compared where they decide, earlier versions counted on."""
    module = version["text_clean"]
    made = module.clean_lines(column, every(column), policy_phrases=POLICY)
    few = made.outcome == module.TOO_FEW_SENTENCES
    return made.data, made.offsets, made.outcome, made.sentences[few], made.lines


def tokens(version: Version, column: Any) -> tuple[Any, ...]:
    module = version["text_tokens"]
    spans = module.token_spans(column, every(column))
    return *spans[1:], module.token_counts(spans, every(column), STOP_WORDS)


KERNELS: dict[str, Callable[[Version, Any], tuple[Any, ...]]] = {
    "characters": lambda version, column: (version["text_characters"].character_counts(column, every(column)),),
    "words": lambda version, column: (version["text_words"].word_counts(column, every(column)),),
    "lines": lambda version, column: (version["text_lines"].line_counts(column, every(column)),),
    "layout": lambda version, column: (version["text_layout"].layout_counts(column, every(column)),),
    "spans": lambda version, column: version["text_tokens"].token_spans(column, every(column))[1:],
    "tokens": tokens,
    "clean": clean,
}


if __name__ == "__main__":
    main()
