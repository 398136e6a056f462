"""A small real run for the viewer: documents that are kept, changed, dropped, duplicate, quarantined, and hostile."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from gristmill.backends.local import LocalExecutor
from gristmill.pipeline import Pipeline
from gristmill.stages.deduplication import ExactDeduplication
from gristmill.stages.text.filters import ScoreFilter, WordCountFilter
from gristmill.stages.text.io import JsonlReader, JsonlWriter
from gristmill.stages.text.modifiers import Modify, UrlRemover

LONG = "a very long line " * 650_000
"""More than 10 MB."""

HOSTILE = {
    "script": "<script>window.hurt = 1</script><img src=x onerror='window.hurt = 2'> with enough words to be kept",
    "bidi": "\u202eright to left override\u2066 and שלום עולם مرحبا with enough words to be kept by the filter",
    "broken": "a lone surrogate \ud83d and nul \u0000 and \ufffe in between with enough words to be kept here",
    "<b>bold</b>": "an id that looks like markup with enough words to be kept by the filter of words here",
}


def write_input(folder: Path) -> None:
    """Two files: eight ordinary documents and four hostile ones, and one broken line and a long one."""
    sentence = "the quick brown fox jumps over the lazy dog again and again until evening comes"
    words = sentence.split()
    first: list[Any] = [
        {"id": f"doc-{n}", "url": f"https://example.org/{n}", "text": " ".join([*words[:n], f"number{n}"])}
        for n in range(0, 16, 2)
    ]
    first.append(
        {"id": "linked", "url": "https://example.org/linked", "text": sentence + " https://spam.example/x end"}
    )
    second: list[Any] = [
        {"id": name, "url": f"https://h.example/{n}", "text": text} for n, (name, text) in enumerate(HOSTILE.items())
    ]
    second += [{"id": "copy", "text": first[7]["text"]}, {"id": "long", "text": LONG}]
    folder.mkdir(parents=True)
    lines = [json.dumps(record) for record in first]
    (folder / "a.jsonl").write_text("\n".join(lines) + "\n")
    lines = [*(json.dumps(record) for record in second), '{"id": "torn", "text": "<i>cut']
    (folder / "b.jsonl").write_text("\n".join(lines) + "\n")


def make_run(root: Path) -> Path:
    """The output of a finished run over that input."""
    write_input(root / "in")
    stages = [
        JsonlReader(str(root / "in")),
        Modify(UrlRemover()),
        ScoreFilter(WordCountFilter(min_words=8)),
        ExactDeduplication(),
        JsonlWriter(str(root / "out")),
    ]
    Pipeline("viewed", stages=stages).run(LocalExecutor({"num_cpus": 0}), scores="all", progress=False)
    return root / "out"
