"""The tutorials and the cookbook from their first line to their last, on real texts."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from html import escape
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from gristmill.ledger.prove.verify import verify
from tests.docs.pages import ROOT, blocks, run_page, sample_lines
from tests.token_files import END, make_tokenizer
from tests.unit.storage.warc_files import record, response, stored

LONGER = sorted((*(ROOT / "docs" / "cookbook").glob("*.md"), *(ROOT / "docs" / "tutorial").glob("*.md")))


def make_crawl(folder: Path) -> None:
    """Web pages in a WARC file, two of them copies."""
    documents = [one for line in sample_lines() if (one := json.loads(line))["source"] in ("c4", "cc_head")]
    pages = []
    for number, document in enumerate([*documents, *documents[:2]]):
        text = "".join(f"<p>{escape(line)}</p>" for line in document["text"].splitlines() if line.strip())
        page = f"<html><head><title>Page {number}</title></head><body><article>{text}</article></body></html>"
        pages.append(record(number, response(page.encode(), b"Content-Type: text/html; charset=utf-8")))
    (folder / "crawl").mkdir()
    (folder / "crawl" / "pages.warc.gz").write_bytes(b"".join(stored(pages, "gz")))


def make_web(folder: Path) -> None:
    """Texts in many languages."""
    (folder / "web").mkdir()
    (folder / "web" / "texts.jsonl").write_bytes(b"".join(sample_lines()))


def make_repositories(folder: Path) -> None:
    """Source files, one of them twice."""
    for room in ("tasks", "ledger"):
        shutil.copytree(ROOT / "src" / "gristmill" / room, folder / "repositories" / room)
    shutil.copy(folder / "repositories" / "tasks" / "document.py", folder / "repositories" / "copy.py")
    (folder / "repositories" / "mill.c").write_text("/* grinds */\nint main(void)\n{\n  return 0;\n}\n")


def make_pairs(folder: Path) -> None:
    """Questions about entries of a dictionary, one of them asked by a benchmark."""
    pairs = []
    for line in sample_lines():
        document = json.loads(line)
        if document["source"] == "dict_devil" and ", " in document["text"]:
            word, _, meaning = document["text"].partition(", ")
            instruction = f"What does the word {word.lower()} mean in the dictionary of Ambrose Bierce?"
            pairs.append({"id": document["id"], "instruction": instruction, "response": meaning})
    (folder / "pairs").mkdir()
    lines = [json.dumps(pair) for pair in [*pairs, {**pairs[0], "id": "again"}]]
    (folder / "pairs" / "pairs.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    (folder / "benchmarks").mkdir()
    item = {"question": pairs[1]["instruction"], "answer": pairs[1]["response"]}
    (folder / "benchmarks" / "bierce.jsonl").write_text(json.dumps(item) + "\n", encoding="utf-8")


MAKE: dict[str, Callable[[Path], None]] = {
    "web-crawl": make_crawl,
    "multilingual": make_web,
    "code": make_repositories,
    "instruction-data": make_pairs,
}


@pytest.mark.parametrize("page", LONGER, ids=lambda page: page.stem)
def test_the_page_from_top_to_bottom(page: Path, tmp_path: Path) -> None:
    if page.stem != "ten-minutes":  # which makes its own
        make_tokenizer(tmp_path / "my-tokenizer", settings={"eos_token": END})
    if page.stem in MAKE:
        MAKE[page.stem](tmp_path)
    run_page(page, tmp_path, "python", "sh")
    outputs = [record.with_suffix("") for record in tmp_path.glob("*.gristmill")]
    assert outputs
    for output in outputs:
        verify(str(output)).raise_for_problems()
    CHECKS.get(page.stem, lambda folder: None)(tmp_path)


def rows_of(folder: Path) -> list[dict[str, Any]]:
    """The documents of an output, JSONL or Parquet."""
    found: list[dict[str, Any]] = []
    for file in sorted(folder.iterdir()):
        frame = pl.read_parquet(file) if file.suffix == ".parquet" else pl.read_ndjson(file)
        found += frame.to_dicts()
    return found


def check_crawl(folder: Path) -> None:
    kept = pl.read_parquet(folder / "clean" / "*.parquet")
    assert 50 < len(kept) < 160
    assert {"kind", "kind_score", "title"} <= set(kept.columns)
    assert kept["text"].n_unique() == len(kept)


def check_languages(folder: Path) -> None:
    languages = pl.read_parquet(folder / "texts" / "*.parquet")["language"]
    assert languages.n_unique() > 20
    german = rows_of(folder / "german")
    assert german
    assert {row["language"].lower() for row in german} == {"de"}
    balanced = rows_of(folder / "balanced")
    assert max(pl.Series([row["language"] for row in balanced]).value_counts()["count"]) == 100


def check_code(folder: Path) -> None:
    dropped = pl.concat(
        [pl.read_parquet(file) for file in (folder / "code.gristmill" / "ledger").glob("[!.]*.parquet")]
    )
    assert "duplicate" in dropped["outcome"].to_list()


def check_pairs(folder: Path) -> None:
    kept = rows_of(folder / "kept")
    asked = {row["instruction"] for row in kept}
    item = json.loads((folder / "benchmarks" / "bierce.jsonl").read_text(encoding="utf-8"))
    assert len(asked) == len(kept) > 200
    assert item["question"] not in asked


CHECKS: dict[str, Callable[[Path], None]] = {
    "web-crawl": check_crawl,
    "multilingual": check_languages,
    "code": check_code,
    "instruction-data": check_pairs,
}


def test_every_page_of_the_cookbook_has_an_input_and_a_check() -> None:
    names = {page.stem for page in LONGER if page.parent.name == "cookbook"}
    assert names == set(MAKE) == set(CHECKS)
    assert all(blocks(page, "sh") for page in LONGER)
