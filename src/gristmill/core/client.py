"""The Ray client at the import path that scripts know."""

from gristmill.backends.ray.client import RayClient

__all__ = ["RayClient"]
