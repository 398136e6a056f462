"""The commands of the page about thresholds run, one after the other, as a reader would type them."""

from __future__ import annotations

import gzip
import os
import shlex
import subprocess
import sys
from pathlib import Path

from tests.docs.pages import blocks, commands

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "how-to" / "choose-thresholds.md"


def test_the_commands_on_the_page_run(tmp_path: Path, sample_path: Path) -> None:
    (tmp_path / "crawl").mkdir()
    lines = gzip.decompress(sample_path.read_bytes()).splitlines(keepends=True)
    (tmp_path / "crawl" / "sample.jsonl").write_bytes(b"".join(lines[:300]))
    typed = [" ".join(words) for _, block in blocks(PAGE, "sh") for words in commands("sh", block)]
    assert len(typed) == 6
    for command in typed:
        line = [sys.executable, "-m", "gristmill", *shlex.split(command)]
        environment = {**os.environ, "XDG_STATE_HOME": str(tmp_path / "state")}
        run = subprocess.run(line, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
        # The machine of a test may be short of memory, which doctor says by its exit code.
        assert run.returncode == 0 or command == "doctor", f"{command}:\n{run.stdout}\n{run.stderr}"
        assert "Traceback" not in run.stderr
    assert (tmp_path / "stats.html").is_file()
