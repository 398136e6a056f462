"""Shuffling, splitting, sharding and mixing: the last steps before training."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gristmill.lazy import lazy_names

if TYPE_CHECKING:
    from gristmill.stages.sharding.shuffle import ShuffleWorkflow

__all__ = ["ShuffleWorkflow"]

__getattr__, __dir__ = lazy_names(__name__, {"shuffle": ["ShuffleWorkflow"]})
