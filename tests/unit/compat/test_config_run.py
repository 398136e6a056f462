"""`python -m gristmill.compat.config_run`: the arguments of NeMo Curator's `config.run`."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from gristmill.compat.config_run import SAME_AS, command_line
from gristmill.recipes.catalog import shipped_recipes
from tests import target_recipes as files


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "clean.yaml"
    path.write_text(files.text(files.heuristic("english")), encoding="utf-8")
    return path


@pytest.mark.parametrize("name", ["clean", "clean.yaml"])
@pytest.mark.parametrize("options", [("--config-path", "--config-name"), ("-cp", "-cn")])
def test_arguments(config: Path, name: str, options: tuple[str, str]) -> None:
    folder, named = options
    given = [
        "input_path=in",
        folder,
        str(config.parent),
        "+extra=[1, 2]",
        named,
        name,
        "~old",
        "empty=",
        "hydra.run.dir=.",
    ]
    assert command_line(given) == [
        "run", str(config), "--set", "input_path=in", "--set", "+extra=[1, 2]", "--set", "~old=null",
        "--set", "empty=''",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (["--config-name", "clean", "input_path"], "write KEY=VALUE"),
        (["--config-name", "nowhere"], "there is no 'nowhere'"),
        (["--config-name", "heuristic_filter_english_pipeline.yaml"], "'gristmill run english' does the same"),
    ],
)
def test_wrong_arguments(config: Path, arguments: list[str], part: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        command_line(["--config-path", str(config.parent), *arguments])
    assert part in capsys.readouterr().err


def test_what_does_the_same_exists() -> None:
    runs = [command.split()[2].replace("-", "_") for command in SAME_AS.values() if command.startswith("gristmill run")]
    assert set(runs) <= shipped_recipes().keys()


def test_a_file_runs(config: Path, sample_path: Path) -> None:
    output = config.parent / "out"
    run = subprocess.run(
        [
            sys.executable, "-m", "gristmill.compat.config_run", f"--config-path={config.parent}",
            "--config-name=clean", f"input_path={sample_path}", f"output_path={output}",
        ],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert run.returncode == 0, run.stderr
    assert sum(path.read_bytes().count(b"\n") for path in output.iterdir()) == 855
