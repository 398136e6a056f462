"""A driver without kernels on a machine that has never compiled any: workers say so, and it compiles what all need."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path


def test_a_deduplication_where_nothing_is_compiled(tmp_path: Path) -> None:
    with (tmp_path / "in.jsonl").open("w") as file:
        for number in range(6000):
            file.write(json.dumps({"id": number, "text": f"{number % 5000} " + "word " * 200}) + "\n")
    command = [sys.executable, "-m", "gristmill", "dedup", "exact", str(tmp_path / "in.jsonl"), str(tmp_path / "out")]
    done = subprocess.run(
        command,
        env={**os.environ, "NUMBA_CACHE_DIR": str(tmp_path / "kernels")},
        check=True,
        capture_output=True,
        text=True,
    )
    assert done.stderr.count("Compiling kernels") == 1, done.stderr
    assert len((tmp_path / "out" / "in.jsonl").read_text().splitlines()) == 5000
    assert list((tmp_path / "kernels").rglob("*"))
