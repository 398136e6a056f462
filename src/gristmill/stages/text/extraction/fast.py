"""The fast way: Resiliparse, with all that is visible where its rules for main content leave nearly nothing."""

from __future__ import annotations

from typing import Any

from gristmill.stages.text.extraction.markup import blocks_of, markdown, plain_text

_SHORT_CHARS = 1500
_MANY_TIMES = 3
_NOT_MAIN = (
    "nav", "footer", "aside", "form", "[role=navigation]", "[role=banner]", "[role=contentinfo]", ".sidebar",
    "#sidebar", ".menu", ".breadcrumb", ".breadcrumbs", ".cookie", ".footer", "#footer", ".related", ".share",
    ".social",
)  # fmt: skip
"""What is left out of all that is visible."""


def extract(tree: Any, *, is_markdown: bool) -> str:
    """The main text of a parsed page."""
    main = main_of(tree)
    return _rendered(by_rules(main, inside_of(tree)) if len(main) < _SHORT_CHARS else main, is_markdown)


def as_is(tree: Any, *, is_markdown: bool) -> str:
    """What Resiliparse takes for the main text."""
    return _rendered(main_of(tree), is_markdown)


def by_rules(main: str, inside: str) -> str:
    """The main content, or all that is not in menus where that is many times as much as very little."""
    return inside if len(main) < _SHORT_CHARS and len(inside) > _MANY_TIMES * len(main) else main


def main_of(tree: Any, *, links: bool = False) -> str:
    """What Resiliparse takes for the main content, as reduced markup."""
    from resiliparse.extract.html2text import extract_plain_text

    markup: str = extract_plain_text(
        tree, main_content=True, alt_texts=False, preserve_formatting="minimal_html", links=links
    )
    return markup


def inside_of(tree: Any, *, links: bool = False) -> str:
    """All that is visible outside of menus, footers and the like, as reduced markup."""
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


def _rendered(markup: str, is_markdown: bool) -> str:
    blocks = blocks_of(markup)
    return markdown(blocks) if is_markdown else plain_text(blocks)
