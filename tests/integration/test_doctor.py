"""`gristmill doctor OUTPUT`: a planted bottleneck is found, and the suggested change delivers the promised gain.

Stages sleep instead of computing, so that other work on the machine does not decide.
"""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from gristmill.backends.registry import get_executor
from gristmill.cli.main import cli
from gristmill.ledger.ask.bottleneck import Suggestion, suggestion
from gristmill.pipeline import Pipeline
from gristmill.stages.base import ProcessingStage, Spec
from gristmill.stages.text.filters import ScoreFilter
from gristmill.stages.text.filters.heuristic import WordCountFilter
from gristmill.stages.text.io.reader import JsonlReader
from gristmill.stages.text.io.writer import JsonlWriter
from gristmill.tasks.document import DocumentBatch

PROCESSORS = 2
LEAST = 0.5
"""The share of the promised gain that must come true."""


class Sleep(ProcessingStage[DocumentBatch, DocumentBatch]):
    """Takes its time for every document."""

    name = "sleep"

    def __init__(self, seconds: float, workers: int | None = None) -> None:
        self.seconds = seconds
        self.workers = workers

    def inputs(self) -> Spec:
        return ["data"], ["text"]

    def outputs(self) -> Spec:
        return ["data"], []

    def num_workers(self) -> int | None:
        return self.workers

    def process(self, task: DocumentBatch) -> DocumentBatch:
        time.sleep(self.seconds * task.num_items)
        return task


def write_input(folder: Path, *, files: int, documents: int) -> str:
    folder.mkdir()
    for file in range(files):
        with (folder / f"{file:02d}.jsonl").open("w") as lines:
            for number in range(documents):
                text = "word " * (60 if number % 4 == 0 else 5)
                lines.write(json.dumps({"id": f"{file}-{number}", "text": text}) + "\n")
    return str(folder)


def run(output: Path, *stages: Any, **settings: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """The record and the plan of a run."""
    pipeline = Pipeline("planted", stages=[*stages, JsonlWriter(str(output))])
    pipeline.run(get_executor("local", {"num_cpus": PROCESSORS, **settings}), progress=False)
    record = Path(f"{output}.gristmill")
    return json.loads((record / "run.json").read_text()), json.loads((record / "plan.json").read_text())


def check_gain(advice: Suggestion, before: dict[str, Any], after: dict[str, Any]) -> None:
    assert advice.gain is not None
    gain = before["wall_seconds"] / after["wall_seconds"] - 1
    assert gain >= LEAST * advice.gain, f"promised {advice.gain:.0%}, came {gain:.0%}: {advice}"


@pytest.fixture(scope="module", autouse=True)
def _started(tmp_path_factory: pytest.TempPathFactory) -> None:
    """The first run of a process starts the fork server, which is not part of the comparison."""
    place = tmp_path_factory.mktemp("first")
    run(place / "out", JsonlReader(write_input(place / "in", files=2, documents=2)), Sleep(0.0))


def test_a_filter_belongs_in_front_of_a_costly_stage(tmp_path: Path) -> None:
    source = write_input(tmp_path / "in", files=12, documents=40)
    reader, costly, cheap = JsonlReader(source), Sleep(0.02), ScoreFilter(WordCountFilter(min_words=50))
    before, plan = run(tmp_path / "before", reader, costly, cheap)
    advice = suggestion(before, plan, processors=PROCESSORS)
    assert (advice.kind, advice.stage, advice.value) == ("filter_first", "WordCountFilter", "sleep")
    assert advice.gain is not None
    assert advice.gain > 0.5
    after, _ = run(tmp_path / "after", reader, cheap, costly)
    check_gain(advice, before, after)

    shown = CliRunner().invoke(cli, ["doctor", str(tmp_path / "before")])
    assert shown.exit_code == 0, shown.output
    assert "Suggestion: Put WordCountFilter in front of sleep." in shown.stdout
    assert "busy" in shown.stdout
    report = Path(f"{tmp_path / 'before'}.gristmill", "report.html").read_text()
    assert "Put WordCountFilter in front of sleep." in report, "the report says the same"


def test_a_stage_with_too_few_workers_gets_more(tmp_path: Path) -> None:
    source = write_input(tmp_path / "in", files=16, documents=25)
    before, plan = run(tmp_path / "before", JsonlReader(source), Sleep(0.02, workers=1))
    advice = suggestion(before, plan, processors=PROCESSORS)
    assert (advice.kind, advice.stage, advice.value) == ("more_workers", "sleep", 2)
    after, _ = run(tmp_path / "after", JsonlReader(source), Sleep(0.02, workers=advice.value))
    check_gain(advice, before, after)


def test_too_few_partitions_are_cut(tmp_path: Path) -> None:
    source = write_input(tmp_path / "in", files=1, documents=400)
    reader = JsonlReader(source, read_kwargs={"batch_bytes": 2000})
    before, plan = run(tmp_path / "before", reader, Sleep(0.02))
    advice = suggestion(before, plan, processors=PROCESSORS)
    assert advice.kind == "split_input"
    # The advice is for real sizes; this input is tiny, so that the size is one for it.
    smaller = JsonlReader(source, blocksize=6000, read_kwargs={"batch_bytes": 2000})
    after, _ = run(tmp_path / "after", smaller, Sleep(0.02))
    check_gain(advice, before, after)


def test_nothing_is_suggested_where_all_workers_work(tmp_path: Path) -> None:
    source = write_input(tmp_path / "in", files=16, documents=10)
    record, plan = run(tmp_path / "out", JsonlReader(source), Sleep(0.03))
    advice = suggestion(record, plan, processors=PROCESSORS)
    assert advice.kind == "nothing", advice
