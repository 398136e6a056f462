"""A real Prometheus watches runs on every executor on Ray, and Ray itself."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from gristmill.ledger.record.layout import RunFolder
from gristmill.ledger.record.run_record import read_run
from gristmill.metrics import places
from gristmill.metrics.monitor import Monitor
from tests.integration.monitored import (
    FILES,
    ROWS,
    Prometheus,
    asked_expressions,
    make_pipeline,
    make_source,
    watched,
)

pytestmark = [pytest.mark.ray, pytest.mark.slow]


@pytest.fixture(scope="module")
def prometheus(ray_cluster: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    """One that knows the cluster; a cluster with its dashboard lists the places of its metrics itself."""
    import ray

    folder = tmp_path_factory.mktemp("ray")
    ports = [f"{node['NodeManagerAddress']}:{node['MetricsExportPort']}" for node in ray.nodes()]
    listed = [{"labels": {"job": "ray"}, "targets": ports}]
    (folder / places.RAY_DISCOVERY_FILE).write_text(json.dumps(listed))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))
        monitor = Monitor()
        monitor.watch_ray(folder)
        try:
            yield watched(monitor)
        finally:
            monitor.down()


@pytest.mark.parametrize("executor", ["ray_data", "xenna", pytest.param("ray_actor_pool", marks=pytest.mark.cluster)])
def test_runs_on_ray_are_watched(prometheus: Prometheus, tmp_path: Path, executor: str) -> None:
    if executor == "xenna":
        pytest.importorskip("cosmos_xenna")
    begun = time.time()
    source, output = make_source(tmp_path / "in"), tmp_path / "out"
    pipeline = make_pipeline(source, output, seconds=1.0)
    pipeline.run(executor, metrics_port=0, progress=False, ignore_failures=True, error_budget=10)
    # Ray tells its own figures now and then, and not for every run.
    prometheus.wait_for("last_over_time(ray_node_mem_used[5m])")
    asked = [(place, expression) for place, expression in asked_expressions() if "gpu_" not in expression]
    since = {place: begun - 300 * ("ray_" in expression) for place, expression in asked}
    assert not [place for place, expression in asked if not prometheus.over(expression, since[place])]
    record = read_run(RunFolder(str(output)))
    assert record is not None
    assert record["rows_read"] == FILES * ROWS
    assert record["history"]["seconds"]
    stages = {stage["stage"]: stage for stage in record["stages"]}
    assert stages["slow"]["peak_memory_bytes"] > 1 << 20
    assert stages["slow"]["workers"] >= 1
    # Stage by stage, the writer begins when everything is there, and may not wait at all.
    waited = sum(stages["jsonl_writer"][f"{why}_seconds"] for why in ("starved", "blocked"))
    assert waited > 0.5 or executor == "ray_actor_pool"


def test_ray_s_own_metrics_are_beside_them(prometheus: Prometheus) -> None:
    for name in ("ray_node_mem_used", "ray_node_mem_total", "ray_node_cpu_utilization"):
        assert prometheus.wait_for(f"last_over_time({name}[5m])"), name
