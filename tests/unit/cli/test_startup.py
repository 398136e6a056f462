"""Help and version come at once, because nothing heavy is imported."""

from __future__ import annotations

import subprocess
import sys

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
