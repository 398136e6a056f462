"""A pipeline that is worth watching, and a real Prometheus to ask about it."""

from __future__ import annotations

import json
import sys
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cloudpickle

from gristmill.metrics.alerts import ALERTS
from gristmill.metrics.dashboards import DASHBOARDS
from gristmill.metrics.monitor import Monitor, MonitorStatus
from gristmill.pipeline import Pipeline
from gristmill.stages.base import ProcessingStage
from gristmill.stages.text.filters import ScoreFilter
from gristmill.stages.text.filters.heuristic import WordCountFilter
from gristmill.stages.text.io.reader import JsonlReader
from gristmill.stages.text.io.writer import JsonlWriter
from gristmill.tasks import DocumentBatch

# Workers cannot import this file; its stage is sent by value.
cloudpickle.register_pickle_by_value(sys.modules[__name__])

FILES = 16
ROWS = 40
INTERVAL_S = 0.5


class Steady(ProcessingStage[DocumentBatch, DocumentBatch]):
    """Takes its time beside the reader, so that the reader's workers are still there when Prometheus looks."""

    name = "steady"

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def inputs(self) -> tuple[list[str], list[str]]:
        return ["data"], ["text"]

    def outputs(self) -> tuple[list[str], list[str]]:
        return ["data"], ["text"]

    def process(self, task: DocumentBatch) -> DocumentBatch:
        time.sleep(self.seconds * task.num_items / ROWS)
        return task


class Slow(Steady):
    """Takes its time in workers of its own, and cannot bear some documents."""

    name = "slow"
    needs_own_worker = True

    def process(self, task: DocumentBatch) -> DocumentBatch:
        if any("unbearable" in text for text in task.to_pyarrow().column("text").to_pylist()):
            raise ValueError("unbearable")
        return super().process(task)


def make_source(folder: Path) -> Path:
    """Files with documents of which some are dropped and one is unbearable."""
    folder.mkdir()
    for number in range(FILES):
        rows = [{"id": f"{number}-{row}", "text": "some words " * (row % 8)} for row in range(ROWS)]
        rows[9]["text"] = "an unbearable text of many words " if number == 3 else rows[9]["text"]
        (folder / f"{number:02}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def make_pipeline(source: Path, output: Path, *, seconds: float = 0.5) -> Pipeline:
    """Reads, drops, takes its time and writes."""
    filters = ScoreFilter(WordCountFilter(min_words=4))
    reader = JsonlReader(str(source), files_per_partition=1)
    stages = [reader, filters, Steady(seconds), Slow(seconds), JsonlWriter(str(output))]
    return Pipeline("watched", stages=stages)


class Prometheus:
    """The Prometheus of a monitor, as one who asks it."""

    def __init__(self, status: MonitorStatus) -> None:
        assert status.prometheus is not None
        self._url = status.prometheus.url

    def get(self, path: str, **parameters: Any) -> Any:
        """The answer to a question of its API; fails where it says no."""
        url = f"{self._url}/api/v1/{path}?{urllib.parse.urlencode(parameters)}"
        with urllib.request.urlopen(url, timeout=30) as answer:
            told = json.load(answer)
        assert told["status"] == "success", told
        return told["data"]

    def now(self, expression: str) -> list[dict[str, Any]]:
        """The series of an expression now."""
        return list(self.get("query", query=expression)["result"])

    def over(self, expression: str, begun: float) -> list[dict[str, Any]]:
        """The series of an expression since `begun`."""
        until = time.time()
        found = self.get("query_range", query=expression, start=begun, end=until, step=INTERVAL_S)
        return list(found["result"])

    def wait_for(self, expression: str, *, seconds: float = 60.0) -> list[dict[str, Any]]:
        """The series of an expression as soon as there are some."""
        until = time.monotonic() + seconds
        while not (found := self.now(expression)):
            assert time.monotonic() < until, f"{expression} has no value after {seconds} s"
            time.sleep(0.2)
        return found


def asked_expressions() -> Iterator[tuple[str, str]]:
    """Every expression of panels and alerts, with where it is from, as Grafana would send it."""
    for title, panels in DASHBOARDS.values():
        for panel in panels:
            for expression, _ in panel.queries:
                # Grafana's interval for rates is four times the one between two looks.
                sent = expression.replace("$__rate_interval", f"{int(4 * INTERVAL_S)}s").replace("$run", ".+")
                yield f"{title}: {panel.title}", sent
    for alert in ALERTS:
        yield alert.name, alert.expression


def watched(monitor: Monitor) -> Prometheus:
    """The Prometheus of a monitor that looks often."""
    return Prometheus(monitor.up(interval_s=INTERVAL_S))
