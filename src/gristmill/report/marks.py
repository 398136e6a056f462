"""Finds the part of a text that a rule objects to, by the reason in the ledger, for rules that can locate it."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator

Span = tuple[int, int]

_LOOKED_AT = 20_000
"""Number of characters of a text that are searched."""
_MAX_MARKS = 200
_EXCERPT = 600
_BEFORE = 120
_BULLET = "[•‣⁃⁌⁍∙○●◘◦⦾⦿*-]"
_URL = r"https?://[^\s<>\"']+"
_PATTERNS = {
    "adult_url": r"https?://\S*?porn\S*",
    "curly_bracket": r"[{}]",
    "placeholder_text": r"(?i)lorem ipsum",
    "too_few_alphabetic_words": r"(?<!\S)(?:[\d_]|[^\w\s])+(?!\S)",
    "too_few_finished_lines": r"(?m)^.*[^\s.!?\"'”’…](?=[^\S\n]*$)",
    "too_few_sentence_ends": r"(?m)^.*[^\s.!?\"'”’…](?=[^\S\n]*$)",
    "too_many_brackets": r"[()\[\]{}]+",
    "too_many_bullets": rf"(?m)^[^\S\n]*{_BULLET}.*$",
    "too_many_digits": r"\d+",
    "too_many_ellipses": r"…|\.\.\.+",
    "too_many_hashes": r"#+",
    "too_many_newlines": r"\n+",
    "too_many_short_lines": r"(?m)^[^\n]{1,29}$",
    "too_many_symbol_words": r"#+|…|\.\.\.+",
    "too_many_symbols": r"[^A-Za-z0-9\s?!,.]+",
    "too_many_trailing_ellipses": r"(?m)(…|\.\.\.)[^\S\n]*$",
    "too_many_urls": _URL,
    "too_much_white_space": r"\s{2,}|\t",
    "words_too_long": r"\S{14,}",
    "xml_header": r"(?i)<\?xml[^>]*>?",
}
_LINE, _PARAGRAPH = r"[^\n]+", r"(?:[^\n]+\n?)+"
_REPEATED = {
    "repeated_lines": _LINE,
    "repeated_line_chars": _LINE,
    "repeated_paragraphs": _PARAGRAPH,
    "repeated_paragraph_chars": _PARAGRAPH,
}
_NGRAMS = re.compile(r"(top|duplicate)_(\d+)grams?")
_WORD = re.compile(r"\S+")


def marked_excerpt(text: str, reason: str) -> dict[str, object]:
    """An excerpt around the first passage that the reason is about, with such passages marked.

    Example:
        >>> marked_excerpt("see {x}", "curly_bracket")["marks"]
        [(4, 5), (6, 7)]
    """
    seen = text[:_LOOKED_AT]
    spans: list[Span] = []
    for start, end in _spans(seen, reason):
        if spans and start <= spans[-1][1]:
            spans[-1] = (spans[-1][0], max(end, spans[-1][1]))
        elif len(spans) < _MAX_MARKS and end > start:
            spans.append((start, end))
        elif len(spans) >= _MAX_MARKS:
            break
    first = spans[0][0] - _BEFORE if spans and spans[0][0] > 2 * _BEFORE else 0
    last = first + _EXCERPT
    marks = [(max(a, first) - first, min(b, last) - first) for a, b in spans if b > first and a < last]
    return {"text": seen[first:last], "from": first, "length": len(text), "marks": marks}


def _spans(text: str, reason: str) -> Iterator[Span]:
    pattern = _PATTERNS.get(reason)
    if pattern is not None:
        for found in re.finditer(pattern, text):
            yield found.span()
        return
    grams = _NGRAMS.match(reason)
    if grams is not None:
        yield from _ngrams(text, int(grams[2]), only_top=grams[1] == "top")
        return
    pieces = _REPEATED.get(reason)
    if pieces is not None:
        yield from _repeated(text, pieces)
    elif reason == "word_too_long":
        longest = max(_WORD.finditer(text), key=lambda found: len(found[0]), default=None)
        if longest is not None:
            yield longest.span()


def _repeated(text: str, piece: str) -> Iterator[Span]:
    """Lines or paragraphs that occurred before."""
    seen: set[str] = set()
    for found in re.finditer(piece, text):
        words = found[0].strip()
        if words and words in seen:
            yield found.span()
        seen.add(words)


def _ngrams(text: str, n: int, *, only_top: bool) -> Iterator[Span]:
    """The most frequent n-gram, or all that occurred before."""
    words = list(_WORD.finditer(text))
    grams = list(zip(*(map(str.lower, (word[0] for word in words[at:])) for at in range(n)), strict=False))
    if not grams:
        return
    if only_top:
        top, number = Counter(grams).most_common(1)[0]
        if number > 1:
            for at, gram in enumerate(grams):
                if gram == top:
                    yield words[at].start(), words[at + n - 1].end()
        return
    seen: set[tuple[str, ...]] = set()
    for at, gram in enumerate(grams):
        if gram in seen:
            yield words[at].start(), words[at + n - 1].end()
        seen.add(gram)
