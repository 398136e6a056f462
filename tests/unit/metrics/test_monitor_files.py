"""The files for Grafana and Prometheus are what these two document; a real Prometheus tries the expressions."""

from __future__ import annotations

import configparser
import json
import re
import tempfile
from pathlib import Path
from typing import Any

import pytest
import yaml

from gristmill.metrics import places
from gristmill.metrics.alerts import ALERTS, DATASOURCE
from gristmill.metrics.configs import MonitorFiles

_PANEL_KEYS = {"id", "type", "title", "datasource", "gridPos", "fieldConfig", "options", "targets"}
_SOURCE = {"type": "prometheus", "uid": DATASOURCE}


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> MonitorFiles:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    files = MonitorFiles(places.monitor_folder())
    files.write_prometheus(interval_s=10, ray=[tmp_path / "ray"])
    files.write_grafana(port=3100, prometheus_port=9100, interval_s=10)
    files.write_compose(port=9100, grafana_port=3100)
    return files


def _yaml(path: Path) -> Any:
    return yaml.safe_load(path.read_text(encoding="utf-8"))


def test_dashboards_follow_the_model(files: MonitorFiles) -> None:
    """Grafana's dashboard JSON model: https://grafana.com/docs/grafana/latest/dashboards/build-dashboards/."""
    found = sorted((files.grafana / "dashboards").glob("*.json"))
    assert len(found) == 2
    for path in found:
        board = json.loads(path.read_text())
        assert board["id"] is None, "a number is given by Grafana"
        assert re.fullmatch(r"[a-zA-Z0-9_-]{1,40}", board["uid"])
        assert board["uid"] == path.stem
        assert isinstance(board["schemaVersion"], int)
        assert board["schemaVersion"] >= 36, "with data sources as objects"
        assert set(board["time"]) == {"from", "to"}
        assert isinstance(board["annotations"]["list"], list)
        for variable in board["templating"]["list"]:
            assert {"name", "type", "datasource", "query", "refresh"} <= set(variable)
            assert variable["datasource"] == _SOURCE
        _check_panels(board["panels"], {variable["name"] for variable in board["templating"]["list"]})


def _check_panels(panels: list[dict[str, Any]], variables: set[str]) -> None:
    assert len({panel["id"] for panel in panels}) == len(panels)
    assert len({panel["title"] for panel in panels}) == len(panels)
    taken: set[tuple[int, int]] = set()
    for panel in panels:
        assert set(panel) == _PANEL_KEYS
        assert panel["type"] in {"timeseries", "stat"}
        assert panel["datasource"] == _SOURCE
        assert set(panel["fieldConfig"]) == {"defaults", "overrides"}
        place = panel["gridPos"]
        assert set(place) == {"h", "w", "x", "y"}
        assert place["x"] + place["w"] <= 24
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken, f"{panel['title']} lies on another panel"
        taken |= cells
        names = [target["refId"] for target in panel["targets"]]
        assert names == sorted(set(names))
        for target in panel["targets"]:
            assert target["datasource"] == _SOURCE
            assert target["expr"]
            used = set(re.findall(r"\$(\w+)", target["expr"]))
            assert used <= variables | {"__rate_interval"}


def test_provisioning_follows_the_model(files: MonitorFiles) -> None:
    """Grafana's provisioning files: https://grafana.com/docs/grafana/latest/administration/provisioning/."""
    folder = files.grafana / "provisioning"
    sources = _yaml(folder / "datasources" / "gristmill.yml")
    assert sources["apiVersion"] == 1
    (source,) = sources["datasources"]
    assert (source["uid"], source["type"], source["url"]) == (DATASOURCE, "prometheus", "http://127.0.0.1:9100")
    (provider,) = _yaml(folder / "dashboards" / "gristmill.yml")["providers"]
    assert provider["type"] == "file"
    assert Path(provider["options"]["path"]).is_dir()
    (group,) = _yaml(folder / "alerting" / "gristmill.yml")["groups"]
    assert {"orgId", "name", "folder", "interval", "rules"} == set(group)
    assert len({rule["uid"] for rule in group["rules"]}) == len(ALERTS)
    for rule, alert in zip(group["rules"], ALERTS, strict=True):
        asked, compared = rule["data"]
        assert rule["condition"] == compared["refId"]
        assert asked["datasourceUid"] == DATASOURCE
        assert asked["model"]["expr"] == alert.expression
        assert compared["datasourceUid"] == "__expr__"
        assert compared["model"]["expression"] == asked["refId"]
        assert compared["model"]["conditions"][0]["evaluator"] == {"type": "gt", "params": [alert.limit]}


def test_the_alerts_that_are_promised() -> None:
    limits = {alert.name: alert.limit for alert in ALERTS}
    assert limits["GristmillMemoryHigh"] == 0.9
    assert limits["GristmillGpuMemoryHigh"] == 0.9
    assert limits["GristmillNoProgress"] == 300
    assert limits["GristmillErrorRate"] == 0.01


def test_nothing_is_reachable_from_elsewhere(files: MonitorFiles) -> None:
    ini = configparser.ConfigParser()
    ini.read(files.grafana_ini)
    assert ini["server"]["http_addr"] == "127.0.0.1"
    assert ini["auth.anonymous"]["org_role"] == "Viewer"
    assert ini["security"]["disable_initial_admin_creation"] == "true"
    assert "--web.listen-address=127.0.0.1:9100" in files.prometheus_options(9100)
    services = _yaml(files.compose)["services"]
    assert files.prometheus_options(9100) == services["prometheus"]["command"]
    assert not any("ports" in service for service in services.values())
    for folder in (files.folder, files.data, files.grafana, places.targets_folder()):
        assert folder.stat().st_mode & 0o777 == 0o700


def test_prometheus_finds_runs_and_ray(files: MonitorFiles, tmp_path: Path) -> None:
    config = _yaml(files.prometheus)
    jobs = {job["job_name"]: job["file_sd_configs"][0]["files"] for job in config["scrape_configs"]}
    assert jobs["gristmill"] == [f"{places.targets_folder()}/run-*.json"]
    assert f"{tmp_path}/ray/{places.RAY_DISCOVERY_FILE}" in jobs["ray"]
    assert "/tmp/ray/prom_metrics_service_discovery.json" in jobs["ray"]


def test_clusters_that_gristmill_starts_are_among_those_that_are_watched() -> None:
    cluster = pytest.importorskip("gristmill.backends.ray.cluster")
    assert Path(cluster.short_temp_dir()) in places.ray_folders()


def test_ray_s_file_is_called_as_ray_calls_it() -> None:
    constants = pytest.importorskip("ray._private.ray_constants")
    assert constants.PROMETHEUS_SERVICE_DISCOVERY_FILE == places.RAY_DISCOVERY_FILE


def test_ray_s_folder_may_be_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_TMPDIR", "/scratch")
    assert Path("/scratch/ray") in places.ray_folders()
    assert any(str(folder).startswith(tempfile.gettempdir()) for folder in places.ray_folders())
