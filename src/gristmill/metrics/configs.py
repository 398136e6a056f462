"""The files that Prometheus, Grafana and Docker need to watch the runs of a user."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from gristmill.metrics.alerts import DATASOURCE, grafana_rules, prometheus_rules
from gristmill.metrics.dashboards import DASHBOARDS, dashboard
from gristmill.metrics.places import JOB, RAY_DISCOVERY_FILE, make_private, ray_folders, targets_folder
from gristmill.storage.atomic import write_bytes_atomic

ADDRESS = "127.0.0.1"
RETENTION = "30d"
"""How long Prometheus keeps its data."""
_REFRESH = "5s"
_PROMETHEUS_IMAGE = "prom/prometheus:v2.55.1"
_GRAFANA_IMAGE = "grafana/grafana:11.4.0"


@dataclass(frozen=True)
class MonitorFiles:
    """The files of a monitor below its folder."""

    folder: Path

    @property
    def prometheus(self) -> Path:
        """Prometheus' configuration."""
        return self.folder / "prometheus.yml"

    @property
    def rules(self) -> Path:
        """Prometheus' alert rules."""
        return self.folder / "alerts.yml"

    @property
    def data(self) -> Path:
        """Prometheus' data."""
        return self.folder / "data"

    @property
    def grafana(self) -> Path:
        """Grafana's folder."""
        return self.folder / "grafana"

    @property
    def grafana_ini(self) -> Path:
        """Grafana's configuration."""
        return self.grafana / "grafana.ini"

    @property
    def compose(self) -> Path:
        """The Compose file for both."""
        return self.folder / "compose.yaml"

    def prometheus_options(self, port: int) -> list[str]:
        """The command line of Prometheus."""
        return [
            f"--config.file={self.prometheus}",
            f"--storage.tsdb.path={self.data}",
            f"--storage.tsdb.retention.time={RETENTION}",
            f"--web.listen-address={ADDRESS}:{port}",
        ]

    def write_prometheus(self, *, interval_s: float, ray: Iterable[str | os.PathLike[str]] = ()) -> None:
        """Write Prometheus' configuration and its alert rules.

        Args:
            interval_s: Seconds between two scrapes of a run.
            ray: Further temporary folders of Ray clusters to watch.
        """
        make_private(self.folder)
        make_private(self.data)
        make_private(targets_folder())
        folders = dict.fromkeys([*ray_folders(), *map(Path, ray)])
        interval = f"{max(1, round(interval_s * 1000))}ms"
        config = {
            "global": {"scrape_interval": interval, "scrape_timeout": interval, "evaluation_interval": interval},
            "rule_files": [str(self.rules)],
            "scrape_configs": [
                _watched(JOB, [str(targets_folder() / "run-*.json")]),
                _watched("ray", [str(folder / RAY_DISCOVERY_FILE) for folder in folders]),
            ],
        }
        _write_yaml(self.rules, prometheus_rules())
        _write_yaml(self.prometheus, config)

    def write_grafana(self, *, port: int, prometheus_port: int, interval_s: float) -> None:
        """Write Grafana's configuration, and its provisioning: data source, dashboards, alerts."""
        make_private(self.folder)
        make_private(self.grafana)
        provisioning, dashboards = self.grafana / "provisioning", self.grafana / "dashboards"
        for folder in (dashboards, *(provisioning / name for name in ("datasources", "dashboards", "alerting"))):
            folder.mkdir(parents=True, exist_ok=True)
        source = {
            "name": "Gristmill",
            "uid": DATASOURCE,
            "type": "prometheus",
            "access": "proxy",
            "url": f"http://{ADDRESS}:{prometheus_port}",
            "isDefault": True,
            "editable": False,
            "jsonData": {"timeInterval": f"{max(1, round(interval_s))}s"},
        }
        provider = {
            "name": "gristmill",
            "folder": "Gristmill",
            "type": "file",
            "allowUiUpdates": True,
            "options": {"path": str(dashboards)},
        }
        _write_yaml(provisioning / "datasources" / "gristmill.yml", {"apiVersion": 1, "datasources": [source]})
        _write_yaml(provisioning / "dashboards" / "gristmill.yml", {"apiVersion": 1, "providers": [provider]})
        _write_yaml(provisioning / "alerting" / "gristmill.yml", grafana_rules())
        for uid in DASHBOARDS:
            text = json.dumps(dashboard(uid), indent=2) + "\n"
            write_bytes_atomic(str(dashboards / f"{uid}.json"), text.encode())
        write_bytes_atomic(str(self.grafana_ini), self._ini(port).encode())

    def _ini(self, port: int) -> str:
        # Anyone who can reach the port has read-only access: there is no administrator with a known password.
        return f"""[server]
http_addr = {ADDRESS}
http_port = {port}

[paths]
data = {self.grafana / "data"}
logs = {self.grafana / "logs"}
plugins = {self.grafana / "plugins"}
provisioning = {self.grafana / "provisioning"}

[dashboards]
default_home_dashboard_path = {self.grafana / "dashboards" / "gristmill-run.json"}

[auth.anonymous]
enabled = true
org_role = Viewer

[auth]
disable_login_form = true

[security]
disable_initial_admin_creation = true

[analytics]
reporting_enabled = false
check_for_updates = false
check_for_plugin_updates = false
"""

    def write_compose(self, *, port: int, grafana_port: int) -> None:
        """Write a file for `docker compose` that starts both on the host's network, where the runs are."""
        user = f"{os.getuid()}:{os.getgid()}"
        targets, folder = targets_folder(), self.folder
        places = [f"{place}:{place}:ro" for place in ray_folders()]
        services = {
            "prometheus": {
                "image": _PROMETHEUS_IMAGE,
                "network_mode": "host",
                "user": user,
                "restart": "unless-stopped",
                "volumes": [f"{folder}:{folder}", f"{targets}:{targets}:ro", *places],
                "command": self.prometheus_options(port),
            },
            "grafana": {
                "image": _GRAFANA_IMAGE,
                "network_mode": "host",
                "user": user,
                "restart": "unless-stopped",
                "volumes": [f"{self.grafana}:{self.grafana}"],
                "environment": {"GF_PATHS_CONFIG": str(self.grafana_ini)},
            },
        }
        _write_yaml(self.compose, {"name": "gristmill-monitor", "services": services})


def _watched(job: str, files: list[str]) -> dict[str, Any]:
    return {"job_name": job, "file_sd_configs": [{"files": files, "refresh_interval": _REFRESH}]}


def _write_yaml(path: Path, value: dict[str, Any]) -> None:
    text = yaml.safe_dump(value, sort_keys=False, allow_unicode=True, width=120)
    write_bytes_atomic(str(path), text.encode())
