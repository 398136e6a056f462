"""Resuming on a store that is not a file system: files that vanish, connections that break at any operation."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from gristmill.backends.local import LocalExecutor
from gristmill.errors import StageFailedError
from gristmill.ledger import Ledger
from gristmill.ledger.prove.verify import verify
from gristmill.pipeline import Pipeline
from gristmill.stages.text.filters import ScoreFilter, WordCountFilter
from gristmill.stages.text.io import JsonlReader, JsonlWriter
from tests.integration.shelf import Borrower
from tests.integration.trust_job import make_input
from tests.outputs import contents_of

FILES = 5


@pytest.fixture
def root(tmp_path: Path) -> Path:
    make_input(tmp_path / "store" / "in", files=FILES)
    (tmp_path / "aside").mkdir()
    return tmp_path / "store"


def _job(root: Path, output: str, *, trouble: Path | None = None) -> Pipeline:
    options = {"root": str(root)}
    faulty = options if trouble is None else {**options, "trouble": str(trouble)}
    last = str(root / "in" / f"part-{FILES - 1:03}.jsonl")
    stages = [
        JsonlReader("shelf://in", files_per_partition=1, storage_options=options),
        ScoreFilter(WordCountFilter(min_words=3)),
        Borrower(last, str(root.parent / "aside")),
        JsonlWriter(f"shelf://runs/{output}", storage_options=faulty),
    ]
    return Pipeline("remote", stages=stages)


def _run(job: Pipeline, workers: int) -> Any:
    executor = LocalExecutor(config={"num_cpus": workers})
    return job.run(executor=executor, error_budget=None, progress=False).report


def _sound(root: Path, output: str) -> None:
    report = verify(f"shelf://runs/{output}", storage_options={"root": str(root)})
    assert report.ok, report


@pytest.mark.parametrize("workers", [0, 2])
def test_a_file_that_is_lost_during_the_run(root: Path, workers: int) -> None:
    aside = root.parent / "aside"
    os.rename(aside, root.parent / "not-yet")
    _run(_job(root, "whole"), workers)
    os.rename(root.parent / "not-yet", aside)
    with pytest.raises(StageFailedError, match=rf"part-{FILES - 1:03}.jsonl' existed when the run") as caught:
        _run(_job(root, "out"), workers)
    assert "run the same command again" in str(caught.value)
    assert "ignore_failures" not in str(caught.value)
    done = list((root / "runs" / "out").glob("*.jsonl"))
    assert 0 < len(done) < FILES
    (lost,) = aside.iterdir()
    os.rename(lost, root / "in" / lost.name)
    os.rmdir(aside)
    report = _run(_job(root, "out"), workers)
    assert report.partitions_done_before > 0
    _sound(root, "out")
    assert contents_of(root / "runs" / "out") == contents_of(root / "runs" / "whole")
    options = {"root": str(root)}
    assert Ledger("shelf://runs/out", storage_options=options).why("1-3").status == "kept"
    assert _run(_job(root, "out"), workers).partitions_done_before == FILES


@pytest.mark.parametrize(("workers", "step"), [(0, 4), (2, 8)])
def test_a_connection_that_breaks_at_any_operation(root: Path, tmp_path: Path, workers: int, step: int) -> None:
    os.rmdir(root.parent / "aside")
    count, trouble = tmp_path / "trouble.count", tmp_path / "trouble"
    _run(_job(root, "whole", trouble=trouble), workers)
    operations = count.stat().st_size
    expected = contents_of(root / "runs" / "whole")
    assert operations > 20
    messages = []
    for number in range(1, operations + 1, step):
        count.unlink()
        trouble.write_text(str(number))
        output = f"out-{number}"
        try:
            _run(_job(root, output, trouble=trouble), workers)
        except (OSError, StageFailedError) as error:
            messages.append(str(error))
        trouble.unlink()
        _run(_job(root, output, trouble=trouble), workers)
        _sound(root, output)
        assert contents_of(root / "runs" / output) == expected, number
    assert len(messages) > operations // step // 2
    assert all("Connection reset" in message for message in messages), messages
