"""CSV and Arrow outputs: deterministic, joined without a trace, read back by us and by others, and proved."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.csv as pa_csv
import pytest

from gristmill.errors import UsageError
from gristmill.ledger import Ledger
from gristmill.ledger.prove.verify import verify
from gristmill.pipeline import Pipeline
from gristmill.stages.text.filters import ScoreFilter, WordCountFilter
from gristmill.stages.text.io import (
    ArrowReader,
    ArrowWriter,
    CsvReader,
    CsvWriter,
    DocumentReader,
    DocumentWriter,
    JsonlReader,
    JsonlWriter,
)
from gristmill.stages.text.modifiers import Modify
from gristmill.tasks import DocumentBatch
from tests.unit.pipeline.jobs import here, read_rows, write_lines

ROWS: list[dict[str, Any]] = [
    {"id": f"d{n}", "text": f'a "text", of\nlines {"word " * (n % 4)}', "n": n, "none": None, "tags": ["a", str(n)]}
    for n in range(20)
]
ODD = [*ROWS, {"id": "other", "text": "", "extra": {"key": "value"}}]


def batch(rows: list[dict[str, Any]]) -> DocumentBatch:
    return DocumentBatch(dataset_name="d", data=pa.Table.from_pylist(rows))


@pytest.mark.parametrize("writer", [CsvWriter, ArrowWriter], ids=["csv", "arrow"])
@pytest.mark.parametrize("compression", [None, "zst"])
def test_pieces_joined_are_the_file_written_at_once(tmp_path: Path, writer: Any, compression: str | None) -> None:
    sink = writer(str(tmp_path), compression=compression)
    parts = [ROWS[:7], ROWS[7:8], [{"id": "x", "text": "y"}], [{"id": "z", "text": ""}], ROWS[8:]]
    whole = sink.open_part(f"{tmp_path}/whole{sink.extension}")
    pieces = []
    for number, rows in enumerate(parts):
        whole.append(sink.encode(batch(rows)))
        alone = sink.open_part(f"{tmp_path}/piece{number}{sink.extension}")
        alone.append(sink.encode(batch(rows)))
        pieces += alone.close()
    files = whole.close()
    joined = sink.concatenate(pieces, f"{tmp_path}/joined{sink.extension}")
    assert [file.rows for file in joined] == [file.rows for file in files] == [8, 2, 12]
    assert [Path(file.path).name for file in files][1] == f"whole~1{sink.extension}"
    for one, other in zip(files, joined, strict=True):
        assert Path(one.path).read_bytes() == Path(other.path).read_bytes()


def test_csv_is_read_back_as_it_was(tmp_path: Path) -> None:
    write_lines(tmp_path / "in" / "a.jsonl", ROWS)
    out = tmp_path / "out"
    Pipeline("job", stages=[JsonlReader(str(tmp_path / "in")), CsvWriter(str(out))]).run(executor=here())
    (file,) = out.iterdir()
    assert file.name == "a.csv"
    theirs = pa_csv.read_csv(file, parse_options=pa_csv.ParseOptions(newlines_in_values=True)).to_pylist()
    assert [(row["id"], row["text"], row["n"], json.loads(row["tags"])) for row in theirs] == [
        (row["id"], row["text"], row["n"], row["tags"]) for row in ROWS
    ]
    assert pl.read_csv(file)["text"].to_list() == [row["text"] for row in ROWS]
    assert verify(str(out)).ok
    Pipeline("job", stages=[CsvReader(str(out)), JsonlWriter(str(tmp_path / "back"))]).run(executor=here())
    back = read_rows(tmp_path / "back")
    assert [(row["id"], row["text"], row["n"], row["none"]) for row in back] == [
        (row["id"], row["text"], str(row["n"]), None) for row in ROWS
    ]


def test_arrow_keeps_types(tmp_path: Path) -> None:
    write_lines(tmp_path / "in" / "a.jsonl", ROWS)
    out = tmp_path / "out"
    Pipeline("job", stages=[JsonlReader(str(tmp_path / "in")), ArrowWriter(str(out))]).run(executor=here())
    assert pl.read_ipc(out / "a.arrow").select("id", "n", "tags").to_dicts() == [
        {"id": row["id"], "n": row["n"], "tags": row["tags"]} for row in ROWS
    ]
    assert verify(str(out)).ok
    Pipeline("job", stages=[ArrowReader(str(out)), JsonlWriter(str(tmp_path / "back"))]).run(executor=here())
    assert read_rows(tmp_path / "back") == ROWS


@pytest.mark.parametrize("kind", ["csv", "arrow"])
def test_a_run_that_writes_tables_is_proved_and_answers(tmp_path: Path, kind: Any) -> None:
    write_lines(tmp_path / "in" / "a.jsonl", ODD)
    out = tmp_path / "out"
    stages = [ScoreFilter(WordCountFilter(min_words=1)), Modify(str.upper)]
    pipeline = Pipeline("job", stages=[DocumentReader(tmp_path / "in"), *stages, DocumentWriter(str(out), kind)])
    assert pipeline.run(executor=here()).report.rows_written == 20
    assert verify(str(out)).ok
    ledger = Ledger(str(out))
    history = ledger.why("d3").documents[0]
    assert history.status == "kept"
    diff = ledger.text_diff(history, text_field="text")
    assert "WORD WORD" in str(diff)
    (file,) = out.iterdir()
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 0x41
    file.write_bytes(content)
    assert not verify(str(out)).ok


def test_one_file_as_output_tells_the_format(tmp_path: Path) -> None:
    write_lines(tmp_path / "in" / "a.jsonl", ROWS)
    for name, head in {"clean.csv": b'"id","text"', "clean.tsv": b'"id"\t"text"', "clean.arrow": b"ARROW1"}.items():
        pipeline = Pipeline(
            "job", stages=[DocumentReader(tmp_path / "in" / "a.jsonl"), DocumentWriter(str(tmp_path / name))]
        )
        pipeline.run(executor=here())
        assert (tmp_path / name).read_bytes().startswith(head)
        assert verify(str(tmp_path / name)).ok


def test_what_cannot_be_written_so_is_refused() -> None:
    for made in (
        lambda: CsvWriter("o", compression="lz4"),
        lambda: ArrowWriter("o", compression="gz"),
        lambda: CsvWriter("o", delimiter="ab"),
    ):
        with pytest.raises(UsageError, match="must be"):
            made()
    with pytest.raises(UsageError, match="'html': must be one of 'jsonl', 'parquet', 'arrow', 'csv'"):
        DocumentWriter("o", "html")
