"""Sampled workers, for the profile of a run: they write their samples to the run's shared folder."""

from __future__ import annotations

import glob
import os
from collections.abc import Callable
from functools import partial
from multiprocessing.connection import Connection
from typing import Any

import orjson

from gristmill.backends.local.messages import read_status
from gristmill.backends.local.shared_files import SharedFolder
from gristmill.backends.plan import ExecutionPlan, Segment
from gristmill.observe.profile.sampler import Sampler
from gristmill.observe.profile.session import ProfileSession
from gristmill.stages.base import FusedStage, ProcessingStage

_FILE = "profile-{:06d}.json"

Work = Callable[[Connection, Any], object]


def stage_names(plan: ExecutionPlan, segment: Segment, session: ProfileSession) -> list[str]:
    """Names of a segment's stages in a profile; those of a step of a workflow include the step."""
    return [_step(plan, session) + _shown_name(stage) for stage in segment.stages]


def _step(plan: ExecutionPlan, session: ProfileSession) -> str:
    step = plan.name.removeprefix(f"{session.pipeline}: ")
    return "" if step == session.pipeline else f"{step}, "


def _shown_name(stage: ProcessingStage[Any, Any]) -> str:
    if isinstance(stage, FusedStage) and len(stage.members) > 1:
        return f"{stage.members[0].name} … {stage.members[-1].name} ({len(stage.members)} in one pass)"
    return stage.name


def sampled(
    plan: ExecutionPlan, session: ProfileSession, folder: SharedFolder, work: Work, segment: int, number: int
) -> Work:
    """The work of worker `number` of a segment, with samples of it."""
    path = os.path.join(folder.paths[0], _FILE.format(number))
    names = stage_names(plan, plan.segments[segment], session)
    return partial(_work_sampled, work, f"{_step(plan, session)}worker {number}", names, path)


def _work_sampled(work: Work, name: str, stages: list[str], path: str, connection: Connection, page: Any) -> None:
    with Sampler(name, stages, partial(_place, page), path):
        work(connection, page)


def _place(page: Any) -> int:
    """The stage that the worker last reported."""
    return read_status(page).stage


def collect(folder: SharedFolder, session: ProfileSession) -> None:
    """Collect the samples of all workers, including killed ones."""
    for path in sorted(glob.glob(os.path.join(glob.escape(folder.paths[0]), _FILE.replace("{:06d}", "*")))):
        with open(path, "rb") as file:
            session.add(orjson.loads(file.read()))
        os.unlink(path)
