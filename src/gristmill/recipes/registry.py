"""The names a recipe may use, and how an entry of a recipe becomes a stage.

A name leads to a class of this package by the table here alone, never by an import path. Importing this module loads no
stage, so that a command can start its workers before it loads them.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gristmill.errors import GristmillError, UnknownNameError, did_you_mean
from gristmill.recipes.schema import Parameter, check_parameters, parameters_of
from gristmill.recipes.yaml_source import Path
from gristmill.stages.resources import Resources

if TYPE_CHECKING:
    from gristmill.stages.base import ProcessingStage

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


_TEXT = "gristmill.stages.text"
_TABLE: dict[str, tuple[str, str]] = {
    f"{_TEXT}.io.reader": (STAGE, "JsonlReader ParquetReader"),
    f"{_TEXT}.io.writer": (STAGE, "JsonlWriter ParquetWriter"),
    f"{_TEXT}.filters": (
        FILTER,
        """
        BoilerPlateStringFilter BulletsFilter CommonEnglishWordsFilter EllipsisFilter LongWordFilter
        MeanWordLengthFilter NonAlphaNumericFilter NumbersFilter ParenthesesFilter PornographicUrlsFilter
        PunctuationFilter SubstringFilter SymbolsToWordsFilter UrlsFilter WhiteSpaceFilter WordCountFilter
        WordsWithoutAlphabetsFilter

        RepeatedLinesByCharFilter RepeatedLinesFilter RepeatedParagraphsByCharFilter RepeatedParagraphsFilter
        RepeatingDuplicateNGramsFilter RepeatingTopNGramsFilter

        AlphaFilter GeneralCommentToCodeFilter HTMLBoilerplateFilter NumberOfLinesOfCodeFilter PerExtensionFilter
        PythonCommentToCodeFilter TokenizerFertilityFilter XMLHeaderFilter

        FastTextLangId FastTextQualityFilter HistogramFilter TokenCountFilter
        """,
    ),
    f"{_TEXT}.filters.published.stages": (STAGE, "C4Quality FineWebQuality GopherQuality GopherRepetition"),
    f"{_TEXT}.modifiers": (
        MODIFIER,
        """
        BoilerPlateStringModifier FastTextLabelModifier LineRemover MarkdownRemover NewlineNormalizer PiiRedactor
        QuotationRemover Slicer UnicodeReformatter UrlRemover
        """,
    ),
    f"{_TEXT}.classifiers": (
        STAGE,
        """
        AegisClassifier ContentTypeClassifier DistributedDataClassifier DomainClassifier FineWebEduClassifier
        FineWebMixtralEduClassifier FineWebNemotronEduClassifier InstructionDataGuardClassifier LinearClassifier
        MultilingualDomainClassifier PromptTaskComplexityClassifier QualityClassifier
        """,
    ),
    f"{_TEXT}.embedders": (STAGE, "EmbeddingCreatorStage"),
    f"{_TEXT}.modules": (STAGE, "AddId DocumentJoiner DocumentSplitter"),
}
"""Module → what its classes are, and their names."""

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

_NAMES = {name: Registered(name, module, kind) for module, (kind, names) in _TABLE.items() for name in names.split()}


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


# --- from an entry of a recipe to a stage ---

SETTINGS_KEY = "with"
"""The key for settings that every stage has; no parameter can have this name, since Python reserves it."""


def filter_options(*, text_field: str = "text", score_field: str | None = None, invert: bool = False) -> None:
    """What a filter takes in a recipe beside its own parameters."""


def modifier_options(*, input_fields: str = "text", output_fields: str | None = None) -> None:
    """What a modifier takes in a recipe beside its own parameters."""


def stage_settings(
    *,
    name: str | None = None,
    resources: Resources | None = None,
    batch_size: int | None = None,
    num_workers: int | None = None,
    time_limit_s: float | None = None,
) -> None:
    """What every stage takes under `with:`."""


OPTIONS: Mapping[str, Callable[..., None]] = {FILTER: filter_options, MODIFIER: modifier_options}


def recipe_parameters(entry: Registered) -> dict[str, Parameter]:
    """Everything that `entry` takes in a recipe: its own parameters, then those of what wraps it."""
    own = parameters_of(entry.load())
    extra = parameters_of(OPTIONS[entry.kind]) if entry.kind in OPTIONS else {}
    return {**own, **{name: parameter for name, parameter in extra.items() if name not in own}}


def build_stage(
    entry: Registered, given: Mapping[str, Any], *, report: Callable[[Path, str], None]
) -> ProcessingStage[Any, Any] | None:
    """The stage for one entry, or None after its problems were reported."""
    problems: list[tuple[Path, str]] = []
    given = dict(given)
    settings = given.pop(SETTINGS_KEY, None) or {}
    accepted = check_parameters(given, recipe_parameters(entry), problems)
    if isinstance(settings, Mapping):
        of_settings: list[tuple[Path, str]] = []
        settings = check_parameters(settings, parameters_of(stage_settings), of_settings)
        problems += [((SETTINGS_KEY, *path), f"with: {message}") for path, message in of_settings]
    else:
        problems.append(((SETTINGS_KEY,), "with: expected a mapping of settings."))
    for path, message in problems:
        report(path, message)
    if problems:
        return None
    cls = entry.load()
    own = parameters_of(cls)
    options = {name: value for name, value in accepted.items() if name not in own}
    try:
        made: Any = cls(**{name: value for name, value in accepted.items() if name in own})
        if entry.kind == FILTER:
            from gristmill.stages.text.filters import ScoreFilter

            made = ScoreFilter(made, **options)
        elif entry.kind == MODIFIER:
            from gristmill.stages.text.modifiers import Modify

            made = Modify(made, **options)
        stage: ProcessingStage[Any, Any] = made.with_(**settings) if settings else made
    except (GristmillError, ValueError, TypeError) as error:
        report((), str(error))
        return None
    return stage
