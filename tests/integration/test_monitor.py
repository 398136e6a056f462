"""A real Prometheus watches real runs on this machine; where there is none, these tests fail."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from gristmill.backends.local import LocalExecutor
from gristmill.cli.main import cli
from gristmill.errors import UsageError
from gristmill.ledger.record.layout import RunFolder
from gristmill.ledger.record.run_record import read_run
from gristmill.metrics import places, utils
from gristmill.metrics.alerts import ALERTS
from gristmill.metrics.families import shown_names
from gristmill.metrics.monitor import Monitor
from gristmill.metrics.start_prometheus_grafana import start_prometheus_grafana
from gristmill.pipeline import Pipeline
from tests.integration.monitored import (
    FILES,
    INTERVAL_S,
    ROWS,
    Prometheus,
    asked_expressions,
    make_pipeline,
    make_source,
    watched,
)

ROOT = Path(__file__).resolve().parents[2]
OF_RAY = {"ray_node_mem_used", "ray_node_mem_total", "ray_node_cpu_utilization"}
OF_GPUS = {"ray_node_gram_used", "ray_node_gram_available"}


@pytest.fixture(scope="module")
def state(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The state of a user of their own."""
    with pytest.MonkeyPatch.context() as patch:
        folder = tmp_path_factory.mktemp("state")
        patch.setenv("XDG_STATE_HOME", str(folder))
        yield folder


@pytest.fixture(scope="module")
def prometheus(state: Path) -> Iterator[Prometheus]:
    monitor = Monitor()
    try:
        yield watched(monitor)
    finally:
        monitor.down()


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_source(tmp_path_factory.mktemp("watched") / "in")


def _run(pipeline: Pipeline, cpus: int) -> None:
    executor = LocalExecutor(config={"num_cpus": cpus})
    pipeline.run(executor, metrics_port=0, progress=False, ignore_failures=True, error_budget=10)


def test_every_panel_and_every_alert_has_something_to_show(
    prometheus: Prometheus, source: Path, tmp_path: Path
) -> None:
    begun = time.time()
    # Prometheus tells its own parts of a new target up to five seconds later.
    _run(make_pipeline(source, tmp_path / "out", seconds=1.5), 2)
    empty = []
    for place, expression in asked_expressions():
        found = prometheus.over(expression, begun)
        if not found and not ({"ray_", "gpu_"} & set(re.findall(r"ray_|gpu_", expression))):
            empty.append(f"{place}: {expression}")
        for series in found:
            assert series["values"]
    assert not empty
    # The figures are those of the run.
    record = read_run(RunFolder(str(tmp_path / "out")))
    assert record is not None
    read = prometheus.over("gristmill_documents_read_total", begun)
    assert 0 < float(read[0]["values"][-1][1]) <= record["rows_read"] == FILES * ROWS
    memory = prometheus.over("max(gristmill_memory_bytes)", begun)[0]["values"]
    assert max(float(value) for _, value in memory) <= record["peak_memory_bytes"]
    for segment in ("slow", "jsonl_reader+WordCountFilter+steady"):
        held = prometheus.over(f'gristmill_worker_memory_bytes{{segment="{segment}"}}', begun)
        assert held, f"no worker of {segment} in {prometheus.over('gristmill_worker_memory_bytes', begun)}"
        assert max(float(value) for one in held for _, value in one["values"]) > 1 << 20
    waited = prometheus.over("sum by (segment) (gristmill_worker_starved_seconds_total)", begun)
    assert {one["metric"]["segment"] for one in waited} >= {"slow"}
    assert prometheus.now("gristmill_run_info") == [], "it is listed no more, so that nobody asks a port that is gone"


def test_a_run_in_one_process_is_watched_too(prometheus: Prometheus, source: Path, tmp_path: Path) -> None:
    begun = time.time()
    _run(make_pipeline(source, tmp_path / "out", seconds=0.4), 0)
    for name in ("documents_read_total", "stage_latency_seconds_bucket", "tasks_total", "dropped_total", "workers"):
        assert prometheus.over(f"gristmill_{name}", begun), name


def test_expressions_use_metrics_that_there_are() -> None:
    known = shown_names() | OF_RAY | OF_GPUS
    for place, expression in asked_expressions():
        named = set(re.findall(r"\b(?:gristmill|ray)_\w+", expression))
        assert named <= known, place
        assert named or "up{" in expression, place


def test_alerts_are_loaded_and_can_be_evaluated(prometheus: Prometheus) -> None:
    prometheus.wait_for("ALERTS or vector(1)")
    (group,) = prometheus.get("rules")["groups"]
    until = time.monotonic() + 30
    while any(rule["health"] == "unknown" for rule in group["rules"]) and time.monotonic() < until:
        time.sleep(INTERVAL_S)
        (group,) = prometheus.get("rules")["groups"]
    assert {rule["name"]: rule["health"] for rule in group["rules"]} == {alert.name: "ok" for alert in ALERTS}
    assert len(ALERTS) >= 4


_KILLED = """
import sys
from pathlib import Path
from gristmill.backends.local import LocalExecutor
from tests.integration.monitored import make_pipeline

if __name__ == "__main__":
    pipeline = make_pipeline(Path(sys.argv[1]), Path(sys.argv[2]), seconds=2.0)
    pipeline.run(LocalExecutor(config={"num_cpus": 2}), metrics_port=0, progress=False, ignore_failures=True)
"""


def test_the_history_survives_a_killed_run(prometheus: Prometheus, source: Path, tmp_path: Path) -> None:
    begun = time.time()
    script = tmp_path / "killed.py"
    script.write_text(textwrap.dedent(_KILLED))
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'src'}"}
    output = tmp_path / "out"
    with subprocess.Popen([sys.executable, str(script), str(source), str(output)], env=environment) as run:
        try:
            prometheus.wait_for("gristmill_documents_read_total > 0")
            until = time.monotonic() + 60
            while time.monotonic() < until and not _recorded_points(output):
                assert run.poll() is None
                time.sleep(0.2)
        finally:
            os.kill(run.pid, signal.SIGKILL)
    assert _recorded_points(output), "run.json tells how the run went until it was killed"
    gone = prometheus.wait_for('up{job="gristmill"} == 0')
    assert len(gone) == 1
    prometheus.wait_for('ALERTS{alertname="GristmillRunGone"}')
    monitor = Monitor()
    assert monitor.status().targets == (), "a killed run is struck off the list"
    before = prometheus.over("gristmill_documents_read_total", begun)
    assert before
    # Nor is it lost when Prometheus is stopped.
    monitor.down()
    again = watched(monitor)
    assert again.over("gristmill_documents_read_total", begun)[0]["values"][0] == before[0]["values"][0]
    prometheus._url = again._url


def _recorded_points(output: Path) -> list[float]:
    record = read_run(RunFolder(str(output))) if output.exists() else None
    return [] if record is None else list(record["history"]["seconds"])


def test_two_users_do_not_collide(prometheus: Prometheus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = Monitor().status()
    assert first.prometheus is not None
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    other = Monitor()
    try:
        status = other.up(interval_s=INTERVAL_S)
        assert status.prometheus is not None
        assert status.prometheus.port != first.prometheus.port
        assert other.up().prometheus == status.prometheus, "what runs is left as it is"
        with pytest.raises(UsageError, match=f"is already running on port {status.prometheus.port}"):
            other.up(prometheus_port=status.prometheus.port + 1)
    finally:
        assert other.down() == ["prometheus"]
    assert other.down() == []
    assert first.prometheus.runs
    assert prometheus.now("vector(1)")


def test_only_what_was_started_is_stopped(tmp_path: Path) -> None:
    """A number that another process has got since is not that of the server."""
    monitor = Monitor(tmp_path)
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as other:
        state = {"prometheus": {"pid": other.pid, "started": 1, "port": 9}, "grafana": "nonsense"}
        (tmp_path / "servers.json").write_text(json.dumps(state))
        assert monitor.down() == []
        assert monitor.status().prometheus is None
        assert other.poll() is None
        other.communicate(b"\n")


def test_a_port_in_use_is_one_sentence(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(UsageError, match=f"^Port {port} is already in use. Choose another one with --port"):
            Monitor(tmp_path).up(prometheus_port=port)


def test_without_prometheus_the_files_and_the_way_to_get_it_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monitor = Monitor(tmp_path / "monitor")
    with pytest.raises(UsageError) as caught:
        monitor.up()
    message = str(caught.value)
    assert "apt install prometheus" in message
    assert str(monitor.files.prometheus) in message
    assert monitor.files.prometheus.is_file()
    assert str(monitor.files.compose) in message
    services = yaml.safe_load(monitor.files.compose.read_text())["services"]
    assert {name: service["network_mode"] for name, service in services.items()} == {
        "prometheus": "host",
        "grafana": "host",
    }
    assert all("--web.listen-address=127.0.0.1:" in " ".join(services["prometheus"]["command"]) for _ in "x")


def test_a_server_that_does_not_start_tells_why(state: Path, tmp_path: Path) -> None:
    broken = tmp_path / "bin"
    broken.mkdir()
    (broken / "prometheus").write_text("#!/bin/sh\necho 'no such luck' >&2\nexit 3\n")
    (broken / "prometheus").chmod(0o755)
    with pytest.raises(UsageError, match=r"Prometheus exited immediately[\s\S]*no such luck"):
        utils.run_prometheus(broken, 19_999, tmp_path / "monitor")
    assert not utils.is_prometheus_running(tmp_path / "monitor")


def test_the_names_that_scripts_know(state: Path, tmp_path: Path) -> None:
    folder = tmp_path / "monitor"
    with socket.create_server(("127.0.0.1", 0)) as taken:
        status = start_prometheus_grafana(taken.getsockname()[1], taken.getsockname()[1], folder)
    try:
        assert status.prometheus is not None
        assert utils.is_prometheus_running(folder)
        assert utils.get_prometheus_port(folder) == status.prometheus.port != taken
        utils.add_ray_prometheus_metrics_service_discovery(tmp_path / "ray", folder)
        assert f"{tmp_path}/ray/{places.RAY_DISCOVERY_FILE}" in (folder / "prometheus.yml").read_text()
        utils.remove_ray_prometheus_metrics_service_discovery(tmp_path / "ray", folder)
        assert str(tmp_path / "ray") not in (folder / "prometheus.yml").read_text()
        assert Path(utils.write_grafana_configs(3999, status.prometheus.port, folder)).is_file()
        assert not utils.is_grafana_running(folder)
    finally:
        Monitor(folder).down()
    assert not utils.is_prometheus_running(folder)
    with pytest.raises(UsageError, match="is not running"):
        utils.get_prometheus_port(folder)


def test_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    assert _command("status")[0] == 1
    try:
        code, told = _command("up", "--json")
        assert code == 0
        assert told["prometheus"]["url"].startswith("http://127.0.0.1:")
        assert _command("status") == (0, told)
    finally:
        assert _command("down") == (0, {"stopped": ["prometheus"]})
    assert "Nothing was running." in CliRunner().invoke(cli, ["monitor", "down"]).output
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "file"))
    done = CliRunner().invoke(cli, ["monitor", "up"])
    assert done.exit_code == 1
    assert "cannot be written: Not a directory. Set XDG_STATE_HOME" in done.output


def _command(*arguments: str) -> tuple[int, Any]:
    more = [] if "--json" in arguments else ["--json"]
    done = CliRunner().invoke(cli, ["monitor", *arguments, *more], catch_exceptions=False)
    return done.exit_code, json.loads(done.stdout)
