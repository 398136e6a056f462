"""One page: its text by each method, and the facts about it."""

from __future__ import annotations

import re
from functools import cache, cached_property, partial
from typing import Any

from gristmill.kernels.markup_scan import scan_markup
from gristmill.stages.text.extraction import auto, fast
from gristmill.stages.text.extraction.charset import decode_page
from gristmill.stages.text.extraction.facts import facts_of
from gristmill.stages.text.extraction.formulas import with_readable_formulas
from gristmill.stages.text.extraction.language import NAMES, language_code
from gristmill.stages.text.extraction.markup import with_cells_apart

MAX_ELEMENTS = 100_000
"""Parsers take time quadratic in the number of siblings; real pages have far fewer."""
_MAX_CAREFUL_CHARS = 3_000_000
"""`auto` does not pass larger pages to Trafilatura: it takes seconds per megabyte."""
_MAX_JUSTEXT = 20_000
"""Its time is quadratic in the number of paragraphs that it considers boilerplate."""
_FORMULA = re.compile(r"\$[^$\n]+\$")
_ESCAPED = re.compile(r"\\([_*<>\[\]`])")
"""Characters that Trafilatura escapes in Markdown, also within formulas."""


class PageProblemError(ValueError):
    """The page must not be passed to a library; holds the cause for the quarantine."""

    def __init__(self, cause: str, detail: str) -> None:
        super().__init__(detail)
        self.cause = cause


class Page:
    """A page.

    Args:
        content: Its bytes, or its text.
        charset: The charset declared by the server.
        url: Its address.
        max_depth: Maximum nesting depth of its elements.
        fix_encoding: Whether to repair text that was decoded wrongly.

    Raises:
        PageProblemError: It has too many elements, or they are nested too deeply.
    """

    def __init__(
        self, content: bytes | str, charset: str | None, url: str | None, *, max_depth: int, fix_encoding: bool
    ) -> None:
        html = content if isinstance(content, str) else decode_page(content, charset)
        raw = content if isinstance(content, bytes) else html.encode("utf-8", "ignore")
        if b"\x00" in raw:
            html = html.replace("\x00", "")
            raw = html.encode("utf-8", "ignore")
        seen = scan_markup(raw)
        if seen.tags > MAX_ELEMENTS:
            raise PageProblemError(
                "too_many_elements", f"the page has {seen.tags:,} tags; the maximum is {MAX_ELEMENTS:,}"
            )
        if seen.depth > max_depth:
            raise PageProblemError("nested_too_deeply", f"more than {max_depth:,} elements of the page are nested")
        self._has_formulas = seen.has_formulas
        self._has_cells = seen.has_cells
        self.html = with_readable_formulas(html) if self._has_formulas else html
        self.url = url
        self._fix_encoding = fix_encoding

    @cached_property
    def tree(self) -> Any:
        """The page as parsed by Resiliparse, with a mark between the cells of tables."""
        from resiliparse.parse.html import HTMLTree

        return HTMLTree.parse(with_cells_apart(self.html) if self._has_cells else self.html)

    def text(self, method: str, output_format: str) -> str:
        """The main text; empty if there is none."""
        found: str = getattr(self, f"_{method}")(output_format == "markdown")
        found = found.strip()
        if self._fix_encoding and found and not found.isascii():
            import ftfy

            found = ftfy.fix_text(found)
        try:
            found.encode()
        except UnicodeEncodeError:  # a lone surrogate, written as an entity
            found = found.encode("utf-8", "ignore").decode("utf-8")
        return found

    def facts(self, wanted: frozenset[str], text: str) -> dict[str, Any]:
        """What the page says about itself, and the language of its text."""
        found: dict[str, Any] = facts_of(self.tree, self.url, wanted) if wanted != {"language"} else {}
        if "language" in wanted:
            root = self.tree.document.query_selector("html[lang]")
            found["language"] = language_code(text, None if root is None else root.getattr("lang"))
        return found

    def _fast(self, is_markdown: bool) -> str:
        return fast.extract(self.tree, is_markdown=is_markdown)

    def _auto(self, is_markdown: bool) -> str:
        careful = partial(self._trafilatura, is_markdown) if len(self.html) <= _MAX_CAREFUL_CHARS else None
        return auto.extract(self.tree, careful, is_markdown=is_markdown)

    def _trafilatura(self, is_markdown: bool) -> str:
        import trafilatura

        found: str = trafilatura.extract(self.html, output_format="markdown" if is_markdown else "txt") or ""
        if is_markdown and self._has_formulas:
            found = _FORMULA.sub(lambda formula: _ESCAPED.sub(r"\1", formula[0]), found)
        return found

    def _resiliparse(self, is_markdown: bool) -> str:
        return fast.as_is(self.tree, is_markdown=is_markdown)

    def _justext(self, is_markdown: bool) -> str:
        if self.html.count("<") > _MAX_JUSTEXT:
            raise PageProblemError("too_many_elements", f"jusText supports pages of up to {_MAX_JUSTEXT:,} tags")
        import justext
        from lxml.etree import ParserError

        name = NAMES.get(language_code(fast.as_is(self.tree, is_markdown=False)) or "en", "English")
        try:
            judged = justext.justext(self.html.encode("utf-8", "ignore"), _stop_words(name), encoding="utf-8")
        except ParserError:  # nothing in it
            return ""
        lines = []
        for paragraph in judged:
            if not paragraph.is_boilerplate:
                level = paragraph.dom_path.rpartition(".")[2]
                is_heading = is_markdown and len(level) == 2 and level[0] == "h" and level[1].isdigit()
                lines.append(f"{'#' * int(level[1])} {paragraph.text}" if is_heading else paragraph.text)
        return "\n\n".join(lines)


@cache
def _stop_words(language: str) -> frozenset[str]:
    """JusText's stop words, which it reads from a file at every call; none for a language that it does not know."""
    import justext

    return justext.get_stoplist(language) if language in justext.get_stoplists() else frozenset()
