"""The names of built-in filters in records of earlier versions; filters are now named after their classes.

An output with the earlier names keeps them when a run resumes it, so that its record has one name per filter. Queries
accept either name.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

_EARLIER = {
    "AlphaFilter": "alpha_filter",
    "BoilerPlateStringFilter": "boilerplate_string_ratio",
    "BulletsFilter": "bullet_ratio",
    "C4Quality": "c4_quality",
    "CommonEnglishWordsFilter": "common_english_words",
    "EllipsisFilter": "ellipsis",
    "FastTextLangId": "lang_id",
    "FastTextQualityFilter": "fasttext_quality_filter",
    "FineWebQuality": "fineweb_quality",
    "GeneralCommentToCodeFilter": "comment_ratio",
    "GopherQuality": "gopher_quality",
    "GopherRepetition": "gopher_repetition",
    "HTMLBoilerplateFilter": "html_boilerplate",
    "HistogramFilter": "histogram",
    "LongWordFilter": "max_word_length",
    "MeanWordLengthFilter": "mean_word_length",
    "NonAlphaNumericFilter": "alpha_numeric",
    "NumberOfLinesOfCodeFilter": "num_lines",
    "NumbersFilter": "numbers_ratio",
    "ParenthesesFilter": "parentheses_ratio",
    "PerExtensionFilter": "per_extension_filter",
    "PunctuationFilter": "punctuation",
    "PythonCommentToCodeFilter": "python_comment_ratio",
    "RepeatedLinesByCharFilter": "repeated_lines_char",
    "RepeatedLinesFilter": "repeated_lines",
    "RepeatedParagraphsByCharFilter": "repeated_paragraphs_char",
    "RepeatedParagraphsFilter": "repeated_paragraphs",
    "SymbolsToWordsFilter": "symbol_to_word",
    "TokenCountFilter": "token_count",
    "TokenizerFertilityFilter": "tokenizer_fertility",
    "UrlsFilter": "urls_ratio",
    "WhiteSpaceFilter": "white_space",
    "WordCountFilter": "word_count",
    "WordsWithoutAlphabetsFilter": "words_without_alphabets",
    "XMLHeaderFilter": "xml_header",
}
_NGRAMS = {
    "RepeatingDuplicateNGramsFilter": "repeating_dup_{}gram",
    "RepeatingTopNGramsFilter": "repeating_top_{}grams",
}
_NAMES = re.compile(rf"(?<![A-Za-z])(?:({'|'.join(_EARLIER)})|({'|'.join(_NGRAMS)})_n(\d+))(?![A-Za-z])")


def earlier_name(name: str) -> str:
    """The earlier name of `name` in old records; `name` itself if it has not changed.

    Example:
        >>> earlier_name("WordCountFilter"), earlier_name("RepeatingTopNGramsFilter_n3"), earlier_name("mine")
        ('word_count', 'repeating_top_3grams', 'mine')
    """
    return _NAMES.sub(lambda found: _EARLIER[found[1]] if found[1] else _NGRAMS[found[2]].format(found[3]), name)


def recorded_name(asked: str, recorded: Iterable[str]) -> str:
    """The name that a record uses for a filter given by its current or earlier name; `asked` itself if there is none.

    Example:
        >>> recorded_name("word_count", ["WordCountFilter"]), recorded_name("WordCountFilter", ["word_count"])
        ('WordCountFilter', 'word_count')
    """
    names = list(recorded)
    return asked if asked in names else {earlier_name(name): name for name in names}.get(earlier_name(asked), asked)
