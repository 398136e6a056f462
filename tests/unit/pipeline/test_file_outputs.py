"""An output that is one file: made from one input file, with its record beside it, and taken by every command."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

from gristmill.backends.local import LocalExecutor
from gristmill.cli.main import cli
from gristmill.errors import GristmillError, OutputError, OutputExistsError
from gristmill.ledger import Ledger
from gristmill.ledger.prove.verify import verify
from gristmill.pipeline import Pipeline
from gristmill.stages.deduplication import ExactDeduplicationWorkflow
from gristmill.stages.text.filters import ScoreFilter, WordCountFilter
from gristmill.stages.text.io import JsonlReader, JsonlWriter, ParquetWriter
from tests.outputs import record_of
from tests.unit.pipeline.jobs import here, write_lines

ROWS = [{"id": f"d{row}", "text": "word " * (row % 5 + 1)} for row in range(50)]
KEPT = [row for row in ROWS if len(row["text"].split()) >= 3]


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return write_lines(tmp_path / "in" / "one.jsonl", ROWS)


def _job(source: Path, output: Path, *, min_words: int = 3, blocksize: int | None = None, **options: Any) -> Pipeline:
    writer = (ParquetWriter if ".parquet" in output.name else JsonlWriter)(str(output), **options)
    reader = JsonlReader(str(source), blocksize=blocksize)
    return Pipeline("job", stages=[reader, ScoreFilter(WordCountFilter(min_words=min_words)), writer])


def _read(path: Path) -> list[dict[str, Any]]:
    if path.name.endswith(".parquet"):
        return pq.read_table(path).to_pylist()
    data = gzip.decompress(path.read_bytes()) if path.name.endswith(".gz") else path.read_bytes()
    return [json.loads(line) for line in data.splitlines()]


@pytest.mark.parametrize("name", ["out.jsonl", "out.v2.jsonl.gz", "out.ndjson", "out.parquet"])
def test_it_is_a_file_with_its_record_beside_it(source: Path, tmp_path: Path, name: str) -> None:
    output = tmp_path / name
    result = _job(source, output).run(here())
    assert output.is_file()
    assert _read(output) == KEPT
    assert result[0].data == [str(output)]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in", name, f"{name}.gristmill"]
    verify(output).raise_for_problems()
    assert Ledger(output).why("d0").status == "dropped"
    assert name in str(Ledger(output).why("d2"))
    assert _job(source, output).run(here()).report.partitions_done_before == 1
    output.write_bytes(output.read_bytes()[:-1])
    assert any(f"{name} of partition" in problem for problem in verify(output).problems)
    assert _job(source, output).run(here()).report.partitions_done_before == 0
    assert _read(output) == KEPT


def test_it_can_be_renamed_with_its_record(source: Path, tmp_path: Path) -> None:
    _job(source, tmp_path / "out.jsonl").run(here())
    (tmp_path / "out.jsonl").rename(tmp_path / "clean.jsonl")
    (tmp_path / "out.jsonl.gristmill").rename(tmp_path / "clean.jsonl.gristmill")
    verify(tmp_path / "clean.jsonl").raise_for_problems()
    (tmp_path / "clean.jsonl").unlink()
    assert any("clean.jsonl of partition one is missing" in text for text in verify(tmp_path / "clean.jsonl").problems)


@pytest.mark.parametrize("workers", [0, 2])
def test_its_input_is_not_split(source: Path, tmp_path: Path, workers: int) -> None:
    split = _job(source, tmp_path / "folder", blocksize=200)
    assert "Input: 1 partition" not in split.explain(here())
    whole = _job(source, tmp_path / "out.jsonl", blocksize=200)
    shown = whole.explain(here())
    assert "Input: 1 partition" in shown
    assert "out.jsonl is a single file, so one worker writes it. Pass a folder to use all cores." in shown
    whole.run(LocalExecutor(config={"num_cpus": workers}), progress=False)
    assert _read(tmp_path / "out.jsonl") == KEPT
    assert "one worker writes it" not in _job(source, tmp_path / "out.jsonl").explain(here())


def test_several_input_files_need_a_folder(source: Path, tmp_path: Path) -> None:
    write_lines(source.with_name("two.jsonl"), ROWS)
    job = _job(source.parent, tmp_path / "out.jsonl")
    with pytest.raises(OutputError, match=r"out.jsonl is a single file, but the input is 2 files.*Pass a folder"):
        job.run(here())
    assert "A run would refuse: The output" in job.explain(here())
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in"]


def test_a_folder_of_such_a_name_stays_a_folder(source: Path, tmp_path: Path) -> None:
    write_lines(source.with_name("two.jsonl"), ROWS)
    (tmp_path / "out.jsonl").mkdir()
    _job(source.parent, tmp_path / "out.jsonl").run(here())
    assert sorted(path.name for path in (tmp_path / "out.jsonl").iterdir()) == ["one.jsonl", "two.jsonl"]
    verify(tmp_path / "out.jsonl").raise_for_problems()


def test_a_file_of_other_origin_is_not_replaced(source: Path, tmp_path: Path) -> None:
    output = tmp_path / "out.jsonl"
    output.write_text("mine")
    with pytest.raises(OutputExistsError, match=r"out.jsonl was not written by a run"):
        _job(source, output).run(here())
    with pytest.raises(OutputExistsError, match=r"mode='error'"):
        _job(source, output, mode="error").run(here())
    assert output.read_text() == "mine"
    _job(source, output, mode="overwrite").run(here())
    assert _read(output) == KEPT


@pytest.mark.parametrize("mode", ["ignore", "overwrite"])
def test_the_input_is_not_replaced(source: Path, mode: Any) -> None:
    before = source.read_bytes()
    with pytest.raises(OutputError, match="is the input file"):
        _job(source, source, mode=mode).run(here())
    assert source.read_bytes() == before


@pytest.mark.parametrize(
    ("name", "writer", "told"),
    [
        ("out.parquet", JsonlWriter, "ends with .parquet, but the writer writes .jsonl files"),
        ("out.jsonl", ParquetWriter, "ends with .jsonl, but the writer writes .parquet files"),
    ],
)
def test_the_name_must_agree_with_the_writer(source: Path, tmp_path: Path, name: str, writer: Any, told: str) -> None:
    with pytest.raises(OutputError, match=told):
        Pipeline("job", stages=[JsonlReader(str(source)), writer(str(tmp_path / name))]).run(here())
    with pytest.raises(OutputError, match=r"ends with .jsonl.gz, but the writer writes .jsonl.zst files"):
        _job(source, tmp_path / "out.jsonl.gz", compression="zstd").run(here())


def test_without_documents_it_is_empty(source: Path, tmp_path: Path) -> None:
    for name in ("out.jsonl", "out.jsonl.gz"):
        _job(source, tmp_path / name, min_words=90).run(here())
        assert _read(tmp_path / name) == []
        verify(tmp_path / name).raise_for_problems()
        assert _job(source, tmp_path / name, min_words=90).run(here()).report.partitions_done_before == 1


def test_documents_of_several_schemas_do_not_fit_into_one_parquet_file(tmp_path: Path) -> None:
    rows = [{"id": "a", "n": 1, "text": "x" * 3_000_000}, {"id": "b", "n": "z" * 3_000_000}, {"id": "c", "n": [1]}]
    source = write_lines(tmp_path / "in.jsonl", rows)

    def job(output: str) -> Pipeline:
        reader = JsonlReader(str(source), read_kwargs={"batch_bytes": 1 << 20})
        return Pipeline("job", stages=[reader, ParquetWriter(str(tmp_path / output))])

    with pytest.raises(GristmillError, match=r"o.parquet is a single file, but its documents need \d"):
        job("o.parquet").run(here())
    assert not (tmp_path / "o.parquet").exists()
    job("folder").run(here())
    files = sorted(path.name for path in (tmp_path / "folder").iterdir())
    assert files[:2] == ["in.parquet", "in~1.parquet"]
    verify(tmp_path / "folder").raise_for_problems()


def test_a_deduplication_writes_one_too(source: Path, tmp_path: Path) -> None:
    options = {"input_path": str(source), "output_path": str(tmp_path / "out.jsonl"), "input_blocksize": 200}
    ExactDeduplicationWorkflow(**options, perform_removal=True).run(here())
    assert _read(tmp_path / "out.jsonl") == ROWS[:5]
    verify(tmp_path / "out.jsonl").raise_for_problems()
    with pytest.raises(OutputError, match="A list of duplicates needs a folder"):
        ExactDeduplicationWorkflow(**options).run(here())


def test_the_commands_take_it(source: Path, tmp_path: Path) -> None:
    output = str(tmp_path / "out.jsonl")

    def run(*arguments: str) -> str:
        result = CliRunner().invoke(cli, list(arguments))
        assert result.exit_code in (0, 3), result.output
        return result.output

    (tmp_path / "r.yaml").write_text(
        "stages:\n"
        '  - JsonlReader: {file_paths: "${input_path}"}\n'
        "  - WordCountFilter: {min_words: 3}\n"
        '  - JsonlWriter: {path: "${output_path}"}\n'
    )
    with source.open("a") as file:
        file.write("{broken\n")
    run("run", str(tmp_path / "r.yaml"), str(source), output, "--workers", "0")
    assert Path(output).is_file()
    assert record_of(Path(output)).is_dir()
    assert "1 partition" in run("verify", output)
    assert "too_few_words" in run("why", output, "d0")
    assert "malformed_json" in run("quarantine", output)
    assert "1 record replayed" in run("replay", output)
    assert "1 of 1 partition" in run("plan", str(tmp_path / "r.yaml"), str(source), output)
    assert "51 documents" in run("diff", output, output)
