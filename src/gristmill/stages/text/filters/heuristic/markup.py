"""How much of an HTML page is text that a reader would see."""

from __future__ import annotations

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


class _TextMeter(HTMLParser):
    """Counts the characters of visible text; white space alone between two tags counts as one character."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=False)
        self.length = 0
        self._pieces: list[str] = []
        self._open: list[str] = []
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
        self._hidden += tag in _HIDDEN
        self._as_is += tag in _AS_IS

    def _pop_to(self, tag: str) -> None:
        if tag not in self._open:
            return
        while True:
            last = self._open.pop()
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
        super().close()
        self._flush()


def visible_text_length(source: str) -> int:
    """Characters of the page outside tags, comments, scripts, styles and templates; 0 where it cannot be read."""
    meter = _TextMeter()
    try:
        meter.feed(source)
        meter.close()
    except AssertionError:
        # What the standard library raises for declarations it cannot make sense of.
        return 0
    return meter.length
