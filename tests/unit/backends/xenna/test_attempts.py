"""What is changed in Xenna while it runs, and that it is put back."""

from __future__ import annotations

import os
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("cosmos_xenna")

from gristmill.backends.ray.cluster import Cluster, Node

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]


def _cluster() -> Cluster:
    nodes = (Node("head", 0.0, 0.0, is_head=True), Node("worker", 4.0, 0.0, is_head=False))
    return Cluster(nodes, dashboard_url=None, connected_before=True)


def test_a_stage_gets_no_more_workers_than_its_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    from cosmos_xenna.ray_utils import actor_pool

    from gristmill.backends.xenna.patches import adapted

    def add(pool: Any, worker: str) -> bool:
        pool._worker_groups[worker] = worker
        return True

    monkeypatch.setattr(actor_pool.ActorPool, "_add_worker_group", add)
    limited = SimpleNamespace(name="Stage 00 - SegmentStage", _worker_groups={})
    free = SimpleNamespace(name="Stage 01 - SegmentStage", _worker_groups={})
    with adapted({limited.name: 2}, _cluster()):
        for worker in ("a", "b", "c"):
            actor_pool.ActorPool._add_worker_group(limited, worker)
            actor_pool.ActorPool._add_worker_group(free, worker)
        del limited._worker_groups["a"]
        assert actor_pool.ActorPool._add_worker_group(limited, "d")
    assert list(limited._worker_groups) == ["b", "d"]
    assert list(free._worker_groups) == ["a", "b", "c"]
    assert actor_pool.ActorPool._add_worker_group is add


def test_only_nodes_with_processors_are_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    from cosmos_xenna.pipelines.private import resources

    from gristmill.backends.xenna.patches import adapted

    asked: list[Any] = []

    def look(percentage: float, nodes: list[Any]) -> None:
        asked.extend((percentage, node["NodeID"]) for node in nodes)

    monkeypatch.setattr(resources, "make_cluster_resources_for_ray_cluster", look)
    with adapted({}, _cluster()):
        everyone = [{"NodeID": "head"}, {"NodeID": "worker"}, {"NodeID": "another"}]
        resources.make_cluster_resources_for_ray_cluster(0.95, everyone)
    assert asked == [(0.95, "worker")]
    assert resources.make_cluster_resources_for_ray_cluster is look


def test_variables_that_xenna_sets_are_put_back(monkeypatch: pytest.MonkeyPatch) -> None:
    from gristmill.backends.xenna.patches import adapted

    monkeypatch.setenv("RAY_MAX_LIMIT_FROM_API_SERVER", "7")
    monkeypatch.delenv("RAY_EXPERIMENTAL_NOSET_CUDA_VISIBLE_DEVICES", raising=False)
    with adapted({}, _cluster()):
        os.environ["RAY_MAX_LIMIT_FROM_API_SERVER"] = "40000"
        os.environ["RAY_EXPERIMENTAL_NOSET_CUDA_VISIBLE_DEVICES"] = "1"
    assert os.environ["RAY_MAX_LIMIT_FROM_API_SERVER"] == "7"
    assert "RAY_EXPERIMENTAL_NOSET_CUDA_VISIBLE_DEVICES" not in os.environ
