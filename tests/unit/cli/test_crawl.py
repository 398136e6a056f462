"""`gristmill crawl`, against a web server of this machine."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from gristmill.cli.main import cli
from gristmill.stages.text.download.base import DocumentIterator
from gristmill.stages.text.download.common_crawl import stage as common_crawl
from tests.http_server import Fault, WebServer, web_server

PATHS = [f"crawl-data/CC-MAIN-2024-10/segments/1.0/warc/CC-MAIN-{number}.warc.gz" for number in range(3)]


class Lines(DocumentIterator):
    def iterate(self, file_path: str) -> Iterator[dict[str, Any]]:
        with gzip.open(file_path, "rt") as lines:
            for number, line in enumerate(lines):
                yield {"url": f"http://x/{number}", "warc_id": line.strip(), "text": line.strip()}

    def output_columns(self) -> list[str]:
        return ["url", "warc_id", "text"]


@pytest.fixture
def web(monkeypatch: pytest.MonkeyPatch) -> Iterator[WebServer]:
    monkeypatch.setattr(common_crawl, "_parts", lambda *given: (Lines(), None))
    with web_server() as server:
        server.files["/collinfo.json"] = json.dumps([{"id": "CC-MAIN-2024-10"}]).encode()
        server.files["/crawl-data/CC-MAIN-2024-10/warc.paths.gz"] = gzip.compress("\n".join(PATHS).encode())
        for number, path in enumerate(PATHS):
            server.files[f"/{path}"] = gzip.compress(f"one {number}\ntwo {number}\n".encode())
        yield server


def crawl(web: WebServer, *arguments: object, snapshot: str = "2024-10") -> Result:
    given = ["crawl", snapshot, snapshot, *arguments, "--data-prefix", web.url, "--index-prefix", web.url]
    return CliRunner().invoke(cli, [str(argument) for argument in given])


def test_dry_run_prints_the_urls(web: WebServer, tmp_path: Path) -> None:
    result = crawl(web, tmp_path / "out", "--dry-run", "--url-limit", 2)
    assert result.exit_code == 0, result.output
    assert result.stdout.splitlines() == [f"{web.url}/{path}" for path in PATHS[:2]]
    found = json.loads(crawl(web, tmp_path / "out", "--dry-run", "--json").stdout)
    assert found == {"status": "done", "urls": [f"{web.url}/{path}" for path in PATHS]}
    assert list(tmp_path.iterdir()) == []


def test_crawl_and_resume(web: WebServer, tmp_path: Path) -> None:
    output = tmp_path / "out"
    web.always[f"/{PATHS[1]}"] = Fault(status=403)
    failed = crawl(web, output, "--workers", 1, "--bandwidth", "50MB", "--record-limit", 1, "--quiet")
    assert failed.exit_code == 1
    assert "1 of 3 partitions failed" in failed.stderr
    assert "HTTP 403" in failed.stderr
    web.always.clear()
    asked = len(web.gets(f"/{PATHS[0]}"))
    result = crawl(web, output, "--workers", 1, "--record-limit", 1, "--json")
    assert result.exit_code == 0, result.output
    report = json.loads(result.stdout)
    assert (report["partitions_done_before"], report["rows_written"]) == (2, 3)
    assert len(web.gets(f"/{PATHS[0]}")) == asked
    texts = [json.loads(line)["text"] for path in sorted(output.iterdir()) for line in path.read_text().splitlines()]
    assert texts == ["one 0", "one 1", "one 2"]
    assert [path.name for path in (tmp_path / "out.downloads").iterdir()] == [".locks"]
    why = CliRunner().invoke(cli, ["why", str(output), "one 1"])
    assert why.exit_code == 0
    assert "kept" in why.stdout


def test_downloads_are_kept(web: WebServer, tmp_path: Path) -> None:
    folder = tmp_path / "files"
    result = crawl(web, tmp_path / "out", "--keep-downloads", "--download-dir", folder, "--output-filetype", "parquet")
    assert result.exit_code == 0, result.output
    assert len([path for path in folder.iterdir() if path.name.endswith(".warc.gz")]) == 3
    assert len(list((tmp_path / "out").glob("*.parquet"))) == 3


@pytest.mark.parametrize(
    ("arguments", "snapshot", "told"),
    [
        ([], "2024", "such as 2024-10"),
        (["--crawl-type", "news"], "2024-40", "no month 40"),
        (["--bandwidth", "fast"], "2024-10", "max_bytes_per_second"),
        (["--dry-run"], "2024-11", "no snapshot '2024-11'"),
    ],
)
def test_wrong_use(web: WebServer, tmp_path: Path, arguments: list[str], snapshot: str, told: str) -> None:
    result = crawl(web, tmp_path / "out", *arguments, snapshot=snapshot)
    assert result.exit_code == 2, result.output
    assert told in result.stderr
    assert list(tmp_path.iterdir()) == []


def test_recipe_between_crawl_and_output(web: WebServer, tmp_path: Path) -> None:
    text = " ".join(f"word{number} of a long enough text" for number in range(12))
    web.files[f"/{PATHS[0]}"] = gzip.compress(f"{text}\ntoo short\n{text}\n".encode())
    recipe = tmp_path / "r.yaml"
    recipe.write_text(
        "name: r\nstages:\n  - JsonlReader: {file_paths: '${input_path}'}\n  - WordCountFilter: {min_words: 50}\n"
        "  - ExactDeduplication: {}\n  - DocumentWriter: {path: '${output_path}'}\n"
    )
    result = crawl(web, tmp_path / "out", "--recipe", recipe, "--output-filetype", "parquet", "--json")
    assert result.exit_code == 0, result.output
    report = json.loads(result.stdout)
    assert (report["rows_read"], report["rows_written"]) == (7, 1)
    recipe.write_text("name: r\nstages:\n  - WordCountFilter: {min_words: 50}\n  - JsonlWriter: {path: x}\n")
    refused = crawl(web, tmp_path / "other", "--recipe", recipe)
    assert refused.exit_code == 2


def test_crawl_as_a_stage_of_a_recipe(web: WebServer, tmp_path: Path) -> None:
    recipe = tmp_path / "r.yaml"
    stage = {"start_snapshot": "2024-10", "end_snapshot": "2024-10", "download_dir": str(tmp_path / "downloads")}
    stage |= {"data_prefix": web.url, "index_prefix": web.url}
    stages = [{"CommonCrawlDownloadExtractStage": stage}, {"DocumentWriter": {"path": "${output_path}"}}]
    recipe.write_text(json.dumps({"name": "r", "stages": stages}))
    output = ["--set", f"output_path={tmp_path / 'out'}"]
    planned = CliRunner().invoke(cli, ["plan", str(recipe), *output])
    assert planned.exit_code == 0, planned.output
    assert "Input: 3 partitions\n" in planned.stdout
    sampled = CliRunner().invoke(cli, ["plan", str(recipe), *output, "--sample", "1%"])
    assert sampled.exit_code == 2, sampled.output
    assert "begins with a reader" in sampled.stderr
    ran = CliRunner().invoke(cli, ["run", str(recipe), *output, "--json", "--workers", "1"])
    assert ran.exit_code == 0, ran.output
    assert json.loads(ran.stdout)["rows_written"] == 6
