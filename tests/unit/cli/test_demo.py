"""The demonstration: the shipped sample through the filters and the shipped classifier."""

from __future__ import annotations

import gzip
import json
import re
import shlex
from collections import Counter
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from gristmill.cli.demo import first_dropped, labelled_documents
from gristmill.cli.main import cli, program
from gristmill.recipes.loader import SAMPLE_FILE

KINDS = {
    "c4": "web page", "cc_head": "web page", "dict_devil": "definition", "dict_jargon": "definition",
    "inaugural": "speech", "movie_reviews": "review", "shakespeare": "play", "state_union": "speech",
}  # fmt: skip


def run(*arguments: object) -> Result:
    return CliRunner().invoke(cli, [str(argument) for argument in arguments])


def test_demo(tmp_path: Path) -> None:
    output = tmp_path / "out put"
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

    # What it tells the user to try works where it is pasted.
    commands = re.findall(r"^    gristmill (.+)$", result.stdout.partition("Try next:")[2], re.MULTILINE)
    answers = {shlex.split(command)[0]: run(*shlex.split(command)) for command in commands}
    assert list(answers) == ["why", "verify", "recipes", "classifier"]
    assert [answer.exit_code for answer in answers.values()] == [0, 0, 0, 0]
    assert "dropped by stage" in answers["why"].stdout

    again = run("demo", output, "--workers", 0, "--json")
    assert again.exit_code == 0
    assert json.loads(again.stdout)["partitions_done_before"] == 1


def test_commands_to_try_call_this_program(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Not another one that the shell would find by the name, nor none where it is not on the path."""
    script = tmp_path / "my tools" / "gristmill"
    script.parent.mkdir()
    script.touch(mode=0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("sys.argv", [str(script), "demo"])
    assert program() == f"'{script}'"
    monkeypatch.setenv("PATH", str(script.parent))
    assert program() == "gristmill"
    monkeypatch.setattr("sys.argv", ["/lib/gristmill/__main__.py", "demo"])
    monkeypatch.setattr("sys.executable", "/opt/my python")
    assert program() == "'/opt/my python' -m gristmill"


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
