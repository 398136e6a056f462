"""Pipelines over CSV, text, Arrow and HTML files: read, accounted for, and found again by every question to a run."""

from __future__ import annotations

import gzip
import json
import os
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from click.testing import CliRunner

from gristmill.cli.main import cli
from gristmill.errors import InputError, MissingColumnError, UsageError
from gristmill.ledger import Ledger
from gristmill.ledger.prove.verify import verify
from gristmill.ledger.record.layout import RunFolder
from gristmill.pipeline import Pipeline
from gristmill.stages.text.filters import ScoreFilter, WordCountFilter
from gristmill.stages.text.io import CsvReader, DocumentReader, DocumentWriter, HtmlReader, JsonlWriter, TextReader
from gristmill.stages.text.modifiers import Modify
from gristmill.storage.formats import FORMATS
from gristmill.viewer.app import View
from tests.outputs import record_of
from tests.unit.pipeline.jobs import here, read_rows

WORDS = "one two three four five six seven eight"
TEXTS = [" ".join(WORDS.split()[: 1 + number % 8]) + f" {number}" for number in range(40)]
KINDS = ("csv", "csv.gz", "arrow", "txt", "lines.txt")


def write_input(folder: Path, kind: str) -> Path:
    """Forty documents in two files of a kind, and one that cannot be read where the kind allows it."""
    folder.mkdir()
    for part in range(2):
        some = list(enumerate(TEXTS))[part * 20 : part * 20 + 20]
        path = folder / f"{part}.{kind}"
        if kind.startswith("csv"):
            lines = [f'd{number},"{text}"\n' for number, text in some]
            content = ("id,text\n" + "".join(lines) + "d,too,many\n" * part).encode()
            path.write_bytes(gzip.compress(content) if kind == "csv.gz" else content)
        elif kind == "arrow":
            table = pa.table({"id": [f"d{number}" for number, _ in some], "text": [text for _, text in some]})
            with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, table.schema) as file:
                file.write_table(table, max_chunksize=7)
        elif kind == "lines.txt":
            path.write_text("\n".join(text for _, text in some))
        else:
            for number, text in some:
                (folder / f"d{number:02d}.txt").write_text(text)
    return folder


def job(folder: Path, out: Path, kind: str, **options: Any) -> Pipeline:
    reader = TextReader(folder, document="line") if kind == "lines.txt" else DocumentReader(folder)
    return Pipeline(
        "job",
        stages=[reader, ScoreFilter(WordCountFilter(min_words=4)), Modify(str.upper), JsonlWriter(str(out))],
    )


@pytest.mark.parametrize("kind", KINDS)
def test_a_run_is_proved_and_its_documents_are_found_again(tmp_path: Path, kind: str) -> None:
    source, out = write_input(tmp_path / "in", kind), tmp_path / "out"
    report = job(source, out, kind).run(executor=here(), error_budget=1).report
    bad = kind.startswith("csv")
    assert (report.rows_read, report.quarantined) == (40 + bad, bad)
    rows = read_rows(out)
    assert [row["text"] for row in rows] == [text.upper() for text in TEXTS if len(text.split()) >= 4]
    assert verify(str(out)).ok
    ledger = Ledger(str(out))
    names = {"txt": "d{:02d}.txt", "lines.txt": "0.lines.txt#{}"}
    kept, dropped = (names.get(kind, "d{}").format(number) for number in (7, 8))
    assert ledger.why(kept).documents[0].status == "kept"
    assert ledger.why(dropped).documents[0].status == "dropped"
    diff = ledger.text_diff(ledger.why(kept).documents[0], text_field="text")
    assert diff is not None
    assert (TEXTS[7] in str(diff), TEXTS[7].upper() in str(diff)) == (True, True)
    page = (record_of(out) / "report.html").read_text()
    assert any(text in page for text in TEXTS[8:])
    view = View(RunFolder(out))
    hits = view.search({"text": "three"})["hits"]
    assert len(hits) == sum("three" in text for text in TEXTS)
    assert (
        job(source, out, kind).run(executor=here(), error_budget=1).report.partitions_done_before == report.partitions
    )
    assert verify(str(out)).ok


def test_files_beside_records_are_not_read_and_nothing_is_lost_silently(tmp_path: Path) -> None:
    source = tmp_path / "in"
    source.mkdir()
    (source / "a.jsonl").write_text('{"id": "a", "text": "one"}\n')
    for name in ("README.md", "LICENSE.txt", "index.html", "labels.csv"):
        (source / name).write_text("not read")
    report = (
        Pipeline("job", stages=[DocumentReader(source), DocumentWriter(str(tmp_path / "out"))])
        .run(executor=here())
        .report
    )
    assert report.rows_read == 1
    assert report.left_out["extension"]["files"] == 4
    (source / "a.jsonl").unlink()
    report = (
        Pipeline("job", stages=[DocumentReader(source), DocumentWriter(str(tmp_path / "out2"))])
        .run(executor=here())
        .report
    )
    assert report.stages[0].name == "csv_reader"
    (source / "labels.csv").unlink()
    with pytest.raises(
        UsageError, match=r"several formats: text \(LICENSE\.txt\) and HTML \(index\.html\)|HTML .* and text"
    ):
        Pipeline("job", stages=[DocumentReader(source), DocumentWriter(str(tmp_path / "out3"))]).run(executor=here())
    (source / "index.html").unlink()
    out = tmp_path / "out4"
    Pipeline("job", stages=[DocumentReader(source), DocumentWriter(str(out))]).run(executor=here())
    assert [(row["file_name"], row["text"]) for row in read_rows(out)] == [
        ("LICENSE.txt", "not read"),
        ("README.md", "not read"),
    ]


def test_files_beside_records_are_not_even_looked_at(tmp_path: Path) -> None:
    source = tmp_path / "in"
    source.mkdir()
    (source / "a.jsonl").write_text('{"id": "a", "text": "one"}\n')
    (source / "README.md").symlink_to(tmp_path / "gone.md")
    os.mkfifo(source / "pipe.txt")
    report = (
        Pipeline("job", stages=[DocumentReader(source), JsonlWriter(str(tmp_path / "out"))]).run(executor=here()).report
    )
    assert report.rows_read == 1


def test_inputs_that_were_named_are_never_left_out(tmp_path: Path) -> None:
    for name, content in {"j/a.jsonl": '{"text": "one"}\n', "c/a.csv": "text\none\n"}.items():
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).write_text(content)
    for paths in (["j", "c"], ["j/a.jsonl", "c/a.csv"], ["j", "c/a.csv"]):
        reader = DocumentReader([tmp_path / path for path in paths])
        with pytest.raises(UsageError, match=r"several formats: .*--input-filetype jsonl|--input-filetype csv"):
            Pipeline("job", stages=[reader, JsonlWriter(str(tmp_path / "out"))]).run(executor=here())


def test_a_description_of_the_data_is_no_data(tmp_path: Path) -> None:
    source = write_input(tmp_path / "in", "arrow")
    (source / "dataset_info.json").write_text(json.dumps({"features": {"text": "string"}}, indent=2))
    report = (
        Pipeline("job", stages=[DocumentReader(source), DocumentWriter(str(tmp_path / "out"))])
        .run(executor=here())
        .report
    )
    assert report.rows_read == 40
    (source / "more.json").write_text('{"text": "a record"}\n')
    with pytest.raises(InputError, match=r"dataset_info\.json"):
        Pipeline("job", stages=[DocumentReader(source), DocumentWriter(str(tmp_path / "out2"))]).run(executor=here())


def test_the_run_says_which_format_it_reads(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("id,text\n1,one two\n2,three\n")
    recipe = tmp_path / "r.yaml"
    recipe.write_text(
        "name: small\nstages:\n- DocumentReader: {file_paths: '${input_path}'}\n"
        "- DocumentWriter: {path: '${output_path}'}\n"
    )
    said = CliRunner().invoke(
        cli, ["run", str(recipe), str(tmp_path / "a.csv"), str(tmp_path / "out"), "--workers", "0"]
    )
    assert said.exit_code == 0, said.output
    assert "small: 2 stages, 1 partition, 26 B of CSV, executor local" in said.output
    said = CliRunner().invoke(cli, ["plan", str(recipe), str(tmp_path / "a.csv"), str(tmp_path / "out2")])
    assert "Input: 1 partition, 26 B of CSV" in said.output


def test_columns_are_checked_before_anything_is_read(tmp_path: Path) -> None:
    source = write_input(tmp_path / "in", "csv")
    wrong = Pipeline(
        "job",
        stages=[
            CsvReader(source),
            ScoreFilter(WordCountFilter(), text_field="body"),
            JsonlWriter(str(tmp_path / "out")),
        ],
    )
    with pytest.raises(MissingColumnError, match="found: 'id', 'text'"):
        wrong.run(executor=here())
    with pytest.raises(MissingColumnError, match=r"'body', which is missing \(found: 'id', 'text'"):
        Pipeline("job", stages=[CsvReader(source, fields=["body"]), JsonlWriter(str(tmp_path / "out"))]).run(
            executor=here()
        )
    (tmp_path / "html").mkdir()
    (tmp_path / "html" / "a.html").write_text("<p>text")
    page = Pipeline(
        "job",
        stages=[HtmlReader(tmp_path / "html"), ScoreFilter(WordCountFilter()), JsonlWriter(str(tmp_path / "out"))],
    )
    with pytest.raises(MissingColumnError, match="'id', 'file_name', 'html'"):
        page.run(executor=here())
    assert not (tmp_path / "out").exists()


def test_what_is_no_text_is_told_before_the_run(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_bytes(gzip.compress(b"id,text\n1,one\n"))
    with pytest.raises(InputError, match=r"cannot be read as CSV: it is gzip-compressed\. Rename it to end with \.gz"):
        Pipeline("job", stages=[CsvReader(tmp_path), JsonlWriter(str(tmp_path / "out"))]).run(executor=here())


def test_limit_sample_and_fields(tmp_path: Path) -> None:
    source = write_input(tmp_path / "in", "csv")

    def read(name: str, **options: Any) -> list[dict[str, Any]]:
        reader = CsvReader(source, **options)
        Pipeline("job", stages=[reader, JsonlWriter(str(tmp_path / name))]).run(executor=here(), error_budget=None)
        return read_rows(tmp_path / name)

    first = read("first", max_documents=25, fields=["text"])
    assert first == [{"text": text} for text in TEXTS[:25]]
    some, again = read("some", sample=0.5), read("again", sample=0.5, files_per_partition=1)
    assert some == again
    assert 5 < len(some) < 35
    assert read("other", sample=0.5, seed=1) != some
    assert [row["id"] for row in read("both", sample=0.5, max_documents=4)] == [row["id"] for row in some][:4]


@pytest.mark.parametrize("kind", sorted(FORMATS.keys() & {"csv", "arrow", "text", "html"}))
def test_readers_refuse_what_they_do_not_know(kind: str) -> None:
    with pytest.raises(UsageError, match="encoding='utf-9'"):
        CsvReader("a.csv", encoding="utf-9")
    with pytest.raises(UsageError, match="must be one of 'file', 'line', 'paragraph'"):
        TextReader("a", document="page")
    with pytest.raises(UsageError, match="must be a single character"):
        CsvReader("a.csv", delimiter="||")
    with pytest.raises(UsageError, match="errors='strict'"):
        DocumentReader("a", kind, errors="strict")  # type: ignore[arg-type]


def test_statistics_read_every_format(tmp_path: Path) -> None:
    source = write_input(tmp_path / "in", "csv")
    said = CliRunner().invoke(cli, ["stats", str(source), "--json"])
    assert said.exit_code == 0, said.output
    assert '"documents": 40' in said.output


def test_deduplication_of_other_formats(tmp_path: Path) -> None:
    source = write_input(tmp_path / "in", "csv")
    (source / "2.csv").write_text(f'id,text\ntwice,"{TEXTS[3]}"\n')
    said = CliRunner().invoke(cli, ["dedup", "exact", str(source), str(tmp_path / "none")])
    assert said.exit_code == 1
    assert "0.csv is CSV, but this command reads JSONL and Parquet. A recipe deduplicates every format" in said.output
    recipe = tmp_path / "r.yaml"
    recipe.write_text(
        "name: small\nstages:\n- DocumentReader: {file_paths: '${input_path}'}\n- ExactDeduplication\n"
        "- DocumentWriter: {path: '${output_path}'}\n"
    )
    out = tmp_path / "out"
    said2 = CliRunner().invoke(
        cli, ["run", str(recipe), str(source), str(out), "--workers", "0", "--error-budget", "none"]
    )
    assert said2.exit_code == 3, said2.output  # one line is quarantined
    assert "twice" not in [row["id"] for row in read_rows(out)]
    assert Ledger(str(out)).why("twice").documents[0].status == "duplicate"
    assert verify(str(out)).ok


def test_pages_without_an_extractor_name_it(tmp_path: Path) -> None:
    (tmp_path / "a.html").write_text("<p>Hello</p>")
    stages = [DocumentReader(str(tmp_path)), ScoreFilter(WordCountFilter()), JsonlWriter(str(tmp_path / "out"))]
    with pytest.raises(MissingColumnError, match="a stage before it that writes 'text', such as HtmlExtractor"):
        Pipeline("pages", stages=stages).run()
