"""The stage that extracts text from pages: what it returns, drops and quarantines."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from gristmill.backends.local import LocalExecutor
from gristmill.errors import GristmillError
from gristmill.ledger import Ledger
from gristmill.pipeline import Pipeline
from gristmill.stages.text.extraction import HtmlExtractor
from gristmill.stages.text.io import WarcReader
from gristmill.stages.text.io.reader import ParquetReader
from gristmill.stages.text.io.writer import ParquetWriter
from gristmill.tasks import DocumentBatch
from tests.unit.stages.text.extraction.pages import archived_pages, pages, word_f1

PAGE = """<html lang=en><head><title>On mills | Grain Weekly</title>
<meta name="author" content="Ada Miller"><meta property="article:published_time" content="2021-03-04T05:06:07Z"></head>
<body><nav><a href="/a">Home</a> <a href="/b">News</a></nav><main><h1>On mills</h1>
<p>A mill grinds grain between two stones, as it has done for a very long time in many places.</p>
<h2>Code</h2><pre>def grind(grain):
    return grain / 2</pre>
<table><tr><th>stone</th><th>weight</th></tr><tr><td>upper</td><td>300 kg</td></tr></table>
<p>Its power is <math><mfrac><mi>a</mi><mn>2</mn></mfrac></math> or <script type="math/tex">P = F_1 v</script>, says
<a href="other.html">the manual</a>, which nobody has read to its end so far.</p></main>
<footer><a rel="license" href="https://creativecommons.org/licenses/by-sa/4.0/">licence</a></footer></body></html>"""


def extracted(html: bytes | str | None, method: Any = "fast", **options: Any) -> list[dict[str, Any]]:
    columns = {"html": [html], "url": ["https://mills.example/posts/x.html"]}
    stage = HtmlExtractor(method, **options)
    return list(stage.process(DocumentBatch(data=pa.table(columns))).to_pyarrow().to_pylist())


@pytest.mark.parametrize("method", ["auto", "fast", "trafilatura", "resiliparse"])
def test_tables_code_and_formulas_stay_readable(method: str) -> None:
    [row] = extracted(PAGE.encode(), method)
    assert set(row) == {"url", "text"}
    assert "def grind(grain):\n    return grain / 2" in row["text"]
    assert "$\\frac{a}{2}$" in row["text"]
    assert "$P = F_1 v$" in row["text"]
    assert "upper | 300 kg" in row["text"]
    assert "Home" not in row["text"]


@pytest.mark.parametrize("method", ["auto", "fast", "trafilatura"])
def test_markdown(method: str) -> None:
    [row] = extracted(PAGE.encode(), method, output_format="markdown")
    assert "# On mills" in row["text"]
    assert "## Code" in row["text"]
    assert "```\ndef grind(grain):\n    return grain / 2\n```" in row["text"]
    assert "| upper | 300 kg |" in row["text"]
    assert "$P = F_1 v$" in row["text"]


def test_facts_become_columns_with_the_names_that_are_given() -> None:
    [row] = extracted(PAGE.encode(), metadata=["title", "date", "author", "language", "links", "license"])
    assert row["title"] == "On mills"
    assert row["date"] == "2021-03-04"
    assert row["author"] == "Ada Miller"
    assert row["language"] == "en"
    assert row["license"] == "cc-by-sa-4.0"
    assert row["links"][:3] == [
        "https://mills.example/a",
        "https://mills.example/b",
        "https://mills.example/posts/other.html",
    ]
    [row] = extracted(PAGE.encode(), metadata={"date": "published"}, keep_html=True)
    assert set(row) == {"html", "url", "text", "published"}


def test_text_that_was_decoded_wrongly_is_repaired_where_asked() -> None:
    page = PAGE.replace("very long time", "sehr lange Zeit in MÃ¼hlen")
    assert "MÃ¼hlen" in extracted(page)[0]["text"]
    assert "Mühlen" in extracted(page, fix_encoding=True)[0]["text"]


@pytest.mark.parametrize("empty", [b"", None, b"   ", b"<html></html>", b"\x00\x00\x00", b"<script>x = 1</script>"])
@pytest.mark.parametrize("method", ["auto", "fast", "trafilatura", "resiliparse", "justext"])
def test_pages_without_text_give_no_row(method: str, empty: bytes | None) -> None:
    batch = DocumentBatch(data=pa.table({"html": pa.array([empty, PAGE.encode()], pa.binary())}))
    kept = HtmlExtractor(method, metadata=["title"]).process(batch)  # type: ignore[arg-type]
    assert kept.num_items <= 1


@pytest.mark.parametrize(
    "options",
    [
        {"method": "trafilatur"},
        {"output_format": "xml"},
        {"metadata": ["titel"]},
        {"metadata": "title"},
    ],
)
def test_options_that_are_not_known_are_refused_with_those_that_are(options: dict[str, Any]) -> None:
    with pytest.raises(GristmillError, match=r"must be|choose"):
        HtmlExtractor(**options)


def test_every_page_is_accounted_for(tmp_path: Path, shared_data: Path) -> None:
    real = archived_pages(shared_data / "warc_real" / "dolma" / "sample-0001.warc.gz", 4)
    large, deep = b"<p>word " * 40_000, b"<div>" * 5_000 + b"text"
    table = pa.table({"id": list("abcdefgh"), "html": [*real, b"", b"<nav>menu</nav>", large, deep]})
    (tmp_path / "in").mkdir()
    pq.write_table(table, tmp_path / "in" / "pages.parquet")
    stages = [
        ParquetReader(str(tmp_path / "in")),
        HtmlExtractor("fast", max_page_bytes=300_000),
        ParquetWriter(str(tmp_path / "out")),
    ]
    report = Pipeline("pages", stages=stages).run(executor=LocalExecutor({"num_cpus": 0}), error_budget=None).report
    assert report.quarantined == 2
    written = pq.read_table(tmp_path / "out").to_pydict()
    assert written["id"] == list("abcd")
    assert "html" not in written
    decided = Ledger(tmp_path / "out").frame()
    reasons = dict(zip(decided["id"], decided["reason"], strict=True))
    assert reasons == dict(
        zip("efgh", ["no_main_text", "no_main_text", "page_too_large", "nested_too_deeply"], strict=True)
    )


def test_texts_beside_pages_are_dropped_and_counted(tmp_path: Path, shared_data: Path) -> None:
    """A folder may hold the WET and WAT files of a crawl beside its WARC files."""
    folder = tmp_path / "crawl"
    folder.mkdir()
    for path in (shared_data / "warc_real" / "whirlwind").iterdir():
        shutil.copy(path, folder)
    stages = [WarcReader(str(folder)), HtmlExtractor("fast"), ParquetWriter(str(tmp_path / "out"))]
    report = Pipeline("pages", stages=stages).run(executor=LocalExecutor({"num_cpus": 0})).report
    dropped = {stage.name: stage.dropped for stage in report.stages}
    assert dropped["html_extractor"] == {"no_html": 2}
    assert report.rows_written == 2


def test_the_text_of_real_pages_is_found(larger_data: Path) -> None:
    found = pages(larger_data, "article_extraction_benchmark", 8)
    for method in ("auto", "fast"):
        scores = [word_f1(extracted(page.html, method)[0]["text"], page.text) for page in found]
        assert sum(scores) / len(scores) > 0.85, method


def test_what_pages_say_about_themselves(larger_data: Path) -> None:
    found = [page for page in pages(larger_data, "trafilatura_eval", 80) if page.gold.get("license")]
    right = 0
    for page in found:
        rows = extracted(page.html, metadata=["license", "title", "date"])
        right += bool(rows) and bool(rows[0]["license"])
    assert right >= 0.7 * len(found) > 0
