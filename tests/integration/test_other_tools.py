"""Outputs are read whole by other tools, given nothing but the folder: every row that was written, and no other."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import duckdb
import pandas as pd
import polars as pl
import pyarrow.dataset as pads
import pytest

from gristmill.backends.local import LocalExecutor
from gristmill.ledger.prove.verify import verify
from gristmill.pipeline import Pipeline
from gristmill.stages.deduplication import ExactDeduplicationWorkflow
from gristmill.stages.text.filters import ScoreFilter, WordCountFilter
from gristmill.stages.text.io import JsonlReader, JsonlWriter, ParquetWriter
from tests.outputs import record_of

Row = dict[str, Any]

FORMATS: dict[str, tuple[Any, str | None]] = {
    ".jsonl": (JsonlWriter, None),
    ".jsonl.gz": (JsonlWriter, "gzip"),
    ".parquet": (ParquetWriter, "zstd"),
}
KINDS = ("plain", "sharded", "deduplicated")
CASES = [(kind, ending) for kind in KINDS for ending in FORMATS]
FILES, ROWS = 3, 40


def _documents() -> list[Row]:
    words = ("zwei", "drei", "größer", "naïve", "日本語", 'quo"te', "line\nbreak")
    return [
        {"id": f"{file}-{row}", "text": " ".join(words[: row % 8]), "n": file * ROWS + row}
        for file in range(FILES)
        for row in range(ROWS)
    ]


def _expected(kind: str) -> list[Row]:
    """What has to come out, worked out without Gristmill."""
    if kind != "deduplicated":
        return [row for row in _documents() if len(row["text"].split()) >= 4]
    first: dict[str, Row] = {}
    for row in _documents():
        first.setdefault(row["text"] or row["id"], row)  # empty texts are no duplicates of each other
    return list(first.values())


@pytest.fixture(scope="module")
def outputs(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, str], Path]:
    folder = tmp_path_factory.mktemp("tools")
    for place, per_file in (("one", FILES * ROWS), ("many", ROWS)):
        (folder / place).mkdir()
        lines = [json.dumps(row) for row in _documents()]
        for start in range(0, len(lines), per_file):
            # One record of every input goes to the quarantine, which is JSONL too.
            text = "\n".join([*lines[start : start + per_file], "{broken", ""])
            (folder / place / f"part-{start:04}.jsonl").write_text(text, encoding="utf-8")
    made = {}
    for kind, ending in CASES:
        writer, compression = FORMATS[ending]
        made[kind, ending] = output = folder / f"{kind}{ending.replace('.', '-')}"
        if kind == "deduplicated":
            ExactDeduplicationWorkflow(
                input_path=str(folder / "many"),
                output_path=str(output),
                perform_removal=True,
                output_filetype=ending.split(".")[1],
                write_kwargs={"compression": compression},
            ).run(LocalExecutor(config={"num_cpus": 0}), error_budget=None)
        else:
            source = JsonlReader(str(folder / ("one" if kind == "plain" else "many")), files_per_partition=1)
            stages = [source, ScoreFilter(WordCountFilter(min_words=4)), writer(str(output), compression=compression)]
            options = {"error_budget": None, "scores": "all", "progress": False}
            Pipeline("job", stages=stages).run(LocalExecutor(config={"num_cpus": 0}), **options)
        verify(output).raise_for_problems()
        files = sorted(path.name for path in output.rglob("*"))
        assert all(name.endswith(ending) for name in files), files
        assert len(files) == (1 if kind == "plain" else FILES)
        assert any(record_of(output).rglob("*.parquet")), "a ledger that could be taken for data"
    return made


def _same(rows: Iterable[Row], kind: str) -> None:
    found = sorted(({key: row[key] for key in ("id", "text", "n")} for row in rows), key=lambda row: row["n"])
    assert found == _expected(kind)


def _is_parquet(output: Path) -> bool:
    return output.name.endswith("parquet")


def _by_polars(output: Path) -> list[Row]:
    if _is_parquet(output):
        return pl.scan_parquet(output).collect().to_dicts()
    return pl.scan_ndjson(output).collect().to_dicts()


def _by_duckdb(output: Path) -> list[Row]:
    source = f"'{output}/**/*.parquet'" if _is_parquet(output) else f"read_json('{output}/**/*.jsonl*')"
    found = duckdb.connect().sql(f"SELECT * FROM {source}")
    return [dict(zip(found.columns, row, strict=True)) for row in found.fetchall()]


def _by_pandas(output: Path) -> list[Row]:
    if _is_parquet(output):
        return pd.read_parquet(output).to_dict("records")
    # Without names to go by, everything below the folder.
    frames = [pd.read_json(path, lines=True, dtype={"id": str}) for path in output.rglob("*")]
    return pd.concat(frames).to_dict("records")


def _by_pyarrow(output: Path) -> list[Row]:
    return pads.dataset(output, format="parquet" if _is_parquet(output) else "json").to_table().to_pylist()


def _by_datatrove(output: Path) -> list[Row]:
    from datatrove.pipeline.readers import JsonlReader as TheirJsonl
    from datatrove.pipeline.readers import ParquetReader as TheirParquet

    reader = (TheirParquet if _is_parquet(output) else TheirJsonl)(str(output))
    # They leave documents without a text out.
    empty = [row for row in _documents() if not row["text"]] if output.name.startswith("dedup") else []
    return [*({"id": found.id, "text": found.text, **found.metadata} for found in reader()), *empty]


@pytest.mark.parametrize(("kind", "ending"), CASES)
@pytest.mark.parametrize("read", [_by_polars, _by_duckdb, _by_pandas, _by_pyarrow, _by_datatrove])
def test_every_row_and_no_other(
    outputs: dict[tuple[str, str], Path], kind: str, ending: str, read: Callable[[Path], list[Row]]
) -> None:
    _same(read(outputs[kind, ending]), kind)


_LOAD = """
import json, sys
from datasets import load_dataset
cache, *outputs = sys.argv[1:]
for output in outputs:
    named = load_dataset(output, split="train", cache_dir=cache)
    kind = "parquet" if output.endswith("parquet") else "json"
    given = load_dataset(kind, data_dir=output, split="train", cache_dir=cache)
    assert sorted(map(str, named)) == sorted(map(str, given)), output
    print(json.dumps([dict(row) for row in named]))
"""


def test_datasets_loads_the_documents(outputs: dict[tuple[str, str], Path], tmp_path: Path) -> None:
    """In a process of its own: what it may reach and where it keeps files is decided when it is imported."""
    env = {**os.environ, "HF_DATASETS_CACHE": str(tmp_path), "HF_HOME": str(tmp_path), "HF_HUB_OFFLINE": "1"}
    command = [sys.executable, "-c", _LOAD, str(tmp_path), *map(str, outputs.values())]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert len(lines) == len(CASES)
    for (kind, _), line in zip(outputs, lines, strict=True):
        _same(json.loads(line), kind)


def test_gzip_is_gzip(outputs: dict[tuple[str, str], Path]) -> None:
    (path,) = outputs["plain", ".jsonl.gz"].iterdir()
    _same(map(json.loads, gzip.decompress(path.read_bytes()).splitlines()), "plain")
