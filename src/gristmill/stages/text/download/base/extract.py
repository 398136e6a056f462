"""Extraction: from a record as it was downloaded to a document, record by record."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any


class DocumentExtractor(ABC):
    """Turns one record into a document. Subclass it and implement the three methods.

    Sent to worker processes, where `extract` is called once per record.
    """

    @abstractmethod
    def extract(self, record: dict[str, Any]) -> dict[str, Any] | None:
        """The document of a record, or None if there is none in it."""

    @abstractmethod
    def input_columns(self) -> list[str]:
        """The keys of a record that `extract` reads."""

    @abstractmethod
    def output_columns(self) -> list[str]:
        """The keys of the documents that it gives."""
