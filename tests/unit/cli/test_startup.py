"""Help and version come at once, because nothing heavy is imported."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.pace import assert_at_most

HEAVY = ("fsspec", "numba", "numpy", "orjson", "pandas", "polars", "pyarrow", "ray", "rich", "torch", "yaml")


@pytest.mark.parametrize("argument", ["--version", "--help"])
def test_takes_little_longer_than_the_library_for_command_lines(argument: str) -> None:
    """A quarter of a second, where a program that does nothing but import click takes a twentieth of one."""
    command = [sys.executable, "-m", "gristmill.cli.main", argument]
    assert_at_most(4, command, [sys.executable, "-c", "import click"])


def test_help_of_every_command_loads_nothing_heavy() -> None:
    program = (
        "import sys\n"
        "from click.testing import CliRunner\n"
        "from gristmill.cli.main import COMMANDS, cli\n"
        "for name in COMMANDS: assert CliRunner().invoke(cli, [name, '--help']).exit_code == 0\n"
        "print(*sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    assert set(HEAVY) & set(done.stdout.split()) == set()


def test_the_package_can_be_run_like_the_command() -> None:
    command = [sys.executable, "-m", "gristmill"]
    version = subprocess.run([*command, "--version"], check=True, capture_output=True, text=True)
    assert version.stdout.startswith("gristmill ")
    wrong = subprocess.run([*command, "verfy"], check=False, capture_output=True, text=True)
    assert wrong.returncode == 2
    assert "Usage: gristmill" in wrong.stderr
    assert "Did you mean 'verify'?" in wrong.stderr


def test_a_command_ends_at_once_but_leaves_nothing_undone() -> None:
    """Threads have ended, what was registered for the end has run, and everything printed is out."""
    program = (
        "import atexit, sys, threading, time\n"
        "from concurrent.futures import ThreadPoolExecutor\n"
        "from gristmill.cli import entry\n"
        "atexit.register(print, 'registered')\n"
        "threading.Thread(target=lambda: (time.sleep(0.2), print('thread'))).start()\n"
        "pool = ThreadPoolExecutor(1)\n"
        "pool.submit(int).result()\n"
        "class Late:\n"
        "    def __del__(self): print('taken apart')\n"
        "late = Late()\n"
        "sys.argv = ['gristmill', 'recipes', '--no-such-option']\n"
        "entry.main()\n"
    )
    done = subprocess.run([sys.executable, "-c", program], check=False, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (2, "thread\nregistered\n")
    assert "No such option" in done.stderr


def test_a_reader_that_has_left_is_no_error() -> None:
    command = f"{shlex.quote(sys.executable)} -m gristmill stages | head -c 10"
    done = subprocess.run(["bash", "-c", command], check=True, capture_output=True, text=True)
    assert (len(done.stdout), done.stderr) == (10, "")


@pytest.mark.parametrize(
    "arguments",
    [
        ["dedup", "exact"],
        ["dedup", "lines"],
        ["dedup", "fuzzy", "--against", "index"],
        ["decontaminate", "--benchmarks", "benchmarks"],
    ],
    ids=lambda arguments: " ".join(arguments[:2]),
)
def test_deduplication_in_one_process_loads_no_pandas(arguments: list[str], tmp_path: Path) -> None:
    """PyArrow would import it for the first array, which takes as long as a small job."""
    size = 2 if arguments[0] == "dedup" else 1
    command, options = arguments[:size], arguments[size:]
    line = json.dumps({"id": "a", "text": "one line of text that occurs in two documents of this small corpus"}) + "\n"
    (tmp_path / "in.jsonl").write_text(2 * line)
    (tmp_path / "benchmarks").mkdir()
    (tmp_path / "benchmarks" / "b.jsonl").write_text(line.replace("text", "question", 1))
    program = (
        "import sys\n"
        "from gristmill.cli.main import cli\n"
        "try: cli(sys.argv[1:])\n"
        "except SystemExit as end: assert not end.code\n"
        "print('pandas' in sys.modules)\n"
    )
    subprocess.run([sys.executable, "-m", "gristmill", "index", "create", "index"], check=True, cwd=tmp_path)
    given = [*command, "in.jsonl", "out", *options, "--workers", "0", "--json"]
    run = [sys.executable, "-c", program, *given]
    done = subprocess.run(run, check=True, capture_output=True, text=True, cwd=tmp_path)
    assert done.stdout.splitlines()[-1] == "False"
