"""The names a recipe may use. A name leads to a class of this package by this table alone, never by an import path."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from gristmill.errors import UnknownNameError, did_you_mean

STAGE = "stage"
FILTER = "filter"
MODIFIER = "modifier"
KINDS = (STAGE, FILTER, MODIFIER)


@dataclass(frozen=True, slots=True)
class Registered:
    """One name of the table: a stage, a filter (used through `ScoreFilter`) or a modifier (through `Modify`)."""

    name: str
    module: str
    kind: str

    def load(self) -> type[Any]:
        """The class itself; imports its module.

        Raises:
            MissingExtraError: The class needs a package that is not installed.
        """
        found: type[Any] = getattr(importlib.import_module(self.module), self.name)
        return found

    def documentation(self) -> str:
        """The docstring of the class, of its constructor when the class has none."""
        cls = self.load()
        own = cls.__dict__.get("__doc__") or ""
        # A dataclass without a docstring gets its signature as one, which the table of parameters shows better.
        if not own or own.startswith(f"{cls.__name__}("):
            own = getattr(cls.__dict__.get("__init__"), "__doc__", None) or ""
        return inspect.cleandoc(own)


_FILTERS = "gristmill.stages.text.filters"

_TABLE: tuple[tuple[str, str, tuple[str, ...]], ...] = (
    ("gristmill.stages.text.io.reader", STAGE, ("JsonlReader", "ParquetReader")),
    ("gristmill.stages.text.io.writer", STAGE, ("JsonlWriter", "ParquetWriter")),
    (
        _FILTERS,
        FILTER,
        (
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
    ),
    (
        _FILTERS,
        FILTER,
        (
            "RepeatedLinesByCharFilter",
            "RepeatedLinesFilter",
            "RepeatedParagraphsByCharFilter",
            "RepeatedParagraphsFilter",
            "RepeatingDuplicateNGramsFilter",
            "RepeatingTopNGramsFilter",
        ),
    ),
    (
        _FILTERS,
        FILTER,
        (
            "AlphaFilter",
            "GeneralCommentToCodeFilter",
            "HTMLBoilerplateFilter",
            "NumberOfLinesOfCodeFilter",
            "PerExtensionFilter",
            "PythonCommentToCodeFilter",
            "TokenizerFertilityFilter",
            "XMLHeaderFilter",
        ),
    ),
    (
        _FILTERS,
        STAGE,
        ("C4Quality", "FineWebQuality", "GopherQuality", "GopherRepetition"),
    ),
    (
        _FILTERS,
        FILTER,
        ("FastTextLangId", "FastTextQualityFilter", "HistogramFilter", "TokenCountFilter"),
    ),
    (
        "gristmill.stages.text.modifiers",
        MODIFIER,
        (
            "BoilerPlateStringModifier",
            "FastTextLabelModifier",
            "LineRemover",
            "MarkdownRemover",
            "NewlineNormalizer",
            "PiiRedactor",
            "QuotationRemover",
            "Slicer",
            "UnicodeReformatter",
            "UrlRemover",
        ),
    ),
    (
        "gristmill.stages.text.classifiers",
        STAGE,
        (
            "AegisClassifier",
            "ContentTypeClassifier",
            "DistributedDataClassifier",
            "DomainClassifier",
            "FineWebEduClassifier",
            "FineWebMixtralEduClassifier",
            "FineWebNemotronEduClassifier",
            "InstructionDataGuardClassifier",
            "LinearClassifier",
            "MultilingualDomainClassifier",
            "PromptTaskComplexityClassifier",
            "QualityClassifier",
        ),
    ),
    ("gristmill.stages.text.embedders", STAGE, ("EmbeddingCreatorStage",)),
    ("gristmill.stages.text.modules", STAGE, ("AddId", "DocumentJoiner", "DocumentSplitter")),
)

_WRAPPERS = {
    **dict.fromkeys(
        ("ScoreFilter", "Score", "Filter"),
        "a filter stands by itself: '- WordCountFilter: {min_words: 50, score_field: words}'. "
        "text_field, score_field and invert are given beside the filter's own parameters.",
    ),
    "Modify": "a modifier stands by itself: '- UrlRemover: {input_fields: text}'. "
    "input_fields and output_fields are given beside the modifier's own parameters.",
}
"""What wraps filters and modifiers in Python, and how a recipe says the same."""

_NAMES = {name: Registered(name, module, kind) for module, kind, names in _TABLE for name in names}


def registered(name: str) -> Registered:
    """The entry of `name`.

    Raises:
        UnknownNameError: There is no such name.
    """
    if name in _WRAPPERS:
        raise UnknownNameError(f"There is no {name!r} in recipes; {_WRAPPERS[name]}", name=name)
    if name not in _NAMES:
        raise UnknownNameError(
            f"There is no stage, filter or modifier named {name!r}.{did_you_mean(name, _NAMES)} "
            "'gristmill stages' lists all of them.",
            name=name,
        )
    return _NAMES[name]


def all_registered() -> Iterable[Registered]:
    """Every entry, by kind and name."""
    return sorted(_NAMES.values(), key=lambda entry: (KINDS.index(entry.kind), entry.name))


def find_by_class(cls: type[Any]) -> Registered | None:
    """The entry that leads to exactly this class, or None; imports nothing else."""
    entry = _NAMES.get(cls.__name__)
    return entry if entry is not None and entry.load() is cls else None
