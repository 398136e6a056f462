"""What every filter is: a score for a document, and a decision on that score."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar


class DocumentFilter(ABC):
    """Base of all filters, built-in and user-written.

    A subclass scores one text at a time and decides on the score. It is created on the driver, pickled to every worker,
    and called there once per document; it must not keep anything between two documents.

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

    wrapper: ClassVar[str] = "ScoreFilter"
    """The stage that applies the filter: what to write where one is given in place of a stage."""
    _name: str = ""

    def __init__(self) -> None:
        self._name = type(self).__name__

    @property
    def name(self) -> str:
        """The name under which counts, reasons and score columns appear."""
        return self._name or type(self).__name__

    @abstractmethod
    def score_document(self, text: str) -> Any:
        """The score of one text."""

    @abstractmethod
    def keep_document(self, score: Any) -> bool:
        """Whether a document with this score stays."""
