"""Runs over CSV and text files in real worker processes, killed and resumed: the same bytes as in one process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from gristmill.ledger.prove.verify import verify
from tests.outputs import record_of

FILES = 80
RECIPE = """
name: words
stages:
- DocumentReader: {file_paths: "${input_path}"}
- WordCountFilter: {min_words: 200}
- DocumentWriter: {path: "${output_path}"}
"""


def _input(folder: Path, kind: str) -> Path:
    folder.mkdir()
    text = "The quick brown fox jumps over the lazy dog and runs away. " * 5
    for number in range(FILES):
        rows = [f"{number}-{row},{text * (1 + row % 40)}\n" for row in range(60)]
        content = f"id,text\n{''.join(rows)}" if kind == "csv" else "".join(row.partition(",")[2] for row in rows)
        (folder / f"{number:03d}.{kind}").write_text(content)
    return folder


def _command(source: Path, out: Path, workers: int) -> list[str]:
    recipe = source.parent / "words.yaml"
    recipe.write_text(RECIPE)
    run = [sys.executable, "-m", "gristmill", "run", str(recipe), str(source), str(out), "--workers", str(workers)]
    return [*run, "--no-report", "--quiet", "--alarm-share", "1"]


def _files(out: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(out.iterdir())}


@pytest.mark.parametrize("kind", ["csv", "txt"])
def test_killed_and_resumed_with_the_same_bytes(tmp_path: Path, kind: str) -> None:
    source = _input(tmp_path / "in", kind)
    whole, out = tmp_path / "whole", tmp_path / "out"
    subprocess.run(_command(source, whole, 0), check=True)
    driver = subprocess.Popen(_command(source, out, 2), start_new_session=True)
    try:
        manifest = record_of(out) / "manifest"
        give_up = time.monotonic() + 60
        while kind == "csv" and time.monotonic() < give_up:
            if manifest.exists() and len(list(manifest.glob("*.json"))) >= 3:
                break
            time.sleep(0.002)
        while kind == "txt" and time.monotonic() < give_up and not record_of(out).exists():
            time.sleep(0.002)
    finally:
        os.killpg(driver.pid, signal.SIGKILL)
        driver.wait()
    done = len(list(manifest.glob("*.json"))) if manifest.exists() else 0
    partitions = len(list((record_of(whole) / "manifest").glob("*.json")))
    assert done < partitions == (FILES if kind == "csv" else 1)
    subprocess.run(_command(source, out, 2), check=True)
    assert _files(out) == _files(whole)
    assert len(_files(out)) == partitions
    assert verify(str(out)).ok
