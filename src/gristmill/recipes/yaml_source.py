"""YAML as recipes read it: plain values only, no duplicate keys, and the line of every value.

Scalars follow the core schema of YAML 1.2: only `true` and `false` are booleans, so that `lang: no` stays the text
"no"; a date stays text; `1e-3` is a number. Numbers may have underscores (`100_000`).
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import yaml

from gristmill.errors import RecipeError

Path = tuple[str | int, ...]
"""The path of a value: `("stages", 2, "WordCountFilter", "min_words")`."""

Report = Callable[[Path, str], None]
"""Called with a problem: its path and its message."""

_LONGEST_NUMBER = 100
"""Maximum number of digits of a number, far more than any recipe needs."""
LARGEST_BYTES = 4_000_000
"""Maximum size of a recipe."""
MAX_VALUES = 100_000
"""More values than any recipe has; a few nested aliases can stand for billions."""

_TAG = "tag:yaml.org,2002:"
_WRONG_TAG = "the tag {!r} is not allowed: a recipe holds plain values."


class _Loader(yaml.SafeLoader):
    """The safe loader with the scalars of YAML 1.2."""

    yaml_implicit_resolvers: dict[str, list[tuple[str, re.Pattern[str]]]] = {}  # noqa: RUF012 (declared so by PyYAML)


class _Dumper(yaml.SafeDumper):
    """The safe dumper; quotes strings that either version of YAML would not read as text."""


_SCALAR_FORMS = (
    ("null", r"^(?:~|null|Null|NULL|)$", ["~", "n", "N", ""]),
    ("bool", r"^(?:true|True|TRUE|false|False|FALSE)$", list("tTfF")),
    ("int", r"^(?:[-+]?[0-9][0-9_]*|0o[0-7]+|0x[0-9a-fA-F]+)$", list("-+0123456789")),
    (
        "float",
        r"^(?:[-+]?(?:\.[0-9]+|[0-9][0-9_]*(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN))$",
        list("-+.0123456789"),
    ),
    ("merge", r"^<<$", ["<"]),
)
for _tag, _form, _first in _SCALAR_FORMS:
    _Loader.add_implicit_resolver(_TAG + _tag, re.compile(_form), _first)
    _Dumper.add_implicit_resolver(_TAG + _tag, re.compile(_form), _first)


def _scalar(kind: str, text: str) -> Any:
    """The value of a scalar whose tag says that it is of this kind."""
    plain = text.replace("_", "").lower()
    if kind == "int":
        return int(plain, 0) if plain[:2] in ("0o", "0x") else int(plain)
    if kind == "float":
        return float(plain.replace(".inf", "inf").replace(".nan", "nan"))
    return {"null": None, "bool": plain == "true", "str": text}[kind]


@dataclass(frozen=True, slots=True)
class Source:
    """A parsed YAML text.

    Attributes:
        value: The plain value: dicts, lists, texts, numbers, booleans and None.
        origin: Name of the text in messages, usually its path.
        lines: The line of each value, by its place.
    """

    value: Any
    origin: str
    lines: dict[Path, int] = field(default_factory=dict)

    def where(self, path: Path) -> str:
        """The origin and the line of the value at `path`, or of the nearest value around it."""
        while path not in self.lines and path:
            path = path[:-1]
        line = self.lines.get(path)
        return f"{self.origin}, line {line}" if line else self.origin


def parse_yaml(text: str, *, origin: str = "recipe") -> Source:
    """The value of a YAML text and the line of each of its parts.

    Raises:
        RecipeError: The text is not YAML, names a key twice, or has tags other than those of plain values.

    Example:
        >>> parse_yaml("a: [1, no]").value
        {'a': [1, 'no']}
    """
    loader = None
    try:
        loader = _Loader(text)
        node = loader.get_single_node()
        source = Source(None, origin)
        if node is None:
            return source
        value = _Builder(loader, source).value(node, ())
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = f"{origin}, line {mark.line + 1}, column {mark.column + 1}" if mark else origin
        raise recipe_error(f"{place}: this is not valid YAML: {error.problem or error.context}.") from error
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        told = f"the character U+{ord(text[error.position]):04X} is not allowed; write it as an escape in double quotes"
        raise recipe_error(f"{origin}, line {line}: this is not valid YAML: {told}.") from error
    except RecursionError as error:
        raise recipe_error(f"{origin}: this is nested too deeply.") from error
    finally:
        if loader is not None:
            loader.dispose()
    return Source(value, origin, source.lines)


def dump_yaml(value: Any) -> str:
    r"""`value` as text that `parse_yaml` reads back to the same value.

    Example:
        >>> dump_yaml({"lang": "no", "share": "1e-3"})
        "lang: 'no'\nshare: '1e-3'\n"
    """
    text = yaml.dump(value, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=120)
    try:
        if parse_yaml(text).value == value:
            return text
    except RecipeError:
        pass
    # Some control characters survive only as escapes.
    return yaml.dump(value, Dumper=_Dumper, sort_keys=False, width=120)


def recipe_error(message: str) -> RecipeError:
    """The error for a recipe with this one problem."""
    return RecipeError(message, problems=[message])


@dataclass(slots=True)
class Problems:
    """Collects problems, so that a user sees all of them at once.

    Attributes:
        source: The text of the recipe.
        inside: Where the paths of problems start, and what their messages begin with.
        found: The messages.
    """

    source: Source
    inside: tuple[Path, str] = ((), "")
    found: list[str] = field(default_factory=list)

    def add(self, path: Path, message: str) -> None:
        start, prefix = self.inside
        self.found.append(f"{self.source.where((*start, *path))}: {prefix}{message}")

    def raise_if_any(self) -> None:
        if self.found:
            head = f"{len(self.found)} problems in the recipe:\n" if len(self.found) > 1 else ""
            raise RecipeError(head + "\n".join(self.found), problems=self.found)


@dataclass(slots=True)
class _Builder:
    """Turns nodes into values, once per place (an alias is built again, so that no two places share a list)."""

    loader: _Loader
    source: Source
    built: int = 0
    around: set[int] = field(default_factory=set)
    """The nodes, by `id`, that enclose the current one."""

    def value(self, node: yaml.Node, path: Path) -> Any:
        line = node.start_mark.line + 1
        self.source.lines.setdefault(path, line)
        self.built += 1
        if self.built > MAX_VALUES:
            raise recipe_error(
                f"{self.source.origin}: the recipe has more than {MAX_VALUES} values; its aliases multiply."
            )
        if id(node) in self.around:
            raise self._error(line, "an alias refers to a value that contains it.")
        if isinstance(node, yaml.ScalarNode):
            kind = node.tag.removeprefix(_TAG)
            if kind in ("int", "float") and len(node.value) > _LONGEST_NUMBER:
                start, size = node.value[:20], f"{len(node.value):,}"
                raise self._error(line, f"the number {start}… has {size} digits; write a smaller one.")
            try:
                return _scalar(kind, node.value)
            except KeyError:
                raise self._error(line, _WRONG_TAG.format(node.tag)) from None
            except ValueError as error:
                raise recipe_error(
                    f"{self.source.origin}, line {line}: cannot read {node.value!r}: {error}."
                ) from error
        self.around.add(id(node))
        try:
            if isinstance(node, yaml.SequenceNode) and node.tag == _TAG + "seq":
                return [self.value(item, (*path, place)) for place, item in enumerate(node.value)]
            if isinstance(node, yaml.MappingNode) and node.tag == _TAG + "map":
                return self._mapping(node, path)
        finally:
            self.around.remove(id(node))
        raise self._error(line, _WRONG_TAG.format(node.tag))

    def _mapping(self, node: yaml.MappingNode, path: Path) -> dict[str, Any]:
        first_line: dict[str, int] = {}
        for key_node, _ in node.value:
            if key_node.tag == _TAG + "merge":
                continue
            line = key_node.start_mark.line + 1
            if not isinstance(key_node, yaml.ScalarNode) or key_node.tag != _TAG + "str":
                raise self._error(line, "a key must be text; put it in quotes.")
            if key_node.value in first_line:
                first = first_line[key_node.value]
                raise self._error(line, f"the key {key_node.value!r} is already on line {first}. Remove one of them.")
            first_line[key_node.value] = line
        self.loader.flatten_mapping(node)
        result: dict[str, Any] = {}
        for key_node, value_node in node.value:
            place = (*path, key_node.value)
            self.source.lines[place] = key_node.start_mark.line + 1
            result[key_node.value] = self.value(value_node, place)
        return result

    def _error(self, line: int, message: str) -> RecipeError:
        return recipe_error(f"{self.source.origin}, line {line}: {message}")
