"""Shards of a Slurm array: each partition once, marks of what is done, and what to submit again."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import Any

import pytest

from gristmill.compat import slurm_array
from gristmill.errors import UsageError
from gristmill.ledger.prove.verify import verify
from tests.unit.pipeline.jobs import here


@pytest.fixture
def array(curator: None, monkeypatch: pytest.MonkeyPatch) -> Any:
    for name in ("SLURM_ARRAY_TASK_ID", "SLURM_ARRAY_TASK_COUNT", slurm_array.SLURM_ARRAY_ENABLED_ENV_VAR):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv(slurm_array.FAILED_TASKS_DIR_ENV_VAR, "")

    def become(index: int, total: int) -> None:
        monkeypatch.setenv("SLURM_ARRAY_TASK_ID", str(index))
        monkeypatch.setenv("SLURM_ARRAY_TASK_COUNT", str(total))

    return become


def test_every_document_is_in_one_shard_and_missing_shards_are_named(array: Any, tmp_path: Path) -> None:
    pipeline_class = importlib.import_module("nemo_curator.pipeline").Pipeline
    reader = importlib.import_module("nemo_curator.stages.text.io.reader").JsonlReader
    writer = importlib.import_module("nemo_curator.stages.text.io.writer").JsonlWriter
    (tmp_path / "in").mkdir()
    for number in range(12):
        (tmp_path / "in" / f"{number}.jsonl").write_text(json.dumps({"id": number, "text": "x"}) + "\n")
    assert slurm_array.find_slurm_array_retries(tmp_path / "checkpoint") is None
    seen: list[int] = []
    for shard in (0, 2, 3):
        array(shard, 4)
        stages = [reader(str(tmp_path / "in")), writer(str(tmp_path / "out"))]
        pipeline_class("p", stages=stages).run(here(), checkpoint_path=str(tmp_path / "checkpoint"))
        folder = tmp_path / "out" / f"shard-{shard:05d}"
        assert verify(str(folder)).problems == []
        seen += [json.loads(path.read_text())["id"] for path in sorted(folder.glob("*.jsonl"))]
    plan = slurm_array.find_slurm_array_retries(tmp_path / "checkpoint")
    assert plan == slurm_array.SlurmArrayRetryPlan((1,), 4, 0)
    array(1, 4)
    stages = [reader(str(tmp_path / "in")), writer(str(tmp_path / "out"))]
    pipeline_class("p", stages=stages).run(here(), checkpoint_path=str(tmp_path / "checkpoint"))
    seen += [json.loads(path.read_text())["id"] for path in sorted((tmp_path / "out" / "shard-00001").glob("*.jsonl"))]
    assert sorted(seen) == list(range(12))
    assert slurm_array.find_slurm_array_retries(tmp_path / "checkpoint").shard_indices == ()


def test_a_shard_that_fails_is_marked_and_not_done(array: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(slurm_array.FAILED_TASKS_DIR_ENV_VAR, str(tmp_path / "failed"))
    pipeline_class = importlib.import_module("nemo_curator.pipeline").Pipeline
    reader = importlib.import_module("nemo_curator.stages.text.io.reader").JsonlReader
    array(0, 1)
    with pytest.raises(FileNotFoundError):
        pipeline_class("p", stages=[reader(str(tmp_path / "none"))]).run(here(), checkpoint_path=str(tmp_path / "c"))
    assert slurm_array.failed_task_manifest_exists()
    assert slurm_array.find_slurm_array_retries(tmp_path / "c").shard_indices == (0,)


def test_the_first_node_is_the_driver(array: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from gristmill.compat.slurm_array import is_slurm_array_driver_process

    monkeypatch.setenv("SLURM_NODEID", "0")
    assert is_slurm_array_driver_process()
    monkeypatch.setenv("SLURM_NODEID", "1")
    assert not is_slurm_array_driver_process()
    assert is_slurm_array_driver_process(use_slurm=False)


def test_arrays_to_submit_again() -> None:
    plan = slurm_array.SlurmArrayRetryPlan((1, 2, 3, 11, 25), 30, 0)
    assert slurm_array.format_slurm_array_indices(plan.shard_indices) == "1-3,11,25"
    found = slurm_array.build_slurm_array_retry_submissions(plan, max_array_size=10)
    assert [(one.array_indices, one.shard_index_offset) for one in found] == [((1, 2, 3), 0), ((1,), 10), ((5,), 20)]


def test_an_array_of_another_shape_is_refused(tmp_path: Path) -> None:
    slurm_array.build_slurm_array_completion_manifest(tmp_path, 0, 4, 0)
    with pytest.raises(UsageError, match="a different shape"):
        slurm_array.build_slurm_array_completion_manifest(tmp_path, 0, 5, 0)
    with pytest.raises(UsageError, match="not one of the 4 shards"):
        slurm_array.build_slurm_array_completion_manifest(tmp_path, 4, 4, 0)


def test_variables_that_contradict_themselves(array: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    assert slurm_array.SlurmArrayConfig.from_env() is None
    monkeypatch.setenv("SLURM_ARRAY_TASK_ID", "x")
    with pytest.raises(ValueError, match="whole number"):
        slurm_array.SlurmArrayConfig.from_env()
    monkeypatch.setenv("SLURM_ARRAY_TASK_ID", "1")
    with pytest.raises(ValueError, match="number of shards"):
        slurm_array.SlurmArrayConfig.from_env()
    monkeypatch.setenv(slurm_array.SLURM_ARRAY_ENABLED_ENV_VAR, "off")
    assert slurm_array.SlurmArrayConfig.from_env() is None
