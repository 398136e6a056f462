"""Reports on their way from a Xenna worker to the driver: some at once, none lost, none after the end."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("cosmos_xenna")

import ray.exceptions

from gristmill.backends.ray.allocation import Share
from gristmill.backends.ray.worker import WorkerReport
from gristmill.backends.xenna import pipeline as module
from gristmill.backends.xenna.pipeline import ReportQueue, SegmentStage
from gristmill.errors import WorkerError

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]


class _Reports:
    """The handle of a queue: reports are in transit until a caller waits for them."""

    def __init__(self) -> None:
        self.arrived: list[Any] = []
        self.sent: list[Any] = []
        self.closed = False
        self.put = SimpleNamespace(remote=self._send)

    def _send(self, report: WorkerReport) -> WorkerReport:
        self.sent.append(report)
        return report

    def get(self, report: WorkerReport) -> None:
        if self.closed:
            raise ray.exceptions.RayActorError
        self.arrived.append(report)


class _Worker:
    """Returns reports, and records its end."""

    def __init__(self, reports: list[WorkerReport]) -> None:
        self.reports = reports
        self.ended = False
        self.has_grown = False

    def run(self, tasks: Any, *, careful: bool) -> Any:
        yield from self.reports

    def end(self, cause: str) -> None:
        self.ended = True


@pytest.fixture
def reports(monkeypatch: pytest.MonkeyPatch) -> _Reports:
    found = _Reports()
    monkeypatch.setattr(module.ray, "get", found.get)
    return found


def _stage(reports: _Reports, given: list[WorkerReport], *, careful: bool = False) -> SegmentStage:
    spec: Any = None
    stage = SegmentStage(
        spec, reports, Share(1, 0, 1, 1), batch_size=1, setup_attempts=1, careful=careful, environment={}
    )
    stage._worker = _Worker(given)  # type: ignore[assignment]
    return stage


def test_a_worker_goes_on_while_reports_are_under_way_and_all_arrive(reports: _Reports) -> None:
    given = [WorkerReport() for _ in range(6)]
    stage = _stage(reports, given)
    assert stage.process_data([]) == []
    assert reports.sent == given
    assert len(reports.arrived) == 6 - module._REPORTS_AHEAD
    stage.end()
    assert reports.arrived == given


def test_an_error_has_arrived_when_the_call_returns(reports: _Reports) -> None:
    given = [WorkerReport(), WorkerReport(error=WorkerError("gone"))]
    _stage(reports, given).process_data([])
    assert reports.arrived == given


def test_a_careful_worker_waits_for_every_report(reports: _Reports) -> None:
    given = [WorkerReport(), WorkerReport()]
    _stage(reports, given, careful=True).process_data([])
    assert reports.arrived == given


def test_a_queue_that_is_gone_stops_the_worker_but_not_its_end(reports: _Reports) -> None:
    stage = _stage(reports, [WorkerReport()], careful=True)
    reports.closed = True
    with pytest.raises(ray.exceptions.RayActorError):
        stage.process_data([])
    stage._sent.append(WorkerReport())
    stage.end()
    assert stage._worker.ended  # type: ignore[union-attr]


def test_workers_wait_for_a_driver_that_is_slower(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_REPORTS", 2)

    async def run() -> list[int]:
        queue = ReportQueue()
        given = [WorkerReport() for _ in range(5)]
        puts = [asyncio.ensure_future(queue.put(report)) for report in given]
        await asyncio.sleep(0)
        waiting = sum(not put.done() for put in puts)
        taken: list[WorkerReport] = []
        while len(taken) < 5:
            taken.extend(await queue.take())
            await asyncio.sleep(0)
        await asyncio.gather(*puts)
        assert waiting == 3
        return [list(map(id, given)).index(id(report)) for report in taken]

    assert asyncio.run(run()) == [0, 1, 2, 3, 4]
