"""The English recipe with its 28 filters on a cluster of two processors, from the command line."""

from __future__ import annotations

import gzip
import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner

from gristmill.backends.base import BaseExecutor
from gristmill.backends.local import LocalExecutor
from gristmill.cli.main import cli
from gristmill.pipeline import Pipeline
from gristmill.stages.text.extraction import HtmlExtractor
from gristmill.stages.text.io import CsvWriter, JsonlReader, JsonlWriter, WarcReader
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


def test_web_archives_are_extracted_as_on_one_machine(ray_cluster: str, tmp_path: Path, shared_data: Path) -> None:
    from gristmill.backends.ray_data import RayDataExecutor

    crawl = tmp_path / "crawl"
    crawl.mkdir()
    real = shared_data / "warc_real"
    for name in ("dolma/sample-0001.warc.gz", "warcio/post-test.warc.gz", "whirlwind/whirlwind.warc.wet.gz"):
        shutil.copyfile(real / name, crawl / name.rpartition("/")[2])
    with (crawl / "sample-0001.warc.gz").open("r+b") as file:  # a damaged record
        file.seek(60_000)
        file.write(bytes(100))

    def run(output: Path, executor: BaseExecutor) -> dict[str, bytes]:
        reader = WarcReader(str(crawl / "*.warc.gz"), blocksize="64KB")  # the large file in several ranges
        stages = [reader, HtmlExtractor("fast", metadata=["title"]), JsonlWriter(str(output))]
        report = Pipeline("pages", stages=stages).run(executor, progress=False, error_budget=None).report
        assert report.stages[0].skipped["request"] > 0
        assert report.quarantined
        return contents(output)

    here = run(tmp_path / "here", LocalExecutor({"num_cpus": 0}))
    assert sum(name.endswith(".jsonl") for name in here) > 2
    assert run(tmp_path / "there", RayDataExecutor()) == here


def _run(source: Path, output: Path, executor: str) -> dict[str, bytes]:
    """All files of the output, besides the recipe, which names the output itself."""
    arguments = ["run", "english", str(source), str(output), "--executor", executor, "--quiet"]
    done = CliRunner().invoke(cli, arguments, catch_exceptions=False)
    assert done.exit_code == 0, done.output
    found = contents(output)
    found.pop("record/recipe.yaml")
    return found
