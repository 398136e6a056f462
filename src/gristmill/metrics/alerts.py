"""Alert rules, the same for Prometheus and Grafana."""

from __future__ import annotations

from typing import Any, NamedTuple

DATASOURCE = "gristmill-prometheus"
"""The uid of the data source in Grafana."""


class Alert(NamedTuple):
    """A rule: `expression` has been above `limit` for `pending`."""

    name: str
    expression: str
    limit: float
    pending: str
    summary: str

    @property
    def condition(self) -> str:
        """The rule in Prometheus' format."""
        return f"({self.expression}) > {self.limit:g}"


ALERTS = (
    Alert(
        "GristmillMemoryHigh",
        "max(1 - gristmill_machine_memory_available_bytes / gristmill_machine_memory_bytes)"
        " or ray_node_mem_used / ray_node_mem_total",
        0.9,
        "1m",
        "More than 90 % of the memory is in use. Use fewer workers, or smaller batches.",
    ),
    Alert(
        "GristmillGpuMemoryHigh",
        "max by (gpu) (gristmill_gpu_memory_used_bytes / gristmill_gpu_memory_total_bytes)"
        " or ray_node_gram_used / (ray_node_gram_used + ray_node_gram_available)",
        0.9,
        "1m",
        "More than 90 % of a GPU's memory is in use. Lower model_inference_batch_size.",
    ),
    Alert(
        "GristmillNoProgress",
        '(time() - gristmill_last_progress_time_seconds) and on (run) (gristmill_run_status{status="running"} == 1)',
        300,
        "0s",
        "A run has not finished a task for five minutes.",
    ),
    Alert(
        "GristmillErrorRate",
        "sum by (run) (rate(gristmill_errors_total[5m])) / sum by (run) (rate(gristmill_documents_read_total[5m]))",
        0.01,
        "1m",
        "More than 1 % of the documents fail. See gristmill quarantine OUTPUT.",
    ),
    Alert(
        "GristmillRunGone",
        '1 - up{job="gristmill"}',
        0,
        "1m",
        "A run stopped responding without finishing: it was probably killed. Run the same command again to resume.",
    ),
)


def prometheus_rules() -> dict[str, Any]:
    """The contents of a rule file of Prometheus."""
    rules = [
        {
            "alert": alert.name,
            "expr": alert.condition,
            "for": alert.pending,
            "labels": {"severity": "warning"},
            "annotations": {"summary": alert.summary},
        }
        for alert in ALERTS
    ]
    return {"groups": [{"name": "gristmill", "rules": rules}]}


def grafana_rules() -> dict[str, Any]:
    """The contents of a provisioning file for Grafana's own alerts."""
    rules = [
        {
            "uid": f"gristmill-alert-{number}",
            "title": alert.name,
            "condition": "B",
            "for": alert.pending,
            "noDataState": "OK",
            "execErrState": "Error",
            "labels": {"severity": "warning"},
            "annotations": {"summary": alert.summary},
            "data": [
                {
                    "refId": "A",
                    "relativeTimeRange": {"from": 600, "to": 0},
                    "datasourceUid": DATASOURCE,
                    "model": {"refId": "A", "expr": alert.expression, "instant": True},
                },
                {
                    "refId": "B",
                    "relativeTimeRange": {"from": 600, "to": 0},
                    "datasourceUid": "__expr__",
                    "model": {
                        "refId": "B",
                        "type": "threshold",
                        "expression": "A",
                        "conditions": [{"evaluator": {"type": "gt", "params": [alert.limit]}}],
                    },
                },
            ],
        }
        for number, alert in enumerate(ALERTS)
    ]
    group = {"orgId": 1, "name": "gristmill", "folder": "Gristmill", "interval": "30s", "rules": rules}
    return {"apiVersion": 1, "groups": [group]}
