"""How many characters of a program are comments, for the languages whose comments can be told without parsing."""

from __future__ import annotations

import ast
import io
import re
import tokenize
import warnings
from collections.abc import Callable


class UnreadableSourceError(ValueError):
    """The source is not a program of its language: a comment without an end, or a syntax error."""


_C_FAMILY = re.compile(r'"[^"\n]*"|//(?P<text>.*)|/\*(?P<block>[\s\S]*?)\*/|(?P<open>/\*)')
_MARKUP = re.compile(r'"[^"\n]*"|<!--(?P<text>[\s\S]*?)-->|(?P<open><!--)')
_RUBY = re.compile(r"""(?P<quote>["'])(?:\\(?P=quote)|(?!(?P=quote)).)*(?P=quote)|\#(?P<text>.*)""")
_SHELL = re.compile(r"""(?P<quote>["'])(?:(?!(?P=quote))[^\\]|\\[\s\S])*(?:(?P=quote)|\\?\Z)|\\[\s\S]|\#(?P<text>.*)""")
# A slash takes the character after it along, whatever it is, unless both begin a comment.
_SLASHES = r"""|//(?P<text>.*)|/\*(?P<block>[\s\S]*?)\*/|(?P<open>/\*)|/[\s\S]"""
_SCRIPT = re.compile(r"""(?P<quote>["'])(?:(?!(?P=quote))[^\\]|\\[\s\S])*(?:(?P=quote)|\\?\Z)""" + _SLASHES)
_GO = re.compile(r"""(?P<quote>["'`])(?:(?!(?P=quote))[^\\]|\\[\s\S])*(?:(?P=quote)|\\?\Z)""" + _SLASHES)


def _matched(pattern: re.Pattern[str]) -> Callable[[str], list[str]]:
    """Comments as what a pattern's groups match, with strings and escapes skipped."""

    def comments(source: str) -> list[str]:
        found: list[str] = []
        for match in pattern.finditer(source):
            groups = match.groupdict()
            if groups.get("open") is not None:
                raise UnreadableSourceError("a comment does not end")
            for name in ("text", "block"):
                text = groups.get(name)
                if text is not None:
                    found.append(text)
        return found

    return comments


def python_comments(source: str) -> list[str]:
    """The comments of a Python program, with their sign.

    Raises:
        UnreadableSourceError: The source has no tokens.
    """
    try:
        tokens = tokenize.generate_tokens(io.StringIO(source).readline)
        return [token.string for token in tokens if token.type == tokenize.COMMENT]
    except (tokenize.TokenError, SyntaxError, ValueError) as error:
        raise UnreadableSourceError(str(error)) from error


def _python_comment_texts(source: str) -> list[str]:
    return [comment[1:] for comment in python_comments(source)]


def python_docstrings(source: str) -> list[str]:
    """The documentation strings of a program, its classes and its functions (not of coroutines), without indentation.

    Raises:
        UnreadableSourceError: The source does not parse.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(source)
        nodes = (node for node in ast.walk(tree) if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef))
        return [text for text in map(ast.get_docstring, nodes) if text]
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise UnreadableSourceError(str(error)) from error


COMMENTS: dict[str, Callable[[str], list[str]]] = {
    "application/javascript": _matched(_SCRIPT),
    "text/html": _matched(_MARKUP),
    "text/x-c": _matched(_C_FAMILY),
    "text/x-c++": _matched(_C_FAMILY),
    "text/x-go": _matched(_GO),
    "text/x-java": _matched(_C_FAMILY),
    "text/x-java-source": _matched(_C_FAMILY),
    "text/x-javascript": _matched(_SCRIPT),
    "text/x-python": _python_comment_texts,
    "text/x-ruby": _matched(_RUBY),
    "text/x-script.python": _python_comment_texts,
    "text/x-shellscript": _matched(_SHELL),
    "text/xml": _matched(_MARKUP),
}
