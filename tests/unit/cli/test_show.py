"""`gristmill show`: the summary again, from the record, however the run ended."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from click.testing import CliRunner, Result

from gristmill.cli.main import cli
from gristmill.ledger.record.layout import RunFolder
from tests.unit.pipeline.jobs import write_lines


def gristmill(*arguments: str) -> Result:
    return CliRunner().invoke(cli, list(arguments))


def rows(count: int, start: int = 0) -> list[dict[str, str]]:
    return [{"id": f"{start + n}", "text": "a word or two " * (n % 5)} for n in range(count)]


def recipe(folder: Path, *stages: str) -> str:
    path = folder / "r.yaml"
    lines = ["name: mine", "stages:", '- JsonlReader: {file_paths: "${input_path}"}', *stages]
    path.write_text("\n".join([*lines, '- JsonlWriter: {path: "${output_path}"}']))
    return str(path)


def test_the_summary_is_that_of_the_run(tmp_path: Path) -> None:
    write_lines(tmp_path / "in" / "a.jsonl", rows(30))
    path = recipe(tmp_path, "- WordCountFilter: {min_words: 5}", "- ExactDeduplication")
    output = str(tmp_path / "out")
    told = gristmill("run", path, str(tmp_path / "in"), output, "--workers", "0", "--json")
    assert told.exit_code == 0, told.output
    shown = gristmill("show", output, "--json")
    assert shown.exit_code == 0, shown.output
    first = json.loads(told.output.splitlines()[-1])
    second = json.loads(shown.output)
    for key in ("pipeline", "status", "rows_read", "rows_written", "quarantined", "partitions", "output"):
        assert first[key] == second[key], key
    counts = ("name", "rows_in", "rows_out", "created", "dropped", "quarantined")
    assert [[stage[key] for key in counts] for stage in first["stages"]] == [
        [stage[key] for key in counts] for stage in second["stages"]
    ]
    assert second["executor"] == "local"
    assert second["steps"] == []
    text = gristmill("show", output).output
    assert "WordCountFilter" in text
    assert "30 documents in, 3 kept" in text


def test_a_run_that_failed_says_what_is_committed_and_why_it_failed(tmp_path: Path) -> None:
    write_lines(tmp_path / "in" / "a.jsonl", rows(20))
    write_lines(tmp_path / "in" / "b.jsonl", rows(20, start=20))
    with open(tmp_path / "in" / "b.jsonl", "a") as file:
        file.write("no record\n" * 20)
    output = str(tmp_path / "out")
    path = recipe(tmp_path, "- WordCountFilter: {min_words: 5}")
    assert gristmill("run", path, str(tmp_path / "in"), output, "--workers", "0").exit_code == 1
    text = gristmill("show", output).output
    assert "Status: failed" in text
    assert "Error: 20 of 60 records could not be processed" in text
    assert "Run the same command again to resume." in text
    assert json.loads(gristmill("show", output, "--json").output)["status"] == "failed"


KILLED = """
import os, sys
from gristmill.observe.events import RunStarted
from gristmill.recipes import load_recipe

recipe, source, output, step = sys.argv[1:]
seen = []

def watch(event):
    if isinstance(event, RunStarted):
        seen.append(event.pipeline)
        if len(seen) == int(step):
            os.kill(os.getpid(), 9)

pipeline = load_recipe(recipe, variables={"input_path": source, "output_path": output}).pipeline()
pipeline.run(listeners=[watch], progress=False)
"""


def test_a_killed_run_says_how_far_its_steps_have_come(tmp_path: Path) -> None:
    write_lines(tmp_path / "in" / "a.jsonl", rows(20))
    output = str(tmp_path / "out")
    path = recipe(tmp_path, "- WordCountFilter: {min_words: 5}", "- ExactDeduplication")
    arguments = [sys.executable, "-c", KILLED, path, str(tmp_path / "in"), output, "3"]
    assert subprocess.run(arguments, check=False, env=dict(os.environ)).returncode == -9
    shown = gristmill("show", output)
    assert shown.exit_code == 0, shown.output
    assert "Status: running, or killed; 0 of 1 partition" in shown.output
    assert "documents-1: done, 1 of 1 partitions" in shown.output
    assert "signatures: done, 1 of 1 partitions" in shown.output
    done = gristmill("run", path, str(tmp_path / "in"), output, "--workers", "0")
    assert done.exit_code == 0, done.output
    assert "Status" not in gristmill("show", output).output


def test_an_output_of_a_deduplication(tmp_path: Path) -> None:
    write_lines(tmp_path / "in" / "a.jsonl", rows(20))
    output, listed = str(tmp_path / "out"), str(tmp_path / "list")
    assert gristmill("dedup", "exact", str(tmp_path / "in"), output, "--workers", "0").exit_code == 0
    assert "20 documents read, 12 duplicates of 4 other documents found" in gristmill("show", output).output
    arguments = ("dedup", "exact", str(tmp_path / "in"), listed, "--list-only", "--workers", "0")
    assert gristmill(*arguments).exit_code == 0
    assert "12 duplicates" in gristmill("show", listed).output


def test_what_is_no_output_is_refused(tmp_path: Path) -> None:
    found = gristmill("show", str(tmp_path))
    assert found.exit_code == 1
    assert "is not the output of a run" in found.output


def test_a_record_without_its_run_is_shown_as_far_as_it_goes(tmp_path: Path) -> None:
    write_lines(tmp_path / "in" / "a.jsonl", rows(20))
    output = str(tmp_path / "out")
    path = recipe(tmp_path, "- WordCountFilter: {min_words: 5}")
    assert gristmill("run", path, str(tmp_path / "in"), output, "--workers", "0").exit_code == 0
    folder = RunFolder(output)
    folder.remove(folder.record_path("run"))
    text = gristmill("show", output).output
    assert "Status: unknown" in text
    assert "20 documents in" in text
