"""Iteration: from a downloaded file to its records."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any

from gristmill.storage.row_formats import Broken


class DocumentIterator(ABC):
    """Reads the records of one file. Subclass it and implement the two methods.

    Sent to worker processes, where `iterate` is called once per file.

    Example:
        >>> class Lines(DocumentIterator):
        ...     def iterate(self, file_path):
        ...         with open(file_path, encoding="utf-8") as lines:
        ...             for line in lines:
        ...                 yield {"text": line.rstrip()}
        ...
        ...     def output_columns(self):
        ...         return ["text"]
    """

    @abstractmethod
    def iterate(self, file_path: str) -> Iterator[dict[str, Any] | Broken]:
        """The records of a local file, in order, as dictionaries.

        Give a `gristmill.storage.row_formats.Broken` for a record that cannot be read: it is quarantined and the rest
        goes on. An exception means that the file is damaged from there on: nothing of it is kept, unless the run
        salvages damaged files.
        """

    @abstractmethod
    def output_columns(self) -> list[str]:
        """The keys of the records."""
