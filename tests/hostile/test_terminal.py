"""Nothing from data, files or recipes steers the terminal: escape sequences and marks of direction are written out."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner

from gristmill.cli.main import cli
from gristmill.figures import printable

EVIL = "\x1b]0;owned\x07\x1b[2J\x9b31m\u202eevil\u2066\r\x08"
STEERING = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


def test_what_is_written_out() -> None:
    """Escape sequences and bidirectional marks in displayed text: escaped, and nothing else is changed."""
    assert printable("a\tb\nc é 漢 👍") == "a\tb\nc é 漢 👍"
    assert printable(EVIL) == r"\x1b]0;owned\x07\x1b[2J\x9b31m\u202eevil\u2066\r\x08"


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "in").mkdir()
    lines = [{"id": f"{EVIL}{n}", "text": f"One {EVIL} text of http://a.b/{n} words. " * 20} for n in range(4)]
    lines += [{"id": "short", "text": EVIL}]
    name = f"in/{EVIL.replace('/', '')}.jsonl"
    (tmp_path / name).write_text("".join(json.dumps(line) + "\n" for line in lines) + f"{EVIL} no record\n")
    (tmp_path / "in" / f"left{EVIL}.txt").write_text("left out")
    (tmp_path / "r.yaml").write_text(
        f"name: {json.dumps('mine ' + EVIL)}\ndescription: {json.dumps(EVIL)}\nstages:\n"
        "- JsonlReader: {file_paths: in}\n- UrlRemover\n- WordCountFilter: {min_words: 3}\n- JsonlWriter: {path: out}\n"
    )
    return tmp_path


def said(*command: str) -> str:
    done = CliRunner().invoke(cli, list(command))
    return done.output


def test_no_command_hands_it_on(desk: Path, record_property: Callable[[str, object], None]) -> None:
    """Escape sequences in documents, ids, file names and recipes: no command passes one to the terminal."""
    answers = {
        "plan": said("plan", "r.yaml"),
        "run": said("run", "r.yaml", "--workers", "0", "--all", "--error-budget", "none"),
        "show": said("show", "out", "--all"),
        "why": said("why", "out", f"{EVIL}1"),
        "why --diff": said("why", "out", f"{EVIL}1", "--diff"),
        "why, unknown": said("why", "out", f"{EVIL}unknown"),
        "quarantine": said("quarantine", "out"),
        "quarantine, all": said("quarantine", "out", "--cause", "malformed_json"),
        "verify": said("verify", "out"),
    }
    (desk / "r.yaml").write_text((desk / "r.yaml").read_text().replace("min_words: 3", "min_words: 500"))
    answers["changed"] = said("run", "r.yaml", "--workers", "0")
    answers["other"] = said("run", "r.yaml", "--workers", "0", "--set", f"{EVIL}=1")
    said("run", "r.yaml", "--workers", "0", "--fresh", "--error-budget", "none", "--record", "second.gristmill")
    answers["diff"] = said("diff", "out", "out", "--record-b", "second.gristmill")
    for name, answer in answers.items():
        assert answer.strip(), name
        assert not STEERING.findall(answer), (name, answer)
    assert "evil" in answers["why --diff"]
    assert "4 kept" in answers["run"]
    record_property("tried", len(answers))
