"""Settings of stages for their workers on Ray: dictionaries parsed into typed values, with unknown keys rejected."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

from gristmill.backends.base import parse_config
from gristmill.backends.plan import Segment
from gristmill.errors import UsageError

_MOST_CHARS = 80
MOST_GROWTH_BYTES = 1 << 30
"""A worker that has grown by this much since its first task is replaced; on Ray, starting a new one takes seconds."""
MODEL_LIFETIME_M = 120.0
"""Minutes after which a worker that holds a model is replaced, unless the stage says otherwise."""


@dataclass(frozen=True)
class RayStageSpec:
    """The keys of `ray_stage_spec`.

    Attributes:
        is_actor_stage: Keep workers between tasks, even if the stage has no setup.
        is_fanout_stage: The stage returns several tasks for one; accepted, but not needed.
        is_raft_actor: Accepted for compatibility, like `is_lsh_stage` and `is_shuffle_stage`; not used.
        max_calls_per_worker: Calls after which a stateless worker is replaced.
        min_workers: Minimum number of workers.
        max_workers: Maximum number of workers.
        initial_workers: Initial number of workers.
        ray_remote_args: More options for the Ray task or actor.
        ray_num_cpus: CPU cores to reserve per worker, instead of the stage's CPUs.
    """

    is_actor_stage: bool | None = None
    is_fanout_stage: bool | None = None
    is_raft_actor: bool | None = None
    is_lsh_stage: bool | None = None
    is_shuffle_stage: bool | None = None
    max_calls_per_worker: int | None = None
    min_workers: int | None = None
    max_workers: int | None = None
    initial_workers: int | None = None
    ray_remote_args: dict[str, Any] | None = None
    ray_num_cpus: float | None = None


@dataclass(frozen=True)
class XennaStageSpec:
    """The keys of `xenna_stage_spec`.

    Attributes:
        num_workers_per_node: A fixed number of workers on every node.
        num_setup_attempts_python: Maximum number of attempts of `setup`.
        num_run_attempts_python: Number of attempts of a call; accepted, but instead of retrying, failures are narrowed
            down.
        ignore_failures: Quarantine documents on which the stage raises.
        reset_workers_on_failure: Accepted; a worker whose stage raised keeps no partial state here.
        slots_per_actor: Number of tasks assigned to a worker at once; the next one is fetched while it works.
        worker_max_lifetime_m: Minutes after which a worker is replaced; 0 for never.
        worker_restart_interval_m: Minimum minutes between two replacements; None for one.
        max_setup_failure_percentage: Fraction of workers whose setup may fail.
        over_provision_factor: Target speed of the stage relative to its measured speed.
    """

    num_workers_per_node: float | None = None
    num_setup_attempts_python: int | None = None
    num_run_attempts_python: int | None = None
    ignore_failures: bool | None = None
    reset_workers_on_failure: bool | None = None
    slots_per_actor: int | None = None
    worker_max_lifetime_m: float | None = None
    worker_restart_interval_m: float | None = None
    max_setup_failure_percentage: float | None = None
    over_provision_factor: float | None = None

    def __post_init__(self) -> None:
        for name in ("worker_max_lifetime_m", "worker_restart_interval_m", "num_workers_per_node"):
            value = getattr(self, name)
            if value is not None and value < 0:
                raise UsageError(f"xenna_stage_spec: {name}={value!r} must not be negative.")


@dataclass(frozen=True, slots=True)
class SegmentSpec:
    """The combined settings of the stages of one segment."""

    ray: RayStageSpec
    xenna: XennaStageSpec


def segment_spec(segment: Segment) -> SegmentSpec:
    """The settings of all stages of `segment`; if several set the same key, the largest or first value wins.

    Raises:
        UnknownNameError: A key is unknown.
        UsageError: A value has the wrong type.
    """
    return SegmentSpec(
        _together(RayStageSpec, "ray_stage_spec", segment), _together(XennaStageSpec, "xenna_stage_spec", segment)
    )


def lifetime_s(segment: Segment, spec: SegmentSpec, default_m: float | None) -> float | None:
    """The age at which a worker of the segment is replaced; None: never.

    Workers that hold a model are replaced from time to time even if not requested.
    """
    minutes = _minutes(spec, default_m)
    if minutes is None and any(stage.needs_own_worker or stage.resources.requires_gpu for stage in segment.stages):
        minutes = MODEL_LIFETIME_M
    return minutes * 60 if minutes else None


def shown_name(segment: Segment) -> str:
    """The names of the segment's stages for Ray's own tables, where they must be ASCII and should fit."""
    name = segment.name.replace("→", "->").encode("ascii", "replace").decode()
    return name if len(name) <= _MOST_CHARS else f"{name[: _MOST_CHARS - 3]}..."


def max_growth_bytes(spec: SegmentSpec, default_m: float | None) -> int | None:
    """How much a worker of the segment may grow before it is replaced; None if workers are never replaced."""
    return None if _minutes(spec, default_m) == 0 else MOST_GROWTH_BYTES


def _minutes(spec: SegmentSpec, default_m: float | None) -> float | None:
    return default_m if spec.xenna.worker_max_lifetime_m is None else spec.xenna.worker_max_lifetime_m


def _together(kind: type[Any], name: str, segment: Segment) -> Any:
    specs = [
        parse_config(kind, getattr(stage, f"merged_{name}")(), owner=f"{name} of {stage.name!r}")
        for stage in segment.stages
    ]
    values: dict[str, Any] = {}
    for field in fields(kind):
        given = [value for spec in specs if (value := getattr(spec, field.name)) is not None]
        if given:
            numbers = all(isinstance(value, int | float) for value in given)
            values[field.name] = max(given) if numbers else given[0]
    return kind(**values)
