"""Annotation on Ray's executors: the bytes of a run on one machine, and no answer paid for twice."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gristmill.backends.local import LocalExecutor
from gristmill.ledger.prove.verify import verify
from tests.integration.llm_job import pipeline
from tests.integration.trust_job import make_input
from tests.llm_server import Fault, model_server
from tests.outputs import contents_of

pytestmark = [pytest.mark.ray, pytest.mark.slow]
SCHEMA = {"properties": {"score": {"type": "integer"}}, "required": ["score"]}


def _run(source: Path, output: Path, executor: Any) -> tuple[dict[str, bytes], int]:
    """The files of a run that meets wrong answers and a busy server, and how many answers the server sent."""

    def grade(body: dict[str, Any]) -> str:
        return "no number" if len(body["messages"][0]["content"]) % 7 == 0 else '{"score": 3}'

    with model_server(
        reply=grade, faults=[Fault(status=429, headers={"Retry-After": "0.05"}), Fault(status=500)]
    ) as server:
        job = pipeline(source, output, server.url, json_schema=SCHEMA, max_concurrent_requests=4)
        job.run(executor, progress=False, error_budget=None)
        job.run(executor, progress=False, error_budget=None, fresh=True)
        answered = server.answered
    verify(output).raise_for_problems()
    found = contents_of(output)
    return {name: data for name, data in found.items() if "/answers/" not in name}, answered


def test_the_same_bytes(ray_cluster: str, tmp_path: Path) -> None:
    source = make_input(tmp_path / "in", files=3)
    expected = _run(source, tmp_path / "local", LocalExecutor({"num_cpus": 0}))
    assert any("quarantine/" in name for name in expected[0])
    for executor in ("ray_data", "xenna"):
        assert _run(source, tmp_path / executor, executor) == expected
