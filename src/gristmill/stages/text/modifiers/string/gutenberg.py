"""The modifier for Project Gutenberg books, which keeps only the book."""

from __future__ import annotations

import re

import pyarrow as pa

from gristmill.stages.text.modifiers.doc_modifier import ColumnModifier

# Header and licence are searched for near the ends only; in between they may be quoted.
_HEAD_CHARS = 60_000
_TAIL_CHARS = 60_000
_NAME = r"PROJECT\s+GUTENBERG"
_START = re.compile(
    rf"^[ \t]*\*{{2,}}[ \t]*START\s+OF\s+(?:TH[EI]S?\s+)?{_NAME}[^*]{{0,500}}\*{{2,}}[^\n]*$"
    r"|^[ \t]*\*[ \t]?END[ \t]?\*?[ \t]?THE\s+SMALL\s+PRINT[^\n]*$",
    re.IGNORECASE | re.MULTILINE,
)
_END = re.compile(
    rf"^[ \t]*\*{{2,}}[ \t]*END\s+OF\s+(?:TH[EI]S?\s+)?{_NAME}"
    rf"|^[ \t]*(?:\*+[ \t]*)?END\s+OF\s+(?:THE\s+|THIS\s+)?{_NAME}(?:['’]S)?\b[^\n]*$"
    rf"|^[ \t]*START:[ \t]*FULL\s+LICENSE",
    re.IGNORECASE | re.MULTILINE,
)
_CREDITS = re.compile(
    r"(?:[ \t]*(?:E-?text\s+)?(?:Produced|Prepared|Transcribed|Scanned(?: and proofed)?|This\s+etext\s+was\s+prepared)"
    r"\s+by\b[^\n]*\n(?:[^\r\n]+\r?\n){0,8})",
    re.IGNORECASE,
)


class GutenbergBoilerplate(ColumnModifier):
    r"""Removes the header, credits and licence that Project Gutenberg adds to its books.

    Texts without its markers are not changed. The markers of all years are known: `*** START OF THE PROJECT GUTENBERG
    EBOOK`, `*END*THE SMALL PRINT!` and `End of Project Gutenberg's …`.

    Args:
        keep_credits: Keep the lines that credit the producers of the text (`Produced by …`).

    Example:
        >>> GutenbergBoilerplate().modify_document(
        ...     "Title: A\n*** START OF THE PROJECT GUTENBERG EBOOK A ***\n\nProduced by B\n\n\nCHAPTER I\n\nOnce.\n\n"
        ...     "End of Project Gutenberg's A, by C\n\n*** END OF THE PROJECT GUTENBERG EBOOK A ***\nLicence"
        ... )
        'CHAPTER I\n\nOnce.'
    """

    def __init__(self, keep_credits: bool = False) -> None:
        self.keep_credits = keep_credits

    def modify_column(self, column: pa.LargeStringArray) -> pa.Array:
        texts = (None if text is None else self._book(text) for text in column.to_pylist())
        return pa.array(texts, pa.large_string())

    def _book(self, text: str) -> str:
        """Only the book."""
        start = 0
        for found in _START.finditer(text, 0, _HEAD_CHARS):
            start = found.end()
        # A short book may lie whole in both reaches.
        tail = max(start, len(text) - _TAIL_CHARS)
        ended = _END.search(text, tail)
        if not start and ended is None:
            return text
        book = text[start : ended.start() if ended else len(text)].strip("\r\n \t\ufeff")
        if not self.keep_credits:
            found_credits = _CREDITS.match(book)
            if found_credits is not None:
                book = book[found_credits.end() :].strip("\r\n")
        return book
