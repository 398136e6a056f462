"""`gristmill doctor`: the machine, and records of runs that are not as they should be."""

from __future__ import annotations

import json
import os
import socket
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from gristmill.advice import doctor
from gristmill.cli.main import cli


def run(*arguments: object) -> Result:
    return CliRunner().invoke(cli, [str(argument) for argument in arguments])


def findings() -> tuple[int, dict[str, dict[str, str]]]:
    result = run("doctor", "--json")
    found = json.loads(result.stdout)
    return result.exit_code, {one["name"]: one for one in found["findings"]}


def test_this_machine_is_described(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    code, found = findings()
    assert code == (1 if any(one["level"] == "bad" for one in found.values()) else 0)
    assert {"processors", "memory", "temporary folder", "open files", "kernels", "extras", "models"} <= set(found)
    assert f"{os.cpu_count()}" in found["processors"]["found"]
    lines = run("doctor").stdout.splitlines()
    assert all(line.startswith(("ok   ", "warn ", "bad  ")) for line in lines)


def test_what_is_wrong_is_said_with_what_to_do(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with socket.socket() as unused:  # bound but not listening: nobody answers there
        unused.bind(("127.0.0.1", 0))
        monkeypatch.setenv("RAY_ADDRESS", f"127.0.0.1:{unused.getsockname()[1]}")
        monkeypatch.setattr(doctor, "available_memory", lambda: 10**8)
        monkeypatch.setattr(doctor, "_LEAST_DISK", 10**18)
        monkeypatch.setitem(doctor.EXTRAS, "nosuch", ("no_such_module", "nothing at all"))
        code, found = findings()
    assert code == 1
    assert found["memory"]["level"] == "bad"
    assert "--workers 1" in found["memory"]["todo"]
    assert found["temporary folder"]["level"] == "warn"
    assert found["extra nosuch"]["todo"] == "pip install 'gristmill[nosuch]'"
    assert found["ray"]["level"] == "bad"
    assert "RAY_ADDRESS" in found["ray"]["todo"]


@pytest.fixture
def output(tmp_path: Path) -> Path:
    source = tmp_path / "in.jsonl"
    source.write_text("".join(json.dumps({"text": f"word {number} " * 60}) + "\n" for number in range(20)))
    assert run("run", "english", source, tmp_path / "out", "--workers", 0, "-q").exit_code == 0
    return tmp_path / "out"


def rewritten(output: Path, **changes: object) -> Result:
    place = Path(f"{output}.gristmill", "run.json")
    place.write_text(json.dumps({**json.loads(place.read_text()), **changes}))
    return run("doctor", output)


def test_a_finished_run(output: Path) -> None:
    result = run("doctor", output)
    assert result.exit_code == 0, result.output
    assert "Suggestion: Nothing to change." in result.stdout
    answer = json.loads(run("doctor", output, "--json").stdout)
    assert answer["suggestion"]["kind"] == "nothing"
    assert answer["status"] == "done"


def test_runs_that_did_not_end_well_say_so(output: Path) -> None:
    failed = rewritten(output, status="failed", error="the disk is full")
    assert failed.stdout.startswith("The run ended early (failed): the disk is full.")
    assert rewritten(output, status="running").stdout.startswith("The run has not finished")


def test_a_record_of_an_earlier_version(output: Path) -> None:
    stages = [{"stage": "jsonl_reader", "busy_seconds": 9.0, "calls": 3, "workers": 2, "rows_in": 0}]
    result = rewritten(output, stages=stages, history=None, version="0.0.9", wall_seconds=5.0)
    assert result.exit_code == 0, result.output
    assert "version 0.0.9, which did not record what workers waited for" in result.stdout


def test_records_that_cannot_be_read(output: Path, tmp_path: Path) -> None:
    place = Path(f"{output}.gristmill", "run.json")
    place.write_text('{"status": ')
    broken = run("doctor", output)
    assert broken.exit_code == 1
    assert "run.json is damaged" in broken.stderr
    place.unlink()
    missing = run("doctor", output)
    assert missing.exit_code == 1
    assert "no run.json" in missing.stderr
    (tmp_path / "nothing").mkdir()
    nothing = run("doctor", tmp_path / "nothing")
    assert nothing.exit_code == 1
    assert "Traceback" not in nothing.stderr
