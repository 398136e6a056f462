"""When a command starts the process that workers come from before it knows whether there will be workers."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from gristmill.backends.local import SMALL_INPUT
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


DEDUP = """
import sys
from gristmill.cli.early_start import start_for_dedup
print(start_for_dedup(sys.argv[1:]), "gristmill.backends.local.fork_server" in sys.modules, "click" in sys.modules)
"""


@pytest.mark.parametrize(
    ("arguments", "starts"),
    [
        (["exact", "{large}", "out"], True),
        (["fuzzy", "--text-field", "body", "{folder}/*.jsonl", "out"], True),
        (["exact", "{large}"], False),  # that is the output
        (["exact", "{small}", "{large}"], False),
        (["exact", "{large}", "out", "--workers", "0"], False),
        (["exact", "{large}", "out", "--executor=ray_data"], False),
        (["exact", "{large}", "out", "--plan"], False),
        (["exact", "--help"], False),
        (["semantic", "{large}", "out"], False),
        (["no-such-kind", "{large}", "out"], False),
        ([], False),
    ],
)
def test_a_deduplication_starts_it_before_the_command_line_is_understood(
    large: Path, arguments: list[str], starts: bool
) -> None:
    small = large.with_name("small.txt")
    small.write_text("{}")
    names = {"{large}": large, "{small}": small, "{folder}": large.parent}
    for key, path in names.items():
        arguments = [one.replace(key, str(path)) for one in arguments]
    done = subprocess.run([sys.executable, "-c", DEDUP, *arguments], check=True, capture_output=True, text=True)
    assert done.stdout.split() == [str(starts), str(starts), "False"]


def test_the_driver_of_a_deduplication_loads_no_kernels(tmp_path: Path) -> None:
    """Its workers have them: what is imported in both takes the time of both."""
    with (tmp_path / "in.jsonl").open("w") as file:
        for number in range(6000):
            file.write(json.dumps({"id": number, "text": f"{number % 5000} " + "word " * 200}) + "\n")
    program = (
        "import sys\nfrom gristmill.cli import entry\nentry.leave = sys.exit\n"
        "sys.argv = ['gristmill', 'dedup', 'exact', sys.argv[1], sys.argv[2], '-q']\n"
        "try: entry.main()\nexcept SystemExit as end: print(end.code, 'numba' in sys.modules)\n"
    )
    command = [sys.executable, "-c", program, str(tmp_path / "in.jsonl"), str(tmp_path / "out")]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    assert done.stdout == "0 False\n"
    assert len((tmp_path / "out" / "in.jsonl").read_text().splitlines()) == 5000
