"""Heuristic filters: rules over characters, words, lines, repetition and code, with published defaults."""

from __future__ import annotations

from gristmill.lazy import lazy_names

_HOMES = {
    "string": (
        "BoilerPlateString Bullets CommonEnglishWords Ellipsis LongWord MeanWordLength NonAlphaNumeric Numbers "
        "Parentheses PornographicUrls Punctuation Substring SymbolsToWords Urls WhiteSpace WordCount "
        "WordsWithoutAlphabets"
    ),
    "repetition": (
        "RepeatedLinesByChar RepeatedLines RepeatedParagraphsByChar RepeatedParagraphs RepeatingDuplicateNGrams "
        "RepeatingTopNGrams"
    ),
    "code": "Alpha GeneralCommentToCode HTMLBoilerplate NumberOfLinesOfCode PythonCommentToCode XMLHeader",
}

__getattr__, __dir__ = lazy_names(
    __name__, {module: [f"{name}Filter" for name in names.split()] for module, names in _HOMES.items()}
)
__all__ = __dir__()  # noqa: PLE0605
