"""The stage that removes low-quality lines, and drops a document only if too much of it was removed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np

from gristmill.errors import UsageError
from gristmill.kernels.line_rules import FINE, NAVIGATION, NOTICE, SHORT, SYMBOLS, URL_ONLY, line_faults, phrase_table
from gristmill.kernels.repeats import build_lookup, first_and_counts, look_up
from gristmill.kernels.text_column import Integers, TextColumn, text_column
from gristmill.kernels.text_units import LINE, Hashes, find_units, letter_table, unit_hashes, unit_tables
from gristmill.stages.base import ProcessingStage, Spec
from gristmill.stages.text.cutting import Passages, check_action, cut_passages, cuttable_texts
from gristmill.tasks.document import DocumentBatch

REPEATED = 6
REASONS = {
    URL_ONLY: "url_only",
    NOTICE: "cookie_notice",
    NAVIGATION: "navigation",
    SYMBOLS: "too_many_symbols",
    SHORT: "too_short",
    REPEATED: "repeated",
}
"""The rules, in the order in which they are applied; the first one that a line fails is the reason."""

NAVIGATION_LINES = tuple(
    line.strip()
    for line in """
    home|menu|main menu|skip to content|skip to main content|skip navigation|toggle navigation|navigation|site map
    sitemap|back|back to top|top|next|previous|prev|next page|previous page|next article|previous article|next post
    previous post|first|last|older posts|newer posts|read more|learn more|more|show more|load more|view all|see all
    see more|view more|continue reading|search|search this site|log in|login|log out|logout|sign in|sign up|register
    subscribe|subscribe now|my account|contact|contact us|about|about us|faq|help|print|print this page|email this
    share|share this|share on facebook|share on twitter|tweet|pin it|like this|follow us|follow us on twitter|rss|close
    cancel|submit|reply|leave a reply|leave a comment|post a comment|add to cart|view cart|checkout|advertisement
    sponsored|privacy policy|terms of service|terms of use|terms and conditions|all rights reserved|copyright
    """.strip()
    .replace("\n", "|")
    .split("|")
)
"""Lines that are just a menu entry or a button, compared without case and punctuation."""

COOKIE_PHRASES = (
    "we use cookies",
    "uses cookies",
    "use of cookies",
    "using cookies",
    "accept cookies",
    "accept all cookies",
    "reject all cookies",
    "allow cookies",
    "manage cookies",
    "cookie policy",
    "cookie notice",
    "cookie settings",
    "cookie preferences",
    "cookie consent",
    "enable cookies",
)
"""Phrases of cookie notices."""


_LOOSE = letter_table(case=False, punctuation=False)


class LineQuality(ProcessingStage[DocumentBatch, DocumentBatch]):
    r"""Removes low-quality lines, and drops a document only if it loses more than a given share of its words.

    Lines end at a newline; words are separated by whitespace. Each rule can be changed or turned off, and the ledger
    names the rule for every removed line: `url_only`, `cookie_notice`, `navigation`, `too_many_symbols`, `too_short`,
    `repeated`. A document that loses more than `max_cut_share` is dropped as `too_much_cut`, one without remaining text
    as `nothing_left`.

    Args:
        text_field: Column that holds the text.
        url_only: Cut lines that consist of web or e-mail addresses only.
        notice_phrases: Cut lines with one of these phrases; None or an empty list for none.
        max_notice_words: Keep a line with more words than this, even if it contains a phrase.
        navigation_lines: Cut lines that equal one of these, ignoring case and punctuation; None for none.
        min_separators: Cut lines with at least this many of `| > » › • · →` and no more than three words between them,
            as in menus; None for none.
        max_symbol_share: Cut lines with a larger share of characters that are neither letters nor digits (not counting
            whitespace); None for no limit.
        min_words: Cut lines with fewer words that do not end like a sentence; None for no limit.
        repeated: Cut lines that occurred before in the same document.
        max_cut_share: Drop documents that lose a higher share of their words; None for no limit.
        action: "cut" the lines, "mark" them in `marks_field` (and drop nothing), or only "drop" documents above
            `max_cut_share`.
        marks_field: Column for marks: a list of start, end (in characters) and reason.

    Example:
        >>> LineQuality(min_words=None).process(batch).to_pyarrow().column("text")
    """

    for_dropped = "run"
    notes_changes = True
    name = "LineQuality"
    fork_safe = True
    text_parameter = "text_field"

    def __init__(
        self,
        text_field: str = "text",
        *,
        url_only: bool = True,
        notice_phrases: Sequence[str] | None = COOKIE_PHRASES,
        max_notice_words: int = 60,
        navigation_lines: Sequence[str] | None = NAVIGATION_LINES,
        min_separators: int | None = 2,
        max_symbol_share: float | None = 0.5,
        min_words: int | None = 2,
        repeated: bool = True,
        max_cut_share: float | None = 0.5,
        action: Literal["cut", "mark", "drop"] = "cut",
        marks_field: str = "low_quality",
    ) -> None:
        check_action(action, max_cut_share, name="LineQuality", option="max_cut_share")
        for option, phrases in (("notice_phrases", notice_phrases), ("navigation_lines", navigation_lines)):
            if isinstance(phrases, str) or any(
                not isinstance(one, str) or len(one.strip()) < 2 for one in phrases or ()
            ):
                raise UsageError(
                    f"LineQuality({option}={phrases!r}): must be a list of texts of two characters or more."
                )
        for option, value, least in (
            ("max_notice_words", max_notice_words, 0), ("min_separators", min_separators, 1),
            ("max_symbol_share", max_symbol_share, 0), ("min_words", min_words, 1),
        ):  # fmt: skip
            if value is not None and value < least:
                raise UsageError(f"LineQuality({option}={value!r}): must be a number, at least {least}, or None.")
        self.text_field = text_field
        self.url_only = url_only
        self.notice_phrases = tuple(notice_phrases or ())
        self.max_notice_words = max_notice_words
        self.navigation_lines = tuple(navigation_lines or ())
        self.min_separators = min_separators
        self.max_symbol_share = max_symbol_share
        self.min_words = min_words
        self.repeated = repeated
        self.max_cut_share = max_cut_share
        self.action: Literal["cut", "mark", "drop"] = action
        self.marks_field = marks_field

    def inputs(self) -> Spec:
        return ["data"], [self.text_field]

    def outputs(self) -> Spec:
        return ["data"], [self.text_field, *([self.marks_field] if self.action == "mark" else [])]

    def process(self, task: DocumentBatch) -> DocumentBatch:
        texts = cuttable_texts(task, self.text_field)
        if texts is None or not task.num_items:
            return task
        starts, ends, bounds = find_units(texts.data, texts.offsets, LINE, 1, *unit_tables())
        codes, words = self._faults(texts, starts, ends, bounds)
        rows = np.repeat(np.arange(len(texts)), np.diff(bounds))
        cut = np.flatnonzero(codes != FINE)
        lost = np.bincount(rows[cut], words[cut], minlength=len(texts))
        shares = lost / np.maximum(np.bincount(rows, words, minlength=len(texts)), 1)
        counts = np.bincount(codes[cut], minlength=len(REASONS) + 1)
        self._log_metrics({f"lines_{reason}": float(counts[code]) for code, reason in REASONS.items()})
        return cut_passages(
            task,
            self.text_field,
            texts,
            Passages(rows[cut], starts[cut], ends[cut], codes[cut]),
            ["", *REASONS.values()],
            action=self.action,
            marks_field=self.marks_field,
            shares=shares,
            max_share=self.max_cut_share,
        )

    def _faults(
        self, texts: TextColumn, starts: Integers, ends: Integers, bounds: Integers
    ) -> tuple[Integers, Integers]:
        """The rule that each line fails, and its number of words."""
        phrases = phrase_table(self.notice_phrases)
        codes, words = line_faults(
            texts.data,
            starts,
            ends,
            *unit_tables(),
            self.url_only,
            phrases.heads,
            phrases.following,
            phrases.text,
            phrases.offsets,
            self.max_notice_words,
            self.min_separators or 0,
            1.0 if self.max_symbol_share is None else float(self.max_symbol_share),
            self.min_words or 0,
        )
        salts = np.zeros(len(texts), np.uint64)
        if self.navigation_lines:
            known = _known_lines(self.navigation_lines)
            loose = unit_hashes(texts.data, starts, ends, bounds, salts, _LOOSE)
            none, other = np.zeros(len(known[0]), np.uint64), np.zeros(len(starts), np.uint64)
            menu = look_up(build_lookup(*known, none), *known, none, *loose, other) >= 0
            codes[menu & ((codes == FINE) | (codes >= NAVIGATION))] = NAVIGATION
        if self.repeated:
            exact = unit_hashes(texts.data, starts, ends, bounds, salts, letter_table())
            scopes = np.repeat(np.arange(len(texts)), np.diff(bounds))
            again = np.ones(len(starts), bool)
            again[first_and_counts(*exact, scopes)[0]] = False
            codes[again & (codes == FINE)] = REPEATED
        return codes, words


def _known_lines(lines: Sequence[str]) -> tuple[Hashes, Hashes]:
    texts = text_column([line.strip() for line in lines])
    bounds = np.arange(len(lines) + 1)
    salts = np.zeros(len(lines), np.uint64)
    return unit_hashes(texts.data, texts.offsets[:-1].copy(), texts.offsets[1:].copy(), bounds, salts, _LOOSE)
