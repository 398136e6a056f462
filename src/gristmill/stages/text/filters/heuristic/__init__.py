"""Heuristic filters: rules over characters, words, lines, repetition and code, with published defaults."""

from __future__ import annotations

from gristmill.lazy import lazy_names

_HOMES = {
    "string": (
        "BoilerPlateStringFilter",
        "BulletsFilter",
        "CommonEnglishWordsFilter",
        "EllipsisFilter",
        "LongWordFilter",
        "MeanWordLengthFilter",
        "NonAlphaNumericFilter",
        "NumbersFilter",
        "ParenthesesFilter",
        "PornographicUrlsFilter",
        "PunctuationFilter",
        "SubstringFilter",
        "SymbolsToWordsFilter",
        "UrlsFilter",
        "WhiteSpaceFilter",
        "WordCountFilter",
        "WordsWithoutAlphabetsFilter",
    ),
    "repetition": (
        "RepeatedLinesByCharFilter",
        "RepeatedLinesFilter",
        "RepeatedParagraphsByCharFilter",
        "RepeatedParagraphsFilter",
        "RepeatingDuplicateNGramsFilter",
        "RepeatingTopNGramsFilter",
    ),
    "code": (
        "AlphaFilter",
        "GeneralCommentToCodeFilter",
        "HTMLBoilerplateFilter",
        "NumberOfLinesOfCodeFilter",
        "PythonCommentToCodeFilter",
        "XMLHeaderFilter",
    ),
}

__getattr__, __dir__ = lazy_names(__name__, _HOMES)
__all__ = __dir__()  # noqa: PLE0605
