"""Web archives end to end: killed and resumed, over HTTP, in memory that does not grow."""

from __future__ import annotations

import contextlib
import functools
import http.server
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from gristmill.backends.local.executor import LocalExecutor
from gristmill.pipeline import Pipeline
from gristmill.stages.text.io.reader.warc import WarcReader
from gristmill.stages.text.io.writer import ParquetWriter
from tests.outputs import contents_of, record_of
from tests.unit.storage.warc_files import record, stored

ROOT = Path(__file__).resolve().parents[2]
JOB = """
import sys
from gristmill.backends.local.executor import LocalExecutor
from gristmill.pipeline import Pipeline
from gristmill.stages.text.io.reader.warc import WarcReader
from gristmill.stages.text.io.writer import ParquetWriter

stages = [WarcReader(sys.argv[1]), ParquetWriter(sys.argv[2])]
Pipeline("pages", stages=stages).run(LocalExecutor({"num_cpus": 2}), progress=False)
"""


def test_killed_and_resumed(tmp_path: Path, shared_data: Path) -> None:
    source = tmp_path / "crawl"
    source.mkdir()
    pages = (shared_data / "warc_real" / "dolma" / "sample-0001.warc.gz").read_bytes() * 20
    for number in range(12):
        (source / f"{number:02}.warc.gz").write_bytes(pages)
    with (source / "05.warc.gz").open("r+b") as file:  # and one is damaged
        file.seek(2_000_000)
        file.write(b"\0" * 5000)

    def command(output: Path) -> list[str]:
        return [sys.executable, "-c", JOB, str(source), str(output)]

    output, whole = tmp_path / "out", tmp_path / "whole"
    for commits in (1, 4):
        job = subprocess.Popen(command(output), cwd=ROOT, start_new_session=True)
        manifest = record_of(output) / "manifest"
        deadline = time.monotonic() + 120
        while job.poll() is None and time.monotonic() < deadline:
            if manifest.is_dir() and len(list(manifest.iterdir())) >= commits:
                break
            time.sleep(0.005)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(job.pid, signal.SIGKILL)
        job.wait()
    assert 1 <= len(list((record_of(output) / "manifest").iterdir())) <= 12
    subprocess.run(command(output), cwd=ROOT, check=True)
    subprocess.run(command(whole), cwd=ROOT, check=True)
    assert contents_of(output) == contents_of(whole)
    run = json.loads((record_of(output) / "run.json").read_text())
    assert run["rows_quarantined"] >= 1
    assert run["rows_written"] + run["rows_quarantined"] + run["rows_dropped"] == run["rows_read"]


class _Ranges(http.server.SimpleHTTPRequestHandler):
    """Serves files, and ranges of them where `ranges` says so."""

    ranges = True
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: object) -> None:
        """Nothing."""

    def do_GET(self) -> None:
        data = Path(self.translate_path(self.path)).read_bytes()
        given = self.headers.get("Range")
        if given and self.ranges:
            first, _, last = given.removeprefix("bytes=").partition("-")
            end = min(int(last or len(data) - 1), len(data) - 1)
            piece = data[int(first) : end + 1]
            self.send_response(206)
            self.send_header("Content-Range", f"bytes {first}-{end}/{len(data)}")
        else:
            piece = data
            self.send_response(200)
        if self.ranges:
            self.send_header("Accept-Ranges", "bytes")
        self.send_header("Content-Length", str(len(piece)))
        self.end_headers()
        with contextlib.suppress(ConnectionError):
            self.wfile.write(piece)


@contextlib.contextmanager
def serving(folder: Path, *, ranges: bool) -> Iterator[str]:
    handler = type("Handler", (_Ranges,), {"ranges": ranges})
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(handler, directory=str(folder)))
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@pytest.mark.parametrize("ranges", [True, False])
def test_over_http(tmp_path: Path, ranges: bool) -> None:
    pytest.importorskip("aiohttp")
    pieces = stored(
        [
            record(number, b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\n\r\n" + os.urandom(30_000))
            for number in range(60)
        ],
        "gz",
    )
    (tmp_path / "web").mkdir()
    (tmp_path / "web" / "good.warc.gz").write_bytes(b"".join(pieces))
    if ranges:
        pieces[20] = pieces[20][:100] + b"\0" * 50 + pieces[20][150:]
        (tmp_path / "web" / "good.warc.gz").write_bytes(b"".join(pieces))
    with serving(tmp_path / "web", ranges=ranges) as address:
        stages = [WarcReader(f"{address}/good.warc.gz"), ParquetWriter(str(tmp_path / "out"))]
        Pipeline("pages", stages=stages).run(LocalExecutor({"num_cpus": 0}), progress=False)
    assert pq.read_table(tmp_path / "out").num_rows == 60 - ranges


MEMORY = """
import json, sys
sys.path.insert(0, sys.argv[1])
import benchmarks.bench_warc as bench
bench.read_stream(float(sys.argv[2]))
"""


def test_memory_does_not_grow_with_the_file() -> None:
    """A hundredth of 400 MB stored is 40 MB of pages: what it takes then, it takes to the end."""
    done = subprocess.run(
        [sys.executable, "-c", MEMORY, str(ROOT), "0.4"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    figures = json.loads(done.stdout)
    assert figures["rows"] > 10_000
    assert figures["peak_megabytes"] < 450


def test_a_gigabyte_without_a_page_is_read_in_little_memory(tmp_path: Path) -> None:
    path = tmp_path / "a.warc"
    one = record(0, b"GET / HTTP/1.1\r\n\r\n" * 50_000, kind="request")
    with path.open("wb") as file:
        for _ in range((1 << 30) // len(one)):
            file.write(one)
        file.write(record(1))
    program = (
        "import sys; from benchmarks.bench_warc import peak_kilobytes; "
        "from gristmill.storage.partitions import FileRange; "
        "from gristmill.storage.row_formats import reading_of, rows_of; "
        "part = FileRange(sys.argv[1], 'a.warc', 0, '', 0, -1, True, reading_of('warc', {})); "
        "table, skipped = rows_of(part); assert table.num_rows == 1, table; "
        "print(skipped.counts['request'], peak_kilobytes())"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(path)], cwd=ROOT, capture_output=True, text=True, check=True
    )
    count, peak = map(int, done.stdout.split())
    assert count == (1 << 30) // len(one)
    assert peak < 250_000
    path.unlink()
