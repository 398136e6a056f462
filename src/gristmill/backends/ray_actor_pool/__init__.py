"""Runs pipelines stage by stage on pools of Ray actors."""

from gristmill.backends.ray_actor_pool.executor import RayActorPoolExecutor

__all__ = ["RayActorPoolExecutor"]
