"""The dashboards of Grafana: what each panel shows, and the panels as Grafana reads them."""

from __future__ import annotations

from typing import Any, NamedTuple

from gristmill.metrics.alerts import DATASOURCE

_SCHEMA = 39
_WIDTH = 24
_BUSY = ', mode="busy"'
_SOURCE = {"type": "prometheus", "uid": DATASOURCE}


class Panel(NamedTuple):
    """A panel: its title, the unit of its values, and its queries with their legends."""

    title: str
    unit: str
    queries: tuple[tuple[str, str], ...]
    kind: str = "timeseries"
    width: int = 12
    height: int = 8


def _of(name: str, more: str = "") -> str:
    """A metric of the chosen runs."""
    return f'gristmill_{name}{{run=~"$run"{more}}}'


def _rate(name: str, by: str, more: str = "") -> str:
    return f"sum by ({by}) (rate({_of(f'{name}_total', more)}[$__rate_interval]))"


def _quantile(share: float) -> str:
    buckets = f"rate({_of('stage_latency_seconds_bucket')}[$__rate_interval])"
    return f"histogram_quantile({share:g}, sum by (le, stage) ({buckets}))"


RUN_PANELS = (
    Panel("State", "none", ((f"{_of('run_status')} == 1", "{{run}}: {{status}}"),), "stat", 6, 4),
    Panel(
        "Partitions done",
        "percentunit",
        ((f"{_of('partitions_done')} / ({_of('partitions')} > 0)", "{{run}}"),),
        "stat",
        6,
        4,
    ),
    Panel("Documents read", "short", ((_of("documents_read_total"), "{{run}}"),), "stat", 6, 4),
    Panel("Documents written", "short", ((_of("documents_written_total"), "{{run}}"),), "stat", 6, 4),
    Panel(
        "Documents per second",
        "short",
        (
            (_rate("documents_read", "run"), "read by {{run}}"),
            (_rate("documents_written", "run"), "written by {{run}}"),
        ),
    ),
    Panel("Documents per second into each stage", "short", ((_rate("stage_documents_in", "stage"), "{{stage}}"),)),
    Panel("Bytes per second out of each stage", "Bps", ((_rate("stage_bytes_out", "stage"), "{{stage}}"),)),
    Panel("Tasks per second", "short", ((_rate("tasks", "segment"), "{{segment}}"),)),
    Panel(
        "Duration of a call",
        "s",
        ((_quantile(0.5), "{{stage}}: half are faster"), (_quantile(0.95), "{{stage}}: 95 % are faster")),
    ),
    Panel("Workers busy in each stage", "short", ((_rate("stage_busy_seconds", "stage"), "{{stage}}"),)),
    Panel("Dropped per second", "short", ((_rate("dropped", "stage, reason"), "{{stage}}: {{reason}}"),)),
    Panel("Quarantined", "short", ((f"sum by (stage, cause) ({_of('quarantined_total')})", "{{stage}}: {{cause}}"),)),
    Panel(
        "Failures, retries, crashes, recycles",
        "short",
        tuple(
            (f"sum by (run) ({_of(f'{name}_total')})", f"{name.removeprefix('worker_')} of {{{{run}}}}")
            for name in ("failures", "retries", "worker_crashes", "worker_recycles")
        ),
    ),
    Panel("Seconds since the last finished task", "s", ((f"time() - {_of('last_progress_time_seconds')}", "{{run}}"),)),
)

RESOURCE_PANELS = (
    Panel(
        "Memory of the run",
        "bytes",
        ((_of("memory_bytes"), "{{run}}"), (_of("shared_bytes"), "{{run}}: between workers")),
    ),
    Panel(
        "Memory of the machine",
        "bytes",
        (
            (f"max({_of('machine_memory_bytes')})", "there is"),
            (f"min({_of('machine_memory_available_bytes')})", "available"),
        ),
    ),
    Panel("Memory of workers", "bytes", ((_of("worker_memory_bytes"), "{{segment}} {{worker}}"),), width=24),
    Panel("Workers", "short", ((_of("workers"), "{{segment}}"), (_of("workers_busy"), "{{segment}}: busy"))),
    Panel(
        "Worker activity",
        "short",
        tuple(
            (_rate(f"worker_{what}_seconds", "segment"), f"{{{{segment}}}}: {what}")
            for what in ("busy", "starved", "blocked", "starting")
        ),
    ),
    Panel("Queued tasks", "short", ((_of("queue_tasks"), "{{segment}}"),)),
    Panel("Queued bytes", "bytes", ((_of("queue_bytes"), "{{segment}}"),)),
    Panel(
        "Processors",
        "percentunit",
        ((f"max({_rate('machine_cpu_seconds', 'run', _BUSY)} / {_rate('machine_cpu_seconds', 'run')})", "busy"),),
    ),
    Panel(
        "Memory of GPUs",
        "percentunit",
        ((f"max by (gpu) ({_of('gpu_memory_used_bytes')} / {_of('gpu_memory_total_bytes')})", "GPU {{gpu}}"),),
    ),
    Panel("GPUs", "percentunit", ((f"max by (gpu) ({_of('gpu_utilisation_ratio')})", "GPU {{gpu}}"),)),
    Panel(
        "Ray: memory of nodes",
        "bytes",
        (("ray_node_mem_used", "{{instance}}: used"), ("ray_node_mem_total", "{{instance}}: there is")),
    ),
    Panel("Ray: processors of nodes", "percent", (("ray_node_cpu_utilization", "{{instance}}"),)),
)

DASHBOARDS = {
    "gristmill-run": ("Gristmill: runs", RUN_PANELS),
    "gristmill-resources": ("Gristmill: workers, memory, GPUs", RESOURCE_PANELS),
}
"""Title and panels by uid."""


def dashboard(uid: str) -> dict[str, Any]:
    """A dashboard as the JSON that Grafana reads."""
    title, panels = DASHBOARDS[uid]
    return {
        "id": None,
        "uid": uid,
        "title": title,
        "tags": ["gristmill"],
        "timezone": "browser",
        "editable": True,
        "graphTooltip": 1,
        "schemaVersion": _SCHEMA,
        "version": 1,
        "refresh": "10s",
        "time": {"from": "now-30m", "to": "now"},
        "annotations": {"list": []},
        "links": [],
        "templating": {"list": [_run_variable()]},
        "panels": _placed(panels),
    }


def _run_variable() -> dict[str, Any]:
    query = "label_values(gristmill_run_info, run)"
    return {
        "name": "run",
        "label": "Run",
        "type": "query",
        "datasource": _SOURCE,
        "query": {"query": query, "refId": "runs"},
        "definition": query,
        "refresh": 2,  # whenever the time range changes
        "sort": 2,
        "multi": True,
        "includeAll": True,
        "allValue": ".+",
        "current": {"text": ["All"], "value": ["$__all"]},
        "options": [],
    }


def _placed(panels: tuple[Panel, ...]) -> list[dict[str, Any]]:
    """Panels from left to right, in rows."""
    placed, x, y, row_height = [], 0, 0, 0
    for number, panel in enumerate(panels, 1):
        if x + panel.width > _WIDTH:
            x, y, row_height = 0, y + row_height, 0
        placed.append(_panel(number, panel, x, y))
        x, row_height = x + panel.width, max(row_height, panel.height)
    return placed


def _panel(number: int, panel: Panel, x: int, y: int) -> dict[str, Any]:
    targets = [
        {"refId": chr(ord("A") + place), "datasource": _SOURCE, "expr": expression, "legendFormat": legend}
        for place, (expression, legend) in enumerate(panel.queries)
    ]
    stat = {"reduceOptions": {"calcs": ["lastNotNull"], "values": False}, "textMode": "value_and_name"}
    series = {"legend": {"displayMode": "list", "placement": "bottom"}, "tooltip": {"mode": "multi"}}
    return {
        "id": number,
        "type": panel.kind,
        "title": panel.title,
        "datasource": _SOURCE,
        "gridPos": {"h": panel.height, "w": panel.width, "x": x, "y": y},
        "fieldConfig": {"defaults": {"unit": panel.unit, "min": 0}, "overrides": []},
        "options": stat if panel.kind == "stat" else series,
        "targets": targets,
    }
