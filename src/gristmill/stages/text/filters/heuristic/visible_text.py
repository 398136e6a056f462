"""Counts the visible text of HTML pages."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from html.entities import html5
from html.parser import HTMLParser

_VOID = frozenset(
    (
        "area", "base", "basefont", "bgsound", "br", "col", "command", "embed", "frame", "hr", "image", "img", "input",
        "isindex", "keygen", "link", "menuitem", "meta", "nextid", "param", "source", "spacer", "track", "wbr",
    )
)  # fmt: skip
_AS_IS = frozenset(("pre", "textarea"))
_HIDDEN = frozenset(("script", "style", "template", "rt", "rp"))
_SPACES = " \n\t\x0c\r"
_SECTION_KIND = re.compile("[a-zA-Z]*")


_MOST_UNFINISHED = 16


class _TextMeter(HTMLParser):
    """Counts the characters of visible text; whitespace alone between two tags counts as one character.

    The parser searches for the end of every tag and comment. A failed search is not repeated: a page of unterminated
    tags would take quadratic time.
    """

    def __init__(self) -> None:
        super().__init__(convert_charrefs=False)
        self.length = 0
        self._pieces: list[str] = []
        self._open: list[str] = []
        self._open_counts: Counter[str] = Counter()
        self._unfinished: Counter[str] = Counter()
        self._hidden = 0
        self._as_is = 0
        self._closed_void: dict[str, int] = {}

    def _flush(self) -> None:
        if not self._pieces:
            return
        text = "".join(self._pieces)
        self._pieces.clear()
        if self._hidden:
            return
        self.length += len(text) if self._as_is or text.strip(_SPACES) else min(len(text), 1)

    def _push(self, tag: str) -> None:
        self._open.append(tag)
        self._open_counts[tag] += 1
        self._hidden += tag in _HIDDEN
        self._as_is += tag in _AS_IS

    def _pop_to(self, tag: str) -> None:
        if not self._open_counts[tag]:
            return
        while True:
            last = self._open.pop()
            self._open_counts[last] -= 1
            self._hidden -= last in _HIDDEN
            self._as_is -= last in _AS_IS
            if last == tag:
                return

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._flush()
        if tag in _VOID:
            self._closed_void[tag] = self._closed_void.get(tag, 0) + 1
        else:
            self._push(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._flush()

    def handle_endtag(self, tag: str) -> None:
        if self._closed_void.get(tag):
            self._closed_void[tag] -= 1
            return
        self._flush()
        self._pop_to(tag)

    def handle_data(self, data: str) -> None:
        self._pieces.append(data)

    def handle_charref(self, name: str) -> None:
        digits = name[1:] if name[:1] in "xX" else name
        alphabet = "0123456789abcdefABCDEF" if name[:1] in "xX" else "0123456789"
        rest = digits.lstrip(alphabet)
        if len(rest) < len(digits):
            # Which character it is makes no difference to the length.
            self._pieces.append("x")
        self._pieces.append(rest)

    def handle_entityref(self, name: str) -> None:
        self._pieces.append(html5.get(f"{name};", f"&{name}"))

    def handle_comment(self, data: str) -> None:
        self._flush()

    def handle_decl(self, decl: str) -> None:
        self._flush()

    def handle_pi(self, data: str) -> None:
        self._flush()

    def unknown_decl(self, data: str) -> None:
        self._flush()
        if data.upper().startswith("CDATA["):
            self._pieces.append(data[len("CDATA[") :])
            self._flush()

    def close(self) -> None:
        # Unfinished markup is examined for the last time.
        self._unfinished.clear()
        super().close()
        self._flush()

    def parse_starttag(self, i: int) -> int:
        if self._unfinished["tag"] >= _MOST_UNFINISHED and self._unfinished[">"]:
            # After this many tags in a row without an end, the rest of the page counts as text.
            self.handle_data(self.rawdata[i:])
            return len(self.rawdata)
        end = super().parse_starttag(i)
        if end < 0:
            self._unfinished["tag"] += 1
            self._unfinished[">"] += self.rawdata.find(">", i) < 0
        return end

    def parse_endtag(self, i: int) -> int:
        return self._ended(">", super().parse_endtag, i)

    def parse_pi(self, i: int) -> int:
        return self._ended(">", super().parse_pi, i)

    def parse_comment(self, i: int, report: bool = True) -> int:
        return self._ended("-->", super().parse_comment, i)

    def parse_html_declaration(self, i: int) -> int:
        if self.rawdata.startswith(("<!--", "<!["), i):
            return super().parse_html_declaration(i)
        return self._ended(">", super().parse_html_declaration, i)

    def parse_marked_section(self, i: int, report: bool = True) -> int:
        kind = _SECTION_KIND.match(self.rawdata, i + 3)
        return self._ended(f"section {kind and kind[0].lower()}", super().parse_marked_section, i)

    def _ended(self, mark: str, parse: Callable[[int], int], i: int) -> int:
        """Where an element ends; not found if an earlier search for the same mark failed."""
        if self._unfinished[mark]:
            return -1
        end = parse(i)
        self._unfinished[mark] += end < 0
        return end


def visible_text_length(source: str) -> int:
    """Characters of the page outside tags, comments, scripts, styles and templates; 0 if the page is unreadable."""
    meter = _TextMeter()
    try:
        meter.feed(source)
        meter.close()
    except AssertionError:
        # Raised by the standard library for declarations that it cannot parse.
        return 0
    return meter.length
