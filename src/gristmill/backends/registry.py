"""Executors by name, loaded on first use."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from gristmill.errors import UnknownNameError, UsageError, did_you_mean

if TYPE_CHECKING:
    from gristmill.backends.base import BaseExecutor

_HOMES = {
    "local": "gristmill.backends.local.executor:LocalExecutor",
    "ray_data": "gristmill.backends.ray_data:RayDataExecutor",
    "xenna": "gristmill.backends.xenna:XennaExecutor",
    "ray_actor_pool": "gristmill.backends.ray_actor_pool:RayActorPoolExecutor",
}


default_name: Callable[[], str] | None = None
"""The default executor, if not the local one; set by `gristmill.compat`."""


def executor_names() -> list[str]:
    """The names that `get_executor` knows."""
    return list(_HOMES)


def get_executor(name: str, config: Mapping[str, Any] | None = None) -> BaseExecutor:
    """A new executor by its name.

    Raises:
        UnknownNameError: There is no executor of that name.
    """
    if name not in _HOMES:
        raise UnknownNameError(
            f"There is no executor {name!r}; available: {', '.join(_HOMES)}.{did_you_mean(name, _HOMES)}", name=name
        )
    module, attribute = _HOMES[name].split(":")
    executor: BaseExecutor = getattr(importlib.import_module(module), attribute)(config=config)
    return executor


def as_executor(executor: BaseExecutor | str | None) -> BaseExecutor:
    """The executor itself, or the one with the given name (None: the default)."""
    if executor is None or isinstance(executor, str):
        return get_executor(executor or (default_name() if default_name else "local"))
    from gristmill.backends.base import BaseExecutor

    if not isinstance(executor, BaseExecutor):
        raise UsageError(
            f"executor={executor!r}: pass an executor such as LocalExecutor(), or a name: {', '.join(_HOMES)}."
        )
    return executor
