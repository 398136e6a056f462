"""Shuffling, splitting, sharding and mixing: the last steps before training."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gristmill.lazy import lazy_names

if TYPE_CHECKING:
    from gristmill.stages.sharding.mix import MixWorkflow
    from gristmill.stages.sharding.mixture import Cap, MixSource, Mixture, Tier
    from gristmill.stages.sharding.samplers import ReservoirSampler, StratifiedSampler
    from gristmill.stages.sharding.shuffle import ShuffleWorkflow

__all__ = [
    "Cap",
    "MixSource",
    "MixWorkflow",
    "Mixture",
    "ReservoirSampler",
    "ShuffleWorkflow",
    "StratifiedSampler",
    "Tier",
]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "mix": ["MixWorkflow"],
        "mixture": ["Cap", "MixSource", "Mixture", "Tier"],
        "samplers": ["ReservoirSampler", "StratifiedSampler"],
        "shuffle": ["ShuffleWorkflow"],
    },
)
