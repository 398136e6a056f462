"""Converts HTML without page layout, as in posts and mails, to text, without searching for the main text."""

from __future__ import annotations

import html
import re

# No tag reaches over the beginning of another, so that every character is looked at once.
_TOKEN = re.compile(r"<(/?)([a-zA-Z][a-zA-Z0-9]*)([^<>]*)>|<!--|<![^<>]*>|([^<]+)|<")
_BLOCKS = frozenset((
    "address", "article", "aside", "blockquote", "body", "center", "dd", "div", "dl", "dt", "fieldset", "footer",
    "form", "h1", "h2", "h3", "h4", "h5", "h6", "header", "hr", "li", "main", "nav", "ol", "p", "pre", "section",
    "table", "tbody", "td", "th", "thead", "tr", "ul",
))  # fmt: skip
_HIDDEN = frozenset(("script", "style", "head", "title", "noscript", "template"))
_MOST_NESTED_LISTS = 8


def text_of(markup: str) -> str:
    r"""The text of a piece of HTML: paragraphs between blank lines, lists as lines, code as it is written.

    Example:
        >>> text_of("<p>Use <code>a &lt; b</code>:</p><ul><li>one<li>two</ul>")
        'Use `a < b`:\n\n- one\n- two'
    """
    return _Text(markup).text()


class _Text:
    def __init__(self, markup: str) -> None:
        self._markup = markup
        self._parts: list[str] = []
        self._line: list[str] = []
        self._lists: list[int] = []  # the number of the next item; -1 in lists without numbers
        self._lead = ""
        self._in_code = self._after_item = False

    def text(self) -> str:
        at = 0
        markup = self._markup
        while (found := _TOKEN.match(markup, at)) is not None:
            at = found.end()
            if found[4] is not None:
                self._line.append(html.unescape(found[4] if self._in_code else found[4].replace("\n", " ")))
            elif found[2] is not None:
                name = found[2].lower()
                if name in _HIDDEN and not found[1]:
                    at = self._behind(f"</{name}", at)
                elif found[1]:
                    self._close(name)
                else:
                    self._open(name, found[3])
            elif found[0] == "<!--":
                at = self._behind("--", at)
            elif found[0] == "<":
                self._line.append("<")
        self._end_block()
        return "\n\n".join(self._parts)

    def _behind(self, end: str, at: int) -> int:
        """The position after the tag that begins with `end`; the end of the text if there is none."""
        found = re.compile(re.escape(end) + "[^<>]*>", re.IGNORECASE).search(self._markup, at)
        return len(self._markup) if found is None else found.end()

    def _open(self, name: str, attributes: str) -> None:
        if name == "br":
            self._line.append("\n")
        elif name == "code" and not self._in_code:
            self._line.append("`")
        elif name == "img":
            described = re.search(r"\balt\s*=\s*\"([^\"]*)\"", attributes)
            self._line.append(html.unescape(described[1]) if described else "")
        if name not in _BLOCKS:
            return
        self._end_block()
        if name == "pre":
            self._in_code = True
        elif name in ("ul", "ol"):
            self._lists.append(1 if name == "ol" else -1)
        elif name == "li":
            number = self._lists[-1] if self._lists else -1
            self._lead = "  " * min(len(self._lists) - 1, _MOST_NESTED_LISTS)
            self._lead += "- " if number < 0 else f"{number}. "
            if number > 0:
                self._lists[-1] += 1
        elif name[0] == "h" and name[1:].isdigit():
            self._lead = "#" * int(name[1:]) + " "

    def _close(self, name: str) -> None:
        if name == "code" and not self._in_code:
            self._line.append("`")
        if name in _BLOCKS:
            self._end_block()
        if name == "pre":
            self._in_code = False
        elif name in ("ul", "ol") and self._lists:
            self._lists.pop()

    def _end_block(self) -> None:
        text = "".join(self._line)
        self._line = []
        if self._in_code:
            if text.strip():
                text = text.strip("\n")
                self._parts.append(f"```\n{text}\n```")
            return
        text = "\n".join(filter(None, (" ".join(line.split()) for line in text.split("\n"))))
        if not text:
            return
        if self._lead and self._lists and self._parts and self._after_item:
            self._parts[-1] += f"\n{self._lead}{text}"
        else:
            self._parts.append(self._lead + text)
        self._after_item = bool(self._lead and self._lists)
        self._lead = ""
