"""Runs pipelines on Ray Data: the main executor for clusters."""

from gristmill.errors import require_module

require_module("ray", "An executor on Ray")
from gristmill.backends.ray_data.executor import RayDataExecutor  # noqa: E402

__all__ = ["RayDataExecutor"]
