"""These tests need the extra `models`; they are left out where it is not installed."""

from __future__ import annotations

from tests.unit.stages.text.models.environment import collect_ignore_glob, float32_on_cpu

__all__ = ["collect_ignore_glob", "float32_on_cpu"]
