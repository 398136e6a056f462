"""`gristmill tokens`: write, count and inspect."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from gristmill.cli.main import cli
from tests.token_files import TEXTS, encoded, make_tokenizer, read_megatron


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tokenizer(tmp_path_factory.mktemp("tokenizer"))


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("source") / "web.jsonl"
    records = [{"id": f"d{at}", "text": text, "kind": "[b]x" if at else None} for at, text in enumerate(TEXTS)]
    path.write_text("\n".join(map(json.dumps, records)) + "\n")
    return path


@pytest.fixture(scope="module")
def output(source: Path, tokenizer: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("written") / "out"
    told = invoked("write", source, folder, "--tokenizer", tokenizer, "--workers", 0, "--quiet")
    tokens = sum(map(len, encoded(tokenizer, TEXTS)))
    assert told.exit_code == 0, told.output
    assert f"{tokens} tokens (uint16) of 3 documents in 1 shard. Output: {folder}" in told.output
    return folder


def invoked(*arguments: object) -> Result:
    return CliRunner().invoke(cli, ["tokens", *map(str, arguments)])


def test_write(output: Path, tokenizer: Path) -> None:
    assert read_megatron(output / "web") == encoded(tokenizer, TEXTS)


def test_write_packed_as_json(source: Path, tokenizer: Path, tmp_path: Path) -> None:
    options = ("--sequence-length", 8, "--pack", "documents", "--pad-token", 1, "--no-eod", "--format", "numpy")
    told = invoked("write", source, tmp_path / "out", "--tokenizer", tokenizer, *options, "--workers", 0, "--json")
    found = json.loads(told.stdout)
    assert (found["pack"], found["sequence_length"], found["pad_id"], found["eod_id"]) == ("documents", 8, 1, None)
    assert found["tokens"] - found["padding"] == sum(map(len, encoded(tokenizer, TEXTS, end=False)))


def test_a_tokenizer_without_an_end_token_is_wrong_use(source: Path, tmp_path: Path) -> None:
    folder = make_tokenizer(tmp_path / "tokenizer", end=None)
    told = invoked("write", source, tmp_path / "out", "--tokenizer", folder, "--workers", 0)
    assert told.exit_code == 2
    assert "does not define an end-of-text token" in told.output
    assert not (tmp_path / "out").exists()


def test_count_by_file_and_by_column(source: Path, tokenizer: Path) -> None:
    sizes = [len(row) for row in encoded(tokenizer, TEXTS, end=False)]
    found = json.loads(invoked("count", source, "--tokenizer", tokenizer, "--workers", 0, "--json").stdout)
    assert (found["documents"], found["tokens"], found["longest"]) == (3, sum(sizes), max(sizes))
    assert found["sources"] == {
        str(source): {
            "documents": 3,
            "tokens": sum(sizes),
            "bytes": sum(len(text.encode()) for text in TEXTS),
            "empty": 0,
        }
    }
    told = invoked("count", source, "--tokenizer", tokenizer, "--by", "kind", "--workers", 0, "--quiet")
    assert told.exit_code == 0, told.output
    assert "[b]x" in told.output
    assert "(none)" in told.output
    assert f"{sum(sizes)}" in told.output


def test_inspect_shows_text_ids_and_source(output: Path, source: Path, tokenizer: Path) -> None:
    told = invoked("inspect", output / "web.bin", "--limit", 1, "--tokens", 6)
    ids = encoded(tokenizer, TEXTS)[0]
    assert f"document d0, row 0 of partition web, {source}" in told.output
    assert f"ids: {' '.join(map(str, ids[:6]))} …" in told.output
    found = json.loads(invoked("inspect", output / "web.idx", "--document", "d2", "--tokens", 500, "--json").stdout)
    assert found["shown"][0]["text"] == f"{TEXTS[2]}<|endoftext|>"
    assert found["shown"][0]["source"] == str(source)


def test_inspect_without_a_record(output: Path, tmp_path: Path, tokenizer: Path) -> None:
    for name in ("web.bin", "web.idx"):
        (tmp_path / name).write_bytes((output / name).read_bytes())
    told = invoked("inspect", tmp_path / "web.bin")
    assert "origins are unknown" in told.output
    assert "pass it (--tokenizer)" in told.output
    told = invoked("inspect", tmp_path / "web.bin", "--tokenizer", tokenizer)
    assert "The mill grinds grain" in told.output


def test_what_cannot_be_inspected(output: Path, tmp_path: Path) -> None:
    assert "There is no shard" in invoked("inspect", tmp_path / "none.bin").output
    (tmp_path / "odd.bin").write_bytes(b"x")
    assert "neither an .idx (Megatron) nor an index.json" in invoked("inspect", tmp_path / "odd.bin").output
    (tmp_path / "odd.mds").write_bytes(b"\xff" * 20)
    assert "cannot be read as a shard of tokens" in invoked("inspect", tmp_path / "odd.mds").output
    assert "No document with the id 'x'" in invoked("inspect", output / "web.bin", "--document", "x").output
