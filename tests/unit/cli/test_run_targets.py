"""`gristmill run` and `gristmill plan` with NeMo Curator's configuration files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner, Result

from gristmill.cli.main import cli
from tests import target_recipes as files


def call(*arguments: Any) -> Result:
    return CliRunner().invoke(cli, [str(one) for one in arguments])


@pytest.fixture
def documents(tmp_path: Path) -> Path:
    path = tmp_path / "documents.jsonl"
    texts = ["the same words", "others", "the same words", "x = 1  # one\n" * 6]
    path.write_text("".join(json.dumps({"id": str(n), "text": text}) + "\n" for n, text in enumerate(texts)))
    return path


def written(tmp_path: Path, whole: dict[str, Any]) -> Path:
    path = tmp_path / "config.yaml"
    path.write_text(files.text(whole), encoding="utf-8")
    return path


@pytest.mark.parametrize(("name", "kept"), [("english", 855), ("non_english", 917)])
def test_the_cascades_keep_exactly_its_documents(name: str, kept: int, tmp_path: Path, sample_path: Path) -> None:
    config = written(tmp_path, files.heuristic(name))
    result = call("run", config, sample_path, tmp_path / "out", "--workers", 0, "-q")
    assert result.exit_code == 0, result.stderr
    lines = [line for path in (tmp_path / "out").iterdir() for line in path.read_text().splitlines()]
    assert len(lines) == kept


def test_code(tmp_path: Path, documents: Path) -> None:
    tokenizers = pytest.importorskip("tokenizers")
    made = tokenizers.Tokenizer(tokenizers.models.WordLevel({"?": 0}, unk_token="?"))
    made.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    made.save(str(tmp_path / "tokenizer.json"))
    config = written(tmp_path, files.code())
    result = call(
        "run", config, documents, tmp_path / "out", "--set", f"path_to_tokenizer={tmp_path / 'tokenizer.json'}",
        "--set", "stages.3.filter_obj.min_char_to_token_ratio=1", "--workers", 0, "--json",
    )  # fmt: skip
    assert result.exit_code == 0, result.stderr
    assert json.loads(result.stdout)["rows_written"] == 1


def test_exact_deduplication(tmp_path: Path, documents: Path) -> None:
    config = written(tmp_path, files.exact())
    planned = call("plan", config, documents, tmp_path / "out")
    assert "about 4 documents" in planned.stdout, planned.stderr
    result = call("run", config, documents, tmp_path / "out", "--workers", 0, "--json")
    assert result.exit_code == 0, result.stderr
    facts = json.loads(result.stdout)
    assert (facts["documents"], facts["num_duplicates"], facts["perform_removal"]) == (4, 1, False)
    assert pq.read_table(tmp_path / "out" / "ExactDuplicateIds").num_rows == 1
    shown = call("run", config, documents, tmp_path / "out", "--workers", 0)
    assert "1 duplicate of 1 other document" in shown.stdout


def test_fuzzy_deduplication(tmp_path: Path, documents: Path) -> None:
    config = written(tmp_path, files.fuzzy())
    result = call(
        "run", config, documents, tmp_path / "out", "--set", f"cache_path={tmp_path / 'cache'}", "--workers", 0,
        "--json", "--record", tmp_path / "record",
    )  # fmt: skip
    assert result.exit_code == 0, result.stderr
    assert json.loads(result.stdout)["num_duplicates"] == 1
    assert (tmp_path / "record").is_dir()


@pytest.mark.parametrize(
    ("more", "part"),
    [
        (["--limit", "3"], "--limit does not apply"),
        (["--scores", "all"], "--scores does not apply"),
        (["--set", "num_gpus=1"], "there is no variable 'num_gpus'"),
    ],
)
def test_options_that_a_workflow_has_not(more: list[str], part: str, tmp_path: Path, documents: Path) -> None:
    result = call("run", written(tmp_path, files.exact()), documents, tmp_path / "out", *more)
    assert result.exit_code == 2
    assert part in result.stderr
    assert not (tmp_path / "out").exists()


def test_what_is_missing_is_named(tmp_path: Path, documents: Path) -> None:
    result = call("run", written(tmp_path, files.heuristic("english")))
    assert "needs an input and an output" in result.stderr
    result = call("run", written(tmp_path, files.fuzzy()), documents, tmp_path / "out")
    assert "the variable 'cache_path' has no value (???)" in result.stderr
