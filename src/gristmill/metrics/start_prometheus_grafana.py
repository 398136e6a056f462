"""Starts the monitor from Python, under the name that existing scripts use."""

from __future__ import annotations

import os

from gristmill.metrics.monitor import GRAFANA_PORT, PROMETHEUS_PORT, Monitor, MonitorStatus
from gristmill.metrics.servers import is_free


def start_prometheus_grafana(
    prometheus_web_port: int = PROMETHEUS_PORT,
    grafana_web_port: int = GRAFANA_PORT,
    metrics_dir: str | os.PathLike[str] | None = None,
) -> MonitorStatus:
    """Start Prometheus, and Grafana if it is installed; both run until `gristmill monitor down`.

    Nothing is downloaded. Services that are already running are left alone, and a port in use is replaced by the next
    free one: the result has their URLs.

    Args:
        prometheus_web_port: The port of Prometheus.
        grafana_web_port: The port of Grafana.
        metrics_dir: Folder of configuration and data; by default this user's folder.

    Raises:
        UsageError: There is no Prometheus on this machine, or it does not start.

    Example:
        >>> print(start_prometheus_grafana())
    """
    monitor = Monitor(metrics_dir)
    running = monitor.status()
    wanted = {"prometheus_port": prometheus_web_port, "grafana_port": grafana_web_port}
    present = {"prometheus_port": running.prometheus, "grafana_port": running.grafana}
    ports = {key: port for key, port in wanted.items() if present[key] is None and is_free(port)}
    return monitor.up(**ports)
