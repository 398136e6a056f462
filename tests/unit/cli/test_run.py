"""Runs by the command line, in the calling process, and the questions one can ask afterwards."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from gristmill.backends.local import LocalExecutor
from gristmill.cli.main import cli

RECIPE = """\
name: links
stages:
  - JsonlReader: {file_paths: "${input_path}"}
  - UrlRemover
  - JsonlWriter: {path: "${output_path}"}
"""
DOCUMENTS: list[dict[str, Any]] = [
    {"id": "a", "url": "https://example.org/a", "text": "Nothing to remove."},
    {"id": "b", "url": "https://example.org/b", "text": "See https://example.org/x for more."},
]


def run(*arguments: object) -> Result:
    return CliRunner().invoke(cli, [str(argument) for argument in arguments])


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    path = tmp_path / "links.yaml"
    path.write_text(RECIPE, encoding="utf-8")
    return path


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "in.jsonl"
    path.write_text("".join(json.dumps(document) + "\n" for document in DOCUMENTS), encoding="utf-8")
    return path


@pytest.fixture
def output(tmp_path: Path) -> Path:
    return tmp_path / "out"


def written(output: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for path in sorted(output.glob("*.jsonl")) for line in path.read_text().splitlines()]


def test_run(recipe: Path, source: Path, output: Path) -> None:
    result = run("run", recipe, source, output, "--workers", 0)
    assert result.exit_code == 0, result.output
    assert [document["id"] for document in written(output)] == ["a", "b"]
    assert written(output)[1]["text"] == "See  for more."
    assert "2 documents in, 2 kept" in result.stdout
    assert "changed 1" in result.stdout
    assert f"Files: {output}" in result.stdout
    first, *_, last = result.stderr.splitlines()
    assert first.startswith("links: 3 stages, 1 partition")
    assert last.startswith("links done: 1/1 partition")


def test_variables_instead_of_arguments(recipe: Path, source: Path, output: Path) -> None:
    settings = ["--set", f"input_path={source}", "--set", f"output_path={output}", "--set", "executor.num_cpus=0"]
    assert run("run", recipe, *settings).exit_code == 0
    assert len(written(output)) == 2


def test_quiet(recipe: Path, source: Path, output: Path) -> None:
    result = run("run", recipe, source, output, "--workers", 0, "--quiet")
    assert (result.exit_code, result.stdout, result.stderr) == (0, "", "")


def test_json(recipe: Path, source: Path, output: Path) -> None:
    report = json.loads(run("run", recipe, source, output, "--workers", 0, "--json").stdout)
    assert report["status"] == "done"
    assert (report["rows_read"], report["rows_written"]) == (2, 2)
    assert [stage["rows_out"] for stage in report["stages"]] == [2, 2, 2]


def test_again_does_nothing_and_fresh_starts_over(recipe: Path, source: Path, output: Path) -> None:
    command = ("run", recipe, source, output, "--workers", 0, "--json")
    assert json.loads(run(*command).stdout)["partitions_done_before"] == 0
    again = json.loads(run(*command).stdout)
    assert (again["partitions_done_before"], again["rows_written"]) == (1, 2)
    assert json.loads(run(*command, "--fresh").stdout)["partitions_done_before"] == 0


def test_quarantined_records(recipe: Path, source: Path, output: Path) -> None:
    with source.open("a", encoding="utf-8") as file:
        file.write('{"id": [broken}\n')
    result = run("run", recipe, source, output, "--workers", 0)
    assert result.exit_code == 3
    assert f"1 record could not be processed; see: gristmill quarantine {output}" in result.stdout

    listed = run("quarantine", output)
    assert listed.exit_code == 0
    assert str(source) in listed.stdout
    [group] = json.loads(run("quarantine", output, "--json").stdout)["causes"]
    assert group["records"] == 1
    [record] = json.loads(run("quarantine", output, "--cause", group["cause"], "--json").stdout)["records"]
    assert record["raw"] == '{"id": [broken}'
    assert '{\\"id\\": [broken}' in run("quarantine", output, "--stage", group["stage"]).stdout
    assert run("quarantine", output, "--cause", "other").stdout == "No matching records.\n"


def test_a_budget_of_zero_fails(recipe: Path, source: Path, output: Path) -> None:
    with source.open("a", encoding="utf-8") as file:
        file.write("broken\n")
    result = run("run", recipe, source, output, "--workers", 0, "--error-budget", 0)
    assert result.exit_code == 1
    assert "Error: " in result.stderr
    assert "Traceback" not in result.stderr


def test_nothing_quarantined(recipe: Path, source: Path, output: Path) -> None:
    run("run", recipe, source, output, "--workers", 0)
    assert run("quarantine", output).stdout == "No quarantined records.\n"


def test_verify(recipe: Path, source: Path, output: Path) -> None:
    run("run", recipe, source, output, "--workers", 0)
    assert run("verify", output).exit_code == 0
    assert json.loads(run("verify", output, "--json").stdout)["ok"] is True
    [data] = output.glob("*.jsonl")
    data.write_text(data.read_text() + "{}\n")
    result = run("verify", output)
    assert result.exit_code == 1
    assert data.name in result.stdout
    assert json.loads(run("verify", output, "--json").stdout)["ok"] is False


def test_why(recipe: Path, source: Path, output: Path) -> None:
    run("run", recipe, source, output, "--workers", 0)
    assert run("why", output, "a").stdout.startswith("a: kept")
    changed = run("why", output, "https://example.org/b")
    assert "removed 21 characters in 'text'" in changed.stdout
    unknown = run("why", output, "c")
    assert unknown.exit_code == 1
    assert "Not found: no input document has the id" in unknown.stdout
    answer = json.loads(run("why", output, "a", "--json").stdout)
    assert answer["status"] == "kept"


def test_plan(recipe: Path, source: Path, output: Path) -> None:
    result = run("plan", recipe, source, output)
    assert result.exit_code == 0
    assert "UrlRemover" in result.stdout
    assert not output.exists()


def test_a_missing_input(recipe: Path, tmp_path: Path, output: Path) -> None:
    result = run("run", recipe, tmp_path / "nowhere", output, "--workers", 0)
    assert result.exit_code == 1
    assert "nowhere" in result.stderr
    assert not output.exists()


@pytest.mark.parametrize(
    ("options", "part"),
    [
        (("--executor", "locl"), "Did you mean 'local'?"),
        (("--set", "executor.num_cpu=2"), "num_cpus"),
        (("--memory-budget", "lots"), "is not a size"),
        (("--executor", "ray_data", "--workers", "2"), "--workers applies only to the local executor"),
        (("--workers", "-1"), "--workers"),
        (("--error-budget", "half"), "--error-budget"),
        (("--set", "outptu_path=x"), "Did you mean 'output_path'?"),
    ],
)
def test_wrong_use(options: tuple[str, ...], part: str, recipe: Path, source: Path, output: Path) -> None:
    result = run("run", recipe, source, output, *options)
    assert result.exit_code == 2
    assert part in result.stderr
    assert not output.exists()


def test_the_executor_of_the_recipe(recipe: Path, source: Path, output: Path) -> None:
    recipe.write_text(RECIPE + "executor: {name: local, config: {num_cpus: -3}}\n", encoding="utf-8")
    assert "num_cpus=-3" in run("run", recipe, source, output).stderr
    # The command line wins.
    assert run("run", recipe, source, output, "--set", "executor.num_cpus=0").exit_code == 0


def test_an_interrupted_run_is_taken_up_again(
    recipe: Path, source: Path, output: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        # Where the signal arrives while the executor works.
        patch.setattr(LocalExecutor, "execute", interrupted)
        result = run("run", recipe, source, output, "--workers", 0)
    assert result.exit_code == 130
    assert result.stderr.endswith("Interrupted. Run the same command again to resume.\n")
    assert "Traceback" not in result.stderr
    assert run("run", recipe, source, output, "--workers", 0).exit_code == 0
    assert run("verify", output).exit_code == 0


def test_a_process_ends_with_the_exit_code(recipe: Path, source: Path, output: Path) -> None:
    def code(*arguments: object) -> int:
        command = [sys.executable, "-m", "gristmill.cli.main", *map(str, arguments)]
        return subprocess.run(command, check=False, capture_output=True).returncode

    with source.open("a", encoding="utf-8") as file:
        file.write("broken\n")
    assert code("run", recipe, source, output, "--workers", 0, "--quiet") == 3
    assert code("verify", source.parent) == 1
    assert code("run", "no-such-recipe") == 2


def test_another_variable_is_named_once_and_not_for_every_stage(tmp_path: Path, output: Path) -> None:
    source = tmp_path / "in.jsonl"
    source.write_text(json.dumps({"id": "a", "text": "one", "body": "two"}) + "\n", encoding="utf-8")
    assert run("run", "english", source, output, "--workers", 0).exit_code == 0
    result = run("run", "english", source, output, "--workers", 0, "--set", "text_field=body")
    assert result.exit_code == 1
    lines = [line for line in result.output.splitlines() if line.startswith("  - ")]
    assert lines[0] == '  - variable text_field changed from "text" to "body"'
    assert "and 27 more stages with the same change" in lines[1]
    assert len(lines) == 3
    assert "--fresh" in result.output


def test_a_recipe_without_a_writer_is_refused_before_anything_runs(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": "a"}\n')
    (tmp_path / "recipe.yaml").write_text(f"stages: [{{JsonlReader: {{file_paths: {tmp_path}/a.jsonl}}}}]")
    result = CliRunner().invoke(cli, ["run", str(tmp_path / "recipe.yaml")])
    assert result.exit_code == 2
    assert "no writer" in result.stderr
    assert "DocumentWriter" in result.stderr
