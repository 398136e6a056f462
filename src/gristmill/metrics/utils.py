"""Parts of the monitor under the names that existing scripts use.

Nothing here downloads anything: install Prometheus and Grafana from the system's packages or their websites.
"""

from __future__ import annotations

import os

from gristmill.errors import UsageError
from gristmill.metrics.monitor import INTERVAL_S, Monitor

Folder = str | os.PathLike[str] | None


def is_prometheus_running(metrics_dir: Folder = None) -> bool:
    """Whether the Prometheus of a monitor runs."""
    return Monitor(metrics_dir).status().prometheus is not None


def is_grafana_running(metrics_dir: Folder = None) -> bool:
    """Whether the Grafana of a monitor runs."""
    return Monitor(metrics_dir).status().grafana is not None


def get_prometheus_port(metrics_dir: Folder = None) -> int:
    """The port of the Prometheus of a monitor.

    Raises:
        UsageError: It does not run.
    """
    server = Monitor(metrics_dir).status().prometheus
    if server is None:
        raise UsageError(
            "Prometheus is not running. Start it with start_prometheus_grafana(), or gristmill monitor up."
        )
    return server.port


def run_prometheus(
    prometheus_dir: str | os.PathLike[str], prometheus_web_port: int, metrics_dir: Folder = None
) -> None:
    """Start the Prometheus whose program is in `prometheus_dir`.

    Raises:
        UsageError: There is none, or it does not start.
    """
    monitor = Monitor(metrics_dir)
    monitor.files.write_prometheus(interval_s=INTERVAL_S)
    monitor.note_server("prometheus", monitor.start_prometheus(prometheus_web_port, prometheus_dir))


def launch_grafana(
    grafana_dir: str | os.PathLike[str],
    grafana_ini_path: str | os.PathLike[str],
    grafana_web_port: int,
    metrics_dir: Folder = None,
) -> None:
    """Start the Grafana that is installed in `grafana_dir`.

    Raises:
        UsageError: There is none, or it does not start.
    """
    monitor = Monitor(metrics_dir)
    monitor.note_server("grafana", monitor.start_grafana(grafana_web_port, grafana_dir, grafana_ini_path))


def write_grafana_configs(grafana_web_port: int, prometheus_web_port: int, metrics_dir: Folder = None) -> str:
    """Write Grafana's configuration, data source, dashboards and alerts; returns the path of its `grafana.ini`."""
    files = Monitor(metrics_dir).files
    files.write_grafana(port=grafana_web_port, prometheus_port=prometheus_web_port, interval_s=INTERVAL_S)
    return str(files.grafana_ini)


def add_ray_prometheus_metrics_service_discovery(
    ray_temp_dir: str | os.PathLike[str], metrics_dir: Folder = None
) -> None:
    """Also monitor the Ray cluster with this temporary folder; those in the default places are always monitored."""
    Monitor(metrics_dir).watch_ray(ray_temp_dir)


def remove_ray_prometheus_metrics_service_discovery(
    ray_temp_dir: str | os.PathLike[str], metrics_dir: Folder = None
) -> None:
    """Stop monitoring the Ray cluster with this temporary folder."""
    Monitor(metrics_dir).watch_ray(ray_temp_dir, watch=False)
