"""The passes that turn wikitext into text, each linear in its length for any content.

Markup is resolved from the inside out on a flat list of pieces with a stack of open brackets, without recursion. Text
that must no longer be treated as markup is protected by control characters, which XML does not allow in a dump.
"""

from __future__ import annotations

import html
import re
from typing import Literal

from gristmill.wikitext.blocks import BREAK, block_text
from gristmill.wikitext.links import link_text
from gristmill.wikitext.opaque import STASH, STASH_END, take_out
from gristmill.wikitext.quotes import without_quotes
from gristmill.wikitext.templates import template_text

Tables = Literal["rows", "drop"]
PIPE = "\x03"
"""A `|` that is text and separates nothing."""
MAX_DEPTH = 40
"""Maximum nesting depth of templates and links, as in MediaWiki: anything deeper is omitted."""

_BRACKETS = re.compile(r"(\{\{|\}\}|\[\[|\]\])")
_CONTROLS = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f]")
_SPACES = re.compile(r"  +")
# No `[` inside, so that no attempt extends beyond the next one.
_EXTERNAL = re.compile(
    r"\[(?:https?:|ftp:|mailto:|news:|irc:)?(?://|(?<=:))[^\s\[\]<>]+[ \t]*([^\[\]\n]*)\]", re.IGNORECASE
)
_BREAKING = "br|p|div|blockquote|center|li|ul|ol|dl|dt|dd|tr|table|caption|hr|h[1-6]|poem|section"
_INLINE = (
    "abbr|b|bdi|bdo|big|cite|code|data|del|dfn|em|font|i|ins|kbd|mark|noinclude|onlyinclude|includeonly|q|rb|rp|rt|rtc|"
    "ruby|s|samp|small|span|strike|strong|sub|sup|tbody|td|th|thead|time|tt|u|var|wbr|references|ref|nowiki|templatestyles|"
    "gallery|indicator|languages|mapframe|maplink|math|phonos|pre|source|syntaxhighlight|translate|tvar"
)
_BREAKS = re.compile(rf"</?(?:{_BREAKING})\b[^<>]*>", re.IGNORECASE)
_TAGS = re.compile(rf"</?(?:{_INLINE})\b[^<>]*>", re.IGNORECASE)
# The character before is looked at behind the first one, so that the search runs from `<` to `<`.
_POWER = re.compile(r"<(?<=\d<)sup\b[^<>]*>(?=[-\u2212]?\d)", re.IGNORECASE)
_MAGIC_WORD = re.compile(r"__[A-Z]{4,}__")
_VARIANT = re.compile(r"-\{([^{}]*)\}-")
_VARIANT_FLAGS = re.compile(r"^[A-Z;a-z-]{0,20}\|")
_LEFT_OVER = re.compile(r"\{\{+|\}\}+|\[\[+|\]\]+")
# What templates leave behind: empty brackets, separators after an opening one, spaces before a comma.
_EMPTY_BRACKETS = re.compile(r"\([ ,;:/\u2013-]*\)")
_AFTER_BRACKET = re.compile(r"\((?:[ ]*[,;])+[ ]*")
_BEFORE_COMMA = re.compile(r" ,(?=\s)")
_BEFORE_STOP = re.compile(r" \.(?=\s|$)")
_STASHED = re.compile(f"{STASH}(\\d+){STASH_END}")
_BLANK_LINES = re.compile(r"\n\n\n+")


def to_text(wikitext: str, *, title: str = "", tables: Tables = "rows") -> str:
    """The text that a reader of the page sees, without its boxes, notes and pictures.

    Args:
        wikitext: The page as its authors wrote it.
        title: Its name, which some pages mention by a magic word.
        tables: `rows` returns a line per row of a table with `|` between cells, `drop` leaves tables out.

    Example:
        >>> to_text("'''Anarchism''' is a [[political philosophy|philosophy]].{{cite book|title=X}}")
        'Anarchism is a philosophy.'
    """
    text = _CONTROLS.sub("", wikitext) if _CONTROLS.search(wikitext) else wikitext
    stash: list[str] = []
    if "<" in text:
        text = take_out(text, stash)
    text = _resolve_brackets(text, title)
    if "[" in text:
        text = _EXTERNAL.sub(r"\1", text)
    if "<" in text:
        text = _POWER.sub("^", text)
        text = _BREAKS.sub(BREAK, text)
        text = _TAGS.sub("", text)
    if "__" in text:
        text = _MAGIC_WORD.sub("", text)
    if "-{" in text:
        text = _VARIANT.sub(_variant, text)
    if "''" in text:
        text = without_quotes(text)
    text = block_text(text, keep_tables=tables == "rows")
    return _finished(text, stash)


def _resolve_brackets(text: str, title: str) -> str:
    """The text with templates and links resolved; unclosed brackets are kept, and removed at the end."""
    pieces = _BRACKETS.split(text)
    if len(pieces) == 1:
        return text
    out: list[str] = [pieces[0]]
    open_at: list[int] = []  # where in `out` the brackets lie that are open
    templates = 0  # how many of them are templates
    for at in range(1, len(pieces), 2):
        bracket = pieces[at]
        if bracket == "{{":
            open_at.append(len(out))
            templates += 1
            out.append(bracket)
        elif bracket == "[[":
            open_at.append(len(out))
            out.append(bracket)
        elif bracket == "}}" and templates:
            start = open_at.pop()
            while out[start] != "{{":  # a link that is not closed inside the template
                start = open_at.pop()
            templates -= 1
            inside = out[start + 1] if len(out) == start + 2 else "".join(out[start + 1 :])
            del out[start:]
            if len(open_at) < MAX_DEPTH:
                out.append(template_text(inside, title).replace("|", PIPE))
        elif bracket == "]]" and open_at and out[open_at[-1]] == "[[":
            start = open_at.pop()
            inside = out[start + 1] if len(out) == start + 2 else "".join(out[start + 1 :])
            del out[start:]
            if len(open_at) < MAX_DEPTH:
                out.append(link_text(inside).replace("|", PIPE))
        else:
            out.append(bracket)
        out.append(pieces[at + 1])
    return "".join(out)


def _variant(match: re.Match[str]) -> str:
    """One of the spellings that a page offers for scripts of one language, such as Chinese."""
    inside = match[1]
    flags = _VARIANT_FLAGS.match(inside)
    if flags is not None:
        if set("TAH-") & set(flags[0]) and "A" not in flags[0]:  # the page's title, or a rule without a text
            return ""
        inside = inside[flags.end() :]
    first = inside.split(";")[0]
    name, colon, spelling = first.partition(":")
    return spelling if colon and name.strip().isascii() else inside


def _finished(text: str, stash: list[str]) -> str:
    """The text without the remaining markup, and with the stored texts restored."""
    if "{{" in text or "}}" in text or "[[" in text or "]]" in text:
        text = _LEFT_OVER.sub("", text)
    if "&" in text:
        text = html.unescape(text)
    text = text.replace(PIPE, "|").replace(BREAK, "\n").replace("\t", " ").replace("\xa0", " ")
    if "(" in text:
        text = _EMPTY_BRACKETS.sub("", text)
        text = _AFTER_BRACKET.sub("(", text)
    text = _SPACES.sub(" ", text)
    text = _BEFORE_STOP.sub(".", _BEFORE_COMMA.sub(",", text))
    text = _BLANK_LINES.sub("\n\n", text.replace(" \n", "\n")).strip()
    return _STASHED.sub(lambda match: stash[int(match[1])], text).strip() if stash else text
