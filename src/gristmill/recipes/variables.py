"""`${variable}` in recipes: replaced by values that the recipe or its user sets."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from typing import Any

from gristmill.errors import did_you_mean
from gristmill.recipes.yaml_source import Path

_REFERENCE = re.compile(r"\$\$\{|\$\{([^{}]*)\}")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")

Report = Callable[[Path, str], None]
"""Told about a problem: where it is, and what it is."""


def is_variable_name(name: str) -> bool:
    """Whether `name` can be the name of a variable."""
    return _NAME.fullmatch(name) is not None


def used_variables(value: Any) -> set[str]:
    """The names that appear as `${name}` anywhere in `value`.

    Example:
        >>> sorted(used_variables({"path": "${folder}/in", "n": ["${n}", "$${not_one}"]}))
        ['folder', 'n']
    """
    if isinstance(value, str):
        return {match.group(1) for match in _REFERENCE.finditer(value) if match.group(1) is not None}
    if isinstance(value, Mapping):
        return {name for item in value.values() for name in used_variables(item)}
    if isinstance(value, list):
        return {name for item in value for name in used_variables(item)}
    return set()


def substitute(
    value: Any, variables: Mapping[str, Any], *, path: Path = (), report: Report, spare: Collection[str] = ()
) -> Any:
    """`value` with its variables replaced; `$${` stands for a literal `${`.

    A text that is one variable and nothing else takes the variable's value with its type; inside other text the value
    is written out, which only texts, numbers and booleans allow. `spare` are variables that nothing uses: a missing one
    may be a misspelling of one of them.
    """
    if isinstance(value, Mapping):
        return {
            key: substitute(item, variables, path=(*path, key), report=report, spare=spare)
            for key, item in value.items()
        }
    if isinstance(value, list):
        return [
            substitute(item, variables, path=(*path, place), report=report, spare=spare)
            for place, item in enumerate(value)
        ]
    if not isinstance(value, str) or "${" not in value:
        return value
    whole = _REFERENCE.fullmatch(value)
    if whole is not None and whole.group(1) is not None:
        return _look_up(whole.group(1), variables, path, report, spare)

    def written(match: re.Match[str]) -> str:
        name = match.group(1)
        if name is None:
            return "${"
        found = _look_up(name, variables, path, report, spare)
        if isinstance(found, bool):
            return "true" if found else "false"
        if isinstance(found, str | int | float):
            return str(found)
        if name in variables:
            report(
                path,
                f"the variable {name!r} is {found!r}, which cannot stand inside text; it must be text or a number.",
            )
        return ""

    return _REFERENCE.sub(written, value)


def _look_up(name: str, variables: Mapping[str, Any], path: Path, report: Report, spare: Collection[str]) -> Any:
    if name in variables:
        return variables[name]
    if is_variable_name(name):
        report(
            path,
            f"the variable {name!r} has no value. Set it with --set {name}=VALUE, or give it a default under "
            f"'variables:'.{did_you_mean(name, spare)}",
        )
    else:
        report(
            path,
            f"'${{{name}}}' is not a variable: a name is letters, digits and underscores. Write '$${{' for '${{'.",
        )
    return None
