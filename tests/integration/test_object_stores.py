"""Every reader and writer on a real S3 server, also behind a proxy that delays, refuses and cuts off."""

from __future__ import annotations

import gzip
import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

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
from gristmill.stages.text.filters import ScoreFilter, WordCountFilter
from gristmill.stages.text.io import DocumentReader, JsonlReader, JsonlWriter, ParquetWriter
from tests.integration.faulty_proxy import Fault, faulty_proxy

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
    s3fs.S3FileSystem.clear_instance_cache()
    s3fs.S3FileSystem().rm("data", recursive=True)


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
        stages = [DocumentReader(f"{root}/in"), writer(f"{root}/out")]
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
        return fault if number % 11 == 3 else None  # a library waits up to a second after each

    with faulty_proxy(server, choose) as proxy:
        monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.url)
        s3fs.S3FileSystem.clear_instance_cache()
        _job("s3://data/out").run(LocalExecutor(config={"num_cpus": workers}), progress=False)
        assert len(proxy.faults) > 3
        assert "GET" in {method for _, method, _ in proxy.faults}
        monkeypatch.setenv("AWS_ENDPOINT_URL", server)
    s3fs.S3FileSystem.clear_instance_cache()
    verify("s3://data/out").raise_for_problems()
    fs = s3fs.S3FileSystem()
    assert _objects(fs, "data/out") == _objects(fs, "data/whole")


@pytest.mark.parametrize("fault", ["503", "reset"])
def test_a_store_that_stays_down_is_named_and_the_run_resumes(
    store: s3fs.S3FileSystem, server: str, monkeypatch: pytest.MonkeyPatch, fault: Fault
) -> None:
    for number in range(3):
        store.pipe_file(f"data/in/{number}.jsonl", LINES)
    _job("s3://data/whole").run(LocalExecutor(config=HERE), progress=False)

    def choose(number: int, method: str, path: str) -> Fault | None:
        return fault if method == "PUT" and path.startswith("/data/out/2.jsonl") else None

    with faulty_proxy(server, choose) as proxy:
        monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.url)
        s3fs.S3FileSystem.clear_instance_cache()
        with pytest.raises(GristmillError, match=r"s3://data/out/2\.jsonl"):
            _job("s3://data/out").run(LocalExecutor(config=HERE), progress=False)
        assert len(proxy.faults) > 1  # it was tried again
        monkeypatch.setenv("AWS_ENDPOINT_URL", server)
    s3fs.S3FileSystem.clear_instance_cache()
    fs = s3fs.S3FileSystem()
    assert sorted(fs.find("data/out")) == ["data/out/0.jsonl", "data/out/1.jsonl"]
    assert _job("s3://data/out").run(LocalExecutor(config=HERE), progress=False).report.partitions_done_before == 2
    verify("s3://data/out").raise_for_problems()
    assert _objects(s3fs.S3FileSystem(), "data/out") == _objects(s3fs.S3FileSystem(), "data/whole")
