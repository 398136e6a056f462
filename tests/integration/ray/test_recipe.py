"""The English recipe with its 28 filters on a cluster of two processors, from the command line."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest
from click.testing import CliRunner

from gristmill.backends.local import LocalExecutor
from gristmill.cli.main import cli
from gristmill.pipeline import Pipeline
from gristmill.stages.text.io import CsvWriter, JsonlReader
from tests.contract.executor_suite import contents

pytestmark = [pytest.mark.ray, pytest.mark.slow]


@pytest.fixture(scope="module")
def source(sample_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The shipped sample in four files."""
    folder = tmp_path_factory.mktemp("sample")
    lines = gzip.decompress(sample_path.read_bytes()).splitlines(keepends=True)
    for number in range(4):
        (folder / f"part-{number}.jsonl").write_bytes(b"".join(lines[number::4]))
    return folder


@pytest.fixture(scope="module")
def expected(source: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    return _run(source, tmp_path_factory.mktemp("local") / "out", "local")


@pytest.mark.parametrize("executor", ["ray_data", "xenna"])
def test_english(ray_cluster: str, source: Path, expected: dict[str, bytes], tmp_path: Path, executor: str) -> None:
    if executor == "xenna":
        pytest.importorskip("cosmos_xenna")
    assert _run(source, tmp_path / "out", executor) == expected
    assert sum(name.endswith(".jsonl") for name in expected) == 4


def test_files_of_another_format(ray_cluster: str, source: Path, tmp_path: Path) -> None:
    tables = tmp_path / "tables"
    write = Pipeline("tables", stages=[JsonlReader(str(source)), CsvWriter(str(tables), fields=["id", "text"])])
    write.run(executor=LocalExecutor({"num_cpus": 0}))
    here = _run(tables, tmp_path / "here", "local")
    assert _run(tables, tmp_path / "there", "ray_data") == here
    assert sum(name.endswith(".jsonl") for name in here) == 4


def _run(source: Path, output: Path, executor: str) -> dict[str, bytes]:
    """All files of the output, besides the recipe, which names the output itself."""
    arguments = ["run", "english", str(source), str(output), "--executor", executor, "--quiet"]
    done = CliRunner().invoke(cli, arguments, catch_exceptions=False)
    assert done.exit_code == 0, done.output
    found = contents(output)
    found.pop("record/recipe.yaml")
    return found
