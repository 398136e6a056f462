"""What stages say about their workers on Ray."""

from __future__ import annotations

from typing import Any

import pytest

from gristmill.backends.plan import Segment
from gristmill.backends.ray.stage_specs import MODEL_LIFETIME_M, lifetime_s, segment_spec
from gristmill.errors import UnknownNameError, UsageError
from gristmill.stages.base import ProcessingStage
from gristmill.stages.resources import Resources


class _Plain(ProcessingStage[Any, Any]):
    name = "plain"

    def process(self, task: Any) -> Any:
        return task


class _Model(_Plain):
    name = "model"
    needs_own_worker = True


def _segment(*stages: ProcessingStage[Any, Any]) -> Segment:
    return Segment(0, stages, Resources(), 1, None)


def test_settings_of_several_stages_come_together() -> None:
    first = _Plain().with_(ray_stage_spec={"max_workers": 2, "is_actor_stage": True})
    second = _Plain().with_(ray_stage_spec={"max_workers": 5})
    spec = segment_spec(_segment(first, second))
    assert (spec.ray.max_workers, spec.ray.is_actor_stage) == (5, True)


def test_unknown_keys_are_errors_with_a_suggestion() -> None:
    with pytest.raises(UnknownNameError, match="Did you mean 'max_workers'"):
        segment_spec(_segment(_Plain().with_(ray_stage_spec={"max_worker": 2})))
    with pytest.raises(UnknownNameError, match="Did you mean 'slots_per_actor'"):
        segment_spec(_segment(_Plain().with_(xenna_stage_spec={"slot_per_actor": 2})))


def test_wrong_values_are_errors() -> None:
    with pytest.raises(UsageError, match="whole number"):
        segment_spec(_segment(_Plain().with_(xenna_stage_spec={"slots_per_actor": "two"})))
    with pytest.raises(UsageError, match="negative"):
        segment_spec(_segment(_Plain().with_(xenna_stage_spec={"worker_max_lifetime_m": -1})))


@pytest.mark.parametrize(
    ("stage", "default", "minutes"),
    [
        (_Plain(), None, None),
        (_Plain(), 5.0, 5.0),
        (_Model(), None, MODEL_LIFETIME_M),
        (_Model(), 0.0, None),
        (_Model().with_(xenna_stage_spec={"worker_max_lifetime_m": 7}), None, 7.0),
        (_Model().with_(xenna_stage_spec={"worker_max_lifetime_m": 0}), 5.0, None),
    ],
)
def test_lifetime(stage: ProcessingStage[Any, Any], default: float | None, minutes: float | None) -> None:
    segment = _segment(stage)
    found = lifetime_s(segment, segment_spec(segment), default)
    assert found == (None if minutes is None else minutes * 60)
