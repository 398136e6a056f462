"""Help and version come at once, because nothing heavy is imported."""

from __future__ import annotations

import subprocess
import sys
import time

import pytest

HEAVY = ("fsspec", "numba", "numpy", "orjson", "pandas", "polars", "pyarrow", "ray", "rich", "torch", "yaml")
LIMIT_S = 0.25


def seconds(*arguments: str) -> float:
    start = time.perf_counter()
    subprocess.run(
        [sys.executable, "-m", "gristmill.cli.main", *arguments], check=True, capture_output=True, timeout=60
    )
    return time.perf_counter() - start


@pytest.mark.parametrize("argument", ["--version", "--help"])
def test_takes_less_than_a_quarter_of_a_second(argument: str) -> None:
    # The best of several: another program may have had the processor.
    assert min(seconds(argument) for _ in range(7)) < LIMIT_S


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
