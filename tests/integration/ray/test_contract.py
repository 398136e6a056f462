"""The executors on Ray, by the contract of all executors."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import pytest

from gristmill.backends.base import BaseExecutor
from gristmill.stages.resources import Resources
from tests.contract import stages
from tests.contract.executor_suite import ExecutorSuite
from tests.integration.ray.ray_stages import Noted
from tests.integration.ray.ray_stages import notes as noted

pytestmark = [pytest.mark.ray, pytest.mark.slow]


class _OnRay(ExecutorSuite):
    @pytest.fixture(autouse=True)
    def _connected(self, ray_cluster: str) -> None:
        self.address = ray_cluster

    def environment(self) -> dict[str, str]:
        return {"RAY_ADDRESS": self.address}


class TestRayData(_OnRay):
    def make_executor(self, **config: Any) -> BaseExecutor:
        from gristmill.backends.ray_data import RayDataExecutor

        return RayDataExecutor(config=config)

    def test_more_partitions_than_one_dataset_holds(
        self,
        monkeypatch: pytest.MonkeyPatch,
        source: Path,
        tmp_path: Path,
        notes: Path,
        capsys: pytest.CaptureFixture[str],
    ) -> None:
        monkeypatch.setattr("gristmill.backends.ray_data.executor._PARTITIONS_AT_ONCE", 3)
        monkeypatch.setattr("gristmill.backends.ray_data.executor._PARTITIONS_PER_CPU", 0)
        monkeypatch.setattr("gristmill.backends.ray_data.executor._TIMES_MORE_IF_HELD", 1)
        self.test_same_files_as_in_process(source, tmp_path, notes, capsys)


class TestXenna(_OnRay):
    # Every Xenna pipeline starts its workers anew, some seconds each: the rest runs with the cluster tests.
    quick = ("test_same_files_as_in_process", "test_failing_stage", "test_dying_worker", "test_unknown_setting")
    # Every death costs Xenna a whole pipeline; finding a document among many takes minutes.
    finds_poison = False

    def make_executor(self, **config: Any) -> BaseExecutor:
        pytest.importorskip("cosmos_xenna")
        from gristmill.backends.xenna import XennaExecutor

        return XennaExecutor(config=config)

    def test_at_most_so_many_workers(self, source: Path, tmp_path: Path, notes: Path) -> None:
        middle = [stages.Stream(), Noted(notes, seconds=0.2).with_(resources=Resources(cpus=0.25))]
        self.run(source, middle, None, on=self.make_executor(max_workers_per_stage=2, cpu_allocation_percentage=1.0))
        assert 1 <= len(noted(notes, "setup")) <= 2
        assert len(noted(notes, "call")) == 4 * 6


@pytest.mark.cluster
class TestXennaInBatches(_OnRay):
    finds_poison = False
    settings: ClassVar[dict[str, Any]] = {"execution_mode": "batch"}

    def make_executor(self, **config: Any) -> BaseExecutor:
        pytest.importorskip("cosmos_xenna")
        from gristmill.backends.xenna import XennaExecutor

        return XennaExecutor(config=config)


@pytest.mark.cluster
class TestActorPool(_OnRay):
    def make_executor(self, **config: Any) -> BaseExecutor:
        from gristmill.backends.ray_actor_pool import RayActorPoolExecutor

        return RayActorPoolExecutor(config=config)
