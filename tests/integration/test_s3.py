"""Runs on a real S3 server: committed, killed, resumed, verified and asked, with the record beside the output."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import s3fs
from moto.server import ThreadedMotoServer

from gristmill.backends.local import LocalExecutor
from gristmill.errors import OutputError, UsageError
from gristmill.ledger import Ledger
from gristmill.ledger.prove.verify import verify
from gristmill.pipeline import Pipeline
from gristmill.stages.deduplication import ExactDeduplicationWorkflow
from gristmill.stages.text.filters import ScoreFilter, WordCountFilter
from gristmill.stages.text.io import JsonlReader, JsonlWriter, ParquetWriter

FILES, ROWS = 6, 30
PATIENCE_S = 180
HERE = {"num_cpus": 0}
RECIPE = """
name: remote
stages:
  - JsonlReader: {file_paths: "${input_path}", files_per_partition: 1}
  - WordCountFilter: {min_words: 3}
  - JsonlWriter: {path: "${output_path}"}
"""


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
    """A bucket named `data` with an input; programs that are started find the server too."""
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
    for file in range(FILES):
        rows = [{"id": f"{file}-{row}", "text": " ".join(["word"] * (row % 6 + 1))} for row in range(ROWS)]
        fs.pipe_file(f"data/in/{file:02}.jsonl", "".join(json.dumps(row) + "\n" for row in rows).encode())
    yield fs
    fs.rm("data", recursive=True)
    s3fs.S3FileSystem.clear_instance_cache()


def _job(output: str, writer: Any = JsonlWriter) -> Pipeline:
    reader = JsonlReader("s3://data/in", files_per_partition=1)
    return Pipeline("remote", stages=[reader, ScoreFilter(WordCountFilter(min_words=3)), writer(output)])


def _contents(fs: s3fs.S3FileSystem, output: str) -> dict[str, bytes]:
    """Every object of an output and its record but `run.json` and the report, which hold times."""
    fs.invalidate_cache()
    found = {}
    for place, root in (("", output), ("record/", f"{output}.gristmill")):
        names = [name for name in fs.find(root) if not name.endswith(("/run.json", "/report.html"))]
        found |= {f"{place}{name[len(root) + 1 :]}": fs.cat_file(name) for name in names}
    return found


@pytest.mark.parametrize("workers", [0, 2])
def test_a_run_can_be_verified_asked_and_resumed(store: s3fs.S3FileSystem, workers: int) -> None:
    config = {"num_cpus": workers}
    report = _job("s3://data/out").run(LocalExecutor(config=config), progress=False).report
    assert (report.rows_read, report.rows_written) == (FILES * ROWS, FILES * ROWS * 4 // 6)
    assert sorted(store.ls("data")) == ["data/in", "data/out", "data/out.gristmill"]
    assert [name.rpartition("/")[2] for name in store.find("data/out")] == [f"{file:02}.jsonl" for file in range(FILES)]
    verify("s3://data/out").raise_for_problems()
    assert Ledger("s3://data/out").why("3-1").status == "dropped"
    again = _job("s3://data/out").run(LocalExecutor(config=config), progress=False).report
    assert again.partitions_done_before == FILES
    store.rm_file("data/out/03.jsonl")
    assert any("03.jsonl of partition 03 is missing" in problem for problem in verify("s3://data/out").problems)
    again = _job("s3://data/out").run(LocalExecutor(config=config), progress=False).report
    assert again.partitions_done_before == FILES - 1
    verify("s3://data/out").raise_for_problems()


def test_the_commands_find_the_record(store: s3fs.S3FileSystem, tmp_path: Path) -> None:
    def gristmill(*arguments: str) -> str:
        command = [sys.executable, "-m", "gristmill", *arguments]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout

    (tmp_path / "r.yaml").write_text(RECIPE)
    gristmill("run", str(tmp_path / "r.yaml"), "s3://data/in", "s3://data/out", "--workers", "0", "-q")
    assert f"{FILES} partitions" in gristmill("verify", "s3://data/out")
    assert "too_few_words" in gristmill("why", "s3://data/out/", "0-0")
    assert "No quarantined records" in gristmill("quarantine", "s3://data/out")
    assert store.size("data/out.gristmill/report.html") > 10_000
    store.rm_file("data/out.gristmill/report.html")
    gristmill("report", "s3://data/out")
    gristmill("report", "s3://data/out", "--to", str(tmp_path / "report.html"))
    store.invalidate_cache()
    assert store.size("data/out.gristmill/report.html") > 10_000
    assert "word word" in (tmp_path / "report.html").read_text()  # a dropped document, read from the store again
    assert f"{FILES * ROWS} documents" in gristmill("stats", "s3://data/in", "--workers", "0", "-q", "--no-languages")
    assert "Suggestion" in gristmill("doctor", "s3://data/out")
    assert f"{FILES} of {FILES} partitions are done" in gristmill(
        "plan", str(tmp_path / "r.yaml"), "s3://data/in", "s3://data/out"
    )


@pytest.mark.slow
def test_a_killed_run_is_resumed_to_the_same_bytes(store: s3fs.S3FileSystem, tmp_path: Path) -> None:
    (tmp_path / "r.yaml").write_text(RECIPE)

    def start(output: str) -> subprocess.Popen[bytes]:
        arguments = ["run", str(tmp_path / "r.yaml"), "s3://data/in", output, "--workers", "2", "-q"]
        return subprocess.Popen([sys.executable, "-m", "gristmill", *arguments], start_new_session=True)

    assert start("s3://data/whole").wait(PATIENCE_S) == 0
    program = start("s3://data/out")
    end = time.monotonic() + PATIENCE_S
    while not store.exists("data/out.gristmill/manifest") and time.monotonic() < end:
        store.invalidate_cache()
        time.sleep(0.01)
    assert program.poll() is None, "the run was over before it could be killed"
    os.killpg(program.pid, signal.SIGKILL)
    program.wait()
    assert len(store.find("data/out")) < FILES
    assert start("s3://data/out").wait(PATIENCE_S) == 0
    found, whole = (_contents(store, f"data/{name}") for name in ("out", "whole"))
    for contents in (found, whole):
        del contents["record/recipe.yaml"]  # it names the output
    assert found == whole
    verify("s3://data/out").raise_for_problems()


def test_a_whole_bucket_needs_a_place_for_the_record(store: s3fs.S3FileSystem, tmp_path: Path) -> None:
    store.mkdir("other")
    job = _job("s3://other", ParquetWriter)
    with pytest.raises(UsageError, match=r"s3://other is a whole bucket.*--record"):
        job.run(LocalExecutor(config=HERE), progress=False)
    for record in (str(tmp_path / "record"), "s3://data/records/other"):
        job.run(LocalExecutor(config=HERE), progress=False, record_path=record)
        verify("s3://other", record_path=record).raise_for_problems()
        assert len(store.find("other")) == FILES
        store.rm(store.find("other"))
    with pytest.raises(OutputError, match="overlap"):
        job.run(LocalExecutor(config=HERE), progress=False, record_path="s3://other/record")
    with pytest.raises(OutputError, match="different stores"):
        job.run(LocalExecutor(config=HERE), progress=False, record_path="memory://record")
    store.rm("other", recursive=True)


def test_a_deduplication_keeps_its_steps_in_the_record(store: s3fs.S3FileSystem) -> None:
    for removal in (False, True):
        workflow = ExactDeduplicationWorkflow(
            input_path="s3://data/in", output_path="s3://data/unique", perform_removal=removal
        )
        assert workflow.run(LocalExecutor(config=HERE)).get_metadata("num_duplicates") == FILES * ROWS - 6
        verify("s3://data/unique").raise_for_problems()
        store.invalidate_cache()
        names = {name.rpartition(".")[2] for name in store.find("data/unique")}
        assert names <= ({"jsonl", "parquet", "json"} if removal else {"parquet", "json"})
    assert store.exists("data/unique.gristmill/steps/signatures/_gristmill/plan.json")
