"""Reduced markup (headings, paragraphs, lists, code, links) as blocks, and blocks as plain text or Markdown."""

from __future__ import annotations

import html
import re
from collections.abc import Iterable

CELL = "\u241f"
"""Separates the cells of a table row; a symbol that does not occur in texts."""

_BETWEEN_CELLS = re.compile(r"</t[dh]>(?=\s{0,200}<t[dh][\s>])|</T[DH]>(?=\s{0,200}<T[DH][\s>])")
_TAG = re.compile(r"<[^<>]*>")
_LINK = re.compile(r"<a href=[^<>]*>|</a>")
_BREAK = re.compile(r"<br\s*/?>\s*")
_APART = frozenset({"<p>", "<h1", "<h2", "<h3", "<h4", "<h5", "<h6"})
_HEADING = re.compile(r"<h([1-6])>(.*)</h\1>$", re.DOTALL)


def with_cells_apart(page: str) -> str:
    """The page with a mark between table cells, whose texts would otherwise run together."""
    if CELL in page:
        page = page.replace(CELL, " ")
    return _BETWEEN_CELLS.sub(lambda end: CELL + end[0], page)  # quicker than a template with a group


def with_bars(text: str) -> str:
    r"""The text with a bar in place of one or more marks and the blanks around them.

    Example:
        >>> with_bars(f"a {CELL}\t{CELL} b")
        'a | b'
    """
    if CELL not in text:
        return text
    first, *between, last = text.split(CELL)
    cells = [first.rstrip(" \t"), *filter(None, (cell.strip(" \t") for cell in between)), last.lstrip(" \t")]
    return " | ".join(cells)


def blocks_of(markup: str) -> list[str]:
    """The blocks: each a line of the markup, or a whole element of code."""
    if "<pre>" not in markup:
        return list(filter(None, map(str.strip, markup.split("\n"))))
    blocks: list[str] = []
    for index, piece in enumerate(re.split(r"(<pre>.*?</pre>)", markup, flags=re.DOTALL)):
        blocks += [piece] if index % 2 else filter(None, map(str.strip, piece.split("\n")))
    return blocks


class Lines(dict[str, str]):
    """The texts of blocks, each computed once: those of a page are used several times."""

    def __missing__(self, block: str) -> str:
        text = self[block] = line_text(block)
        return text


def plain_text(blocks: Iterable[str], lines: Lines | None = None) -> str:
    r"""Blocks as text: one line each, blank lines around headings, paragraphs and code; list items have a dash.

    Example:
        >>> plain_text(["<h1>A</h1>", "<ul>", "<li>b &amp; c</li>", "</ul>"])
        'A\n\n- b & c'
    """
    text_of = line_text if lines is None else lines.__getitem__
    made: list[str] = []
    for block in blocks:
        start = block[:3]
        if start == "<pr" and block.startswith("<pre>"):
            made += ["", html.unescape(_TAG.sub("", block)).strip("\n"), ""]
            continue
        text = text_of(block)
        if not text:
            continue
        if start == "<li":
            made.append(f"- {text}")
        elif start in _APART:
            made += ["", text, ""]
        else:
            made.append(text)
    return _joined(made)


def markdown(blocks: Iterable[str]) -> str:
    r"""Blocks as Markdown: headings, lists, fenced code and tables.

    Example:
        >>> markdown(["<h2>A</h2>", "<pre>x = 1</pre>"])
        '## A\n\n```\nx = 1\n```'
    """
    lines: list[str] = []
    numbers: list[int | None] = []  # of each open list, what its next item is; None: a dash
    in_table = False
    for block in blocks:
        is_row = CELL in block and not block.startswith("<pre>")
        if is_row:
            cells = [line_text(cell).replace("|", "\\|") for cell in block.split(CELL)]
            row = f"| {' | '.join(cells)} |"
            lines += [row] if in_table else ["", row, "|" + " --- |" * len(cells)]
            in_table = True
            continue
        if in_table:
            lines.append("")
        in_table = False
        heading = _HEADING.match(block)
        if block.startswith("<pre>"):
            code = html.unescape(_TAG.sub("", block)).strip("\n")
            fence = "```" if "```" not in code else "~~~~"
            lines += ["", fence, code, fence, ""]
        elif block in ("<ul>", "<ol>"):
            lines += [] if numbers else [""]
            numbers.append(1 if block == "<ol>" else None)
        elif block in ("</ul>", "</ol>"):
            del numbers[-1:]
            lines += [] if numbers else [""]
        elif text := line_text(heading[2] if heading else block):
            if heading:
                lines += ["", f"{'#' * int(heading[1])} {text}", ""]
            elif block.startswith("<li"):
                number = numbers[-1] if numbers else None
                lines.append("  " * (len(numbers) - 1) + (f"- {text}" if number is None else f"{number}. {text}"))
                if number is not None:
                    numbers[-1] = number + 1
            else:
                lines += ["", text, ""] if block.startswith("<p>") else [text]
    return _joined(lines)


def line_text(block: str) -> str:
    """The text of a block in one line, except for its line breaks."""
    text = block
    if "<" in text:
        text = _TAG.sub("", _BREAK.sub("\n", text) if "<br" in text else text)
    if "&" in text:
        text = html.unescape(text)
    if CELL in text:
        text = with_bars(text.strip(f"{CELL} \t"))
    return text.strip()


def _joined(lines: Iterable[str]) -> str:
    """The lines, with at most one empty one in a row."""
    kept: list[str] = []
    for line in lines:
        if line or (kept and kept[-1]):
            kept.append(line)
    return "\n".join(kept).strip("\n")
