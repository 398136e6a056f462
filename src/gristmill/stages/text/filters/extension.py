"""The source code filter with limits that depend on language and file extension."""

from __future__ import annotations

import csv
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from gristmill.errors import InputError, InputNotFoundError
from gristmill.kernels.text_characters import (
    CHARS,
    FIRST_SET,
    LINES,
    LONGEST_LINE,
    SECOND_SET,
    count_sets,
)
from gristmill.kernels.unicode_classes import ALPHA, CODE_POINTS, class_tables
from gristmill.stages.text.filters.rule import ColumnFilter
from gristmill.stages.text.filters.statistics import Scores, TextStatistics

__all__ = ["PerExtensionFilter"]

_MEAN_LINE = 100
_COLUMNS = ("language", "extension", "Include", "Long_line_threshold", "Alphanum_threshold", "Alpha filter")
_NAMES = {"C#": "c-sharp", "F#": "f-sharp"}


class _Limits(NamedTuple):
    longest_line: int
    plain_share: float
    alphabetic_share: float


class PerExtensionFilter(ColumnFilter):
    """Keeps source files whose lines and characters are typical of their language and extension.

    The limits come from a table (CSV) with the columns language, extension, Include, Long_line_threshold,
    Alphanum_threshold and "Alpha filter", as published with The Stack (Kocetkov et al. 2022, arXiv:2211.15533). An
    empty limit or 0 is off; if there is a limit for long lines, the mean line may have 100 characters. Extensions that
    are not in the table or not included are dropped. The score is 1 or 0.

    Args:
        lang: The language, such as `python` or `C#`.
        extension: The extension without a dot; None for files without one.
        metadata_file: Path to the table.

    Example:
        >>> PerExtensionFilter("python", "py").name
        'PerExtensionFilter'
    """

    score_kind = "count"
    lower_reason = "unusual_for_extension"

    def __init__(self, lang: str, extension: str | None, metadata_file: str = "code_meta.csv") -> None:
        super().__init__(lower=1.0)
        self.lang = lang
        self.extension = extension
        self.metadata_file = metadata_file

    _limits: _Limits | bool | None = False

    def model_check_or_download(self) -> None:
        """Check that the table exists and lists the language."""
        self.load_model()

    def check_environment(self) -> None:
        """Reject a table that is missing or does not list the language."""
        self.load_model()

    def load_model(self) -> None:
        """Read the limits; called automatically on first use."""
        self._limits = _read_limits(self.metadata_file, self.lang, self.extension or "")

    def score_column(self, statistics: TextStatistics) -> Scores:
        """1 if the document is within all limits, otherwise 0."""
        if self._limits is False:
            self.load_model()
        texts = statistics.column
        if not isinstance(self._limits, _Limits):
            return np.zeros(len(texts), np.float64)
        spans = (texts.offsets[:-1], texts.offsets[1:])
        counts = count_sets(texts.data, texts.offsets, *spans, np.asarray(statistics.alive), _sets())
        chars, limits = counts[:, CHARS], self._limits
        passed = np.ones(len(texts), bool)
        if limits.longest_line:
            mean = (chars + 1) / np.maximum(counts[:, LINES], 1) - 1
            passed &= (counts[:, LONGEST_LINE] <= limits.longest_line) & (mean <= _MEAN_LINE)
        if limits.plain_share:
            passed &= counts[:, FIRST_SET] / np.maximum(chars, 1) >= limits.plain_share
        if limits.alphabetic_share:
            passed &= counts[:, SECOND_SET] >= limits.alphabetic_share * chars
        return passed.astype(np.float64)

    def keep_document(self, score: Any) -> bool:
        """Whether to keep a document with this score."""
        return score is not None and bool(score)

    def __getstate__(self) -> dict[str, Any]:
        return {key: value for key, value in self.__dict__.items() if key != "_limits"}


def _read_limits(path: str, lang: str, extension: str) -> _Limits | None:
    """The limits of one extension; None when it is not included."""
    if not Path(path).is_file():
        raise InputNotFoundError(
            f"There is no table of limits at {path!r}: set metadata_file to the path of a CSV file with the columns "
            f"{', '.join(_COLUMNS)}.",
            path=path,
        )
    wanted = _NAMES.get(lang, lang.lower().replace(" ", "-"))
    with Path(path).open(encoding="utf-8", newline="") as file:
        reader = csv.DictReader(file)
        missing = [name for name in _COLUMNS if name not in (reader.fieldnames or [])]
        if missing:
            raise InputError(f"The table {path!r} has no column {missing[0]!r}; it needs {', '.join(_COLUMNS)}.")
        rows = [row for row in reader if row["language"] in (lang, wanted)]
    if not rows:
        raise InputError(f"The table {path!r} has no limits for the language {lang!r}.", path=path, language=lang)
    for row in rows:
        if row["extension"] == extension and row["language"] == wanted and row["Include"] == "1":
            numbers = [_number(row[name]) for name in _COLUMNS[3:]]
            return _Limits(int(numbers[0]), numbers[1], numbers[2])
    return None


def _number(text: str | None) -> float:
    try:
        return float(text or 0)
    except ValueError:
        return 0.0


@lru_cache(maxsize=1)
def _sets() -> np.ndarray:
    """The characters of plain text (ASCII letters and digits, newline and `?!,.`), and all letters."""
    pages, flags = class_tables()
    letters = (flags.reshape(-1, 256)[pages] & ALPHA != 0).ravel()[:CODE_POINTS]
    sets = np.zeros(CODE_POINTS, np.uint8)
    sets[: len(letters)] = letters.astype(np.uint8) << 1
    plain = b"\n?!,.0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
    sets[list(plain)] |= 1
    sets.flags.writeable = False
    return sets
