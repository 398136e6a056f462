"""When a command starts the process that workers come from before it knows whether there will be workers."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from gristmill.backends.local.config import SMALL_INPUT
from gristmill.cli.early_start import start_early
from gristmill.recipes import parse_recipe

PROGRAM = """
import sys
from gristmill.cli.early_start import start_early
from gristmill.recipes import parse_recipe

recipe = parse_recipe("stages: [{JsonlReader: {file_paths: %s}}, {WordCountFilter: {}}, {NoSuchFilter: {}}]")
print(start_early(recipe, executor=None, workers=None, settings={}))
before = set(sys.modules) & {"numba", "numpy", "pyarrow", "polars", "pandas"}
from gristmill.backends.local.fork_server import server_pid, start_worker
early = server_pid()
def look(connection, page):
    connection.send([name for name in ("gristmill.stages.text.filters.heuristic", "torch") if name in sys.modules])
print(sorted(before), start_worker(look).connection.recv(), server_pid() == early)
"""


@pytest.fixture
def large(tmp_path: Path) -> Path:
    path = tmp_path / "large.jsonl"
    with path.open("wb") as file:
        file.truncate(SMALL_INPUT + 1)
    return path


@pytest.mark.parametrize("settings", [{"executor": "ray_data"}, {"workers": 0}, {"settings": {"num_cpus": 0}}])
def test_nothing_starts_where_no_worker_is_wanted(large: Path, settings: dict[str, object]) -> None:
    recipe = parse_recipe(f"stages: [{{JsonlReader: {{file_paths: {large}}}}}]")
    assert not start_early(recipe, **{"executor": None, "workers": None, "settings": {}, **settings})


@pytest.mark.parametrize("paths", ["no/such/*.jsonl", "s3://bucket/data", "[]", "3", "{folder}"])
def test_nothing_starts_for_little_or_unknown_input(tmp_path: Path, paths: str) -> None:
    (tmp_path / "small.jsonl").write_text("{}")
    text = paths.replace("{folder}", str(tmp_path))
    recipe = parse_recipe(f"stages: [{{JsonlReader: {{file_paths: {text}}}}}]")
    assert not start_early(recipe, executor=None, workers=None, settings={})


@pytest.mark.parametrize("paths", ["{folder}", "{folder}/*.jsonl", "[{folder}/large.jsonl]"])
def test_it_starts_before_anything_heavy_is_imported(large: Path, paths: str) -> None:
    program = PROGRAM % paths.replace("{folder}", str(large.parent))
    done = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    assert done.stdout.splitlines() == ["True", "[] ['gristmill.stages.text.filters.heuristic'] True"]
