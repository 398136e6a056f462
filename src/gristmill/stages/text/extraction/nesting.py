"""How deeply the elements of a page are nested, without parsing it: parsers take a time that grows with the square."""

from __future__ import annotations

import re

_ELEMENT = re.compile(r"<(/?)([a-zA-Z][^\s/<>]*+)([^<>]*+)>")
_PIECE = 1 << 14
_NEVER_OPEN = frozenset((
    "area", "base", "br", "col", "embed", "hr", "img", "input", "link", "meta", "param", "source", "track", "wbr",
    "p", "li", "dt", "dd", "option", "optgroup", "tr", "td", "th", "thead", "tbody", "tfoot", "colgroup", "caption",
    "rp", "rt", "html", "head", "body",
))  # fmt: skip
"""Elements without content, and those that the next one of their kind ends."""


def is_nested_deeper(page: str, limit: int) -> bool:
    """Whether more than `limit` elements are open at once, at some point of the page.

    Example:
        >>> is_nested_deeper("<b>" * 5, 4), is_nested_deeper("<b></b>" * 5, 4)
        (True, False)
    """
    if _greatest_balance(page) <= limit:
        return False
    open_now: dict[str, int] = {}
    depth = 0
    for closes, name, rest in _ELEMENT.findall(page):
        name = name.lower()
        if rest.endswith("/") or name in _NEVER_OPEN:
            continue
        count = open_now.get(name, 0)
        if closes:
            if count:
                open_now[name] = count - 1
                depth -= 1
        else:
            open_now[name] = count + 1
            depth += 1
            if depth > limit:
                return True
    return False


def _greatest_balance(page: str) -> int:
    """No fewer than are open at once: of each piece, all that it opens besides what earlier ones left open."""
    balance = greatest = 0
    for start in range(0, len(page), _PIECE):
        tags, closing = page.count("<", start, start + _PIECE), page.count("</", start, start + _PIECE + 1)
        greatest = max(greatest, balance + tags - closing)
        balance = max(0, balance + tags - 2 * closing)
    return greatest
