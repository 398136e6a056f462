"""Comments and the tags whose content is not wikitext: code and formulas are kept unchanged, notes are omitted."""

from __future__ import annotations

import html
import re

STASH = "\x01"
STASH_END = "\x02"
"""Delimiters of the number of a stored text without markup; XML allows neither in a dump."""
_DROPPED = frozenset((
    "ref", "references", "gallery", "timeline", "score", "hiero", "imagemap", "graph", "chart", "mapframe", "maplink",
    "templatedata", "templatestyles", "includeonly", "inputbox", "categorytree", "indicator", "rss", "section",
))  # fmt: skip
_LINES = frozenset(("pre", "syntaxhighlight", "source"))
_FORMULAS = frozenset(("math", "chem", "ce"))
_NAMES = sorted({*_DROPPED, *_LINES, *_FORMULAS, "nowiki"}, key=len, reverse=True)
# An attempt ends at the next angle bracket, so that many tags without an end are searched once.
_OPENING = re.compile(rf"<!--|<({'|'.join(_NAMES)})(?![\w-])([^<>]*)>", re.IGNORECASE)
_CLOSING = {name: re.compile(rf"</{name}\s*>", re.IGNORECASE) for name in _NAMES}


def take_out(text: str, stash: list[str]) -> str:
    """The text without comments and notes; what must stay unchanged is moved to `stash`."""
    out: list[str] = []
    missing: set[str] = set()
    at = 0
    opening = _OPENING.search(text)
    while opening is not None:
        start = opening.start()
        out.append(text[at:start])
        name = opening[1]
        if name is None:
            end = text.find("-->", start + 4)
            at = len(text) if end < 0 else end + 3
            if text[at : at + 1] == "\n" and (start == 0 or text[start - 1] == "\n"):
                at += 1  # a line with nothing but a comment is no blank line
        else:
            name = name.lower()
            at = opening.end()
            if not opening[2].endswith("/") and name not in missing:
                closing = _CLOSING[name].search(text, at)
                if closing is None:
                    missing.add(name)
                else:
                    content = _kept(name, text[at : closing.start()])
                    at = closing.end()
                    if content:
                        out.append(f"{STASH}{len(stash)}{STASH_END}")
                        stash.append(content)
        opening = _OPENING.search(text, at)
    out.append(text[at:])
    return "".join(out)


def _kept(name: str, content: str) -> str:
    """What a reader sees of the content of a tag."""
    if name in _DROPPED:
        return ""
    if name in _FORMULAS:
        content = content.strip()
        return f"${content}$" if content else ""
    if name in _LINES:
        content = content.strip("\n")
        return f"\n{html.unescape(content) if name == 'pre' else content}\n"
    return html.unescape(content)
