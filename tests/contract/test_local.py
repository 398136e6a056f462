"""The local engine by the contract of all executors: several numbers of workers, streaming and batch."""

from __future__ import annotations

from typing import Any, ClassVar

from gristmill.backends.base import BaseExecutor
from gristmill.backends.local import LocalExecutor
from tests.contract.executor_suite import ExecutorSuite


class TestOneWorker(ExecutorSuite):
    finds_poison = False
    settings: ClassVar[dict[str, Any]] = {"num_cpus": 1}

    def make_executor(self, **config: Any) -> BaseExecutor:
        return LocalExecutor(config=config)


class TestTwoWorkers(TestOneWorker):
    finds_poison = True
    settings: ClassVar[dict[str, Any]] = {"num_cpus": 2}


class TestTwoWorkersInBatches(TestOneWorker):
    settings: ClassVar[dict[str, Any]] = {"num_cpus": 2, "execution_mode": "batch"}


class TestFourWorkers(TestOneWorker):
    settings: ClassVar[dict[str, Any]] = {"num_cpus": 4}
