"""Tokens: the same bytes for any number of workers, and after kill -9 anywhere."""

from __future__ import annotations

import json
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

from gristmill.backends.local import LocalExecutor
from gristmill.ledger.prove.verify import verify
from gristmill.pipeline import Pipeline
from gristmill.stages.text.io import JsonlReader
from gristmill.stages.text.io.writer import TokenWriter
from tests.integration.trust_host import Host
from tests.integration.trust_job import make_input
from tests.outputs import contents_of, record_of
from tests.token_files import make_tokenizer, read_mds

pytest.importorskip("tokenizers")
PATIENCE_S = 600.0


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Host]:
    made = Host(tmp_path_factory.mktemp("host"))
    yield made
    made.close()


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tokenizer(tmp_path_factory.mktemp("tokenizer"))


@pytest.fixture(scope="module")
def few(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_input(tmp_path_factory.mktemp("few") / "in", files=2)


@pytest.mark.parametrize(
    "options", [{"format": "megatron"}, {"format": "mds", "sequence_length": 8, "pack": "best_fit"}]
)
def test_death_at_file_operations(
    host: Host, few: Path, tokenizer: Path, tmp_path: Path, options: dict[str, Any]
) -> None:
    tokens = {"tokenizer": str(tokenizer), **options}
    whole = tmp_path / "whole"
    told = host.run(few, whole, tokens=tokens)
    assert told["code"] == 0, told
    expected = contents_of(whole)
    assert {"record/summary.json", "record/documents/part-000.parquet"} <= set(expected)
    dice = random.Random(3)
    last = told["operations"]
    points = [*dice.sample(range(1, last - 8), 6), *range(last - 8, last, 2)]  # the summary comes last
    for at in points:
        output, how = tmp_path / f"out-{at}", dice.choice(["before", "after"])
        assert host.run(few, output, tokens=tokens, die_at=at, how=how)["code"] == -signal.SIGKILL
        told = host.run(few, output, tokens=tokens)
        assert told["code"] == 0, (at, how, told)
        assert contents_of(output) == expected, (at, how)
        verify(output).raise_for_problems()


def test_killed_command_and_any_number_of_workers(tokenizer: Path, tmp_path: Path) -> None:
    """The real command with two workers, killed between commits and run again, against one process."""
    source = tmp_path / "in"
    source.mkdir()
    for number in range(40):
        lines = [json.dumps({"id": f"{number}-{row}", "text": f"the mill {number} {row} " * 40}) for row in range(60)]
        (source / f"{number:02}.jsonl").write_text("\n".join(lines) + "\n")

    def command(output: Path, *more: str) -> list[str]:
        own = [str(source), str(output), "--tokenizer", str(tokenizer), "--format", "mds", "--shard-tokens", "10000"]
        return [sys.executable, "-m", "gristmill", "tokens", "write", *own, *more, "--quiet"]

    one, two = tmp_path / "one", tmp_path / "two"
    subprocess.run(command(one, "--workers", "0"), check=True, timeout=PATIENCE_S)
    running = subprocess.Popen(command(two, "--workers", "2"))
    manifest = record_of(two) / "manifest"
    until = time.monotonic() + PATIENCE_S
    while running.poll() is None and time.monotonic() < until:
        if manifest.is_dir() and len(list(manifest.glob("*.json"))) >= 3:
            break
        time.sleep(0.01)
    running.kill()
    running.wait()
    subprocess.run(command(two, "--workers", "2"), check=True, timeout=PATIENCE_S)
    assert contents_of(two) == contents_of(one)
    verify(two).raise_for_problems()
    assert len(read_mds(two)) == 40 * 60


READERS = ["litdata==0.2.76", "lightning-utilities==0.15.3", "tifffile==2026.3.3", "megatron-core==0.16.1"]
"""Installed apart and without dependencies, of which some do not go with ours (docs/decisions/0015)."""


def test_the_readers_of_litdata_and_megatron_read_what_is_written(tmp_path: Path) -> None:
    install = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", str(tmp_path), *READERS]
    subprocess.run(install, check=True, capture_output=True)
    root = Path(__file__).parents[2]
    test = "tests/unit/stages/text/io/test_token_writer.py::TestFormats::test_real_readers"
    paths = [str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", test],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)}, cwd=root, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert "1 passed" in done.stdout, done.stdout[-3000:]


STREAMING = ["mosaicml-streaming==0.13.0", "python-snappy", "cramjam", "zstd", "brotli", "catalogue", "pillow"]
READ_MDS = """
import sys, types
from importlib.machinery import ModuleSpec
# Only its data sets of images use torchvision, whose wheel does not load beside PyTorch without CUDA.
for name in ("torchvision", "torchvision.datasets", "torchvision.transforms", "torchvision.transforms.functional"):
    sys.modules[name] = types.ModuleType(name)
    sys.modules[name].__spec__ = ModuleSpec(name, None)
sys.modules["torchvision.datasets"].VisionDataset = type("VisionDataset", (), {})
sys.modules["torchvision.transforms.functional"].to_tensor = None
from streaming import StreamingDataset
found = StreamingDataset(local=sys.argv[1], batch_size=1)
print([found[at]["tokens"].tolist() for at in range(len(found))])
"""


def test_the_reader_of_streaming_reads_what_is_written(tmp_path: Path) -> None:
    readers = tmp_path / "readers"
    install = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", str(readers), *STREAMING]
    subprocess.run(install, check=True, capture_output=True)
    source, tokenizer = make_input(tmp_path / "in", files=1), make_tokenizer(tmp_path / "tokenizer")
    stages = [JsonlReader(str(source)), TokenWriter(str(tmp_path / "out"), str(tokenizer), "mds")]
    Pipeline("tokens", stages=stages).run(LocalExecutor({"num_cpus": 0}), progress=False, error_budget=None)
    paths = [str(readers), *filter(None, [os.environ.get("PYTHONPATH")])]
    done = subprocess.run(
        [sys.executable, "-c", READ_MDS, str(tmp_path / "out")],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    assert json.loads(done.stdout.splitlines()[-1]) == read_mds(tmp_path / "out") != []
