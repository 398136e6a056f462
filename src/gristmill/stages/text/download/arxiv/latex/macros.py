"""Macros of a paper: their definitions and expansions."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from gristmill.errors import InputError
from gristmill.stages.text.download.arxiv.latex.commands import HEADINGS, STRUCTURE
from gristmill.stages.text.download.arxiv.latex.reading import Frame, Input

_PARAMETER = re.compile(r"#(\d)")
_NAME = re.compile(r"\s*\\([a-zA-Z@]+|.)\s*", re.DOTALL)
_PATTERN = re.compile(r"[^{}]{0,200}(?=\{)")
_LET = re.compile(r"\s*\\([a-zA-Z@]+|.)\s*=?\s?(\\(?:[a-zA-Z@]+|.)|[^\s\\{}])", re.DOTALL)
_MOST_NESTED = 10
"""Maximum expansion depth of a macro: arguments may nest, but recursion would not end."""
_LONGEST_SEARCH = 10_000
_CALL_COST = 20


class LatexError(InputError):
    """A LaTeX source cannot be turned into text; `cause` is the one for the quarantine."""

    cause: str


@dataclass(frozen=True, slots=True)
class Macro:
    r"""The expansion of a command.

    Attributes:
        parts: The text around the parameters, and between them their numbers: text, number, text, number … text.
        count: Number of parameters.
        default: The value of the first parameter, if it is optional.
        borders: The delimiter after each parameter, for those of `\def`; the first comes before them.
        optional: Parameters that may be missing, with their default, for those of `\NewDocumentCommand`.
    """

    parts: tuple[str, ...]
    count: int = 0
    default: str | None = None
    borders: tuple[str, ...] = ()
    optional: dict[int, str] = field(default_factory=dict)


def macro_of(body: str, count: int = 0, default: str | None = None, borders: tuple[str, ...] = ()) -> Macro:
    """A macro from the text of its body."""
    return Macro(tuple(_PARAMETER.split(body)), count, default, borders)


class Macros:
    """The macros of one paper, and how much text they may still expand to.

    Args:
        room: Maximum number of characters of all expansions together.
    """

    def __init__(self, room: int) -> None:
        self.known: dict[str, Macro] = {}
        self.environments: dict[str, tuple[Macro, str]] = {}
        self.theorems: dict[str, str] = {}
        self.switches: dict[str, bool] = {}
        self._room = room

    def expand(self, name: str, source: Input) -> None:
        """Push the expansion of the command `name` in front of the input.

        Raises:
            LatexError: All expansions together are longer than any paper.
        """
        if source.active.get(name, 0) >= _MOST_NESTED:
            return
        macro = self.known[name]
        arguments = _arguments(macro, source)
        text = "".join(
            part if at % 2 == 0 else (arguments[int(part) - 1] if 0 < int(part) <= len(arguments) else "")
            for at, part in enumerate(macro.parts)
        )
        self.spend(len(text))
        source.push(Frame(text, macro=name))

    def spend(self, size: int) -> None:
        """Count text that results from expansion.

        Raises:
            LatexError: There is too much of it.
        """
        self._room -= size + _CALL_COST
        if self._room < 0:
            raise LatexError(
                "its macros and included files expand to more text than any paper has", cause="latex_expansion"
            )

    def begin(self, name: str, source: Input) -> None:
        """Push the beginning of an environment of the paper in front of the input."""
        macro, _ = self.environments[name]
        known = self.known.get("begin " + name)
        self.known["begin " + name] = known or macro
        self.expand("begin " + name, source)

    def end(self, name: str, source: Input) -> None:
        """Push its end."""
        body = self.environments[name][1]
        if source.active.get("end " + name, 0) < _MOST_NESTED:
            self.spend(len(body))
            source.push(Frame(body, macro="end " + name))

    def define(self, command: str, source: Input, *, simple: bool = False) -> bool:
        """Read a definition if `command` is one.

        Args:
            command: The name of the command that was just read.
            source: The input after it.
            simple: Accept only macros without inner commands, as from a journal's style file.
        """
        reader = _DEFINITIONS.get(command)
        if reader is None:
            return False
        found = reader(self, source)
        if found is not None:
            name, macro = found
            inner = simple and any("@" in part for part in macro.parts)
            if name not in STRUCTURE and name not in HEADINGS and not inner:
                self.known[name] = macro
        return True


def _arguments(macro: Macro, source: Input) -> list[str]:
    arguments: list[str] = []
    if macro.borders:
        _skip(source, macro.borders[0])
    for number in range(macro.count):
        border = macro.borders[number + 1] if macro.borders else ""
        if number == 0 and macro.default is not None:
            given = source.option()
            arguments.append(macro.default if given is None else given)
        elif number in macro.optional:
            given = source.option()
            arguments.append(macro.optional[number] if given is None else given)
        else:
            arguments.append(_until(source, border) if border else source.argument())
    return arguments


def _skip(source: Input, border: str) -> None:
    frame = source.frames[-1]
    if border and frame.text.startswith(border, frame.at, frame.end):
        frame.at += len(border)


def _until(source: Input, border: str) -> str:
    frame = source.frames[-1]
    end = frame.text.find(border, frame.at, min(frame.end, frame.at + _LONGEST_SEARCH))
    if end < 0:
        return ""
    content = frame.text[frame.at : end]
    frame.at = end + len(border)
    return content


# Definitions: each reads its arguments, and returns the macro to define ----------------------------------------------

_Defined = tuple[str, Macro] | None


def _command_name(source: Input) -> str | None:
    name = source.argument().strip()
    return name[1:] if name.startswith("\\") and len(name) > 1 else None


def _number(text: str | None) -> int:
    text = (text or "").strip()
    return int(text) if text.isascii() and text.isdigit() and len(text) == 1 else 0


def _new_command(macros: Macros, source: Input) -> _Defined:
    name = _command_name(source)
    count = _number(source.option())
    default = source.option() if count else None
    body = source.argument()
    return None if name is None else (name, macro_of(body, count, default))


def _document_command(macros: Macros, source: Input) -> _Defined:
    name = _command_name(source)
    wanted = source.argument()
    body = source.argument()
    optional: dict[int, str] = {}
    count = 0
    for sign, default in re.findall(r"([moOsvr])\s*(?:\{([^{}]*)\})?", wanted[:200]):
        if sign in "oOs":
            optional[count] = default
        count += 1
    return None if name is None else (name, Macro(tuple(_PARAMETER.split(body)), count, None, (), optional))


def _operator(macros: Macros, source: Input) -> _Defined:
    name = _command_name(source)
    body = source.argument()
    return None if name is None else (name, macro_of(f"\\operatorname{{{body}}}"))


def _paired(macros: Macros, source: Input) -> _Defined:
    name = _command_name(source)
    left, right = source.argument(), source.argument()
    return None if name is None else (name, macro_of(f"{left} #1 {right}", 1))


def _def(macros: Macros, source: Input) -> _Defined:
    frame = source.frames[-1]
    name = _NAME.match(frame.text, frame.at, frame.end)
    pattern = _PATTERN.match(frame.text, name.end(), frame.end) if name else None
    if name is None or pattern is None:
        return None
    frame.at = pattern.end()
    body = source.argument()
    borders = tuple(_PARAMETER.split(pattern[0].strip())[::2])
    plain = not any(borders)
    return name[1], macro_of(body, len(borders) - 1, None, () if plain else borders)


def _let(macros: Macros, source: Input) -> _Defined:
    frame = source.frames[-1]
    found = _LET.match(frame.text, frame.at, frame.end)
    if found is None:
        return None
    frame.at = found.end()
    known = macros.known.get(found[2][1:]) if found[2][0] == "\\" else None
    return found[1], known or macro_of(found[2])


def _new_environment(macros: Macros, source: Input) -> None:
    name = source.argument().strip()
    count = _number(source.option())
    default = source.option() if count else None
    begin, end = source.argument(), source.argument()
    macros.environments[name] = macro_of(begin, count, default), end
    macros.known.pop("begin " + name, None)


def _new_theorem(macros: Macros, source: Input) -> None:
    name = source.argument().strip()
    source.option()
    macros.theorems[name] = source.argument()[:200]
    source.option()


def _new_if(macros: Macros, source: Input) -> None:
    name = source.argument().strip().removeprefix("\\if")
    macros.switches[name] = False


_DEFINITIONS = {
    **dict.fromkeys(("newcommand", "renewcommand", "providecommand", "DeclareRobustCommand"), _new_command),
    **dict.fromkeys(("def", "gdef", "edef", "xdef"), _def),
    **dict.fromkeys(("NewDocumentCommand", "RenewDocumentCommand", "DeclareDocumentCommand"), _document_command),
    **dict.fromkeys(("DeclareMathOperator", "DeclareMathOperatorWithLimits"), _operator),
    **dict.fromkeys(("newenvironment", "renewenvironment"), _new_environment),
    "DeclarePairedDelimiter": _paired,
    "let": _let,
    "newif": _new_if,
    "newtheorem": _new_theorem,
    "spnewtheorem": _new_theorem,
}
