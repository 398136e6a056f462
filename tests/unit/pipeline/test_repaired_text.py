"""Readers with errors="replace": text that is not UTF-8 is repaired as Python does it, and counted."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

from gristmill.backends.local import LocalExecutor
from gristmill.cli.main import cli
from gristmill.errors import UsageError
from gristmill.ledger.ask.ledger import Ledger
from gristmill.ledger.prove.verify import verify
from gristmill.ledger.record.quarantine import read_quarantine
from gristmill.pipeline import Pipeline
from gristmill.stages.text.filters import ScoreFilter
from gristmill.stages.text.filters.heuristic.string import WordCountFilter
from gristmill.stages.text.io.documents import DocumentReader
from gristmill.stages.text.io.reader import JsonlReader, ParquetReader
from gristmill.stages.text.io.writer import JsonlWriter
from gristmill.storage.text_repair import repair, repair_table
from tests.unit.storage.test_valid_text import BAD, of_bytes

TEXTS = [part for bad in BAD for part in (b"good words", bad, b"\xef\xbf\xbd " + bad + b" here", b"\xc3\xa9t\xc3\xa9")]
REPAIRED = [text.decode("utf-8", "replace") for text in TEXTS]
N_REPAIRED = 2 * len(BAD)


def write_input(folder: Path, kind: str) -> str:
    if kind == "parquet":
        ids = [f"d{n}" for n in range(len(TEXTS))]
        table = pa.table({"id": ids, "n": list(range(len(TEXTS))), "text": of_bytes(TEXTS, pa.string())})
        pq.write_table(table, folder / "in.parquet", row_group_size=5)
        return str(folder / "in.parquet")
    lines = [b'{"id": "d%d", "n": %d, "text": "%s"}\n' % (n, n, text) for n, text in enumerate(TEXTS)]
    (folder / "in.jsonl").write_bytes(b"".join(lines))
    return str(folder / "in.jsonl")


def run(folder: Path, reader: Any, *, workers: int = 0) -> Any:
    pipeline = Pipeline(name="repaired")
    pipeline.add_stage(reader)
    pipeline.add_stage(ScoreFilter(WordCountFilter(min_words=0), score_field="words"))
    pipeline.add_stage(JsonlWriter(path=str(folder / "out")))
    return pipeline.run(LocalExecutor({"num_cpus": workers})).report


def written(folder: Path) -> list[dict[str, Any]]:
    return [
        json.loads(line) for path in sorted((folder / "out").glob("*.jsonl")) for line in path.read_bytes().splitlines()
    ]


@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
@pytest.mark.parametrize("workers", [0, 2])
def test_repaired_as_python_would_and_counted(tmp_path: Path, kind: str, workers: int) -> None:
    path = write_input(tmp_path, kind)
    report = run(tmp_path, DocumentReader(path, errors="replace"), workers=workers)
    assert report.quarantined == 0
    assert [record["text"] for record in written(tmp_path)] == REPAIRED
    reader = next(stage for stage in report.stages if stage.name == f"{kind}_reader")
    assert reader.changed == N_REPAIRED
    kept = json.loads((tmp_path / "out.gristmill" / "run.json").read_text())
    assert next(one for one in kept["stages"] if one["stage"] == f"{kind}_reader")["changed"] == N_REPAIRED
    assert verify(str(tmp_path / "out")).ok
    ledger = Ledger(str(tmp_path / "out"))
    [history] = ledger.why("d1").documents
    assert [(change.field, change.characters > 0) for change in history.changes] == [("text", True)]
    [clean] = ledger.why("d0").documents
    assert not clean.changes
    difference = ledger.text_diff(history)
    assert difference is not None
    assert difference.equal


@pytest.mark.parametrize("reader", [JsonlReader, ParquetReader])
def test_the_default_quarantines_and_is_another_plan(tmp_path: Path, reader: type) -> None:
    path = write_input(tmp_path, "jsonl" if reader is JsonlReader else "parquet")
    plans = {}
    for errors in ("quarantine", "replace"):
        pipeline = Pipeline(name="repaired")
        pipeline.add_stage(reader(path, errors=errors))
        pipeline.add_stage(JsonlWriter(path=str(tmp_path / errors)))
        report = pipeline.run(LocalExecutor({"num_cpus": 0}), error_budget=None).report
        assert report.quarantined == (N_REPAIRED if errors == "quarantine" else 0)
        [entry] = (tmp_path / f"{errors}.gristmill" / "manifest").glob("*.json")
        plans[errors] = json.loads(entry.read_text())["plan"]
    assert plans["quarantine"] != plans["replace"]
    with pytest.raises(UsageError, match="errors='ignore'"):
        reader(path, errors="ignore")
    with pytest.raises(UsageError, match="errors='ignore'"):
        DocumentReader(path, errors="ignore")


def test_what_is_no_record_after_the_repair_is_quarantined_with_its_own_bytes(tmp_path: Path) -> None:
    broken = b'{"id": "b", "text": "\xff" oops}'
    (tmp_path / "in.jsonl").write_bytes(b'{"id": "a", "text": "x\xff"}\n' + broken + b'\n{"k\xff": 1, "text": "y"}\n')
    pipeline = Pipeline(name="repaired")
    pipeline.add_stage(JsonlReader(str(tmp_path / "in.jsonl"), errors="replace"))
    pipeline.add_stage(JsonlWriter(path=str(tmp_path / "out")))
    report = pipeline.run(LocalExecutor({"num_cpus": 0}), error_budget=None).report
    [entry] = read_quarantine(str(tmp_path / "out"))
    assert (entry.record.cause, entry.record.raw, entry.record.size) == ("malformed_json", broken, len(broken))
    assert written(tmp_path) == [{"id": "a", "text": "x\ufffd"}, {"k\ufffd": 1, "text": "y"}]
    assert report.stages[0].changed == 2


def test_nested_texts_are_repaired_and_lies_about_offsets_are_left(tmp_path: Path) -> None:
    bad = of_bytes([b"a\xff", None, b"b"], pa.string())
    good = pa.array(["x", "y", "z"])
    offsets = pa.array([0, 1, 3, 3], pa.int32())
    table = pa.table(
        {
            "list": pa.ListArray.from_arrays(offsets, bad),
            "struct": pa.StructArray.from_arrays([bad, good], ["s", "t"], mask=pa.array([False, False, True])),
            "map": pa.MapArray.from_arrays(offsets, good, bad),
            "dictionary": pa.DictionaryArray.from_arrays(pa.array([0, None, 2], pa.int8()), bad),
            "number": pa.array([1, 2, 3]),
        }
    )
    fixed, repairs = repair_table(table, np.array([7, 8, 9]))
    fixed.validate(full=True)
    assert fixed.schema == table.schema
    assert fixed.to_pylist() == [
        {"list": ["a\ufffd"], "struct": {"s": "a\ufffd", "t": "x"}, "map": [("x", "a\ufffd")], "dictionary": "a\ufffd",
         "number": 1},
        {"list": [None, "b"], "struct": {"s": None, "t": "y"}, "map": [("y", None), ("z", "b")], "dictionary": None,
         "number": 2},
        {"list": [], "struct": None, "map": [], "dictionary": "b", "number": 3},
    ]  # fmt: skip
    assert [(one.row, one.column) for one in repairs] == [(7, "list")]


@pytest.mark.parametrize("text", [*TEXTS, b"", bytes(range(256)), b"\xf0\x9f\x98", b"\xed\xa0\x80\xed\xb0\x80"])
def test_marks_are_counted(text: bytes) -> None:
    fixed, marks = repair(text)
    assert fixed.decode() == text.decode("utf-8", "replace")
    assert marks == fixed.decode().count("\ufffd") - text.decode("utf-8", "ignore").count("\ufffd")


def test_the_command_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_input(tmp_path, "jsonl")
    (tmp_path / "r.yaml").write_text(
        "name: r\nstages:\n- DocumentReader: {file_paths: in.jsonl}\n- WordCountFilter: {min_words: 0}\n"
        "- JsonlWriter: {path: out}\n"
    )
    done = CliRunner().invoke(cli, ["run", "r.yaml", "--workers", "0", "--errors", "replace"])
    assert done.exit_code == 0, done.output
    assert f"changed {N_REPAIRED}" in done.output
    assert [record["text"] for record in written(tmp_path)] == REPAIRED
