r"""`${a.b}` and `???` in plain YAML values, in the notation of OmegaConf.

A reference names another value of the same file by its place: `${input_path}`, `${io.path}`, `${files[0]}`, `${.near}`
beside it, `${..above}`, and `${paths.${kind}}`. `\${` is a literal `${`. `???` marks a value that must be set.
Resolvers (`${oc.env:HOME}`) are refused: a recipe is data, and does not read the environment or call functions.
References nest and multiply only up to fixed limits, and one that leads back to itself is an error.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from gristmill.errors import did_you_mean
from gristmill.recipes.yaml_source import LARGEST_BYTES, MAX_VALUES, Path, Report, recipe_error

MISSING = "???"
MAX_DEPTH = 32
"""References that lead to references."""

_MARK = re.compile(r"\$\{|\}")
_PLACE = re.compile(r"(\.*)([^.\[\]{}\s]+(?:\.[^.\[\]{}\s]+|\[[^.\[\]{}\s]+\])*)")
_STEP = re.compile(r"[^.\[\]]+")
_FAILED: Any = object()
"""Stands for a value with a reported problem; callers never see it, because they raise the problems."""


@dataclass(slots=True)
class Interpolation:
    """Values of a parsed YAML file with their references replaced.

    Args:
        root: The whole file.
        report: Called with missing values, unknown places, resolvers and cycles.

    Example:
        >>> Interpolation({"folder": "in", "path": "${folder}/a.jsonl"}, report).value_at(("path",))
        'in/a.jsonl'
    """

    root: Mapping[str, Any]
    report: Report
    used: set[str] = field(default_factory=set)
    """The top-level names that references lead to."""
    missing: set[str] = field(default_factory=set)
    """The places of `???` that were reported; each is reported once."""
    _open: list[Path] = field(default_factory=list)
    _values: int = 0
    _characters: int = 0

    def value_at(self, path: Path) -> Any:
        """The value at `path`, without references.

        Raises:
            RecipeError: References multiply beyond the limits.
        """
        found: Any = self.root
        for step in path:
            found = found[step]
        try:
            return self._value(found, path)
        except RecursionError:
            raise recipe_error(f"{_shown(path)}: references are nested too deeply.") from None

    def _value(self, found: Any, path: Path) -> Any:
        self._values += 1
        if self._values > MAX_VALUES:
            raise recipe_error(f"{_shown(path)}: references expand to more than {MAX_VALUES:,} values of the recipe.")
        if isinstance(found, Mapping):
            return {key: self._value(item, (*path, key)) for key, item in found.items()}
        if isinstance(found, list):
            return [self._value(item, (*path, place)) for place, item in enumerate(found)]
        if found == MISSING:
            self._report_missing(path)
            return _FAILED
        return self._text(found, path) if isinstance(found, str) and "${" in found else found

    def _text(self, text: str, path: Path) -> Any:
        """A text with its references replaced; a single reference keeps the type of its value."""
        pieces: list[list[Any]] = [[]]  # of the text itself, then of each reference that is still open
        end = 0
        for match in _MARK.finditer(text):
            before = text[end : match.start()]
            end = match.end()
            if match.group() == "}":
                pieces[-1].append(before)
                if len(pieces) == 1:
                    pieces[-1].append("}")
                else:
                    inner = pieces.pop()
                    pieces[-1].append(self._look_up(self._joined(inner, path), path))
                continue
            plain = before.rstrip("\\")
            slashes = len(before) - len(plain)
            pieces[-1].append(plain + "\\" * (slashes // 2))
            if slashes % 2:
                pieces[-1].append("${")
            elif len(pieces) > MAX_DEPTH:
                raise recipe_error(f"{_shown(path)}: references are nested more than {MAX_DEPTH} deep.")
            else:
                pieces.append([])
        if len(pieces) > 1:
            self.report(path, f"'${{' is not closed in {text!r}. Write '\\${{' for a plain '${{'.")
            return _FAILED
        whole = [piece for piece in [*pieces[0], text[end:]] if piece != ""]
        return whole[0] if len(whole) == 1 else self._joined(whole, path)

    def _joined(self, pieces: list[Any], path: Path) -> Any:
        """The pieces as one text."""
        if _FAILED in pieces:
            return _FAILED
        if any(piece is None or isinstance(piece, Mapping | list) for piece in pieces):
            self.report(
                path, "a reference inside other text must lead to text or a number, not to null, a list or a mapping."
            )
            return _FAILED
        joined = "".join(map(str, pieces))
        self._characters += len(joined)
        if self._characters > LARGEST_BYTES:
            raise recipe_error(f"{_shown(path)}: references expand to texts of more than {LARGEST_BYTES:,} characters.")
        return joined

    def _look_up(self, name: Any, path: Path) -> Any:
        """The value that `${name}` at `path` stands for."""
        if name is _FAILED:
            return _FAILED
        if ":" in name:
            resolver = name.partition(":")[0]
            self.report(
                path,
                f"'${{{name}}}' calls the resolver {resolver!r}. A recipe is data: it cannot call functions or read "
                "the environment. Write the value itself, or make it a variable and set that with --set.",
            )
            return _FAILED
        place = _PLACE.fullmatch(name)
        if place is None:
            self.report(
                path, f"'${{{name}}}' is not a reference. Write the place of a value, such as '${{paths.input}}'."
            )
            return _FAILED
        dots = len(place.group(1))
        base = path[: max(0, len(path) - dots)] if dots else ()
        return self._follow(name, (*base, *_STEP.findall(place.group(2))), path)

    def _follow(self, name: str, steps: tuple[str | int, ...], path: Path) -> Any:
        found: Any = self.root
        target: Path = ()
        for step in steps:
            if isinstance(found, str) and "${" in found:  # a reference to something that has parts
                found = self._entered(found, target, path)
            if found is _FAILED:
                return _FAILED
            key: str | int = int(step) if isinstance(found, list) and str(step).isdecimal() else step
            has = range(len(found)) if isinstance(found, list) else found if isinstance(found, Mapping) else ()
            if key not in has:
                names = [one for one in has if isinstance(one, str)]
                self.report(
                    path,
                    f"'${{{name}}}' does not exist: there is no {_shown((*target, step))!r}."
                    f"{did_you_mean(str(step), names)}",
                )
                return _FAILED
            found, target = found[key], (*target, key)
        self.used.add(str(target[0]))
        return self._entered(found, target, path)

    def _entered(self, found: Any, target: Path, path: Path) -> Any:
        """The value at `target`, which a reference at `path` leads to."""
        if target in self._open:
            circle = [*self._open[self._open.index(target) :], target]
            self.report(path, f"references form a circle: {' → '.join(map(_shown, circle))}.")
            return _FAILED
        if len(self._open) >= MAX_DEPTH:
            raise recipe_error(f"{_shown(path)}: references are chained more than {MAX_DEPTH} times.")
        self._open.append(target)
        try:
            return self._value(found, target)
        finally:
            self._open.pop()

    def _report_missing(self, path: Path) -> None:
        name = _shown(path)
        if name not in self.missing:
            self.missing.add(name)
            self.report(path, f"the variable {name!r} has no value (???). Set it with --set {name}=VALUE.")


def _shown(path: Path) -> str:
    """A place as a reference writes it.

    Example:
        >>> _shown(("stages", 0, "fields"))
        'stages.0.fields'
    """
    return ".".join(map(str, path)) or "the recipe"
