"""Values of filters that cannot be meant: each is refused where it is given, with the parameter and what is valid."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest

from gristmill.errors import UsageError
from gristmill.stages.text.filters import (
    BulletsFilter,
    CommonEnglishWordsFilter,
    FastTextLangId,
    GeneralCommentToCodeFilter,
    HistogramFilter,
    LongWordFilter,
    MeanWordLengthFilter,
    NonAlphaNumericFilter,
    RepeatedLinesFilter,
    RepeatingTopNGramsFilter,
    TokenCountFilter,
    WordCountFilter,
)
from gristmill.stages.text.filters.published.stages import FineWebQuality, GopherQuality, GopherRepetition


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (
            lambda: NonAlphaNumericFilter(max_non_alpha_numeric_to_text_ratio=15),
            r"max_non_alpha_numeric_to_text_ratio=15\): this is a share: must be a number from 0 to 1 \(15 % is 0.15\)",
        ),
        (lambda: NonAlphaNumericFilter(-0.1), r"max_non_alpha_numeric_to_text_ratio=-0.1\): this is a share"),
        (lambda: NonAlphaNumericFilter(math.nan), r"max_non_alpha_numeric_to_text_ratio=nan\): must be a number"),
        (lambda: BulletsFilter("0.9"), r"max_bullet_lines_ratio='0.9'\): must be a number"),  # type: ignore[arg-type]
        (lambda: RepeatedLinesFilter(70), r"max_repeated_line_fraction=70\): this is a share.*70 % is 0.7"),
        (lambda: FastTextLangId(min_langid_score=30), r"min_langid_score=30\): this is a share"),
        (lambda: HistogramFilter(threshold=80), r"threshold=80\): this is a share"),
        (
            lambda: RepeatingTopNGramsFilter(n=2, max_repeating_ngram_ratio=20),
            r"max_repeating_ngram_ratio=20\): must be",
        ),
        (lambda: GopherQuality(max_bullet_lines_ratio=90), r"max_bullet_lines_ratio=90\): this is a share"),
        (lambda: GopherRepetition(max_line_ratio=30), r"max_line_ratio=30\): this is a share"),
        (lambda: FineWebQuality(max_short_line_ratio=67), r"max_short_line_ratio=67\): this is a share"),
        (
            lambda: WordCountFilter(min_words=-5),
            r"Filter\(min_words=-5\): the score is a count: must be 0 or more",
        ),
        (lambda: TokenCountFilter("t.json", min_tokens=-1), r"min_tokens=-1\): the score is a count"),
        (lambda: WordCountFilter(min_words=5, max_words=3), "Set both min_words and max_words"),
        (lambda: WordCountFilter(lang="xx"), "lang='xx' is not a language code: use one of ISO 639"),
        (lambda: LongWordFilter(lang="en-US"), "lang='en-US' is not a language code.* Write 'en'"),
        (lambda: RepeatingTopNGramsFilter(lang="chinese"), "lang='chinese' is not a language code"),
    ],
)
def test_it_is_refused(make: Callable[[], Any], told: str) -> None:
    with pytest.raises(UsageError, match=told):
        make()


def test_values_that_other_systems_take_are_taken() -> None:
    WordCountFilter(min_words=0, max_words=10**9, lang="EN")
    WordCountFilter(lang="deu")
    MeanWordLengthFilter(3, 10)
    NonAlphaNumericFilter(1.0)
    NonAlphaNumericFilter(math.inf)
    RepeatedLinesFilter(0)
    RepeatingTopNGramsFilter(n=3, max_repeating_ngram_ratio=1.2)
    GeneralCommentToCodeFilter("text/x-c", max_comment_to_code_ratio=10_000)
    TokenCountFilter("t.json", max_tokens=math.inf)
    CommonEnglishWordsFilter(min_num_common_words=0)
    GopherQuality(max_symbol_word_ratio=2, max_bullet_lines_ratio=None)
