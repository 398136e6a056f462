"""Files are accounted for like rows: each is read, or named with the reason; none is taken for what it is not."""

from __future__ import annotations

import gzip
import json
import lzma
import os
import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard
from click.testing import CliRunner

from gristmill.cli.main import cli
from gristmill.errors import ErrorBudgetExceededError, InputError, UsageError
from gristmill.ledger.prove.verify import verify
from gristmill.pipeline import Pipeline
from gristmill.stages.text.io import JsonlReader, JsonlWriter, ParquetReader
from gristmill.stages.text.io.reader import partitioning
from tests.unit.pipeline.jobs import here, read_rows, run_json, write_lines

RECORDS = [{"id": str(number), "text": f"text {number}"} for number in range(30)]


def job(folder: Path, reader: Any = None, **options: Any) -> Any:
    stages = [reader or JsonlReader(str(folder / "in")), JsonlWriter(str(folder / "out"))]
    return Pipeline("job", stages=stages).run(executor=here(), **options)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_lines(tmp_path / "in" / "a.jsonl", RECORDS[:10])
    write_lines(tmp_path / "in" / "sub" / "b.jsonl", RECORDS[10:])
    for name in ("notes.txt", "sub/c.csv", "sub/d.csv", "_old/x.jsonl", ".git/config", "prev.gristmill/run.json"):
        path = tmp_path / "in" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("id,text\n1,a\n")
    (tmp_path / "in" / "nothing.jsonl").touch()
    return tmp_path


LEFT_OUT = {
    "extension": {"files": 3, "examples": ["notes.txt", "sub/c.csv", "sub/d.csv"]},
    "hidden": {"files": 2, "examples": [".git/", "_old/"]},
    "record": {"files": 1, "examples": ["prev.gristmill/"]},
    "empty": {"files": 1, "examples": ["nothing.jsonl"]},
}


def test_every_file_is_read_or_named_with_the_reason(folder):
    report = job(folder).report
    assert report.left_out == LEFT_OUT
    assert "Not read: 7 files of the input (3 with another extension: notes.txt, sub/c.csv, sub/d.csv;" in str(report)
    files = run_json(folder / "out")["files"]
    assert files == {
        "paths": [str(folder / "in")],
        "extensions": [".jsonl", ".json", ".ndjson"],
        "read": 3,
        "left_out": LEFT_OUT,
    }
    found = verify(str(folder / "out"))
    assert found.ok
    assert len(found.notes) == 1
    assert found.notes[0].startswith("Not read: 7 files of the input")
    assert found.notes[0] in str(found)


def test_verify_tells_what_was_added_to_the_input_and_that_the_list_was_edited(folder):
    job(folder)
    write_lines(folder / "in" / "new.jsonl", RECORDS)
    (folder / "in" / "sub" / "e.csv").touch()
    found = verify(str(folder / "out"))
    assert found.ok
    assert found.notes[1] == "Added to the input since the run: 2 files (new.jsonl, sub/e.csv)."
    shutil.rmtree(folder / "in")
    assert len(verify(str(folder / "out")).notes) == 1
    listed = next((folder / "out").parent.glob("out*/**/left_out.jsonl"))
    listed.write_bytes(listed.read_bytes().replace(b"notes.txt", b"other.txt"))
    assert any("left_out.jsonl" in problem for problem in verify(str(folder / "out")).problems)


def test_a_later_run_that_reads_all_has_nothing_left_out(folder):
    job(folder)
    for name in ("notes.txt", "sub/c.csv", "sub/d.csv", "nothing.jsonl"):
        (folder / "in" / name).unlink()
    for name in ("_old", ".git", "prev.gristmill"):
        shutil.rmtree(folder / "in" / name)
    report = job(folder, fresh=True).report
    assert report.left_out == {}
    assert "Not read" not in str(report)
    found = verify(str(folder / "out"))
    assert found.ok
    assert not found.notes


def test_the_command_line_says_what_is_not_read(folder):
    recipe = folder / "copy.yaml"
    recipe.write_text(f"stages:\n- JsonlReader: {{file_paths: {folder}/in}}\n- JsonlWriter: {{path: {folder}/out}}\n")
    for command in (["plan", str(recipe)], ["run", str(recipe), "--workers", "0"], ["verify", str(folder / "out")]):
        result = CliRunner().invoke(cli, command)
        assert result.exit_code == 0, result.output
        said = " ".join(result.output.split())
        assert (
            "Not read: 7 files of the input (3 with another extension: notes.txt, sub/c.csv, sub/d.csv; 2 hid" in said
        )


def test_many_files_are_counted_and_only_some_are_named(tmp_path):
    write_lines(tmp_path / "in" / "a.jsonl", RECORDS)
    for number in range(2000):
        (tmp_path / "in" / f"{number:05d}.csv").touch()
    report = job(tmp_path).report
    assert report.left_out["extension"]["files"] == 2000
    assert len(str(report)) < 1000
    assert len(json.dumps(run_json(tmp_path / "out"))) < 5000
    listed = next((tmp_path / "out").parent.glob("out*/**/left_out.jsonl")).read_text().splitlines()
    assert len(listed) == 2000
    assert json.loads(listed[7]) == {"path": "00007.csv", "reason": "extension", "files": 1}


def test_files_beyond_the_limit_are_named_too(folder):
    report = job(folder, JsonlReader(str(folder / "in"), limit=1)).report
    assert report.left_out["limit"] == {"files": 2, "examples": ["nothing.jsonl", "sub/b.jsonl"]}


# Several formats -----------------------------------------------------------------------------------------------------


def both(folder: Path) -> str:
    write_lines(folder / "in" / "a.jsonl", RECORDS)
    pq.write_table(pa.Table.from_pylist(RECORDS), folder / "in" / "b.parquet")
    return str(folder / "in")


@pytest.mark.parametrize("kind", [JsonlReader, ParquetReader])
def test_a_mixture_of_formats_is_refused_with_both_choices(tmp_path, kind):
    path = both(tmp_path)
    with pytest.raises(UsageError) as caught:
        job(tmp_path, kind(path))
    for part in (
        f"JsonlReader({path!r}, file_extensions=['.jsonl', '.json', '.ndjson'])",
        f"ParquetReader({path!r}, file_extensions=['.parquet'])",
        "--input-filetype jsonl",
        "--input-filetype parquet",
    ):
        assert part in str(caught.value)
    assert not (tmp_path / "out").exists()


def test_a_choice_leaves_the_other_format_out_by_name(tmp_path):
    path = both(tmp_path)
    report = job(tmp_path, JsonlReader(path, file_extensions=[".jsonl"])).report
    assert report.rows_read == 30
    assert report.left_out == {"other_format": {"files": 1, "examples": ["b.parquet"]}}
    assert job(tmp_path, JsonlReader(f"{path}/*.jsonl"), fresh=True).report.left_out == {}
    with pytest.raises(UsageError):
        job(tmp_path, JsonlReader(f"{path}/*"))


def test_a_description_beside_the_data_is_no_data(tmp_path):
    (tmp_path / "in").mkdir()
    pq.write_table(pa.Table.from_pylist(RECORDS), tmp_path / "in" / "b.parquet")
    (tmp_path / "in" / "dataset_info.json").write_text(json.dumps({"name": "x", "splits": {"train": 30}}, indent=2))
    report = job(tmp_path, ParquetReader(str(tmp_path / "in"))).report
    assert report.rows_read == 30
    assert report.left_out == {"other_format": {"files": 1, "examples": ["dataset_info.json"]}}


# Compression by all usual names --------------------------------------------------------------------------------------


def test_compressed_files_are_read_under_all_usual_names(tmp_path):
    lines = [json.dumps(record).encode() + b"\n" for record in RECORDS]
    alone = {"format": lzma.FORMAT_ALONE}
    (tmp_path / "in").mkdir()
    for at, (name, compress) in enumerate(
        {
            "a.jsonl.xz": lzma.compress,
            "b.ndjson.xz": lzma.compress,
            "c.jsonl.lzma": lambda data: lzma.compress(data, **alone),
            "d.jsonl.zst": zstandard.compress,
            "e.json.zstd": zstandard.compress,
            "f.json.gz": gzip.compress,
        }.items()
    ):
        (tmp_path / "in" / name).write_bytes(compress(b"".join(lines[5 * at : 5 * at + 5])))
    report = job(tmp_path).report
    assert (report.rows_read, report.quarantined, report.left_out) == (30, 0, {})
    assert read_rows(tmp_path / "out") == RECORDS
    again = job(tmp_path, JsonlReader(str(tmp_path / "in"), file_extensions=[".xz"]), fresh=True).report
    assert (again.rows_read, again.quarantined) == (10, 0)


# Files that are not what they are called -----------------------------------------------------------------------------

WRONG = {
    "csv": (b"id,text\n1,one\n2,two\n", "CSV. Rename it to end with .csv and read it with CsvReader"),
    "object": (json.dumps({"data": RECORDS}, indent=1).encode(), "JSON laid out over several lines"),
    "utf16": ('{"text": "a"}\n' * 3).encode("utf-16"),
    "html": (b"<!doctype html>\n<html></html>", "it is HTML"),
    "gzip": (gzip.compress(b'{"text": "a"}\n'), "it is gzip-compressed. Rename it to end with .gz"),
}
WRONG["utf16"] = (WRONG["utf16"], "it is text in UTF-16. Convert it: `iconv")


@pytest.mark.parametrize("kind", WRONG)
def test_a_file_that_is_something_else_is_one_error_before_the_run(tmp_path, kind):
    content, said = WRONG[kind]
    write_lines(tmp_path / "in" / "a.jsonl", RECORDS)
    (tmp_path / "in" / "b.jsonl").write_bytes(content)
    with pytest.raises(InputError) as caught:
        job(tmp_path)
    assert said in str(caught.value)
    assert str(tmp_path / "in" / "b.jsonl") in str(caught.value)
    assert "To skip it, move it away or begin its name with '_'." in str(caught.value)
    assert not (tmp_path / "out").exists()
    os.rename(tmp_path / "in" / "b.jsonl", tmp_path / "in" / "_b.jsonl")  # as the message says
    assert job(tmp_path).report.rows_read == 30


def test_jsonl_called_parquet_and_parquet_called_jsonl(tmp_path):
    write_lines(tmp_path / "in" / "a.parquet", RECORDS)
    with pytest.raises(InputError, match=r"a\.parquet cannot be read as Parquet: it is JSONL\. .*JsonlReader"):
        job(tmp_path, ParquetReader(str(tmp_path / "in")))
    (tmp_path / "in" / "a.parquet").unlink()
    pq.write_table(pa.Table.from_pylist(RECORDS), tmp_path / "in" / "a.jsonl")
    with pytest.raises(InputError, match=r"a\.jsonl cannot be read as JSONL: it is Parquet\. .*ParquetReader"):
        job(tmp_path)
    (tmp_path / "in" / "a.jsonl").unlink()
    write_lines(tmp_path / "in" / "a.jsonl.gz", RECORDS)
    with pytest.raises(InputError, match=r"it is not compressed\. Rename it to end without \.gz"):
        job(tmp_path)


def test_a_bad_first_line_stays_a_matter_of_the_quarantine(tmp_path):
    write_lines(tmp_path / "in" / "a.jsonl", ["id,text,url", *RECORDS])
    report = job(tmp_path).report
    assert (report.rows_read, report.quarantined) == (31, 1)


def test_of_very_many_files_some_are_looked_at_and_the_rest_when_they_are_opened(tmp_path, monkeypatch):
    for number in range(60):
        write_lines(tmp_path / "in" / f"{number:03d}.jsonl", RECORDS * 40)
    (tmp_path / "in" / "041.jsonl").write_bytes(b"id,text\n" + b"1,one\n" * 9000)
    monkeypatch.setattr(partitioning, "_MOST_CHECKED", 5)
    with pytest.raises(ErrorBudgetExceededError):  # by the records that a file of this size holds, about
        job(tmp_path, error_budget=3)
    report = job(tmp_path, error_budget=1000).report
    assert (report.rows_read, report.quarantined) == (59 * 1200 + 1, 1)
    found = verify(str(tmp_path / "out"))
    assert not found.ok
    assert "041.jsonl is damaged: cannot be read as JSONL: it is CSV; nothing of it was kept" in str(found)


# JSON arrays ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("indent", [None, 2])
@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_a_json_array_gives_what_its_lines_would(tmp_path, indent, suffix):
    write_lines(tmp_path / "in" / "a.jsonl", RECORDS)
    job(tmp_path)
    other = tmp_path / "other"
    (other / "in").mkdir(parents=True)
    data = json.dumps(RECORDS, indent=indent).encode()
    (other / "in" / f"a.json{suffix}").write_bytes(gzip.compress(data) if suffix else data)
    report = job(other).report
    assert (report.rows_read, report.quarantined, report.left_out) == (30, 0, {})
    assert read_rows(other / "out") == read_rows(tmp_path / "out") == RECORDS
    assert verify(str(other / "out")).ok


def test_a_large_array_is_one_partition(tmp_path):
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.json").write_text(json.dumps(RECORDS * 20, indent=1))
    write_lines(tmp_path / "in" / "b.jsonl", RECORDS * 20)
    report = job(tmp_path, JsonlReader(str(tmp_path / "in"), blocksize=5000)).report
    assert report.rows_read == 1200
    assert report.partitions > 4
    names = sorted(path.name for path in (tmp_path / "out").glob("a*.jsonl"))
    assert names == ["a.jsonl"]
    assert read_rows(tmp_path / "out") == RECORDS * 40


def test_an_element_that_is_no_record_is_quarantined_alone(tmp_path):
    (tmp_path / "in").mkdir()
    elements = [json.dumps(record) for record in RECORDS]
    elements[7] = '{"id": "7", "text": oops}'
    elements[9] = '"just text"'
    (tmp_path / "in" / "a.json").write_text("[" + ",\n".join(elements) + "]\n")
    report = job(tmp_path).report
    assert (report.rows_read, report.rows_written) == (30, 28)
    assert dict(report.stages[1].quarantined or report.stages[0].quarantined) == {
        "malformed_json": 1,
        "not_an_object": 1,
    }
    assert [row["id"] for row in read_rows(tmp_path / "out")] == [one["id"] for one in RECORDS if one["id"] not in "79"]


def test_files_that_had_no_turn_are_not_called_new(folder):
    (folder / "in" / "a.jsonl").write_text('{"text": "one"}\n' + "no record\n" * 50)
    with pytest.raises(ErrorBudgetExceededError):
        job(folder, error_budget=0)
    notes = verify(str(folder / "out")).notes
    assert not [note for note in notes if "since the run" in note]
