"""Every reader and writer on a real S3 server, also behind a proxy that delays, refuses and cuts off."""

from __future__ import annotations

import contextlib
import gzip
import io
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import s3fs
import zstandard
from moto.server import ThreadedMotoServer

from gristmill.backends.local import LocalExecutor
from gristmill.errors import GristmillError
from gristmill.ledger.prove.verify import verify
from gristmill.pipeline import Pipeline
from gristmill.stages.text.extraction import HtmlExtractor
from gristmill.stages.text.filters import ScoreFilter, WordCountFilter
from gristmill.stages.text.io import DocumentReader, JsonlReader, JsonlWriter, ParquetWriter
from gristmill.storage.files import survey
from tests.integration.faulty_proxy import Fault, faulty_proxy
from tests.unit.storage.warc_files import record, stored

HERE = {"num_cpus": 0}
ROWS = [{"id": f"{row}", "text": " ".join(["word"] * (row % 5 + 1))} for row in range(40)]
LINES = "".join(json.dumps(row) + "\n" for row in ROWS).encode()


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    """The address of a server that keeps what is put there until the tests end."""
    made = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    made.start()
    host, port = made.get_host_and_port()
    yield f"http://{host}:{port}"
    made.stop()


@pytest.fixture
def store(server: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[s3fs.S3FileSystem]:
    """An empty bucket named `data`."""
    for name, value in {
        "AWS_ENDPOINT_URL": server,
        "AWS_ACCESS_KEY_ID": "someone",
        "AWS_SECRET_ACCESS_KEY": "secret",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_EC2_METADATA_DISABLED": "true",
        "AWS_CONFIG_FILE": str(tmp_path / "none"),
    }.items():
        monkeypatch.setenv(name, value)
    s3fs.S3FileSystem.clear_instance_cache()
    fs = s3fs.S3FileSystem()
    fs.mkdir("data")
    yield fs
    monkeypatch.setenv("AWS_ENDPOINT_URL", server)
    s3fs.S3FileSystem.clear_instance_cache()
    s3fs.S3FileSystem().rm("data", recursive=True)


@contextlib.contextmanager
def long_listing(count: int) -> Iterator[str]:
    """A server whose bucket `data` has that many objects below `in/`; it can list them and nothing else."""

    class Listing(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            query = {key: values[0] for key, values in parse_qs(urlsplit(self.path).query).items()}
            first = int(query.get("continuation-token", "0"))
            last = min(first + min(int(query.get("max-keys", "1000")), 1000), count)
            keys = "".join(
                f"<Contents><Key>in/{number:06}.jsonl</Key><LastModified>2026-01-01T00:00:00.000Z</LastModified>"
                f"<ETag>&quot;{number:032x}&quot;</ETag><Size>100</Size><StorageClass>STANDARD</StorageClass></Contents>"
                for number in range(first, last)
            )
            more = f"<NextContinuationToken>{last}</NextContinuationToken>" if last < count else ""
            body = (
                '<?xml version="1.0" encoding="UTF-8"?><ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/">'
                f"<IsTruncated>{str(last < count).lower()}</IsTruncated>{more}{keys}</ListBucketResult>"
            ).encode()
            self.send_response_only(200)
            self.send_header("Content-Type", "application/xml")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def do_HEAD(self) -> None:
            self.send_response_only(404)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *arguments: Any) -> None:
            """Quiet."""

    made = ThreadingHTTPServer(("127.0.0.1", 0), Listing)
    made.daemon_threads = True
    thread = threading.Thread(target=made.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{made.server_address[1]}"
    finally:
        made.shutdown()
        made.server_close()
        thread.join()


def _parquet() -> bytes:
    sink = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(ROWS), sink, row_group_size=16)
    return sink.getvalue()


def _arrow() -> bytes:
    sink = io.BytesIO()
    with pa.ipc.new_file(sink, pa.Table.from_pylist(ROWS).schema) as writer:
        writer.write_table(pa.Table.from_pylist(ROWS), 16)
    return sink.getvalue()


FILES = {
    "a.jsonl": lambda: LINES,
    "a.jsonl.gz": lambda: gzip.compress(LINES),
    "a.jsonl.zst": lambda: zstandard.compress(LINES),
    "a.parquet": _parquet,
    "a.arrow": _arrow,
    "a.csv": lambda: b"id,text\n" + "".join(f"{row['id']},{row['text']}\n" for row in ROWS).encode(),
    "a.txt": lambda: b"one word after another\n",
    "a.html": lambda: b"<p>one word after another",
    "a.warc.gz": lambda: b"".join(stored([record(number) for number in range(5)], "gz")),
}


@pytest.mark.parametrize("writer", [JsonlWriter, ParquetWriter])
@pytest.mark.parametrize("name", FILES)
def test_every_reader_and_writer_does_as_on_a_disk(
    store: s3fs.S3FileSystem, tmp_path: Path, name: str, writer: Any
) -> None:
    content = FILES[name]()
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / name).write_bytes(content)
    store.pipe_file(f"data/in/{name}", content)
    for root in (f"{tmp_path}", "s3://data"):
        extraction = [HtmlExtractor("fast")] if "warc" in name else []
        stages = [DocumentReader(f"{root}/in"), *extraction, writer(f"{root}/out")]
        Pipeline("all", stages=stages).run(LocalExecutor(config=HERE), progress=False)
        verify(f"{root}/out").raise_for_problems()
    (local,) = (tmp_path / "out").iterdir()
    store.invalidate_cache()
    assert store.find("data/out") == [f"data/out/{local.name}"]
    assert store.cat_file(f"data/out/{local.name}") == local.read_bytes()


def _job(output: str) -> Pipeline:
    stages = [
        JsonlReader("s3://data/in", files_per_partition=1),
        ScoreFilter(WordCountFilter(min_words=3)),
        JsonlWriter(output),
    ]
    return Pipeline("remote", stages=stages)


def _objects(fs: s3fs.S3FileSystem, output: str) -> dict[str, bytes]:
    """Every object of an output and its record but those that hold times."""
    found: dict[str, bytes] = {}
    for root in (output, f"{output}.gristmill"):
        names = [name for name in fs.find(root) if not name.endswith(("/run.json", "/report.html"))]
        found |= {name[len(output) :]: fs.cat_file(name) for name in names}
    return found


@pytest.mark.parametrize(
    ("fault", "workers"), [("slow", 0), ("500", 0), ("503", 0), ("reset", 0), ("short", 0), ("reset", 2)]
)
def test_a_run_comes_through_faults(
    store: s3fs.S3FileSystem, server: str, monkeypatch: pytest.MonkeyPatch, fault: Fault, workers: int
) -> None:
    for number in range(2):
        store.pipe_file(f"data/in/{number}.jsonl", LINES)
    _job("s3://data/whole").run(LocalExecutor(config=HERE), progress=False)

    def choose(number: int, method: str, path: str) -> Fault | None:
        return fault if number % 17 == 3 else None  # a library waits up to a second after each

    with faulty_proxy(server, choose) as proxy:
        monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.url)
        s3fs.S3FileSystem.clear_instance_cache()
        _job("s3://data/out").run(LocalExecutor(config={"num_cpus": workers}), progress=False)
        assert len(proxy.faults) > 2
        assert "GET" in {method for _, method, _ in proxy.faults}
        monkeypatch.setenv("AWS_ENDPOINT_URL", server)
    s3fs.S3FileSystem.clear_instance_cache()
    verify("s3://data/out").raise_for_problems()
    fs = s3fs.S3FileSystem()
    assert _objects(fs, "data/out") == _objects(fs, "data/whole")


@pytest.mark.parametrize(("fault", "method"), [("503", "PUT"), ("reset", "PUT"), ("500", "GET"), ("reset", "GET")])
def test_a_store_that_stays_down_is_named_and_the_run_resumes(
    store: s3fs.S3FileSystem, server: str, monkeypatch: pytest.MonkeyPatch, fault: Fault, method: str
) -> None:
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "2")  # the library tries for a minute by default
    for number in range(3):
        store.pipe_file(f"data/in/{number}.jsonl", LINES)
    _job("s3://data/whole").run(LocalExecutor(config=HERE), progress=False)
    failing = "/data/out/2.jsonl" if method == "PUT" else "/data/in/2.jsonl"

    def choose(number: int, asked: str, path: str) -> Fault | None:
        return fault if asked == method and path.startswith(failing) else None

    with faulty_proxy(server, choose) as proxy:
        monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.url)
        s3fs.S3FileSystem.clear_instance_cache()
        with pytest.raises(GristmillError, match=rf"s3:/{failing}"):
            _job("s3://data/out").run(LocalExecutor(config=HERE), progress=False)
        assert len(proxy.faults) > 1  # it was tried again
        monkeypatch.setenv("AWS_ENDPOINT_URL", server)
    s3fs.S3FileSystem.clear_instance_cache()
    fs = s3fs.S3FileSystem()
    assert "data/out/2.jsonl" not in fs.find("data/out")
    done = _job("s3://data/out").run(LocalExecutor(config=HERE), progress=False).report.partitions_done_before
    assert done == (2 if method == "PUT" else 0)  # what cannot be read is noticed before the run
    verify("s3://data/out").raise_for_problems()
    assert _objects(s3fs.S3FileSystem(), "data/out") == _objects(s3fs.S3FileSystem(), "data/whole")


def test_a_hundred_thousand_objects_are_listed_in_bounded_memory(
    store: s3fs.S3FileSystem, server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    count = 100_000
    with long_listing(count) as url:
        monkeypatch.setenv("AWS_ENDPOINT_URL", url)
        s3fs.S3FileSystem.clear_instance_cache()
        before, begun = psutil.Process().memory_info().rss, time.process_time()
        found = survey("s3://data/in", extensions=[".jsonl"])
        seconds, grown = time.process_time() - begun, psutil.Process().memory_info().rss - before
        monkeypatch.setenv("AWS_ENDPOINT_URL", server)
    assert (len(found.files), found.files[-1].relative) == (count, f"{count - 1:06}.jsonl")
    assert found.files[0].size == 100
    print(f"{count} objects: {seconds:.1f} s of processor time with the server, {grown / 1e6:.0f} MB")
    assert grown < 300e6
    assert seconds < 60


def test_a_store_without_its_package_names_the_extra() -> None:
    stores = {
        "s3://bucket/in": ("s3fs", "s3"),
        "gs://bucket/in": ("gcsfs", "gcs"),
        "az://bucket/in": ("adlfs", "azure"),
        "abfs://bucket/in": ("adlfs", "azure"),
        "hf://datasets/some/data": ("huggingface_hub", "hub"),
    }
    program = f"""
import sys
sys.modules |= dict.fromkeys({[package for package, _ in stores.values()]})
from gristmill.errors import MissingExtraError
from gristmill.storage.files import survey
for url in {list(stores)}:
    try:
        survey(url)
    except MissingExtraError as error:
        print(error)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.stdout.splitlines() == [
        f"The store of {url!r} needs the package {package!r}, which is not installed: pip install 'gristmill[{extra}]'."
        for url, (package, extra) in stores.items()
    ]


def test_a_hub_that_cannot_be_reached_is_named() -> None:
    command = "from gristmill.storage.files import survey; survey('hf://datasets/some/data')"
    environment = {**os.environ, "HF_ENDPOINT": "http://127.0.0.1:9", "HF_HUB_DOWNLOAD_TIMEOUT": "1"}
    done = subprocess.run([sys.executable, "-c", command], env=environment, capture_output=True, text=True, check=False)
    assert "hf://datasets/some/data" in done.stderr.splitlines()[-1], done.stderr
    assert "gristmill.errors" in done.stderr.splitlines()[-1], done.stderr
