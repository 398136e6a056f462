"""What is changed in Xenna while it runs, and that it is put back."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("cosmos_xenna")

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]


def test_a_stage_gets_no_more_workers_than_its_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    from cosmos_xenna.ray_utils import actor_pool

    from gristmill.backends.xenna.rounds import _adapted

    def add(pool: Any, worker: str) -> bool:
        pool._worker_groups[worker] = worker
        return True

    monkeypatch.setattr(actor_pool.ActorPool, "_add_worker_group", add)
    limited = SimpleNamespace(name="Stage 00 - SegmentStage", _worker_groups={})
    free = SimpleNamespace(name="Stage 01 - SegmentStage", _worker_groups={})
    with _adapted({limited.name: 2}):
        for worker in ("a", "b", "c"):
            actor_pool.ActorPool._add_worker_group(limited, worker)
            actor_pool.ActorPool._add_worker_group(free, worker)
        del limited._worker_groups["a"]
        assert actor_pool.ActorPool._add_worker_group(limited, "d")
    assert list(limited._worker_groups) == ["b", "d"]
    assert list(free._worker_groups) == ["a", "b", "c"]
    assert actor_pool.ActorPool._add_worker_group is add
