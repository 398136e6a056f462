"""The fast method: Resiliparse, falling back to all visible text if its main-content rules leave nearly nothing."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from typing import Any

from gristmill.stages.text.extraction.markup import blocks_of, markdown, plain_text, with_bars

_SHORT_CHARS = 1500
_MANY_TIMES = 3
_BULLET = re.compile(r"\n *• ")
_NOT_MAIN = (
    "nav", "footer", "aside", "[role=navigation]", "[role=banner]", "[role=contentinfo]", ".sidebar",
    "#sidebar", ".menu", ".breadcrumb", ".breadcrumbs", ".cookie", ".footer", "#footer", ".related", ".share",
    ".social",
)  # fmt: skip
"""Elements that are removed from the visible text."""


def extract(tree: Any, *, is_markdown: bool) -> str:
    """The main text of a parsed page."""
    render = partial(rendered, is_markdown=is_markdown)
    main = render(main_of(tree)) if is_markdown else _plain(tree)
    return by_rules(main, lambda: render(inside_of(tree)))


def as_is(tree: Any, *, is_markdown: bool) -> str:
    """The main text according to Resiliparse."""
    return rendered(main_of(tree), is_markdown=True) if is_markdown else _plain(tree)


def by_rules(main: str, inside: Callable[[], str]) -> str:
    """The main content, or everything outside of menus if the main content is very short in comparison."""
    if len(main) >= _SHORT_CHARS:
        return main
    more = inside()
    return more if len(more) > _MANY_TIMES * len(main) else main


def main_of(tree: Any, *, links: bool = False) -> str:
    """The main content according to Resiliparse, as reduced markup."""
    from resiliparse.extract.html2text import extract_plain_text

    markup: str = extract_plain_text(
        tree, main_content=True, alt_texts=False, preserve_formatting="minimal_html", links=links
    )
    return markup


def inside_of(tree: Any, *, links: bool = False) -> str:
    """Everything visible outside of menus, footers and similar elements, as reduced markup."""
    from resiliparse.extract.html2text import extract_plain_text

    markup: str = extract_plain_text(
        tree,
        main_content=False,
        alt_texts=False,
        preserve_formatting="minimal_html",
        links=links,
        noscript=True,
        skip_elements=_NOT_MAIN,
    )
    return markup


def rendered(markup: str, *, is_markdown: bool) -> str:
    """Reduced markup as text or Markdown."""
    blocks = blocks_of(markup)
    return markdown(blocks) if is_markdown else plain_text(blocks)


def _plain(tree: Any) -> str:
    """The main content as formatted by Resiliparse, with our dashes and bars; faster than through markup."""
    from resiliparse.extract.html2text import extract_plain_text

    text = with_bars(extract_plain_text(tree, main_content=True, alt_texts=False))
    if "•" in text:
        text = _BULLET.sub("\n- ", f"\n{text}")[1:]  # a pattern that begins with ^ would be tried at every character
    return text
