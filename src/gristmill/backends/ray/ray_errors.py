"""Which of Ray's errors tell of a loss, of a worker, a node or a block, and not of a fault in the work."""

from __future__ import annotations

import ray

_LOSSES = (
    ray.exceptions.RayActorError,
    ray.exceptions.WorkerCrashedError,
    ray.exceptions.ObjectLostError,
    ray.exceptions.NodeDiedError,
    ray.exceptions.OutOfMemoryError,
    ray.exceptions.TaskUnschedulableError,
    ray.exceptions.ActorUnschedulableError,
)


def is_loss(problem: BaseException) -> bool:
    """Whether `problem`, or what it came from, is such an error.

    Example:
        >>> is_loss(ValueError("no such column"))
        False
    """
    cause: BaseException | None = problem
    while cause is not None:
        if isinstance(cause, _LOSSES):
            return True
        cause = cause.__cause__ or cause.__context__
    return False
