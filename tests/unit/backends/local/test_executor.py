"""What the local engine may run or import outside a worker."""

from __future__ import annotations

import os
import subprocess
import sys
from functools import partial

import pytest

from gristmill.backends.local.executor import LocalExecutor, _is_fork_safe
from gristmill.backends.local.fork_server import SINGLE_THREADED
from gristmill.errors import UsageError
from gristmill.stages.base import ProcessingStage
from gristmill.stages.function_decorators import processing_stage
from gristmill.stages.text.filters import DocumentFilter, Filter, ScoreFilter, WordCountFilter
from gristmill.stages.text.modifiers import Modify
from gristmill.tasks import DocumentBatch


class Mine(DocumentFilter):
    """A filter of the user's."""

    def score_document(self, text: str) -> float:
        return 0.0

    def keep_document(self, score: float) -> bool:
        return True


class MyWordCount(WordCountFilter):
    """A built-in one with user code."""


class MyScoreFilter(ScoreFilter):
    """A built-in stage with user code."""


@processing_stage(name="from a function")
def from_function(task: DocumentBatch) -> DocumentBatch:
    return task


def keep(score: float) -> bool:
    return True


@pytest.mark.parametrize(
    ("stage", "expected"),
    [
        (ScoreFilter(WordCountFilter(min_words=2)), True),
        (ScoreFilter(Mine()), False),
        (ScoreFilter(MyWordCount(min_words=2)), False),
        (MyScoreFilter(WordCountFilter(min_words=2)), False),
        (Filter(keep, filter_field="n"), False),
        (Filter(partial(keep), filter_field="n"), False),
        (Modify(str.upper), True),
        (Modify([str.upper, lambda text: text]), False),
        (from_function, False),
    ],
)
def test_only_stages_without_code_of_the_users_run_outside_a_worker(stage: ProcessingStage, expected: bool) -> None:
    assert _is_fork_safe(stage) is expected


def test_importing_stages_that_say_they_are_fork_safe_starts_no_thread() -> None:
    program = """
import importlib, os, pkgutil
from gristmill.execution.late_imports import defer_imports
defer_imports()
import gristmill.stages
from gristmill.stages import base
for found in pkgutil.walk_packages(gristmill.stages.__path__, "gristmill.stages."):
    module = importlib.util.find_spec(found.name)
    source = open(module.origin).read()
    if "fork_safe = True" in source:
        importlib.import_module(found.name)
claiming = [kind for kind in base._registry.values() if kind.fork_safe]
print(len(claiming) > 40, len(os.listdir("/proc/self/task")))
"""
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, **SINGLE_THREADED},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "True 1\n", done.stdout


def test_gpu_memory_is_looked_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stage that asks for 10 GB gets its share of the device there is; what the user says comes first."""
    monkeypatch.setattr("gristmill.backends.local.executor.gpu_memory_gb", lambda: 80.0)
    assert LocalExecutor(config={"num_gpus": 1}).capacity().gpu_memory_gb == 80.0
    assert LocalExecutor(config={"num_gpus": 1, "gpu_memory_gb": 40}).capacity().gpu_memory_gb == 40
    with pytest.raises(UsageError, match="gpu_memory_gb=0 must be above 0"):
        LocalExecutor(config={"gpu_memory_gb": 0})


@pytest.mark.parametrize("visible", ["", "-1"])
def test_hidden_gpus_are_none(monkeypatch: pytest.MonkeyPatch, visible: str) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert LocalExecutor().capacity().gpus == 0
