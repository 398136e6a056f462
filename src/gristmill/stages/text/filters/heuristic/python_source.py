"""Extracts comments and docstrings of Python programs, including those that do not parse."""

from __future__ import annotations

import ast
import re
import warnings
from collections.abc import Iterator


class UnreadableSourceError(ValueError):
    """The source is not valid in its language: an unterminated comment, or a syntax error."""


_PLAIN_LINES = re.compile(r"""(?:[^\s#"'\\()\[\]{}][^#"'\\()\[\]{}\n]*\n+)+""")
"""Unindented statements of only names, numbers and operators, and the blank lines after them."""
_PLAIN_CODE = re.compile(r"""[^#"'\\()\[\]{}\n]+""")
_STRINGS = {
    quote: re.compile(rf"""{quote}[^\n{quote}\\]*(?:\\.[^\n{quote}\\]*)*({quote}|\\\r?\n)""") for quote in "\"'"
}
_STRING_ENDS = {quote: re.compile(rf"""[^{quote}\\]*(?:\\.[^{quote}\\]*)*{quote}""") for quote in "\"'"}
_LONG_STRING_ENDS = {
    quote: re.compile(rf"""[^{quote}\\]*(?:(?:\\[\s\S]|{quote}(?!{quote}{quote}))[^{quote}\\]*)*{quote}{{3}}""")
    for quote in "\"'"
}


def python_comments(source: str) -> list[str]:
    """The comments of a Python program, including `#`: those that `tokenize` of Python 3.11 finds.

    `tokenize` treats an unterminated quote as an operator and continues after it, in time quadratic in the length of a
    line. This implementation looks at every character a fixed number of times.

    Raises:
        UnreadableSourceError: A string or bracket is not terminated, or a line has inconsistent indentation.
    """
    return _PythonComments(source).find()


class _PythonComments:
    def __init__(self, source: str) -> None:
        self._source = source
        self._at = 0
        self._found: list[str] = []
        self._indents = [0]
        self._depth = 0
        self._continued = False
        self._must_continue = False
        self._closings: dict[str, tuple[int, int, list[bool]]] = {}
        self._missed: dict[str, int] = {}

    def find(self) -> list[str]:
        while self._at < len(self._source):
            if self._depth == 0 and not self._continued:
                plain = _PLAIN_LINES.match(self._source, self._at)
                if plain is not None:
                    self._indents, self._at = [0], plain.end()
                    continue
            end = self._line_end()
            if self._depth == 0 and not self._continued and not self._begins_statement(end):
                self._at = end
                continue
            self._continued = False
            while self._at < end:
                # A string of several lines moves the end of the line that is read.
                end = self._step(end)
        if self._depth or self._continued:
            raise UnreadableSourceError("the program ends within a statement")
        return self._found

    def _begins_statement(self, end: int) -> bool:
        """Whether the line holds code; its indentation is compared with the lines before."""
        column = 0
        while self._at < end and self._source[self._at] in " \t\f":
            character = self._source[self._at]
            column = column + 1 if character == " " else (column // 8 + 1) * 8 if character == "\t" else 0
            self._at += 1
        if self._at == end or self._source[self._at] in "\r\n":
            return False
        if self._source[self._at] == "#":
            self._found.append(self._source[self._at : end].rstrip("\r\n"))
            return False
        if column > self._indents[-1]:
            self._indents.append(column)
        while column < self._indents[-1]:
            self._indents.pop()
            if column > self._indents[-1]:
                raise UnreadableSourceError("a line has inconsistent indentation")
        return True

    def _line_end(self) -> int:
        return self._source.find("\n", self._at) + 1 or len(self._source)

    def _step(self, end: int) -> int:
        """Read one piece of a line; returns where the current line ends."""
        plain = _PLAIN_CODE.match(self._source, self._at, end)
        if plain is not None:
            self._at = plain.end()
            return end
        sign = self._source[self._at]
        if sign in "\"'":
            return self._string(sign, end)
        if sign == "#":
            comment = self._source[self._at : end].split("\n", 1)[0].split("\r", 1)[0]
            self._found.append(comment)
            self._at += len(comment)
        elif sign == "\\" and self._source.startswith(("\n", "\r\n"), self._at + 1):
            self._continued = True
            self._at = end
        else:
            self._depth += (sign in "([{") - (sign in ")]}")
            self._at += 1
        return end

    def _string(self, quote: str, end: int) -> int:
        source = self._source
        if source.startswith(quote * 3, self._at):
            self._at += 3
            closing = _LONG_STRING_ENDS[quote].match(source, self._at, end)
            if closing is None:
                self._at = end
                return self._later_lines(_LONG_STRING_ENDS[quote])
            self._at = closing.end()
            return end
        line_end, begin, closings = self._closings.get(quote, (-1, 0, []))
        found = None
        if line_end != end or closings[self._at + 1 - begin]:
            found = _STRINGS[quote].match(source, self._at, end)
        if found is None:
            if self._missed.get(quote) != end:
                self._missed[quote] = end
            elif line_end != end:
                # No later quote of this line needs to be tried to the line's end.
                self._closings[quote] = (end, self._at, _closings(source[self._at : end], quote))
            self._at += 1
            return end
        self._at = found.end()
        if source[self._at - 1] != "\n":
            return end
        self._must_continue = True
        return self._later_lines(_STRING_ENDS[quote])

    def _later_lines(self, closing: re.Pattern[str]) -> int:
        """Read to the end of a multi-line string, or to the line that breaks it off."""
        source = self._source
        while self._at < len(source):
            end = self._line_end()
            found = closing.match(source, self._at, end)
            if found is not None:
                self._at = found.end()
                self._must_continue = False
                return end
            self._at = end
            # After an unterminated string, the next long one follows the same rule: a quirk that others copy.
            if self._must_continue and not source[end - 3 : end].endswith(("\\\n", "\\\r\n")):
                return end
        raise UnreadableSourceError("a string is not terminated")


def _closings(line: str, quote: str) -> list[bool]:
    """For every position of a line, whether a string that continues there ends on this line or with a continuation."""
    ends = [False] * (len(line) + 2)
    for at in range(len(line) - 1, -1, -1):
        if line[at] == quote:
            ends[at] = True
        elif line[at] == "\\":
            ends[at] = ends[at + 2] or line.startswith(("\n", "\r\n"), at + 1)
        elif line[at] != "\n":
            ends[at] = ends[at + 1]
    return ends


def python_docstrings(source: str) -> list[str]:
    """The docstrings of a program, its classes and its functions (not of coroutines), without indentation.

    Raises:
        UnreadableSourceError: The source does not parse.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(source)
        documented = (ast.Module, ast.ClassDef, ast.FunctionDef)
        return [
            text for node in _statements(tree) if isinstance(node, documented) and (text := ast.get_docstring(node))
        ]
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise UnreadableSourceError(str(error)) from error


_SIMPLE = (ast.Expr, ast.Assign, ast.AugAssign, ast.AnnAssign, ast.Return, ast.Pass, ast.Import, ast.ImportFrom)
"""Statements that contain no others, which most are."""


def _statements(tree: ast.Module) -> Iterator[ast.AST]:
    """The program and all its statements, without their expressions, which contain no docstrings."""
    pending: list[ast.AST] = [tree]
    while pending:
        node = pending.pop()
        yield node
        if isinstance(node, _SIMPLE):
            continue
        for name in ("body", "orelse", "finalbody", "handlers", "cases"):
            inner = getattr(node, name, None)
            if isinstance(inner, list):
                pending.extend(inner)
