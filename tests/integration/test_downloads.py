"""Downloads in whole runs: killed and resumed, in workers of their own, and from an S3 server."""

from __future__ import annotations

import gzip
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gristmill.ledger.prove.verify import verify
from gristmill.stages.text.download.base import URLGenerator
from tests.http_server import Fault, WebServer, web_server
from tests.integration import download_job
from tests.outputs import contents_of

SCRIPT = Path(download_job.__file__)
NAMES = [f"/files/part-{number}.gz" for number in range(3)]


@pytest.fixture
def web() -> Iterator[WebServer]:
    chance = random.Random(5)
    with web_server() as server:
        for name in NAMES:
            lines = [chance.randbytes(40).hex() for _ in range(25_000)]
            server.files[name] = gzip.compress("\n".join(lines).encode())  # about 1 MB
        yield server


def command(folder: Path, web: WebServer, workers: int) -> list[str]:
    return [sys.executable, str(SCRIPT), str(folder), str(workers), *(web.url + name for name in NAMES)]


@pytest.mark.parametrize("workers", [0, 2])
def test_kill_during_a_download(web: WebServer, tmp_path: Path, workers: int) -> None:
    """Killed in the middle of a file, run again: the rest of it is fetched, and the output has the same bytes."""
    subprocess.run(command(tmp_path / "plain", web, workers), check=True, capture_output=True, timeout=300)
    web.requests.clear()
    folder = tmp_path / "killed"
    web.faults[NAMES[1]] = [Fault(bytes_per_second=400_000)]
    part = folder / "downloads" / "files-part-1.gz.part"
    begun = time.monotonic()
    run = subprocess.Popen(command(folder, web, workers), start_new_session=True)
    while not (part.exists() and part.stat().st_size > 200_000):
        assert time.monotonic() - begun < 120
        assert run.poll() is None
        time.sleep(0.01)
    os.killpg(run.pid, signal.SIGKILL)
    run.wait()
    have = part.stat().st_size
    assert 0 < have < len(web.files[NAMES[1]])
    subprocess.run(command(folder, web, workers), check=True, capture_output=True, timeout=300)
    first, second = web.gets(NAMES[1])
    assert first.get("Range") is None
    continued = int(second["Range"].removeprefix("bytes=").rstrip("-"))
    assert continued >= have  # what was on its way may still have come
    assert not list((folder / "downloads").glob("*.part*"))
    assert contents_of(folder / "out") == contents_of(tmp_path / "plain" / "out")
    assert verify(str(folder / "out")).ok


def test_page_that_kills_its_worker(web: WebServer, tmp_path: Path) -> None:
    """Only the record that crashes its extractor is set aside."""
    lines = [f"{number:04d}x" for number in range(900, 1100)]
    web.files[NAMES[0]] = gzip.compress("\n".join([*lines, "deadbeef", *lines]).encode())
    run = subprocess.run(
        [sys.executable, str(SCRIPT), str(tmp_path), "2", web.url + NAMES[0]],
        capture_output=True,
        timeout=300,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    (path,) = (tmp_path / "out").iterdir()
    assert len(path.read_text().splitlines()) == 400
    assert verify(str(tmp_path / "out")).ok


def test_downloads_in_workers_of_their_own(web: WebServer, tmp_path: Path) -> None:
    urls = [web.url + name for name in NAMES]
    download_job.pipeline(str(tmp_path / "plain"), urls).run(progress=False)
    pipeline = download_job.pipeline(str(tmp_path / "own"), urls)
    pipeline.stages[0] = pipeline.stages[0].with_({"download": {"num_workers": 2}})
    result = pipeline.run(progress=False)
    assert result.report.partitions == 3
    assert contents_of(tmp_path / "own" / "out", without=("run.json", "report.html", "plan.json")) == contents_of(
        tmp_path / "plain" / "out", without=("run.json", "report.html", "plan.json")
    )


class S3Files(URLGenerator):
    def generate_urls(self) -> list[str]:
        return [f"https://data.commoncrawl.org/x/{number}.gz" for number in range(2)]


@pytest.fixture
def s3(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    for name, value in {
        "AWS_ENDPOINT_URL": f"http://{host}:{port}",
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
        "AWS_DEFAULT_REGION": "us-east-1",
    }.items():
        monkeypatch.setenv(name, value)
    import s3fs

    s3fs.S3FileSystem.clear_instance_cache()
    try:
        yield s3fs.S3FileSystem()
    finally:
        s3fs.S3FileSystem.clear_instance_cache()
        server.stop()


def test_s3(s3: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from gristmill.errors import DownloadError, DownloadMissingError
    from gristmill.stages.text.download.arxiv.download import ArxivDownloader
    from gristmill.stages.text.download.arxiv.url_generation import ArxivUrlGenerator
    from gristmill.stages.text.download.common_crawl.download import CommonCrawlWARCDownloader
    from gristmill.storage import s3_files

    content = random.Random(3).randbytes(300_000)
    for bucket in ("commoncrawl", "arxiv"):
        s3.mkdir(bucket)
    s3.pipe({f"commoncrawl/x/{number}.gz": content for number in range(2)})
    names = ["arXiv_src_0001_001.tar", "arXiv_src_9912_010.tar", "arXiv_src_9912_002.tar", "arXiv_src_manifest.xml"]
    s3.pipe({f"arxiv/src/{name}": content[:100] for name in names})
    s3.invalidate_cache()

    monkeypatch.setattr(s3_files, "PIECE_BYTES", 65_536)
    downloader = CommonCrawlWARCDownloader(str(tmp_path / "cc"), use_aws_to_download=True)
    url, other = S3Files().generate_urls()
    path = downloader.download(url)
    assert path is not None
    assert Path(path).read_bytes() == content
    assert downloader.download(url) == path

    # Interrupted after two pieces: the third attempt asks for the rest alone.
    asked: list[int] = []
    store = s3_files.s3_filesystem()
    cat_file = store.cat_file

    def interrupted(url: str, *, start: int, end: int) -> bytes:
        asked.append(start)
        if len(asked) == 3:
            raise ConnectionResetError("reset")
        data: bytes = cat_file(url, start=start, end=end)
        return data

    monkeypatch.setattr(store, "cat_file", interrupted)
    with pytest.raises((ConnectionError, DownloadError)):
        downloader.download(other)
    asked[:] = [0] * 3
    second = downloader.download(other)
    assert second is not None
    assert Path(second).read_bytes() == content
    assert asked[3:] == list(range(2 * 65_536, len(content), 65_536))
    with pytest.raises(DownloadMissingError, match="does not exist"):
        downloader.download("https://data.commoncrawl.org/x/none.gz")

    urls = ArxivUrlGenerator().generate_urls()
    assert urls == [f"s3://arxiv/src/{name}" for name in (names[2], names[1], names[0])]
    path = ArxivDownloader(str(tmp_path / "arxiv")).download(urls[0])
    assert path == str(tmp_path / "arxiv" / names[2])
    assert Path(path).read_bytes() == content[:100]
