"""The recipe `web_crawl` on real pages: one command from a WARC file to clean text, with every drop explained."""

from __future__ import annotations

import gzip
import json
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

from gristmill.ledger import Ledger
from gristmill.ledger.prove.verify import verify
from tests.unit.storage.warc_files import record, stored

PAGES = 60


def _reasons(output: Path) -> Counter[tuple[str, str]]:
    """How many documents went at which stage, and why."""
    return Counter(Ledger(str(output)).frame().select("stage", "reason").iter_rows())


def test_from_pages_to_clean_text_in_one_command(larger_data: Path, tmp_path: Path) -> None:
    crawl, output = larger_data / "extraction" / "article_extraction_benchmark.warc.gz", tmp_path / "clean"
    arguments = ["run", "web-crawl", str(crawl), str(output), "--set", "method=fast", "--workers", "2"]
    done = subprocess.run([sys.executable, "-m", "gristmill", *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert f"{PAGES} documents in" in done.stdout
    assert (tmp_path / "clean.gristmill" / "report.html").stat().st_size > 10_000
    verify(str(output)).raise_for_problems()
    rows = [json.loads(line) for file in output.iterdir() for line in file.read_text().splitlines()]
    assert PAGES // 3 < len(rows) < PAGES
    for row in rows:
        assert row["text"].strip()
        assert row["url"].startswith("http")
        assert "html" not in row
        assert "<p>" not in row["text"]
    assert len({row["url_normalized"] for row in rows}) == len(rows)
    assert sum(_reasons(output).values()) == PAGES - len(rows)


def test_copies_and_unwanted_urls_go(larger_data: Path, tmp_path: Path) -> None:
    source = larger_data / "extraction" / "article_extraction_benchmark.warc.gz"
    records: list[bytes] = []
    for number, found in enumerate(gzip.decompress(source.read_bytes()).split(b"WARC/1.0\r\n")[1:]):
        head, _, page = found.partition(b"\r\n\r\n")
        url = re.search(rb"WARC-Target-URI: (.*)\r", head)[1].decode()  # type: ignore[index]
        if b"WARC-Type: response" in head:
            for place in (
                url,
                f"{url}#again",
                "http://203.0.113.7/page",
                "https://xvideos.example/",
                f"{url}/a.pdf",
                f"https://mirror.example/{number}",
            ):
                made = record(len(records), page)
                records.append(made.replace(b"http://example.org/%d\r" % len(records), place.encode() + b"\r", 1))
    (tmp_path / "crawl.warc.gz").write_bytes(b"".join(stored(records, "gz")))
    arguments = ["run", "web_crawl", str(tmp_path / "crawl.warc.gz"), str(tmp_path / "clean"), "--set", "method=fast"]
    done = subprocess.run(
        [sys.executable, "-m", "gristmill", *arguments, "--workers", "2"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    verify(str(tmp_path / "clean")).raise_for_problems()
    reasons = _reasons(tmp_path / "clean")
    for reason in ("ip_address_host", "adult_url", "url_extension"):
        assert reasons["UrlRules", reason] == PAGES
    rows = [json.loads(line) for line in (tmp_path / "clean" / "crawl.jsonl").read_text().splitlines()]
    assert reasons["UrlDeduplication", "exact_duplicate"] >= len(rows)
    assert reasons["ExactDeduplication", "exact_duplicate"] >= len(rows)
    assert len({row["text"] for row in rows}) == len(rows)
