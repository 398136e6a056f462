"""Tokens and shuffles on a Ray cluster: the bytes of a run on one machine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gristmill.backends.local import LocalExecutor
from gristmill.ledger.prove.verify import verify
from gristmill.pipeline import Pipeline
from gristmill.stages.sharding import ShuffleWorkflow
from gristmill.stages.text.io import JsonlReader
from gristmill.stages.text.io.writer import TokenWriter
from tests.integration.trust_job import Apart, make_input
from tests.outputs import contents_of
from tests.token_files import make_tokenizer

pytestmark = [pytest.mark.ray, pytest.mark.slow]


def _run(source: Path, output: Path, tokenizer: Path, executor: Any) -> dict[str, bytes]:
    stages = [
        JsonlReader(str(source), files_per_partition=1),
        Apart(),
        TokenWriter(str(output), str(tokenizer), "mds", sequence_length=8, pack="best_fit"),
    ]
    Pipeline("tokens", stages=stages).run(executor, progress=False, error_budget=None)
    verify(output).raise_for_problems()
    return contents_of(output)


def test_the_same_bytes(ray_cluster: str, tmp_path: Path) -> None:
    source = make_input(tmp_path / "in", files=3)
    tokenizer = make_tokenizer(tmp_path / "tokenizer")
    expected = _run(source, tmp_path / "local", tokenizer, LocalExecutor({"num_cpus": 0}))
    assert _run(source, tmp_path / "ray", tokenizer, "ray_data") == expected


def test_the_same_shuffle(ray_cluster: str, tmp_path: Path) -> None:
    from gristmill.backends.ray_data import RayDataExecutor

    source = make_input(tmp_path / "in", files=3)
    found = []
    for name, executor in (("local", LocalExecutor({"num_cpus": 0})), ("ray", RayDataExecutor())):
        ShuffleWorkflow(str(tmp_path / name), str(source), shard_documents=20).run(executor, progress=False)
        verify(tmp_path / name).raise_for_problems()
        found.append(contents_of(tmp_path / name))
    assert found[0] == found[1]
    assert len(found[0]) > 2
