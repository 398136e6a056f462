"""What is changed in Xenna while it runs: put back afterwards, and still needed."""

from __future__ import annotations

import inspect
import os
import time
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("cosmos_xenna")

import attrs
from cosmos_xenna.pipelines import v1 as xenna
from cosmos_xenna.pipelines.private import batch, monitoring, pipelines, resources, streaming
from cosmos_xenna.ray_utils import actor_pool
from cosmos_xenna.ray_utils import cluster as xenna_cluster

from gristmill.backends.xenna.patches import CHECKED_VERSIONS, VARIABLES, patched

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]


def _patched(
    nodes: tuple[str, ...] = (),
    limits: dict[str, int] | None = None,
    ended: list[Any] | None = None,
    grown: set[str] | frozenset[str] = frozenset(),
) -> Any:
    found = [] if ended is None else ended
    end = lambda actor, cause: found.append((actor, cause))  # noqa: E731
    return patched(nodes=frozenset(nodes), limits=limits or {}, end_worker=end, has_grown=grown.__contains__)


def test_the_installed_version_was_checked() -> None:
    """With another version: read every change in `patches` again, then add the version there."""
    assert ".".join(version("cosmos-xenna").split(".")[:2]) in CHECKED_VERSIONS


def test_other_modules_use_the_public_api_only() -> None:
    for file in Path(inspect.getfile(patched.__wrapped__)).parent.glob("*.py"):  # type: ignore[attr-defined]
        if file.name != "patches.py":
            lines = [line for line in file.read_text().splitlines() if "import" in line and "cosmos_xenna" in line]
            assert set(lines) <= {"from cosmos_xenna.pipelines import v1 as xenna"}, file


def test_a_worker_is_ended_before_it_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    history: list[Any] = []
    kill = lambda actor, node, label: history.append(("killed", actor))  # noqa: E731
    monkeypatch.setattr(actor_pool, "_kill_actor_and_reap", kill)
    with _patched(ended=history):
        actor_pool._kill_actor_and_reap("worker", "node", "label")
    assert history == [("worker", "finished"), ("killed", "worker")]
    assert actor_pool._kill_actor_and_reap is kill


def test_stages_have_no_hook_for_teardown() -> None:
    hooks = {name for name in dir(xenna.Stage) if not name.startswith("_")}
    assert not hooks & {"teardown", "destroy", "shutdown", "close", "cleanup"}
    assert "_kill_actor_and_reap" in inspect.getsource(actor_pool._ReadyActor.kill)


def test_a_stage_gets_no_more_workers_than_its_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    def add(pool: Any, worker: str) -> bool:
        pool._worker_groups[worker] = worker
        return True

    monkeypatch.setattr(actor_pool.ActorPool, "_add_worker_group", add)
    limited = SimpleNamespace(name="Stage 00 - SegmentStage", _worker_groups={})
    free = SimpleNamespace(name="Stage 01 - SegmentStage", _worker_groups={})
    with _patched(limits={limited.name: 2}):
        for worker in ("a", "b", "c"):
            actor_pool.ActorPool._add_worker_group(limited, worker)
            actor_pool.ActorPool._add_worker_group(free, worker)
        del limited._worker_groups["a"]
        assert actor_pool.ActorPool._add_worker_group(limited, "d")
    assert list(limited._worker_groups) == ["b", "d"]
    assert list(free._worker_groups) == ["a", "b", "c"]
    assert actor_pool.ActorPool._add_worker_group is add


def test_xenna_has_no_setting_for_the_most_workers() -> None:
    fields = [field.name for kind in (xenna.StageSpec, xenna.PipelineConfig) for field in attrs.fields(kind)]
    assert not [name for name in fields if "max" in name and "workers" in name]
    assert "self._worker_groups[" in inspect.getsource(actor_pool.ActorPool._add_worker_group)


class _Pool(SimpleNamespace):
    """A pool of Xenna's, as far as it replaces workers; each worker is a group of its own."""

    def __init__(self, *, lifetime_m: float = 0.0, ages_m: dict[str, float]) -> None:
        actors = {
            name: SimpleNamespace(
                metadata=SimpleNamespace(worker_group_id=name),
                actor_ref=SimpleNamespace(_actor_id=SimpleNamespace(hex=lambda name=name: name)),
                start_time=time.time() - 60 * age_m,
                num_used_slots=1,
                num_empty_slots=1,
                rate_estimator=SimpleNamespace(maybe_get_rate=lambda: 1.0),
            )
            for name, age_m in ages_m.items()
        }
        groups = {
            name: SimpleNamespace(id_=name, state=actor_pool._WorkerGroupState.READY, actors=[name]) for name in actors
        }
        params = SimpleNamespace(worker_max_lifetime_m=lifetime_m, worker_restart_interval_m=1.0)
        super().__init__(name="stage", _ready_actors=actors, _worker_groups=groups, _params=params)
        self._last_actor_restart_time = 0.0
        self.replaced: list[str] = []

    def update(self) -> list[str]:
        """Xenna's order: replace, then find out who gets tasks."""
        actor_pool.ActorPool._maybe_restart_long_running_actor(self)
        return [group.id_ for group in actor_pool.ActorPool._find_worker_groups_with_free_slots(self)]

    def _delete_worker_group(self, group: str) -> str:
        return group

    def _add_worker_group(self, group: str) -> None:
        self.replaced.append(group)
        self._ready_actors[group].start_time = time.time()


def test_an_old_worker_is_replaced_once_it_has_no_task_and_gets_none_before() -> None:
    pool = _Pool(lifetime_m=10, ages_m={"young": 1, "old": 11, "oldest": 12})
    ended: list[Any] = []
    with _patched(ended=ended):
        assert pool.update() == ["young", "old"]
        assert pool.update() == ["young", "old"]
        pool._ready_actors["oldest"].num_used_slots = 0
        assert pool.update() == ["young", "old", "oldest"]
        assert pool.replaced == ["oldest"]
        assert [cause for _, cause in ended] == ["recycled"]
        assert pool.update() == ["young", "old", "oldest"], "one minute between two of them"
        pool._last_actor_restart_time -= 61
        assert pool.update() == ["young", "oldest"]
        del pool._ready_actors["old"], pool._worker_groups["old"]
        assert pool.update() == ["young", "oldest"]
    assert pool.replaced == ["oldest"]


def test_a_worker_that_has_done_nothing_yet_is_not_replaced_by_age() -> None:
    pool = _Pool(lifetime_m=0.001, ages_m={"idle": 1})
    pool._ready_actors["idle"].num_used_slots = 0
    pool._ready_actors["idle"].rate_estimator.maybe_get_rate = lambda: None
    with _patched():
        assert pool.update() == ["idle"]
    assert pool.replaced == []


def test_a_worker_that_has_grown_is_replaced_whatever_its_age() -> None:
    pool = _Pool(ages_m={"small": 1, "large": 1})
    with _patched(grown={"large"}):
        assert pool.update() == ["small"]
        pool._ready_actors["large"].num_used_slots = 0
        pool.update()
    assert pool.replaced == ["large"]


def test_xenna_itself_has_the_tasks_of_a_worker_done_again() -> None:
    assert "_delete_worker_group(" in inspect.getsource(actor_pool.ActorPool._maybe_restart_long_running_actor)
    assert "_task_queue.appendleft(" in inspect.getsource(actor_pool.ActorPool._try_delete_ready_actor)
    order = [line.strip() for line in inspect.getsource(actor_pool.ActorPool.update).splitlines()]
    replaced, scheduled = "self._maybe_restart_long_running_actor()", "self._schedule_new_tasks()"
    assert order.index(replaced) < order.index("self._process_completed_tasks()") < order.index(scheduled)


def test_only_the_given_nodes_are_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []

    def look(percentage: float, nodes: list[Any]) -> None:
        asked.extend((percentage, node["NodeID"]) for node in nodes)

    everyone = [{"NodeID": "head"}, {"NodeID": "worker"}, {"NodeID": "another"}]
    monkeypatch.setattr(resources, "make_cluster_resources_for_ray_cluster", look)
    monkeypatch.setattr("gristmill.backends.xenna.patches.ray.nodes", lambda: everyone)
    with _patched(nodes=("worker",)):
        xenna_cluster.make_cluster_resources_from_ray_nodes(cpu_allocation_percentage=0.95)
    assert asked == [(0.95, "worker")]
    assert resources.make_cluster_resources_for_ray_cluster is look


def test_xenna_has_no_setting_for_nodes_and_counts_a_head_without_processors() -> None:
    fields = [field.name for kind in (xenna.PipelineSpec, xenna.PipelineConfig) for field in attrs.fields(kind)]
    assert not [name for name in fields if "node" in name]
    assert "cluster.make_cluster_resources_from_ray_nodes(" in inspect.getsource(pipelines.run_pipeline)
    from_ray = resources.ResourceInfoFromRay(node_id="head", cpus=0.0, gpus=None)
    from_node = resources.ResourceInfoFromNode(node_id="head", cpus=8, gpus=[])
    assert resources._get_cpu_count(from_ray, from_node) == 8


def test_nothing_is_monitored() -> None:
    with _patched():
        for module in (streaming, batch):
            with module.monitoring.PipelineMonitor(60.0, 3, [], xenna.VerbosityLevel.NONE) as monitor:
                assert not monitor.update(1, ext_output_lens=[], task_metadata_per_pool=[])
    assert monitoring.PipelineMonitor.__module__ == monitoring.__name__


def test_the_monitor_cannot_be_turned_off() -> None:
    """It starts an actor that books a processor on every node, whatever the settings are."""
    assert "RayResourceMonitor()" in inspect.getsource(monitoring.PipelineMonitor.open)
    assert monitoring.NodeResourceMonitor._default_options["num_cpus"] == 1.0


def test_variables_that_xenna_sets_are_put_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_MAX_LIMIT_FROM_API_SERVER", "7")
    monkeypatch.delenv("RAY_EXPERIMENTAL_NOSET_CUDA_VISIBLE_DEVICES", raising=False)
    with _patched():
        os.environ["RAY_MAX_LIMIT_FROM_API_SERVER"] = "40000"
        os.environ["RAY_EXPERIMENTAL_NOSET_CUDA_VISIBLE_DEVICES"] = "1"
    assert os.environ["RAY_MAX_LIMIT_FROM_API_SERVER"] == "7"
    assert "RAY_EXPERIMENTAL_NOSET_CUDA_VISIBLE_DEVICES" not in os.environ


def test_xenna_still_sets_these_variables() -> None:
    source = inspect.getsource(xenna_cluster.init_or_connect_to_cluster)
    assert all(f'os.environ["{name}"]' in source for name in VARIABLES)
