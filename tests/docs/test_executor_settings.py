"""The page about executors has every setting of every executor, with its type and default."""

from __future__ import annotations

import re
import types
import typing
from dataclasses import MISSING, fields
from typing import Any, Literal, Union, get_args, get_origin

import pytest

from gristmill.backends.registry import executor_names
from tools.make_cli_reference import PAGE

TEXT = (PAGE.parent / "executors.md").read_text(encoding="utf-8")
ROW = re.compile(r"^\| `(\w+)` \| (.+?) \| (.+?) \| (.+) \|$", re.MULTILINE)
WORDS: dict[Any, str] = {
    int: "integer",
    float: "number",
    str: "text",
    bool: "True or False",
    type(None): "None",
    dict: "mapping",
}


def section(title: str) -> dict[str, tuple[str, str]]:
    """The settings in the table below a heading: type and default by name."""
    _, found, rest = TEXT.partition(f"# {title}\n")
    assert found, title
    return {
        name: (kind, default) for name, kind, default, _ in ROW.findall(re.split(r"^#", rest, flags=re.MULTILINE)[0])
    }


def in_words(kind: Any) -> str:
    """A type as the page writes it."""
    if get_origin(kind) is Literal:
        return " or ".join(f'`"{choice}"`' for choice in get_args(kind))
    if get_origin(kind) in (Union, types.UnionType):
        parts = [in_words(part) for part in get_args(kind)]
        if "number" in parts and "integer" in parts:
            parts.remove("integer")
        if "True or False" in parts:
            return "True, False or None"
        return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} or {parts[-1]}"
    return WORDS[get_origin(kind) or kind]


def settings_of(kind: Any, *, without: Any = None) -> dict[str, tuple[str, str]]:
    """The settings that a dataclass declares."""
    inherited = {field.name for field in fields(without)} if without else set()
    hints = typing.get_type_hints(kind)
    found = {}
    for field in fields(kind):
        if field.init and field.name not in inherited and not field.name.startswith("_"):
            assert field.default is not MISSING
            shown = f'`"{field.default}"`' if isinstance(field.default, str) else str(field.default)
            found[field.name] = (in_words(hints[field.name]), shown)
    return found


def test_every_executor_has_a_section() -> None:
    for name in executor_names():
        assert f"## `{name}`\n" in TEXT
        assert f"| `{name}` |" in TEXT


def test_settings_of_the_local_executor() -> None:
    from gristmill.backends.local.config import LocalConfig

    assert section("`local`") == settings_of(LocalConfig)


def test_settings_of_executors_on_ray() -> None:
    pytest.importorskip("ray")
    from gristmill.backends.ray.cluster import ClusterConfig
    from gristmill.backends.ray.stage_specs import RayStageSpec, XennaStageSpec
    from gristmill.backends.ray_actor_pool import ActorPoolConfig
    from gristmill.backends.ray_data.executor import RayDataConfig
    from gristmill.core.client import RayClient

    assert section("Settings of all executors on Ray") == settings_of(ClusterConfig)
    assert section("`ray_data`") == settings_of(RayDataConfig, without=ClusterConfig)
    assert section("`ray_actor_pool`") == settings_of(ActorPoolConfig, without=RayDataConfig)
    assert section("`ray_stage_spec`") == settings_of(RayStageSpec)
    assert section("`xenna_stage_spec`") == settings_of(XennaStageSpec)
    assert section("`RayClient`") == settings_of(RayClient)


def test_settings_of_xenna() -> None:
    pytest.importorskip("cosmos_xenna")
    from gristmill.backends.ray.cluster import ClusterConfig
    from gristmill.backends.xenna.executor import XennaConfig

    assert section("`xenna`") == settings_of(XennaConfig, without=ClusterConfig)
