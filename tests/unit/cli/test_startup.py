"""Help and version come at once, because nothing heavy is imported."""

from __future__ import annotations

import resource
import subprocess
import sys

import pytest

HEAVY = ("fsspec", "numba", "numpy", "orjson", "pandas", "polars", "pyarrow", "ray", "rich", "torch", "yaml")
LIMIT_S = 0.25


def seconds(*arguments: str) -> float:
    """Processor time, which other programs on the machine do not lengthen."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    command = [sys.executable, "-m", "gristmill.cli.main", *arguments]
    subprocess.run(command, check=True, capture_output=True, timeout=60)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


@pytest.mark.parametrize("argument", ["--version", "--help"])
def test_takes_less_than_a_quarter_of_a_second(argument: str) -> None:
    # The best of several: the first may have to compile modules.
    assert min(seconds(argument) for _ in range(3)) < LIMIT_S


def test_help_of_every_command_loads_nothing_heavy() -> None:
    program = (
        "import sys\n"
        "from click.testing import CliRunner\n"
        "from gristmill.cli.main import COMMANDS, cli\n"
        "for name in COMMANDS: assert CliRunner().invoke(cli, [name, '--help']).exit_code == 0\n"
        "print(*sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True, timeout=60)
    assert set(HEAVY) & set(done.stdout.split()) == set()


def test_the_package_can_be_run_like_the_command() -> None:
    command = [sys.executable, "-m", "gristmill"]
    version = subprocess.run([*command, "--version"], check=True, capture_output=True, text=True, timeout=60)
    assert version.stdout.startswith("gristmill ")
    wrong = subprocess.run([*command, "verfy"], check=False, capture_output=True, text=True, timeout=60)
    assert wrong.returncode == 2
    assert "Usage: gristmill" in wrong.stderr
    assert "Did you mean 'verify'?" in wrong.stderr
