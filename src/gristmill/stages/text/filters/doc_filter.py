"""The base class of filters: a score for a document, and a decision based on that score."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar, Literal

ScoreKind = Literal["count", "share", "number"]
"""Type of a score: a whole number, a number from 0 to 1, or any number."""


class DocumentFilter(ABC):
    """Base class of all filters, built-in and user-written.

    A subclass scores one text at a time and decides on the score. It is created in the driver, pickled to every worker,
    and called there once per document; it must not keep state between documents. If it defines `load_model` or
    `load_tokenizer`, each worker calls them before the first document, and `model_check_or_download` before them.

    Attributes:
        score_kind: Type of the scores. A column of `count` scores holds whole numbers, one of `share` or `number`
            floats. None uses the return annotation of `score_document` (`-> int`, `-> float`), or without one the
            scores of each batch: annotate it, so that the column has the same type in every batch.
        lower_parameter: The parameter of `__init__` that is the minimum score to keep, if there is one. A plan records
            it, so that a threshold can be changed by that name later (`gristmill rethreshold`).
        upper_parameter: The same for the maximum score.

    Example:
        >>> class Shouting(DocumentFilter):
        ...     def score_document(self, text: str) -> float:
        ...         return sum(map(str.isupper, text)) / max(len(text), 1)
        ...
        ...     def keep_document(self, score: float) -> bool:
        ...         return score <= 0.5
        >>> Shouting().name
        'Shouting'
    """

    score_kind: ScoreKind | None = None
    lower_parameter: str | None = None
    upper_parameter: str | None = None
    wrapper: ClassVar[str] = "ScoreFilter"
    """The stage that applies the filter, for the error message if a filter is passed in place of a stage."""
    _name: str = ""

    def __init__(self) -> None:
        self._name = type(self).__name__

    @property
    def name(self) -> str:
        """The name under which counts, reasons and score columns appear."""
        return self._name or type(self).__name__

    def check_environment(self) -> None:
        """Called in the driver when a run is planned: raise if a package, model or file is missing.

        The default calls `model_check_or_download`, if the filter defines it.
        """
        check = getattr(self, "model_check_or_download", None)
        if check is not None:
            check()

    @abstractmethod
    def score_document(self, text: str) -> Any:
        """The score of one text."""

    @abstractmethod
    def keep_document(self, score: Any) -> bool:
        """Whether to keep a document with this score."""
