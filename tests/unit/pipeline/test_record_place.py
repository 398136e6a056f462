"""Where the record of a run lies: beside its output, where it was asked for, or in the output as in version 0.1."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any

import fsspec
import pytest
from click.testing import CliRunner

from gristmill.cli.main import cli
from gristmill.errors import InputNotFoundError, OutputError, OutputExistsError, UsageError
from gristmill.ledger import Ledger, RunFolder
from gristmill.ledger.prove.verify import verify
from gristmill.pipeline import Pipeline
from gristmill.stages.deduplication import ExactDeduplicationWorkflow
from gristmill.stages.text.filters import ScoreFilter, WordCountFilter
from gristmill.stages.text.io import JsonlReader, JsonlWriter
from tests.outputs import contents_of, files_of, record_of
from tests.unit.pipeline.jobs import here, read_rows, write_lines


@pytest.fixture(autouse=True)
def source(tmp_path: Path) -> Path:
    for file in range(3):
        rows = [{"id": f"{file}-{row}", "text": "word " * (row + 1)} for row in range(6)]
        write_lines(tmp_path / "in" / f"{file}.jsonl", [*rows, "{broken"])
    return tmp_path / "in"


def _job(source: Path, output: Path | str, *, min_words: int = 3) -> Pipeline:
    reader = JsonlReader(str(source), files_per_partition=1)
    return Pipeline("job", stages=[reader, ScoreFilter(WordCountFilter(min_words=min_words)), JsonlWriter(str(output))])


def _run(source: Path, output: Path | str, **options: Any) -> Any:
    min_words = options.pop("min_words", 3)
    return _job(source, output, min_words=min_words).run(here(), error_budget=None, progress=False, **options).report


def _move_inside(output: Path) -> None:
    """Put the record where version 0.1 kept it; the names in its manifest are the same."""
    record_of(output).rename(output / "_gristmill")


def test_the_output_holds_data_and_nothing_else(source: Path, tmp_path: Path) -> None:
    _run(source, tmp_path / "out", scores="all")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in", "out", "out.gristmill"]
    assert sorted(path.name for path in (tmp_path / "out").rglob("*")) == ["0.jsonl", "1.jsonl", "2.jsonl"]
    found = {path.name for path in record_of(tmp_path / "out").iterdir()}
    assert found == {"index", "ledger", "manifest", "plan.json", "quarantine", "report.html", "run.json"}


def test_on_another_store_too(source: Path) -> None:
    name = f"place-{os.getpid()}"
    _run(source, f"memory://{name}/out/")
    names = fsspec.filesystem("memory").find(f"/{name}")
    data = [f"/{name}/out/{file}.jsonl" for file in range(3)]
    assert [path for path in names if not path.startswith(f"/{name}/out.gristmill/")] == data
    verify(f"memory://{name}/out").raise_for_problems()
    assert Ledger(f"memory://{name}/out").why("0-0").status == "dropped"
    assert _run(source, f"memory://{name}/out").partitions_done_before == 3


@pytest.mark.parametrize("elsewhere", ["tmp", "other disk"])
def test_another_place_has_to_be_named_again(source: Path, tmp_path: Path, elsewhere: str) -> None:
    folder = str(tmp_path) if elsewhere == "tmp" else "/dev/shm"
    with tempfile.TemporaryDirectory(dir=folder) as place:
        record = f"{place}/kept/record"
        _run(source, tmp_path / "out", record_path=record)
        assert sorted(path.name for path in (tmp_path / "out").rglob("*")) == ["0.jsonl", "1.jsonl", "2.jsonl"]
        assert not record_of(tmp_path / "out").exists()
        verify(tmp_path / "out", record_path=record).raise_for_problems()
        assert Ledger(tmp_path / "out", record_path=record).why("0-0").status == "dropped"
        assert _run(source, tmp_path / "out", record_path=record).partitions_done_before == 3
        with pytest.raises(InputNotFoundError, match=r"no record in .*out.gristmill.*--record \(record_path=…\)"):
            verify(tmp_path / "out")
        with pytest.raises(OutputExistsError, match="not written by a run"):
            _run(source, tmp_path / "out")


def test_the_commands_take_another_place(source: Path, tmp_path: Path) -> None:
    output, record = str(tmp_path / "out"), str(tmp_path / "kept")
    (tmp_path / "r.yaml").write_text(
        "stages:\n"
        '  - JsonlReader: {file_paths: "${input_path}", files_per_partition: 1}\n'
        "  - WordCountFilter: {min_words: 3}\n"
        '  - JsonlWriter: {path: "${output_path}"}\n'
    )
    given = [str(tmp_path / "r.yaml"), str(source), output]

    def run(*arguments: str, place: str = "--record") -> str:
        result = CliRunner().invoke(cli, [*arguments, place, record])
        assert result.exit_code in (0, 3), result.output
        return result.output

    run("run", *given, "--workers", "0", "-q", "--error-budget", "none", "--scores", "all")
    assert "3 of 3 partitions are done" in run("plan", *given, "--scores", "all")
    assert "3 partitions" in run("verify", output)
    assert "too_few_words" in run("why", output, "0-0")
    assert "malformed_json" in run("quarantine", output)
    assert "3 records replayed" in run("replay", output)
    assert "21 documents in" in run("show", output)
    assert "min_words" in run("rethreshold", output)
    _run(source, tmp_path / "other")
    assert "21 documents" in run("diff", output, str(tmp_path / "other"), place="--record-a")
    record = str(tmp_path / "dedup-kept")
    run("dedup", "exact", str(source), str(tmp_path / "unique"), "-q", "--error-budget", "none")
    assert "2 steps" in run("verify", str(tmp_path / "unique"))
    assert not record_of(tmp_path / "unique").exists()


def test_a_record_is_that_of_one_output(source: Path, tmp_path: Path) -> None:
    record = tmp_path / "kept"
    _run(source, tmp_path / "out", record_path=record)
    for output in ("new", "there"):
        (tmp_path / "there").mkdir(exist_ok=True)
        with pytest.raises(OutputExistsError, match=r"kept is the record of .*out. Choose another place"):
            _run(source, tmp_path / output, record_path=record)
    verify(tmp_path / "out", record_path=record).raise_for_problems()
    (tmp_path / "out").rename(tmp_path / "moved")
    assert _run(source, tmp_path / "moved", record_path=record).partitions_done_before == 3


@pytest.mark.parametrize(
    ("record", "told"),
    [
        ("out", "overlap"),
        ("out/record", "overlap"),
        (".", "overlap"),
        ("memory://record", "different stores"),
        ("in/0.jsonl/x", r"0.jsonl is a file.*--record"),
        ("/proc/no-such-place", r"Cannot write to /proc/no-such-place.*--record"),
        ("in", r"in holds '0.jsonl', which is not part of the record of a run.*--record"),
    ],
)
def test_a_place_that_cannot_be_is_refused(source: Path, tmp_path: Path, record: str, told: str) -> None:
    place = record if "://" in record else os.path.normpath(tmp_path / record)
    with pytest.raises(OutputError, match=told):
        _run(source, tmp_path / "out", record_path=place)
    assert not list((tmp_path / "out").glob("*"))
    assert len(list(source.iterdir())) == 3


def test_outputs_without_a_place_beside_them(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match=r"/ is the whole disk.*--record"):
        _run(source, "/")
    with pytest.raises(OutputError, match="named like the record"):
        _run(source, tmp_path / "out.gristmill")
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    _run(source, ".")
    assert record_of(tmp_path / "here").is_dir()
    assert len(list((tmp_path / "here").iterdir())) == 3
    verify(".").raise_for_problems()
    with pytest.raises(InputNotFoundError, match="named like the record of a run, not like its output"):
        verify(record_of(tmp_path / "here"))


def test_a_record_is_no_input(source: Path, tmp_path: Path) -> None:
    _run(source, tmp_path / "all" / "first")
    _run(tmp_path / "all", tmp_path / "second", min_words=1)
    assert read_rows(tmp_path / "second") == read_rows(tmp_path / "all" / "first")
    with pytest.raises(OutputError, match="is inside the input folder"):
        _run(tmp_path / "all", tmp_path / "all" / "third")


def test_a_deleted_output_is_started_over(source: Path, tmp_path: Path) -> None:
    _run(source, tmp_path / "out")
    for path in (tmp_path / "out").iterdir():
        path.unlink()
    (tmp_path / "out").rmdir()
    assert "done;" not in _job(source, tmp_path / "out", min_words=5).explain(here())
    assert _run(source, tmp_path / "out", min_words=5).partitions_done_before == 0
    verify(tmp_path / "out").raise_for_problems()
    _run(source, tmp_path / "whole", min_words=5)
    assert contents_of(tmp_path / "out") == contents_of(tmp_path / "whole")


# --- outputs of version 0.1 ---


def test_an_output_with_its_record_inside_goes_on(source: Path, tmp_path: Path) -> None:
    _run(source, tmp_path / "whole")
    (source / "2.jsonl").rename(tmp_path / "later.jsonl")
    output = tmp_path / "out"
    _run(source, output)
    _move_inside(output)
    verify(output).raise_for_problems()
    assert Ledger(output).why("0-0").status == "dropped"
    (tmp_path / "later.jsonl").rename(source / "2.jsonl")
    assert _run(source, output).partitions_done_before == 2
    assert not record_of(output).exists()
    verify(output).raise_for_problems()
    (output / "_gristmill").rename(record_of(output))
    verify(output).raise_for_problems()
    assert contents_of(output) == contents_of(tmp_path / "whole")


@pytest.mark.parametrize("removal", [True, False])
def test_a_deduplication_with_its_record_inside_goes_on(source: Path, tmp_path: Path, removal: bool) -> None:
    output = tmp_path / "out"

    def deduplicate() -> Any:
        made = ExactDeduplicationWorkflow(input_path=str(source), output_path=str(output), perform_removal=removal)
        return made.run(here(), error_budget=None)

    deduplicate()
    before = files_of(output)
    _move_inside(output)
    if not removal:  # a list had its own record
        (output / "_gristmill" / "ExactDuplicateIds").rename(output / "ExactDuplicateIds" / "_gristmill")
    verify(output).raise_for_problems()
    again = deduplicate()
    assert all(task.task_id for tasks in again.pipeline_tasks.values() for task in tasks)
    verify(output).raise_for_problems()
    assert not record_of(output).exists()
    assert len([path for path in output.rglob("*") if path.is_file()]) == len(before)


def test_only_folders_of_the_run_are_removed(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "out")
    (tmp_path / "out-of-it").mkdir()
    for path in (tmp_path, tmp_path / "out", tmp_path / "out-of-it", tmp_path / "out.gristmill"):
        with pytest.raises(OutputError, match="is not removed"):
            folder.remove_tree(str(path))
    assert (tmp_path / "out-of-it").is_dir()
