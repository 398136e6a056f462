"""The demonstration: the shipped sample through the filters and the shipped classifier."""

from __future__ import annotations

import gzip
import json
import re
from collections import Counter
from pathlib import Path

from click.testing import CliRunner, Result

from gristmill.cli.demo import first_dropped, labelled_documents
from gristmill.cli.main import cli
from gristmill.recipes.loader import SAMPLE_FILE

KINDS = {
    "c4": "web page", "cc_head": "web page", "dict_devil": "definition", "dict_jargon": "definition",
    "inaugural": "speech", "movie_reviews": "review", "shakespeare": "play", "state_union": "speech",
}  # fmt: skip


def run(*arguments: object) -> Result:
    return CliRunner().invoke(cli, [str(argument) for argument in arguments])


def test_demo(tmp_path: Path) -> None:
    output = tmp_path / "out"
    result = run("demo", output, "--workers", 0)
    assert result.exit_code == 0, result.output
    documents = gzip.decompress(SAMPLE_FILE.read_bytes()).splitlines()
    assert f"{len(documents):,} documents in" in result.stdout
    assert re.search(r"WordCountFilter +[\d,]+ +\d+ +\d+ +[\d.]+ % +too_few_words \d+", result.stdout)
    assert f"Files: {output}" in result.stdout

    # Every document that was kept has a label, and the numbers shown are those of the files.
    kept = [json.loads(line) for path in output.glob("*.jsonl") for line in path.read_bytes().splitlines()]
    numbers = Counter(document["kind"] for document in kept)
    assert set(numbers) == {"definition", "play", "review", "speech", "web page"}
    for kind, number in numbers.items():
        assert re.search(rf"^  {kind} +{number}   \S", result.stdout, re.MULTILINE)
    right = [KINDS[document["source"]] == document["kind"] for document in kept if document["source"] in KINDS]
    assert sum(right) / len(right) > 0.9

    # What it tells the user to try works.
    [command] = re.findall(r"gristmill why \S+ (\S+)", result.stdout)
    why = run("why", output, command.strip("'"))
    assert why.exit_code == 0
    assert "dropped by stage" in why.stdout
    assert run("verify", output).exit_code == 0

    again = run("demo", output, "--workers", 0, "--json")
    assert again.exit_code == 0
    assert json.loads(again.stdout)["partitions_done_before"] == 1


def test_first_dropped(tmp_path: Path) -> None:
    sample = tmp_path / "sample.jsonl.gz"
    sample.write_bytes(gzip.compress(b'{"id": "a"}\n{"id": "b"}\n'))
    output = tmp_path / "out"
    output.mkdir()
    assert first_dropped(sample, output) == "a"
    (output / "x.jsonl").write_text('{"id": "a"}\n')
    assert first_dropped(sample, output) == "b"
    (output / "y.jsonl.gz").write_bytes(gzip.compress(b'{"id": "b"}\n'))
    assert first_dropped(sample, output) is None


def test_labelled_documents(tmp_path: Path) -> None:
    lines = [{"kind": "a", "text": "x"}, {"kind": "b", "text": "y " * 90}, {"kind": "a", "text": "two\n lines"}]
    (tmp_path / "x.jsonl").write_text("\n".join(map(json.dumps, lines)))
    found = labelled_documents(tmp_path)
    assert found["a"] == (2, "two lines")
    assert found["b"][0] == 1
    assert len(found["b"][1]) == 72
    assert found["b"][1].endswith("y…")
