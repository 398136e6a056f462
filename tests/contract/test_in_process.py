"""The calling process as an executor, by the contract of all executors."""

from __future__ import annotations

from typing import Any, ClassVar

from gristmill.backends.base import BaseExecutor
from gristmill.backends.local import LocalExecutor
from tests.contract.executor_suite import ExecutorSuite


class TestInProcess(ExecutorSuite):
    survives_death = False
    in_other_processes = False
    settings: ClassVar[dict[str, Any]] = {"num_cpus": 0}

    def make_executor(self, **config: Any) -> BaseExecutor:
        return LocalExecutor(config=config)
