"""Runs pipelines on Ray Data: the main executor for clusters."""

from gristmill.backends.ray_data.executor import RayDataExecutor

__all__ = ["RayDataExecutor"]
