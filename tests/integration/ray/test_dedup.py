"""Deduplication on Ray returns the same as in this process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gristmill.ledger.ask.ledger import Ledger
from gristmill.ledger.prove.verify import verify
from gristmill.pipeline import Pipeline
from gristmill.stages.deduplication import (
    ExactDeduplication,
    FuzzyDeduplication,
    LineDeduplication,
    SemanticDeduplicationWorkflow,
    SubstringDeduplication,
)
from gristmill.stages.text.filters import ScoreFilter, WordCountFilter
from gristmill.stages.text.io import JsonlReader, JsonlWriter
from tests.unit.pipeline.jobs import here
from tests.unit.stages.deduplication.jobs import KINDS, documents, kept_ids, write_files

pytestmark = [pytest.mark.ray, pytest.mark.slow]


def workflow(kind: str, folder: Path) -> Any:
    options = {"input_path": str(folder / "in"), "output_path": str(folder / "out"), "perform_removal": True}
    if kind == "semantic":
        return SemanticDeduplicationWorkflow(eps=0.05, **options)  # type: ignore[arg-type]
    return KINDS[kind](**options)


@pytest.mark.parametrize("kind", ["exact", "fuzzy", "semantic"])
def test_the_same_survivors_on_ray(ray_cluster: str, tmp_path: Path, kind: str) -> None:
    from gristmill.backends.ray_data import RayDataExecutor

    rng = np.random.default_rng(1)
    words = rng.integers(0, 500, (30, 40))
    chosen = rng.integers(0, 30, 90)
    rows = documents(" ".join(map(str, words[at])) for at in chosen)
    for row, at in zip(rows, chosen, strict=True):
        row["embeddings"] = (words[at] - 250 + rng.integers(0, 20, 40)).tolist()
    files = {f"{name}.jsonl": rows[at : at + 30] for name, at in (("a", 0), ("b", 30), ("c", 60))}
    found = []
    for name, executor in (("local", here()), ("ray", RayDataExecutor())):
        write_files(tmp_path / name, files)
        result = workflow(kind, tmp_path / name).run(executor=executor, progress=False)
        found.append((kept_ids(tmp_path / name), result.get_metadata("num_removed")))
    assert found[0] == found[1]
    assert found[0][1] > 40


@pytest.mark.parametrize("kind", ["ray_data", "xenna"])
def test_the_same_cuts_on_ray(ray_cluster: str, tmp_path: Path, kind: str) -> None:
    from gristmill.backends.registry import get_executor

    rng = np.random.default_rng(3)
    lines = [" ".join(map(str, row)) for row in rng.integers(0, 10**6, (60, 15))]
    rows = documents("\n".join(lines[at] for at in rng.integers(0, 60, 6)) for _ in range(60))
    found = []
    for name, executor in (("local", here()), (kind, get_executor(kind))):
        write_files(tmp_path / name, {"a.jsonl": rows[:30], "b.jsonl": rows[30:]})
        stages = [
            JsonlReader(str(tmp_path / name / "in")),
            LineDeduplication(),
            SubstringDeduplication(min_length=5, keep="none"),
            JsonlWriter(str(tmp_path / name / "out")),
        ]
        Pipeline("cuts", stages=stages).run(executor, progress=False)
        found.append((kept_ids(tmp_path / name), Ledger(str(tmp_path / name / "out")).cuts().rows()))
    assert found[0] == found[1]
    assert len(found[0][1]) > 100


@pytest.mark.parametrize("kind", ["ray_data", "xenna"])
def test_a_pipeline_in_steps_on_ray(ray_cluster: str, tmp_path: Path, kind: str) -> None:
    from gristmill.backends.registry import get_executor

    rng = np.random.default_rng(2)
    words = rng.integers(0, 500, (30, 40))
    rows = documents(" ".join(map(str, words[at][: 40 if at % 4 else 5])) for at in rng.integers(0, 30, 90))
    files = {f"{name}.jsonl": rows[at : at + 30] for name, at in (("a", 0), ("b", 30), ("c", 60))}
    found = []
    for name, executor in (("local", here()), ("ray", get_executor(kind, {}))):
        write_files(tmp_path / name, files)
        pipeline = Pipeline(
            "steps",
            stages=[
                JsonlReader(str(tmp_path / name / "in")),
                ScoreFilter(WordCountFilter(min_words=10)),
                ExactDeduplication(),
                ScoreFilter(WordCountFilter(min_words=12)).with_(name="longer"),
                FuzzyDeduplication(threshold=0.5, device="cpu"),  # the GPUs of this cluster are only declared
                JsonlWriter(str(tmp_path / name / "out")),
            ],
        )
        report = pipeline.run(executor, progress=False).report
        assert verify(tmp_path / name / "out").ok
        entries = Ledger(tmp_path / name / "out").entries()
        found.append((kept_ids(tmp_path / name), [entry.comparable() for entry in entries.values()]))
        assert report.rows_read == 90
    assert found[0] == found[1]


def test_user_code_of_a_recipe_on_ray(tmp_path: Path) -> None:
    (tmp_path / "ray_user_stages.py").write_text(
        "from gristmill.stages.text.modifiers import DocumentModifier\n"
        "class Upper(DocumentModifier):\n"
        "    def modify_document(self, text):\n"
        "        return text.upper()\n"
    )
    write_files(tmp_path, {"a.jsonl": documents(["one", "two"])})
    text = "name: mine\nstages:\n- JsonlReader: {file_paths: in}\n- ray_user_stages:Upper\n- JsonlWriter: {path: out}\n"
    (tmp_path / "mine.yaml").write_text(text)
    # As the installed command does, -P leaves the current folder out of the path.
    command = [sys.executable, "-P", "-m", "gristmill", "run", "mine.yaml", "--executor", "ray_data"]
    done = subprocess.run(
        [*command, "--allow-code", "ray_user_stages"],
        cwd=tmp_path,
        env={name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    lines = (tmp_path / "out" / "a.jsonl").read_text().splitlines()
    assert [json.loads(line)["text"] for line in lines] == ["ONE", "TWO"]
