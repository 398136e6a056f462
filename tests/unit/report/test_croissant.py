"""Card and Croissant description of shards: splits, sources, licences, and every file with its SHA-256."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from click.testing import CliRunner

from gristmill.cli.main import cli
from gristmill.errors import OutputExistsError
from gristmill.ledger.prove.verify import verify
from gristmill.report.croissant import REQUIRED, write_croissant
from tests.unit.stages.sharding.jobs import records, shuffle, write


@pytest.fixture
def output(tmp_path: Path) -> Path:
    write(
        tmp_path / "in", "a", records("a", 40, license=lambda at: "MIT", score=lambda at: at / 2, tags=lambda at: [at])
    )
    shuffle(tmp_path / "in", tmp_path / "out", splits={"train": 0.5, "test": None}, shard_documents=15)
    return tmp_path / "out"


def described(output: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((output / "_croissant.json").read_text())
    return found


def test_the_description_has_what_the_format_requires(output: Path) -> None:
    given = {"url": "https://example.org/data", "creator": "Somebody"}
    place, missing = write_croissant(output, given=given)
    assert (place, missing) == (str(output / "_croissant.json"), [])
    found = described(output)
    assert found["@type"] == "sc:Dataset"
    assert found["conformsTo"] == "http://mlcommons.org/croissant/1.0"
    assert all(found[key] for key in REQUIRED)
    assert found["license"] == "MIT"
    assert {file["@id"] for file in found["distribution"]} == {path.name for path in output.glob("*.jsonl")}
    for file in found["distribution"]:
        assert file["@type"] == "cr:FileObject"
        assert file["encodingFormat"] == "application/jsonlines"
        assert file["sha256"] == hashlib.sha256((output / file["contentUrl"]).read_bytes()).hexdigest()
    fields = {field["name"]: field for field in found["recordSet"][0]["field"]}
    assert {name: field["dataType"] for name, field in fields.items()} == {
        "id": "sc:Text", "text": "sc:Text", "token_count": "sc:Integer", "license": "sc:Text", "score": "sc:Float",
        "tags": "sc:Text",
    }  # fmt: skip
    known = {file["@id"] for file in found["distribution"]}
    assert {one["source"]["fileObject"]["@id"] for one in fields.values()} <= known
    assert verify(str(output)).problems == []


def test_what_is_not_known_is_named(output: Path) -> None:
    result = CliRunner().invoke(cli, ["card", str(output), "--croissant"])
    assert result.exit_code == 0, result.output
    assert "Croissant also requires: url, creator." in result.output
    assert "url" not in described(output)


def test_another_programs_description_is_not_replaced_unasked(output: Path) -> None:
    (output / "_croissant.json").write_text("{}")
    with pytest.raises(OutputExistsError, match="--replace"):
        write_croissant(output)
    write_croissant(output, replace=True)
    assert described(output)["name"] == "out"


def test_parquet_types(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    table = pa.table({"text": ["a", "b"], "number": [1, 2], "share": [0.5, 1.5], "good": [True, False]})
    pq.write_table(table, tmp_path / "in" / "a.parquet")
    shuffle(tmp_path / "in", tmp_path / "out", input_blocksize=None)
    write_croissant(tmp_path / "out")
    fields = described(tmp_path / "out")["recordSet"][0]["field"]
    assert [field["dataType"] for field in fields] == ["sc:Text", "sc:Integer", "sc:Float", "sc:Boolean"]


def test_the_card_names_splits_sources_and_licences(output: Path) -> None:
    result = CliRunner().invoke(cli, ["card", str(output)])
    assert result.exit_code == 0, result.output
    text = (output / "README.md").read_text()
    header = yaml.safe_load(text.split("---")[1])
    assert header["license"] == "mit"
    paths = {one["split"]: one["path"] for one in header["configs"][0]["data_files"]}
    assert paths == {"train": "train-*.jsonl", "test": "test-*.jsonl"}
    assert sum(split["num_examples"] for split in header["dataset_info"]["splits"]) == 40
    assert "| input | 40 |" in text
