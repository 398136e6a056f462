"""The executors on Ray, by the contract of all executors."""

from __future__ import annotations

from typing import Any

import pytest

from gristmill.backends.base import BaseExecutor
from tests.contract.executor_suite import ExecutorSuite

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


@pytest.mark.cluster
class TestXenna(_OnRay):
    # Every death costs Xenna a whole pipeline; finding a document among many takes minutes.
    finds_poison = False

    def make_executor(self, **config: Any) -> BaseExecutor:
        pytest.importorskip("cosmos_xenna")
        from gristmill.backends.xenna import XennaExecutor

        return XennaExecutor(config=config)
