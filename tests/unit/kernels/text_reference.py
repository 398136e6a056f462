"""Plain Python for every statistic that the text kernels compute, and texts to try both on."""

from __future__ import annotations

import re
from collections import Counter

from hypothesis import strategies as st

URL = re.compile(r"https?://(?:[A-Za-z0-9$\-_@.&+/:=?#~]|[!*\(\),]|(?:%[0-9A-Fa-f]{2}))+")
END_MARKS = (".", "?", "!", '"', "'")
ELLIPSES = ("...", "[...]", "…", "(...)", "[…]", "-»", "read more..", "read more")
BULLETS = tuple("•‣⁃⁌⁍∙○●◘◦⦾⦿")
COMMON = {"the", "be", "to", "of", "and", "that", "have", "with"}

PIECES = [
    " ", "  ", "\n", "\n\n", "\n\n\n", "\t", "\r\n", "\u00a0", "\u3000", "\u2009", "\u1680", "\u2028", "\x85", "\x1f",
    "the", "and", "that", "The", "thex", "#", "##", "#a#", "...", "…", "[...]", "[…]", "(...)", "-»", "•", "⦿ x", "·",
    "read more", "READ More..", "read mor\u0435", "7", "٣", "(", "]", "⟨", "⟩", "http://a.b/c", "https://x.y/%2fz%", "http://",
    "https://porn.x", "httpx://", "://", "word", "a", "b", "abcdefgh", "abcdefghi", "naïve", "e\u0301",
    "\u0301", "हिन्दी", "中文", "👩‍👩‍👧", "\x08", "\x00", "İ", "²", "Ⅷ", "_", '"', "'", "!", "?",
    "privacy policy", "Use Coo\u212aies", "lorem ipsum",
]  # fmt: skip

characters = st.characters(exclude_categories=["Cs"])
# What stands in front of these moves it over the border of the 64 bytes that kernels look at together.
_fronts = st.builds(
    "{1}{0}".format, st.lists(st.sampled_from(PIECES), max_size=9).map("".join), st.sampled_from("x.#é中 ").flatmap(
        lambda filler: st.integers(50, 70).map(lambda count: filler * count)
    )
)  # fmt: skip
texts = st.one_of(
    st.lists(st.sampled_from(PIECES), max_size=60).map("".join),
    st.lists(_fronts, max_size=4).map("".join),
    st.lists(st.one_of(st.sampled_from(PIECES), characters), max_size=60).map("".join),
    st.text(characters, max_size=200),
    st.lists(st.sampled_from(["a", "b", "ab", " ", " ", "\n"]), max_size=150).map("".join),
)
vocabulary = [
    f"{word}{number}" for number in range(4) for word in ("a", "of", "abcdefgh", "a-word-beyond-16-bytes-", "é")
]
repetitive = st.lists(  # runs of words that come again, in whole, in part and with another end
    st.tuples(st.integers(0, 19), st.integers(1, 14)), min_size=1, max_size=12
).map(lambda runs: " ".join(" ".join((vocabulary * 2)[begin : begin + length]) for begin, length in runs))
columns = st.lists(st.one_of(st.none(), texts), max_size=8)


def lines(text: str) -> list[str]:
    """Lines that are not blank."""
    return [line for line in text.split("\n") if line.strip()]


def ngrams(text: str, n: int) -> list[tuple[str, ...]]:
    """All runs of n words."""
    words = text.split()
    return [tuple(words[at : at + n]) for at in range(len(words) - n + 1)]


def top_ngram_chars(text: str, n: int) -> int:
    """Characters that go with the most frequent n-gram, the first among equals; -1 when there is none."""
    counts = Counter(ngrams(text, n))
    if not counts:
        return -1
    most = max(counts.values())
    best = next(gram for gram, count in counts.items() if count == most)
    return len(text) - len(text.replace(" ".join(best), ""))


def duplicate_ngram_chars(text: str, n: int) -> int:
    """Characters of n-grams that occurred before, overlaps counted once; -1 when there is no n-gram."""
    words = text.split()
    if len(words) < n:
        return -1
    seen: set[tuple[str, ...]] = set()
    total = 0
    covered = 0  # words before this place are counted already
    for at, gram in enumerate(ngrams(text, n)):
        if gram in seen:
            skip = max(covered - at, 0)
            total += sum(map(len, gram[skip:])) + min(n - skip, n - 1)
            covered = at + n
        seen.add(gram)
    return total


def is_symbol_word(word: str) -> bool:
    """An ellipsis, or more runs of hash signs than half the characters."""
    return word in ELLIPSES or len(re.findall("#+", word)) / len(word) > 0.5
