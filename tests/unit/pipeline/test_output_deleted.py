"""An output that loses files while a run goes on: the run does not end well, and the next one makes it whole."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gristmill.backends.local import LocalExecutor
from gristmill.errors import OutputError
from gristmill.ledger.prove.verify import verify
from gristmill.pipeline import Pipeline
from gristmill.stages.base import ProcessingStage
from gristmill.stages.text.io.reader import JsonlReader
from gristmill.stages.text.io.writer import JsonlWriter
from gristmill.tasks import DocumentBatch
from tests.outputs import contents_of
from tests.unit.pipeline.jobs import write_lines

FILES = 6


class Saboteur(ProcessingStage[DocumentBatch, DocumentBatch]):
    """Harms the output when it sees a certain document, once."""

    name = "saboteur"

    def __init__(self, harm: Callable[[], Any] | None) -> None:
        self._harm = harm

    def process(self, task: DocumentBatch) -> DocumentBatch:
        if self._harm is not None and "4-0" in task.text("id").to_pylist():
            self._harm()
            self._harm = None
        return task


def _run(folder: Path, output: str, harm: Callable[[], Any] | None = None) -> Any:
    stages = [JsonlReader(str(folder / "in")), Saboteur(harm), JsonlWriter(str(folder / output))]
    return Pipeline("job", stages=stages).run(executor=LocalExecutor({"num_cpus": 0}), progress=False).report


@pytest.mark.parametrize(
    ("harm", "told"),
    [
        (shutil.rmtree, r"4 files, such as part-0\.jsonl, changed or missing"),
        (lambda out: (out / "part-1.jsonl").unlink(), r"1 file, such as part-1\.jsonl"),
        (lambda out: (out / "part-2.jsonl").write_text(""), r"1 file, such as part-2\.jsonl"),
        (lambda out: shutil.rmtree(f"{out}.gristmill/index"), r"changed or missing"),
        (lambda out: shutil.rmtree(f"{out}.gristmill/manifest"), r"4 partitions without a record"),
    ],
    ids=["output deleted", "file deleted", "file emptied", "index deleted", "manifest deleted"],
)
def test_a_run_that_ends_well_has_all_it_committed(tmp_path: Path, harm: Any, told: str) -> None:
    for number in range(FILES):
        lines = [{"id": f"{number}-{row}", "text": f"some text {row}"} for row in range(5)]
        write_lines(tmp_path / "in" / f"part-{number}.jsonl", lines)
    _run(tmp_path, "whole")
    with pytest.raises(OutputError, match=told):
        _run(tmp_path, "out", lambda: harm(tmp_path / "out"))
    _run(tmp_path, "out")
    assert verify(str(tmp_path / "out")).ok
    assert contents_of(tmp_path / "out") == contents_of(tmp_path / "whole")
