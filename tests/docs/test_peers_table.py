"""The table of the README that compares tools is what the committed result says."""

from __future__ import annotations

import json
import runpy
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
TABLE: dict[str, Any] = runpy.run_path(str(ROOT / "benchmarks" / "peers_table.py"))
RESULT: dict[str, Any] = json.loads((ROOT / "benchmarks" / "results" / "peers.json").read_text(encoding="utf-8"))


def test_the_readme_has_the_table_of_the_result() -> None:
    # On a difference: python benchmarks/compare_peers.py --table
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert readme == TABLE["replaced"](readme, TABLE["table"](RESULT))


def test_a_loss_is_shown_like_a_win() -> None:
    side = {"wall_s": 2.0, "cpu_s": 1.0, "kept": 1}
    found = {
        "gristmill": {**side, "wall_s": 9.0},
        "datatrove": side,
        "nemo-curator": {"cannot": "No module named 'cudf'"},
    }
    shown = TABLE["table"]({**RESULT, "documents": 5000, "works": {"small": found}})
    assert "| 1,000 documents, 3 filters | 9.0 (1.0) | needs a GPU | **2.0 (1.0)** |" in shown


@pytest.mark.parametrize(
    ("fault", "found", "words"),
    [
        (
            "malformed_line",
            {"exit_code": 1, "documents_missing": 7, "output_names_the_file": False},
            "fails, 7 documents",
        ),
        (
            "killed_worker",
            {"killed": True, "finished": False, "documents_missing": 0, "documents_twice": 2},
            "fails or hangs, nothing missing, 2 twice",
        ),
        (
            "killed_driver",
            {"second_run_finished": True, "second_run_s": 3.5, "documents_missing": 0, "documents_twice": 0},
            "3.5 s (undisturbed 4 s), nothing missing",
        ),
    ],
)
def test_faults_in_words(fault: str, found: dict[str, Any], words: str) -> None:
    assert TABLE["_fault"](fault, {fault: found, "undisturbed_s": 4.0}).startswith(words)
