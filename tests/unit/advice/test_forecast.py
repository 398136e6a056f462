"""Forecasts: what is asked for, what is extrapolated, and what is remembered of earlier ones."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from gristmill.advice import forecast as module
from gristmill.advice.forecast import SampleSize, makespan, parse_sample
from gristmill.advice.forecast_history import history_path, past_forecasts, sentence
from gristmill.cli.main import cli
from gristmill.errors import UsageError

LONG = "The harbour was quiet, and the boats lay close to the wall while people waited for the morning to come. " * 4
DOCUMENTS = 6000


def run(*arguments: object) -> Result:
    return CliRunner().invoke(cli, [str(argument) for argument in arguments])


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    (tmp_path / "in").mkdir()
    for file in range(4):
        lines = []
        for number in range(DOCUMENTS // 4):
            text = "too short" if number % 3 == 0 else f"{LONG} {file} {number}" if number % 10 else f"{LONG} twice"
            lines.append(json.dumps({"id": f"{file}-{number}", "text": text}))
        (tmp_path / "in" / f"{file}.jsonl").write_text("\n".join(lines) + "\n")
    (tmp_path / "words.yaml").write_text(
        "name: words\nstages:\n  - DocumentReader: {file_paths: '${input_path}'}\n"
        "  - WordCountFilter: {min_words: 20}\n  - DocumentWriter: {path: '${output_path}'}\n"
    )
    return tmp_path


@pytest.mark.parametrize(
    ("text", "size"),
    [("1%", SampleSize(0.01)), ("0.5", SampleSize(0.5)), ("1", SampleSize(1.0)), ("5,000", SampleSize(None, 5000))],
)
def test_samples_are_shares_or_numbers(text: str, size: SampleSize) -> None:
    assert parse_sample(text) == size


@pytest.mark.parametrize("text", ["0", "-1%", "101%", "1.5", "some", "", "%"])
def test_other_samples_are_refused(text: str) -> None:
    with pytest.raises(UsageError, match="1%"):
        parse_sample(text)


def test_the_time_of_partitions_is_that_of_the_last_worker() -> None:
    assert makespan([1] * 8, 8.0, 2) == 4.0
    assert makespan([1, 1, 1, 5], 8.0, 2) == 6.0
    assert makespan([8], 8.0, 2, shared=True) == 4.0
    assert makespan([], 0.0, 2) == 0.0


def test_a_sample_foresees_what_a_run_gives(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MOST_ENLARGED", 0)
    planned = run("plan", "words.yaml", "in", "out", "--sample", "25%", "--workers", 0, "--json")
    assert planned.exit_code == 0, planned.output
    made = json.loads(planned.stdout)
    assert not (here / "out").exists(), "a forecast writes nothing to the output"
    assert sorted(path.name for path in here.iterdir()) == ["in", "state", "words.yaml"], "and leaves nothing behind"
    assert made["sample_share"] == 0.25
    assert made["documents"] == pytest.approx(DOCUMENTS, rel=0.1)
    stages = {stage["name"]: stage for stage in made["stages"]}
    short = stages["WordCountFilter"]
    assert abs(short["kept"] - 2 / 3) <= 2 * short["error"]
    assert short["error"] == pytest.approx(1.96 * (2 / 9 / made["sample_documents"]) ** 0.5, rel=0.1)

    assert run("run", "words.yaml", "in", "out", "--workers", 0, "-q").exit_code == 0
    record = json.loads((here / "out.gristmill" / "run.json").read_text())
    assert made["output_bytes"] == pytest.approx(record["output_bytes"], rel=0.1)
    assert made["documents_out"] == pytest.approx(record["rows_written"], rel=0.1)
    (past,) = past_forecasts()
    assert past.errors["documents_out"] == pytest.approx(made["documents_out"] / record["rows_written"] - 1)
    assert "off by" in sentence([past])


def test_a_short_sample_is_enlarged_up_to_the_whole(here: Path) -> None:
    result = run("plan", "words.yaml", "in", "--sample", "10", "--workers", 0)
    assert result.exit_code == 0, result.output
    assert "too short to measure" in result.stderr
    assert f"Output: {DOCUMENTS * 2 // 3:,} documents of {DOCUMENTS:,}" in result.stdout
    assert "No forecast has been followed" in result.stdout


def test_copies_are_foreseen_although_only_a_part_is_looked_at(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Equal texts are in a sample together, so the share of copies is not underestimated."""
    monkeypatch.setattr(module, "_MOST_ENLARGED", 0)
    (here / "copies.jsonl").write_text(
        "".join(json.dumps({"id": str(number), "text": f"text {number // 4}"}) + "\n" for number in range(8000))
    )
    (here / "exact.yaml").write_text(
        "name: exact\nstages:\n  - DocumentReader: {file_paths: '${input_path}'}\n"
        "  - ExactDeduplication\n  - DocumentWriter: {path: '${output_path}'}\n"
    )
    made = json.loads(run("plan", "exact.yaml", "copies.jsonl", "--sample", "20%", "--workers", 0, "--json").stdout)
    assert made["sample_documents"] < 2400
    stage = next(stage for stage in made["stages"] if stage["compares"])
    assert stage["kept"] == pytest.approx(0.25, abs=0.01)
    assert any("upper bound" in note for note in made["notes"])


def test_history_survives_damage_and_forgets_nothing_that_was_compared(here: Path) -> None:
    place = history_path()
    place.parent.mkdir(parents=True)
    good: dict[str, Any] = {
        "at": "2026-01-01T00:00:00+00:00", "recipe": "words", "output": "/nowhere/out", "record": None,
        "input_bytes": 5, "wall_seconds": 12.0, "actual": {"wall_seconds": 10.0},
    }  # fmt: skip
    pending = {**good, "output": "/nowhere/other"}
    del pending["actual"]
    place.write_text("\n".join(["not json", "[1]", json.dumps(good), json.dumps(pending)]) + "\n")
    (past,) = past_forecasts()
    assert past.errors == {"wall_seconds": pytest.approx(0.2)}
    assert sentence([past]) == "The last forecast was off by 20.0 % of the wall time (too long)."
    place.write_bytes(b"\xff\xfe")
    assert past_forecasts() == []


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--sample", "two"), "--sample two"),
        (("--sample", "1%", "--limit", "5"), "cannot be combined with --sample"),
        (("--seed", "1"), "--seed needs --sample"),
        (("--json",), "--json needs --sample"),
    ],
)
def test_what_cannot_be_meant_is_refused(here: Path, arguments: tuple[str, ...], words: str) -> None:
    result = run("plan", "words.yaml", "in", "out", "--workers", 0, *arguments)
    assert result.exit_code == 2
    assert words in result.stderr


def test_an_input_without_documents_has_no_forecast(here: Path) -> None:
    (here / "empty.jsonl").write_text("")
    result = run("plan", "words.yaml", "empty.jsonl", "--workers", 0, "--sample", "1%")
    assert result.exit_code == 1
    assert "no document" in result.stderr


def test_an_input_too_small_for_a_sample_is_run_as_a_whole(here: Path) -> None:
    (here / "one.jsonl").write_text(json.dumps({"text": LONG}) + "\n")
    result = run("plan", "words.yaml", "one.jsonl", "--workers", 0, "--sample", "1%")
    assert result.exit_code == 0, result.output
    assert "1 document of 1" in result.stdout
