"""The statistics behind built-in filters, computed on demand and only for remaining documents."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cache, lru_cache, partial
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from gristmill.errors import UnknownNameError, UsageError, did_you_mean, optional_module
from gristmill.kernels import (
    ngrams,
    ngrams_joined,
    text_characters,
    text_layout,
    text_lines,
    text_phrases,
    text_tokens,
    text_words,
)
from gristmill.kernels.text_column import Integers, Mask, TextColumn, WordSpans, text_column, word_spans

# Phrases that identify boilerplate. The short ones come from the cleaning of C4 (Raffel et al. 2020); the long ones are
# texts of cookie banners on very many sites. A banner that contains a shorter phrase is not repeated.
POLICY_PHRASES = (
    "terms of use",
    "privacy policy",
    "cookie policy",
    "uses cookies",
    "use of cookies",
    "use cookies",
)

BOILERPLATE_PHRASES = (
    *POLICY_PHRASES,
    "privacy overview",
    "privacy & cookies policy",
    "privacy and cookies policy",
    (
        "necessary cookies are absolutely essential for the website to function properly. this category only includes "
        "cookies that ensures basic functionalities and security features of the website. these cookies do not store "
        "any personal information."
    ),
    (
        "any cookies that may not be particularly necessary for the website to function and is used specifically to "
        "collect user personal data via analytics, ads, other embedded contents are termed as non-necessary cookies. "
        "it is mandatory to procure user consent prior to running these cookies on your website."
    ),
    "if you continue to browse this site without changing your cookie settings, you agree to this use. acceptread more",
)

PLACEHOLDER_PHRASES = ("lorem ipsum",)

Scores = npt.NDArray[np.float64]
_Key = tuple[str, int, str]
"""Identifies a kernel pass: the group, the n-gram length and the splitter of a statistic."""

# How a text becomes words: at white space by default, or by a library for languages and rules that need one.
SPACE = "space"
UNICODE = "unicode"
JIEBA = "jieba"
MECAB = "mecab"
SPACY = "spacy"

Splitter = Callable[[str], list[str]]

SPLITTERS = {"zh": JIEBA, "ja": MECAB}
"""Word splitters of languages whose words are not separated by spaces."""
_LANGUAGES = frozenset(  # a text, because a list would take a page
    """aa ab ae af ak am an ar as av ay az ba be bg bh bi bm bn bo br bs ca ce ch co cr cs cu cv cy da de dv dz ee el en
    eo es et eu fa ff fi fj fo fr fy ga gd gl gn gu gv ha he hi ho hr ht hu hy hz ia id ie ig ii ik io is it iu ja jv ka
    kg ki kj kk kl km kn ko kr ks ku kv kw ky la lb lg li ln lo lt lu lv mg mh mi mk ml mn mr ms mt my na nb nd ne ng nl
    nn no nr nv ny oc oj om or os pa pi pl ps pt qu rm rn ro ru rw sa sc sd se sg sh si sk sl sm sn so sq sr ss st su sv
    sw ta te tg th ti tk tl tn to tr ts tt tw ty ug uk ur uz ve vi vo wa wo xh yi yo za zh zu""".split()  # noqa: SIM905
)
"""The two-letter codes of ISO 639."""
LIBRARIES = {
    JIEBA: ("jieba", "Splitting Chinese text into words"),
    MECAB: ("MeCab", "Splitting Japanese text into words"),
    SPACY: ("spacy", "Splitting words with spaCy"),
}
"""The modules behind splitters, and what needs them."""


class Statistic(NamedTuple):
    """One number per document: a column of a kernel's result.

    Attributes:
        group: The kernel pass that computes it; a filter that needs one statistic of a group can read them all.
        column: Its column in the result of that pass.
        n: The n-gram length, if it counts n-grams.
        splitter: How words are found; `space` means at whitespace, like `str.split`.
    """

    group: str
    column: int
    n: int = 0
    splitter: str = SPACE


CHARACTERS = "characters"
WORDS = "words"
LINES = "lines"
PHRASES = "phrases"
LAYOUT = "layout"
TOKENS = "tokens"
URL = "url"
"""Positions of the parts of a URL: columns of `gristmill.kernels.url_parts`."""
TOP_NGRAM = "top_ngram"
"""Characters removed by deleting the most frequent n-gram from the text; -1 in texts with fewer than n words."""
DUPLICATE_NGRAM = "duplicate_ngram"
"""Characters of repeated n-grams; -1 in texts with fewer than n words."""
WEIGHED_NGRAM = "weighed_ngram"
"""Characters of the most frequent n-gram times its number of occurrences."""
JOINED_NGRAM = "joined_ngram"
"""Characters of repeated n-grams, compared by their letters alone, each counted in full."""
_NGRAMS = {
    TOP_NGRAM: (TOP_NGRAM, DUPLICATE_NGRAM),
    DUPLICATE_NGRAM: (TOP_NGRAM, DUPLICATE_NGRAM),
    WEIGHED_NGRAM: (WEIGHED_NGRAM,),
    JOINED_NGRAM: (JOINED_NGRAM,),
}
"""By group of n-grams, what one pass computes; the others are computed on demand, when fewer documents are left."""

N_CHARS = Statistic(CHARACTERS, text_characters.N_CHARS)
PLAIN_CHARS = Statistic(CHARACTERS, text_characters.PLAIN_CHARS)
DIGIT_CHARS = Statistic(CHARACTERS, text_characters.DIGIT_CHARS)
WHITE_CHARS = Statistic(CHARACTERS, text_characters.WHITE_CHARS)
BRACKET_CHARS = Statistic(CHARACTERS, text_characters.BRACKET_CHARS)
ALPHABETIC_CHARS = Statistic(CHARACTERS, text_characters.ALPHABETIC_CHARS)
URL_CHARS = Statistic(CHARACTERS, text_characters.URL_CHARS)
ADULT_URLS = Statistic(CHARACTERS, text_characters.ADULT_URLS)

N_WORDS = Statistic(WORDS, text_words.N_WORDS)
WORD_CHARS = Statistic(WORDS, text_words.WORD_CHARS)
LONGEST_WORD = Statistic(WORDS, text_words.LONGEST_WORD)
SYMBOL_WORDS = Statistic(WORDS, text_words.SYMBOL_WORDS)
ALPHABETIC_WORDS = Statistic(WORDS, text_words.ALPHABETIC_WORDS)
COMMON_WORDS = Statistic(WORDS, text_words.COMMON_WORDS)
FIRST_WORD_COMMON = Statistic(WORDS, text_words.FIRST_WORD_COMMON)

N_LINES = Statistic(LINES, text_lines.N_LINES)
LINE_CHARS = Statistic(LINES, text_lines.LINE_CHARS)
UNIQUE_LINES = Statistic(LINES, text_lines.UNIQUE_LINES)
UNIQUE_LINE_CHARS = Statistic(LINES, text_lines.UNIQUE_LINE_CHARS)
OPEN_LINES = Statistic(LINES, text_lines.OPEN_LINES)
ELLIPSIS_LINES = Statistic(LINES, text_lines.ELLIPSIS_LINES)
BULLET_LINES = Statistic(LINES, text_lines.BULLET_LINES)
NEWLINES = Statistic(LINES, text_lines.NEWLINES)
N_PARAGRAPHS = Statistic(LINES, text_lines.N_PARAGRAPHS)
PARAGRAPH_CHARS = Statistic(LINES, text_lines.PARAGRAPH_CHARS)
UNIQUE_PARAGRAPHS = Statistic(LINES, text_lines.UNIQUE_PARAGRAPHS)
UNIQUE_PARAGRAPH_CHARS = Statistic(LINES, text_lines.UNIQUE_PARAGRAPH_CHARS)

BOILERPLATE_PARAGRAPHS = Statistic(PHRASES, text_phrases.MARKED_PARAGRAPHS)
ALL_PARAGRAPHS = Statistic(PHRASES, text_phrases.N_PARAGRAPHS)
PLACEHOLDER_TEXT = Statistic(PHRASES, text_phrases.SECOND_KIND)


def layout(column: int, short_line_chars: int = 30) -> Statistic:
    """A column of `gristmill.kernels.text_layout`; the length of a short line is passed in place of n."""
    return Statistic(LAYOUT, column, short_line_chars)


def tokens(column: int, splitter: str, stop_words: tuple[str, ...]) -> Statistic:
    """A column of `gristmill.kernels.text_tokens`; the stop words are part of the group's name."""
    return Statistic(f"{TOKENS}:{' '.join(stop_words)}", column, 0, splitter)


_boilerplate = cache(partial(text_phrases.compile_phrases, BOILERPLATE_PHRASES, PLACEHOLDER_PHRASES))


class TextStatistics:
    """The statistics of a column of texts, each group computed when first required.

    Args:
        column: The texts.
        wanted: All statistics that may be required, so that n-grams of all lengths are found in one pass.

    Attributes:
        column: The texts.
        alive: The documents in question; numbers of other documents are undefined.
    """

    def __init__(self, column: TextColumn, wanted: Iterable[Statistic] = ()) -> None:
        self.column = column
        self.alive: Mask = np.ones(len(column), dtype=np.bool_)
        self._wanted = frozenset(wanted)
        self._results: dict[_Key, Integers] = {}
        self._done: dict[_Key, Mask] = {}
        self._split: dict[str, tuple[WordSpans, Mask]] = {}

    def require(self, statistics: Iterable[Statistic], alive: Mask) -> None:
        """Compute these statistics for the documents that `alive` marks, unless already done."""
        self.alive = alive
        for statistic in statistics:
            key = (statistic.group, statistic.n, statistic.splitter)
            done = self._done.get(key)
            missing = alive if done is None else alive & ~done
            if done is None or bool(missing.any()):
                for key, result in self._compute(statistic, missing).items():
                    if key in self._results:
                        self._results[key][missing] = result[missing]
                        self._done[key] |= missing
                    else:
                        self._results[key] = result
                        self._done[key] = missing.copy()

    def __getitem__(self, statistic: Statistic) -> Integers:
        """One number per document."""
        return self._results[statistic.group, statistic.n, statistic.splitter][:, statistic.column]

    def group(self, statistic: Statistic) -> Integers:
        """All numbers of the group of a statistic: one row per document."""
        return self._results[statistic.group, statistic.n, statistic.splitter]

    def scores(self, statistic: Statistic) -> Scores:
        """One number per document, as a score."""
        return self[statistic].astype(np.float64)

    def ratio(self, part: Statistic | Integers, whole: Statistic | Integers, *, nothing: float) -> Scores:
        """A ratio per document, and `nothing` if there is nothing to divide by."""
        above = self[part] if isinstance(part, Statistic) else part
        below = self[whole] if isinstance(whole, Statistic) else whole
        empty = below == 0
        result: Scores = above / np.where(empty, 1, below)
        result[empty] = nothing
        return result

    def score_texts(self, score: Callable[[str], float]) -> Scores:
        """A score per remaining document from a Python function of its text, for scores without a kernel."""
        scores = np.zeros(len(self.column), dtype=np.float64)
        for row in np.flatnonzero(self.alive):
            scores[row] = score(self.column.text(int(row)))
        return scores

    def _compute(self, statistic: Statistic, missing: Mask) -> dict[_Key, Integers]:
        """Run the pass that computes a statistic, and for n-grams the passes that it shares work with."""
        group, splitter = statistic.group, statistic.splitter
        if group in _NGRAMS:
            return self._compute_ngrams(statistic, missing)
        if group == CHARACTERS:
            result = text_characters.character_counts(self.column, missing)
        elif group == LINES:
            result = text_lines.line_counts(self.column, missing)
        elif group == LAYOUT:
            result = text_layout.layout_counts(self.column, missing, short_line_chars=statistic.n)
        elif group.startswith(TOKENS):
            stop_words = tuple(group.partition(":")[2].split())
            result = text_tokens.token_counts(self._words(splitter, missing), missing, stop_words)
        elif group == URL:
            from gristmill.kernels.url_parts import url_parts  # few runs look at URLs

            offsets = self.column.offsets
            result = url_parts(self.column.data, offsets[:-1], offsets[1:], missing, False)
        elif group == PHRASES:
            result = text_phrases.phrase_counts(self.column, missing, _boilerplate())
        elif splitter == SPACE:
            result = text_words.word_counts(self.column, missing)
        else:
            result = text_words.word_counts(self.column, missing, words=self._words(splitter, missing))
        return {(group, statistic.n, splitter): result}

    def _compute_ngrams(self, statistic: Statistic, missing: Mask) -> dict[_Key, Integers]:
        """Find n-grams of every wanted length at once: each length builds on the one before."""
        splitter = statistic.splitter
        shared = _NGRAMS[statistic.group]
        sizes: dict[str, tuple[int, ...]] = dict.fromkeys(_NGRAMS, ())
        for other in sorted({statistic, *self._wanted}):
            pending = other == statistic or (other.group, other.n, splitter) not in self._done
            if other.group in shared and other.splitter == splitter and pending:
                sizes[other.group] += (other.n,)
        found: dict[str, Integers] = {}
        if statistic.group == JOINED_NGRAM:
            found[JOINED_NGRAM] = ngrams_joined.joined_duplicates(
                self._words(splitter, missing), missing, sizes[JOINED_NGRAM]
            )
        else:
            found[shared[0]], found[DUPLICATE_NGRAM] = ngrams.ngram_counts(
                self.column,
                missing,
                top=sizes[shared[0]],
                duplicate=sizes[DUPLICATE_NGRAM],
                words=None if splitter == SPACE else self._words(splitter, missing),
                weigh=statistic.group == WEIGHED_NGRAM,
            )
        results: dict[_Key, Integers] = {}
        for group, result in found.items():
            for position, n in enumerate(sizes[group]):
                results[group, n, splitter] = result[:, position : position + 1]
        return results

    def _words(self, splitter: str, rows: Mask) -> WordSpans:
        kept = self._split.get(splitter)
        if kept is None or bool((rows & ~kept[1]).any()):
            kept = (split_column(self.column, splitter, rows), rows.copy())
            self._split[splitter] = kept
        return kept[0]


def splitter_of(lang: str) -> str:
    """The name of the word splitter for a language.

    Raises:
        UsageError: It is not a language code.
    """
    code = lang.lower()
    if code in _LANGUAGES or (len(code) == 3 and code.isascii() and code.isalpha()):
        return SPLITTERS.get(code, SPACE)
    short = code.replace("_", "-").partition("-")[0]
    near = f" Write {short!r}." if short in _LANGUAGES else ""
    raise UsageError(
        f"lang={lang!r} is not a language code: use one of ISO 639, such as 'en' or 'zh'.{near}",
        parameter="lang",
        value=lang,
    )


@lru_cache(maxsize=8)
def load_splitter(name: str) -> Splitter:
    """The function behind a splitter's name; its library is imported here and nowhere else.

    Raises:
        UnknownNameError: No splitter has this name.
        MissingExtraError: The library is not installed.
    """
    makers = {SPACE: lambda: str.split, JIEBA: _jieba, MECAB: _mecab, SPACY: _spacy}
    if name not in makers:
        raise UnknownNameError(
            f"There is no word splitter {name!r}; choose one of {', '.join(makers)}.{did_you_mean(name, makers)}",
            name=name,
        )
    return makers[name]()


def _jieba() -> Splitter:
    library = optional_module(*LIBRARIES[JIEBA])
    # It logs the time to load its dictionary, in every worker.
    library.setLogLevel("WARNING")
    return lambda text: list(library.cut(text.strip()))


def _mecab() -> Splitter:
    tagger = optional_module(*LIBRARIES[MECAB]).Tagger()

    def split(text: str) -> list[str]:
        words = []
        node = tagger.parseToNode(text.strip())
        while node:
            # The first and the last node stand for the ends of the text.
            if node.surface:
                words.append(node.surface)
            node = node.next
        return words

    return split


def _spacy() -> Splitter:
    language = optional_module(*LIBRARIES[SPACY]).blank("en")
    tokenizer = language.tokenizer

    def split(text: str) -> list[str]:
        return [word for word in (token.text.strip() for token in tokenizer(text)) if word]

    return split


def split_column(column: TextColumn, name: str, rows: Mask) -> WordSpans:
    """The words of the marked documents; other documents have none."""
    if name == UNICODE:
        return text_tokens.token_spans(column, rows)
    split = load_splitter(name)
    words: list[str | None] = []
    bounds = np.zeros(len(column) + 1, dtype=np.int64)
    for row in range(len(column)):
        if rows[row]:
            words += split(column.text(row))
        bounds[row + 1] = len(words)
    found = text_column(words)
    return word_spans(found.data, found.offsets[:-1], found.offsets[1:], bounds)
