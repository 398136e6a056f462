"""Describes a plan as plain values, so that a later run can tell whether it is still the same one.

Stages are described by their class, their parameters and, for code outside this package, the code itself.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gristmill import __version__
from gristmill.ledger.record.plan_record import PLAN_FORMAT
from gristmill.pipeline.user_code import attributes, code_of, describe_value, is_user_module
from gristmill.stages.base import ProcessingStage
from gristmill.stages.source_sink import ReaderStage, SinkStage, SourceStage


def describe_plan(
    stages: Sequence[ProcessingStage[Any, Any]], *, variables: Mapping[str, Any] | None = None, **settings: Any
) -> dict[str, Any]:
    """The stages (composites expanded, nothing fused) and settings that decide what comes out.

    `variables` are those of the recipe: they decide nothing beyond the stages, but explain why these changed.
    """
    described = {
        "format": PLAN_FORMAT,
        "version": __version__,
        "stages": [describe_stage(stage) for stage in stages],
        "settings": dict(settings),
    }
    if variables:
        described["variables"] = describe_value(variables)
    return described


def describe_stage(stage: ProcessingStage[Any, Any]) -> dict[str, Any]:
    """One stage: name, class, parameters, and its code where it is not ours."""
    cls = type(stage)
    described: dict[str, Any] = {
        "name": stage.name,
        "type": f"{cls.__module__}.{cls.__qualname__}",
        "parameters": _parameters(stage),
        "for_dropped": "stop" if stage.time_limit_s is not None else stage.for_dropped,
        "never_drops": stage.never_drops,
        "role": stage.role,
    }
    digest = stage.content_digest()
    if digest is not None:
        described["parameters"]["model_files"] = digest
    code = code_of(cls)
    if code is not None:
        described["code"] = code
    return described


def _parameters(stage: ProcessingStage[Any, Any]) -> dict[str, Any]:
    # Readers and writers are told where things lie; in another stage of a user the same names may mean anything. What
    # our own stages keep in private is made from their parameters.
    own = is_user_module(type(stage).__module__)
    places = own and not isinstance(stage, ReaderStage | SinkStage | SourceStage)
    return {
        key: describe_value(value)
        for key, value in attributes(stage, private=own, places=places).items()
        if key not in ("name", "resources", "batch_size")
    }
