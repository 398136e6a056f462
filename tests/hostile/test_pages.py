"""Pages made to do harm: counted, quarantined with a cause, and the run goes on."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
import trafilatura  # noqa: F401  (before processes are forked)

from gristmill.backends.local import LocalExecutor
from gristmill.ledger.record.quarantine import read_quarantine
from gristmill.pipeline import Pipeline
from gristmill.stages.text.extraction import HtmlExtractor
from gristmill.stages.text.io.reader.text import HtmlReader
from gristmill.stages.text.io.writer import JsonlWriter
from gristmill.tasks.document import DocumentBatch
from tests.hostile.attempt import FULL, attempt

SIZE = 40_000 if FULL else 4_000
FACTS = ["title", "date", "author", "language", "links", "license"]
SOUND = b"<main><h1>Mills</h1><p>A mill grinds grain between two stones, as it has done for ages.</p></main>"
PAGES = {
    "nested": b"<div>" * 100_000 + b"text",
    "nested and closed": b"<b>" * SIZE + b"text" + b"</b>" * SIZE,
    "links in links": b"<a><div>" * SIZE + b"text",
    "tables in tables": b"<table><tr><td>" * SIZE,
    "brackets": b"<" * SIZE,
    "open tags": b"<a " * SIZE,
    "references": b"<p>" + b"&amp;" * SIZE,
    "cut references": b"<p>&" * SIZE,
    "one line": b"<p>" + b"word " * SIZE,
    "comments": b"<!--" * SIZE,
    "scripts": b"<script>" * SIZE,
    "title": b"<title>" + b" | " * SIZE,
    "nested data": b'<script type="application/ld+json">' + b"[" * SIZE + b"</script>" + SOUND,
    "nested formula": b"<p>x<math>" + b"<mfrac>" * 900,
    "zeros": b"\x00" * SIZE,
    "every byte": bytes(range(256)) * (SIZE // 256),
    "charset that lies": b'<meta charset="utf-16">' + SOUND,
    "codec that is none": b'<meta charset="punycode">' + SOUND + b"\xff",
    "halves of characters": SOUND + b"<p>&#xD800; &#xDFFF; &#x110000; &#0;</p>",
    "broken addresses": b'<base href="http://[">' + SOUND + b'<a href="//[">x</a><a href="http://a:b">y</a>',
}


@pytest.mark.parametrize("method", ["auto", "fast", "trafilatura", "resiliparse", "justext"])
def test_pages_by_each_method(method: str, record_property: Callable[[str, object], None]) -> None:
    """Pages nested 100,000 deep, of brackets only, or with a false charset: all finish, in bounded memory."""

    def attack() -> int:
        batch = DocumentBatch(data=pa.table({"html": [*PAGES.values(), SOUND]}))
        stage = HtmlExtractor(method, metadata=FACTS, output_format="markdown")  # type: ignore[arg-type]
        return stage.process(batch).num_items

    outcome = attempt(attack, seconds=600 if FULL else 120, memory=3 << 30)
    record_property("tried", len(PAGES))
    assert outcome.kind == "done", outcome


def test_a_run_over_such_pages(tmp_path: Path) -> None:
    """A run over such pages and one of 50 MB: good ones are extracted, the others quarantined with a cause."""
    folder = tmp_path / "in"
    folder.mkdir()
    pages = {**PAGES, "large": b"<p>word word</p>" * 3_400_000, "sound": SOUND}
    for name, content in pages.items():
        (folder / f"{name}.html").write_bytes(content)
    stages = [HtmlReader(str(folder)), HtmlExtractor("fast"), JsonlWriter(str(tmp_path / "out"))]
    report = Pipeline("pages", stages=stages).run(executor=LocalExecutor({"num_cpus": 1}), error_budget=None).report
    causes = {entry.record.cause for entry in read_quarantine(str(tmp_path / "out"))}
    assert causes >= {"nested_too_deeply", "page_too_large"}
    assert report.rows_written >= 4
    assert report.rows_written + report.quarantined <= len(pages)


def test_a_page_that_takes_too_long(tmp_path: Path) -> None:
    """A page that keeps a parser busy for minutes: quarantined after its time limit, the others extracted."""
    folder = tmp_path / "in"
    folder.mkdir()
    attributes = b" ".join(b"a%d=1" % number for number in range(150_000))
    (folder / "slow.html").write_bytes(b"<div " + attributes + b">text</div>")
    (folder / "sound.html").write_bytes(SOUND)
    extractor = HtmlExtractor("fast", time_limit_s=3)
    stages = [HtmlReader(str(folder)), extractor, JsonlWriter(str(tmp_path / "out"))]
    report = Pipeline("pages", stages=stages).run(executor=LocalExecutor({"num_cpus": 1}), error_budget=None).report
    assert (report.rows_written, report.quarantined) == (1, 1)
