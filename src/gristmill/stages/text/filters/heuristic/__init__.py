"""Heuristic filters: rules over characters, words, lines, repetition and code, with published defaults."""

from __future__ import annotations

from importlib import import_module
from typing import Any

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
_HOME_OF = {name: module for module, names in _HOMES.items() for name in names}

__all__ = [*sorted(_HOME_OF)]  # noqa: PLE0604


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOME_OF[name]}"), name)


def __dir__() -> list[str]:
    return [*__all__, *_HOMES]
