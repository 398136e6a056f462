"""`gristmill stats`: figures that other ways of counting confirm, and input that is not as it should be."""

from __future__ import annotations

import gzip
import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner, Result

from gristmill.advice import sketch
from gristmill.advice.sketch import HashSample
from gristmill.cli.main import cli

LONG = "The harbour was quiet, and the boats lay close to the wall. " * 12
TEXTS = [
    *(f"{LONG}{number}" for number in range(30)),
    *(f"{LONG}{number}" for number in range(6)),  # copies
    *(f"  {LONG.upper()}{number}!" for number in range(4)),  # the same words
    *(f"short {number}" for number in range(20)),
    "",
]


def run(*arguments: object, data: bytes | None = None) -> Result:
    return CliRunner().invoke(cli, ["stats", *map(str, arguments)], input=data)


def lines(texts: list[str], field: str = "text") -> bytes:
    return "".join(json.dumps({"id": str(number), field: text}) + "\n" for number, text in enumerate(texts)).encode()


def answer(*arguments: object, data: bytes | None = None) -> dict[str, Any]:
    result = run(*arguments, "--workers", 0, "--json", "-q", data=data)
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert isinstance(found, dict)
    return found


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.jsonl").write_bytes(lines(TEXTS[:25]))
    (tmp_path / "in" / "b.jsonl.gz").write_bytes(gzip.compress(lines(TEXTS[25:])))
    return tmp_path


def test_counts_agree_with_plain_python(here: Path) -> None:
    found = answer("in")
    assert (found["documents"], found["empty_documents"]) == (len(TEXTS), 1)
    assert found["text_bytes"] == sum(len(text.encode()) for text in TEXTS)
    assert found["duplicates"]["equal"]["share"] == pytest.approx(6 / len(TEXTS))
    assert found["duplicates"]["equal_words"]["share"] == pytest.approx(10 / len(TEXTS))
    words = [len(text.split()) for text in TEXTS]
    by_filter = {one["filter"]: one for one in found["filters"]}
    assert by_filter["WordCountFilter"]["reasons"] == {"too_few_words": sum(count < 50 for count in words)}
    assert found["lengths"]["words"]["max"] == max(words)
    assert found["lengths"]["words"]["mean"] == pytest.approx(np.mean(words))
    assert sum(count for *_, count in found["lengths"]["words"]["histogram"]) == len(TEXTS)
    assert "AlphaFilter" not in by_filter
    assert len(by_filter) == 29


def test_shares_are_what_a_run_of_each_filter_drops(here: Path) -> None:
    """The recipe of one filter, run by the engine, drops the documents that stats says it would."""
    found = {one["filter"]: one for one in answer("in")["filters"]}
    for name in ("NonAlphaNumericFilter", "MeanWordLengthFilter", "RepeatedLinesFilter", "CommonEnglishWordsFilter"):
        stages = f"[{{DocumentReader: {{file_paths: in}}}}, {name}, {{DocumentWriter: {{path: out-{name}}}}}]"
        Path("one.yaml").write_text(f"name: one\nstages: {stages}\n")
        result = CliRunner().invoke(cli, ["run", "one.yaml", "--workers", "0", "--json", "-q"])
        report = json.loads(result.stdout)
        dropped = Counter()
        for stage in report["stages"]:
            dropped.update(stage["dropped"])
        assert dropped == found[name]["reasons"], name


def test_workers_and_parts_make_no_difference(here: Path) -> None:
    here_found = answer("in")
    result = run("in", "--workers", 2, "--json", "-q")
    there = json.loads(result.stdout)
    for figure in ("seconds",):
        del here_found[figure], there[figure]
    assert there == here_found


def test_standard_input_limit_and_sample(here: Path) -> None:
    assert answer("-", data=lines(TEXTS))["documents"] == len(TEXTS)
    assert answer("in", "--limit", 7)["documents"] == 7
    sampled = answer("in", "--sample", "50%")
    assert 0 < sampled["documents"] < len(TEXTS)
    assert sampled["documents"] == answer("in", "--sample", 0.5)["documents"]
    assert "0.5" in sampled["selection"]


def test_filters_are_chosen_by_name(here: Path) -> None:
    found = answer("in", "--filters", "WordCountFilter,AlphaFilter")
    assert [one["filter"] for one in found["filters"]] == ["WordCountFilter", "AlphaFilter"]
    assert "AlphaFilter" in {one["filter"] for one in answer("in", "--code")["filters"]}


def test_the_table_and_the_page(here: Path) -> None:
    (here / "in" / "<b>.jsonl").write_bytes(lines(["<script>alert(1)</script> " * 5]))
    result = run("in/<b>.jsonl", "in/a.jsonl", "--workers", 0, "-q", "--html", "page.html")
    assert result.exit_code == 0, result.output
    assert re.search(r"WordCountFilter +50 – 100000", result.stdout)
    page = (here / "page.html").read_text()
    assert "<script" not in page
    assert "&lt;b&gt;.jsonl" in page
    assert "http" not in page.replace("http-equiv", "")
    assert page.count("<figure>") == 3 + 29


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("nothing",), 1, "nothing"),
        (("empty",), 1, "empty"),
        (("other",), 1, "no column 'text'; it has id, content. Name the text column: --text-field NAME"),
        (("pages",), 1, "These are web pages: extract their text first (gristmill run web-crawl INPUT OUTPUT"),
        (("other", "--text-field", "contents"), 1, "Did you mean 'content'?"),
        (("in", "--filters", "WordCount"), 2, "Did you mean 'WordCountFilter'?"),
        (("in", "--filters", "SubstringFilter"), 2, "it needs substring"),
        (("in", "--seed", 3), 2, "--seed"),
        (("in", "--html", "no/page.html"), 2, "does not exist"),
        (("in", "--sample", "200%"), 2, "--sample"),
        (("-", "in"), 2, "standard input"),
        (("-",), 2, "empty"),
    ],
)
def test_input_that_cannot_be_read_is_explained(here: Path, arguments: tuple[str, ...], code: int, words: str) -> None:
    (here / "empty").mkdir()
    (here / "other").mkdir()
    (here / "other" / "a.jsonl").write_bytes(lines(TEXTS[:3], "content"))
    (here / "pages").mkdir()
    (here / "pages" / "a.html").write_text("<p>A page</p>")
    result = run(*arguments, "--workers", 0, data=b"")
    assert result.exit_code == code, result.output
    assert words in result.stderr
    assert "Traceback" not in result.stderr


def test_damaged_files_and_records_are_counted(here: Path) -> None:
    good = gzip.compress(lines(TEXTS))
    (here / "in" / "c.jsonl.gz").write_bytes(good[: len(good) // 2])
    (here / "in" / "a.jsonl").write_bytes(lines(TEXTS[:25]) + b"{broken\n")
    found = answer("in")
    assert found["documents"] == len(TEXTS)
    assert any("c.jsonl.gz is damaged" in sentence for sentence in found["damaged_files"])
    assert found["unreadable_records"] >= 2


def test_copies_are_found_in_a_part_of_the_texts_with_all_their_copies(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sketch, "MOST_HASHES", 1000)
    generator = np.random.default_rng(1)
    distinct = generator.integers(0, 2**63, 6000, dtype=np.uint64) * np.uint64(2)
    every = generator.permutation(np.concatenate([distinct, distinct[:3000]]))
    sample = HashSample()
    for piece in np.array_split(every, 7):
        sample.add(piece)
    assert sample.size <= 1000
    assert sample.share == 1 / 16
    assert sample.copies() == pytest.approx(1 / 3, abs=0.06)
