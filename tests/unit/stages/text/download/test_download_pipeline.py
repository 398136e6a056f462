from __future__ import annotations

import gzip
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gristmill.errors import DownloadError, InputNotFoundError, MissingColumnError, StageFailedError, UsageError
from gristmill.ledger import Ledger
from gristmill.ledger.prove.verify import verify
from gristmill.ledger.record.layout import RunFolder
from gristmill.ledger.record.quarantine import QuarantineEntry, read_quarantine
from gristmill.pipeline import Pipeline
from gristmill.stages.base import ProcessingStage
from gristmill.stages.text.download.base import (
    DocumentDownloader,
    DocumentDownloadExtractStage,
    DocumentDownloadStage,
    DocumentExtractor,
    DocumentIterateExtractStage,
    DocumentIterator,
    URLGenerationStage,
    URLGenerator,
)
from gristmill.stages.text.io.writer import JsonlWriter
from gristmill.stages.text.modules import AddId
from gristmill.storage.row_formats import Broken
from gristmill.tasks import FileGroupTask
from tests.http_server import Fault, WebServer, web_server


class Listed(URLGenerator):
    def __init__(self, urls: list[str]) -> None:
        self.urls = urls

    def generate_urls(self) -> list[str]:
        return self.urls


class Lines(DocumentIterator):
    """Yields the lines of gzip files; one that says `broken` counts as broken, and `damage` ends the file."""

    def iterate(self, file_path: str) -> Iterator[dict[str, Any] | Broken]:
        with gzip.open(file_path, "rt", encoding="utf-8", errors="surrogateescape") as lines:
            for number, line in enumerate(lines):
                if line.startswith("broken"):
                    yield Broken("truncated_record", "the line says so", raw=line.encode())
                elif line.startswith("damage"):
                    raise ValueError("no more lines")
                else:
                    yield {
                        "number": number,
                        "raw": line.rstrip("\n").encode("utf-8", "surrogateescape"),
                        "url": f"u{number}",
                    }

    def output_columns(self) -> list[str]:
        return ["number", "raw", "url"]


class Shouted(DocumentExtractor):
    def extract(self, record: dict[str, Any]) -> dict[str, Any] | None:
        text = record["raw"].decode()
        if text == "nothing":
            return None
        if text == "fails":
            raise LookupError("no such word")
        return {"text": text.upper(), "url": record["url"].replace("u2", "v2")}

    def input_columns(self) -> list[str]:
        return ["raw", "url"]

    def output_columns(self) -> list[str]:
        return ["text", "url"]


def lines(*texts: str | bytes) -> bytes:
    return gzip.compress(b"".join((text if isinstance(text, bytes) else text.encode()) + b"\n" for text in texts))


@pytest.fixture
def web() -> Iterator[WebServer]:
    with web_server() as server:
        for number in range(3):
            server.files[f"/d/part-{number}.gz"] = lines(f"one {number}", f"two {number}", f"three {number}")
        yield server


def urls(web: WebServer) -> list[str]:
    return [web.url + path for path in web.files]


def quick(folder: Path) -> DocumentDownloader:
    downloader = DocumentDownloader(str(folder / "downloads"))
    downloader.http.attempts, downloader.http.backoff_s, downloader.http.timeout_s = 3, 0.01, 5.0
    return downloader


def run(
    web: WebServer, folder: Path, *, downloader: DocumentDownloader | None = None, middle: Any = (), **options: Any
) -> Any:
    running = {key: options.pop(key) for key in ("error_budget", "salvage", "fresh") if key in options}
    extractor = options.pop("extractor", Shouted())
    stage = DocumentDownloadExtractStage(Listed(urls(web)), downloader or quick(folder), Lines(), extractor, **options)
    pipeline = Pipeline("web", stages=[stage, *middle, JsonlWriter(str(folder / "out"))])
    return pipeline.run(progress=False, **running)


def documents(folder: Path) -> dict[str, list[dict[str, Any]]]:
    return {
        path.stem: [json.loads(line) for line in path.read_text().splitlines()]
        for path in sorted((folder / "out").iterdir())
    }


def quarantine(folder: Path) -> list[QuarantineEntry]:
    return sorted(read_quarantine(RunFolder(str(folder / "out"))), key=lambda found: found.partition)


def test_urls_are_partitions(web: WebServer, tmp_path: Path) -> None:
    report = run(web, tmp_path).report
    found = documents(tmp_path)
    assert list(found) == ["d__part-0", "d__part-1", "d__part-2"]
    assert found["d__part-1"][0] == {"text": "ONE 1", "url": "u0", "file_name": "d-part-1.gz"}
    assert (report.partitions, report.rows_read, report.rows_written) == (3, 9, 9)
    assert verify(str(tmp_path / "out")).ok
    assert sorted(name for name in os.listdir(tmp_path / "downloads") if name[0] != ".") == [
        f"d-part-{number}.gz" for number in range(3)
    ]
    asked = len(web.requests)
    assert run(web, tmp_path).report.partitions_done_before == 3
    assert len(web.requests) == asked


def test_limits_and_columns(web: WebServer, tmp_path: Path) -> None:
    run(web, tmp_path, url_limit=2, record_limit=2, add_filename_column="source", extractor=None)
    found = documents(tmp_path)
    assert [len(rows) for rows in found.values()] == [2, 2]
    assert found["d__part-0"][0] == {"number": 0, "raw": "b25lIDA=", "url": "u0", "source": "d-part-0.gz"}


def test_without_file_names(web: WebServer, tmp_path: Path) -> None:
    run(web, tmp_path, add_filename_column=False)
    assert documents(tmp_path)["d__part-0"][0] == {"text": "ONE 0", "url": "u0"}


def test_every_record_is_accounted_for(web: WebServer, tmp_path: Path) -> None:
    web.files["/d/part-1.gz"] = lines("good", "nothing", "broken", "fails", b"\xff no utf-8", "good too")
    report = run(web, tmp_path).report
    assert [row["text"] for row in documents(tmp_path)["d__part-1"]] == ["GOOD", "GOOD TOO"]
    by_name = {stage.name: stage for stage in report.stages}
    assert by_name["iterate"].quarantined == {"truncated_record": 1}
    assert by_name["extract"].quarantined == {"extraction_failed": 2}
    assert by_name["extract"].dropped == {"nothing_extracted": 1}
    assert verify(str(tmp_path / "out")).ok
    ledger = Ledger(str(tmp_path / "out"))
    told = [found.record.detail for found in sorted(quarantine(tmp_path), key=lambda found: found.record.row)]
    assert told[0] == "the line says so"
    assert "LookupError: no such word" in told[1]
    (changed,) = {(one.stage, one.field) for found in ledger.why("u2").documents for one in found.changes}
    assert changed == ("extract", "url")
    reasons = [[decision.reason for decision in found.decisions] for found in ledger.why("u1").documents]
    assert reasons == [[], ["nothing_extracted"], []]


def test_damaged_file(web: WebServer, tmp_path: Path) -> None:
    web.files["/d/part-1.gz"] = lines("good", "damage", "good too")
    web.files["/d/part-2.gz"] = web.files["/d/part-2.gz"][:-12]
    run(web, tmp_path)
    assert list(documents(tmp_path)) == ["d__part-0"]
    found = [entry.record for entry in quarantine(tmp_path)]
    assert [record.cause for record in found] == ["unreadable_file", "truncated_file"]
    assert [record.file for record in found] == urls(web)[1:]
    run(web, tmp_path, salvage=True, fresh=True)
    assert [row["text"] for row in documents(tmp_path)["d__part-1"]] == ["GOOD"]


def test_file_that_does_not_exist(web: WebServer, tmp_path: Path) -> None:
    web.always["/d/part-1.gz"] = Fault(status=404)
    report = run(web, tmp_path).report
    assert report.quarantined == 1
    assert list(documents(tmp_path)) == ["d__part-0", "d__part-2"]
    (found,) = quarantine(tmp_path)
    assert found.record.cause == "not_downloaded"
    assert "does not exist on the server (HTTP 404" in found.record.detail


def test_failed_download_is_left_for_the_next_run(web: WebServer, tmp_path: Path) -> None:
    web.always["/d/part-1.gz"] = Fault(status=503)
    with pytest.raises(StageFailedError, match=r"1 of 3 partitions failed.*d__part-1.*HTTP 503"):
        run(web, tmp_path)
    assert list(documents(tmp_path)) == ["d__part-0", "d__part-2"]
    del web.always["/d/part-1.gz"]
    assert run(web, tmp_path).report.partitions_done_before == 2
    assert list(documents(tmp_path)) == ["d__part-0", "d__part-1", "d__part-2"]
    assert verify(str(tmp_path / "out")).ok


def test_server_that_is_down_ends_the_run(web: WebServer, tmp_path: Path) -> None:
    """And not each of very many files is tried for minutes."""
    for number in range(40):
        web.files[f"/d/part-{number}.gz"] = lines(f"one {number}")
        web.always[f"/d/part-{number}.gz"] = Fault(status=503)
    with pytest.raises(StageFailedError, match=r"10 downloads in a row failed.*HTTP 503"):
        run(web, tmp_path)
    assert len({path for _, path, _ in web.requests}) < 20
    web.always.clear()
    assert run(web, tmp_path).report.rows_written == 40


def test_unreachable_server_ends_the_run(web: WebServer, tmp_path: Path) -> None:
    stage = DocumentDownloadExtractStage(
        Listed(["http://127.0.0.1:9/a", "http://127.0.0.1:9/b"]), quick(tmp_path), Lines()
    )
    with pytest.raises(StageFailedError, match="cannot be reached"):
        Pipeline("web", stages=[stage, JsonlWriter(str(tmp_path / "out"))]).run(progress=False)


def test_downloads_can_be_removed(web: WebServer, tmp_path: Path) -> None:
    downloader = quick(tmp_path)
    downloader.keep_downloads = False
    run(web, tmp_path, downloader=downloader)
    assert [name for name in os.listdir(tmp_path / "downloads") if name[0] != "."] == []
    assert len(documents(tmp_path)) == 3


def test_bandwidth_is_no_part_of_the_plan(web: WebServer, tmp_path: Path) -> None:
    run(web, tmp_path, url_limit=1)
    downloader = quick(tmp_path / "elsewhere")
    downloader.http.max_bytes_per_second = 10_000_000
    assert run(web, tmp_path, downloader=downloader).report.partitions_done_before == 1


def test_columns_are_checked_before_anything_is_downloaded(web: WebServer, tmp_path: Path) -> None:
    class NeedsDate(ProcessingStage[Any, Any]):
        name = "needs_date"

        def process(self, task: Any) -> Any:
            return task

        def inputs(self) -> Any:
            return ["data"], ["date"]

        def outputs(self) -> Any:
            return ["data"], []

    with pytest.raises(MissingColumnError, match="'needs_date' reads column 'date'"):
        run(web, tmp_path, middle=[AddId("id"), NeedsDate()])
    assert web.requests == []


def test_changed_length_is_fetched_again(web: WebServer, tmp_path: Path) -> None:
    downloader = quick(tmp_path)
    path = downloader.download(urls(web)[0])
    assert path is not None
    assert downloader.download(urls(web)[0]) == path
    assert len(web.gets("/d/part-0.gz")) == 1
    Path(path).write_bytes(b"cut")
    downloader.download(urls(web)[0])
    assert Path(path).read_bytes() == web.files["/d/part-0.gz"]


@pytest.mark.parametrize(
    "path",
    ["/../../etc/passwd", "/..%2f..%2fetc%2fpasswd", "/.hidden", "/a\\..\\b", "/" + "x" * 400, "/", "/x.part", "/…"],
)
def test_names_stay_in_the_folder(tmp_path: Path, path: str) -> None:
    downloader = DocumentDownloader(str(tmp_path / "downloads"))
    found = Path(downloader.path_of(f"http://example.org{path}"))
    assert found.parent == tmp_path / "downloads"
    assert found.name[0] not in "._"
    assert not found.name.endswith(".part")
    assert len(found.name) < 255

    class Outside(DocumentDownloader):
        def _get_output_filename(self, url: str) -> str:
            return path

    assert Path(Outside(str(tmp_path / "downloads")).path_of("http://x/")).parent == tmp_path / "downloads"


class Copied(DocumentDownloader):
    """As downloaders of the existing system are written."""

    def _get_output_filename(self, url: str) -> str:
        return url.rpartition("/")[2]

    def _download_to_path(self, url: str, path: str) -> tuple[bool, str | None]:
        if "missing" in url:
            return False, "no such mirror"
        Path(path).write_bytes(lines("copied"))
        return True, None

    def _is_complete(self, url: str, path: str) -> bool:
        return True


def test_stages_by_themselves(tmp_path: Path) -> None:
    download = DocumentDownloadStage(Copied(str(tmp_path)))
    task = download.process(FileGroupTask(data=["ftp://mirror/a.gz"]))
    assert isinstance(task, FileGroupTask)
    assert task.data == [str(tmp_path / "a.gz")]
    (batch,) = DocumentIterateExtractStage(Lines(), Shouted()).process(task)
    assert batch.to_pyarrow().to_pylist() == [{"text": "COPIED", "url": "u0", "file_name": "a.gz"}]
    with pytest.raises(DownloadError, match="no such mirror"):
        Copied(str(tmp_path)).download("ftp://mirror/missing")


def test_url_generation() -> None:
    stage = URLGenerationStage(Listed(["https://a/x/1.gz", "https://b/x/1.gz", "https://a/x/1.gz"]))
    assert [partition.id for partition in stage.partitions()] == ["a__x__1~gz", "b__x__1~gz"]
    mirror = URLGenerationStage(Listed(["s3://bucket/x/1.gz", "s3://bucket/x/0.gz"]), limit=1)
    assert [partition.id for partition in mirror.partitions()] == ["x__1~gz"]
    with pytest.raises(InputNotFoundError, match="Listed found no URL"):
        URLGenerationStage(Listed([])).partitions()
    with pytest.raises(UsageError, match="limit=0"):
        URLGenerationStage(Listed([]), 0)


def test_stages_put_together_by_hand(web: WebServer, tmp_path: Path) -> None:
    """A reader that extracts as it reads accounts for what it drops as well."""
    web.files["/d/part-1.gz"] = lines("good", "nothing", "fails", "good too")
    stages = [
        URLGenerationStage(Listed(urls(web))),
        DocumentDownloadStage(quick(tmp_path)),
        DocumentIterateExtractStage(Lines(), Shouted()),
        JsonlWriter(str(tmp_path / "out")),
    ]
    report = Pipeline("web", stages=stages).run(progress=False).report
    assert (report.rows_read, report.rows_written, report.quarantined) == (10, 8, 1)
    assert report.stages[1].dropped == {"nothing_extracted": 1}
    assert verify(str(tmp_path / "out")).ok
    assert quarantine(tmp_path)[0].record.cause == "extraction_failed"


class Full(DocumentDownloader):
    def _download_to_path(self, url: str, path: str) -> tuple[bool, str | None]:
        with open("/dev/full", "wb", buffering=0) as file:
            file.write(b"x")
        return True, None


def test_disk_without_room_ends_the_run(web: WebServer, tmp_path: Path) -> None:
    with pytest.raises(StageFailedError, match=r"No space left in .*downloads.*--remove-downloads"):
        run(web, tmp_path, downloader=Full(str(tmp_path / "downloads")))
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="is a file; choose a folder"):
        run(web, tmp_path, downloader=DocumentDownloader(str(tmp_path / "file")))
