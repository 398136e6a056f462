"""Prompt templates, and long texts in chunks."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cached_property
from typing import Any, NamedTuple

from gristmill.errors import UsageError, require_module

CHUNK_VARIABLES = frozenset({"chunk_index", "chunk_count"})
"""Template variables besides the columns: the chunk's index, from 0, and the number of chunks."""
_BREAKS = (re.compile(r"\n\s*\n"), re.compile(r"\n"), re.compile(r"[.!?。！？]\s"), re.compile(r"\s"))
"""Where a long text is cut: after a paragraph, a line, a sentence or a word, whichever comes first in this list."""
_LEAST_FILLED = 0.5


_RENDERING = (TypeError, ValueError, ArithmeticError, LookupError, AttributeError)


class _Compiled(NamedTuple):
    template: Any
    names: frozenset[str]
    functions: dict[str, Any]
    errors: tuple[type[Exception], ...]


class PromptTemplate:
    """A Jinja template over the columns of a document; compiled in a sandbox, when it is first needed.

    Values are inserted as text. Template syntax in a document is not evaluated.

    Args:
        source: The template.
        parameter: Name of the parameter that holds it, for messages.

    Raises:
        UsageError: The source is not a valid template.

    Example:
        >>> PromptTemplate("Grade this: {{ text }}").render({"text": "{{ 7 * 7 }}"})
        'Grade this: {{ 7 * 7 }}'
    """

    def __init__(self, source: str, parameter: str = "prompt") -> None:
        self.source = source
        self.parameter = parameter

    @cached_property
    def _compiled(self) -> _Compiled:
        require_module("jinja2", "A prompt template")
        from jinja2 import StrictUndefined, TemplateError, meta
        from jinja2.sandbox import ImmutableSandboxedEnvironment

        environment = ImmutableSandboxedEnvironment(undefined=StrictUndefined, keep_trailing_newline=True)
        try:
            names = meta.find_undeclared_variables(environment.parse(self.source))
            template = environment.from_string(self.source)
        except TemplateError as error:
            raise UsageError(
                f"{self.parameter} is not a valid Jinja template: {str(error).rstrip('.')}.", parameter=self.parameter
            ) from error
        return _Compiled(template, frozenset(names), dict(template.globals), (TemplateError, *_RENDERING))

    @property
    def columns(self) -> list[str]:
        """The columns that the template uses."""
        return sorted(self._compiled.names - CHUNK_VARIABLES)

    def render(self, values: Mapping[str, Any]) -> str:
        """The text for one document.

        Raises:
            UsageError: The template cannot be rendered with these values.
        """
        compiled = self._compiled
        template = compiled.template
        try:
            # As `template.render(values)`, which collects the global functions anew for every document.
            inside = template.environment.context_class(
                template.environment, {**compiled.functions, **values}, template.name, template.blocks
            )
            return "".join(template.root_render_func(inside))
        except compiled.errors as error:
            raise UsageError(
                f"{self.parameter} cannot be rendered for a document: {type(error).__name__}: {error}. Handle missing "
                "values in the template, as in {{ title or '' }}.",
                parameter=self.parameter,
            ) from error

    def __getstate__(self) -> dict[str, Any]:
        return {"source": self.source, "parameter": self.parameter}


def chunks_of(text: str, max_chars: int | None) -> list[str]:
    """The text in consecutive pieces of at most `max_chars` characters.

    Cuts after a paragraph if one ends in the second half of a piece, otherwise after a line, a sentence or a word; a
    piece without any of these is cut at the limit.

    Example:
        >>> chunks_of("One two. Three four.", 12)
        ['One two. ', 'Three four.']
    """
    if max_chars is None or len(text) <= max_chars:
        return [text]
    pieces, start = [], 0
    while len(text) - start > max_chars:
        end = start + max_chars
        for pattern in _BREAKS:
            least = start + max(1, int(max_chars * _LEAST_FILLED))
            places = [match.end() for match in pattern.finditer(text, least, end)]
            if places:
                end = places[-1]
                break
        pieces.append(text[start:end])
        start = end
    pieces.append(text[start:])
    return pieces


def spaced_chunks(text: str, max_chars: int | None) -> list[tuple[str, str, str]]:
    """Like `chunks_of`, but each piece is stripped and returned with its leading and trailing whitespace.

    Example:
        >>> spaced_chunks(" One two.  Three four.", 12)
        [('One two.', ' ', '  '), ('Three four.', '', '')]
    """
    made: list[tuple[str, str, str]] = []
    blank = ""
    for piece in chunks_of(text, max_chars):
        left = piece.lstrip()
        bare = left.rstrip()
        if bare:
            made.append((bare, blank + piece[: len(piece) - len(left)], left[len(bare) :]))
            blank = ""
        else:
            blank += piece
    if blank and made:
        bare, before, after = made.pop()
        made.append((bare, before, after + blank))
    return made
