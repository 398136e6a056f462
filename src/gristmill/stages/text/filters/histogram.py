"""The filter that checks a document's characters against those of a language."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np

from gristmill.errors import InputNotFoundError
from gristmill.kernels.text_characters import CHARS, FIRST_SET, count_sets
from gristmill.kernels.text_edit import FROM_START, slice_spans
from gristmill.kernels.unicode_classes import CODE_POINTS
from gristmill.stages.text.filters.rule import ColumnFilter, check_shares
from gristmill.stages.text.filters.statistics import Scores, TextStatistics

__all__ = ["HistogramFilter"]

SOURCE = "https://dl.fbaipublicfiles.com/m2m_100/histograms.tar.gz"
_INSIDE = ("histograms/checkpoint/edunov/cc60_multilingual/clean_hists", "clean_hists", "")


class HistogramFilter(ColumnFilter):
    """Keeps documents that mostly consist of the usual characters of a language: a cheap language check.

    The rule of the NLLB data (NLLB Team 2022, arXiv:2207.04672): the number of characters of the stripped text that are
    in the language's histogram, divided by the number of all characters. The score is 1 if the share is above
    `threshold`, otherwise 0. Download the histogram files yourself; nothing is downloaded here.

    Args:
        lang: The language, which is the name of the file.
        threshold: Share that must be exceeded.
        cache_dir: Folder of the unpacked histograms; empty uses the user's cache folder.
        threshold_char: The line that ends the usual characters in a file.

    Example:
        >>> HistogramFilter(lang="de").name
        'HistogramFilter'
    """

    score_kind = "count"
    lower_reason = "unusual_characters"

    def __init__(
        self,
        lang: str | None = "en",
        threshold: float | None = 0.8,
        cache_dir: str | None = "",
        threshold_char: str | None = "]",
    ) -> None:
        super().__init__(lower=1.0)
        self.lang = "en" if lang is None else lang
        self.share = 0.8 if threshold is None else threshold
        check_shares(self, threshold=self.share)
        self.cache_dir = cache_dir or ""
        self.threshold_char = "]" if threshold_char is None else threshold_char

    _sets: np.ndarray | None = None

    def model_check_or_download(self) -> None:
        """Check that the file exists; nothing is downloaded."""
        self._file()

    def check_environment(self) -> None:
        """Reject a language without a histogram."""
        self._file()

    def load_model(self) -> None:
        """Read the histogram; called automatically on first use."""
        sets = np.zeros(CODE_POINTS, np.uint8)
        with self._file().open(encoding="utf-8") as lines:
            for line in lines:
                if line[0] == self.threshold_char:
                    break
                sets[ord(line[0])] = 1
        sets.flags.writeable = False
        self._sets = sets

    def score_column(self, statistics: TextStatistics) -> Scores:
        """1 if enough characters are usual, otherwise 0."""
        if self._sets is None:
            self.load_model()
        assert self._sets is not None
        texts, nothing = statistics.column, np.zeros(0, np.uint8)
        nothing.flags.writeable = False
        spans = slice_spans(texts.data, texts.offsets, FROM_START, 0, nothing, True, FROM_START, 0, nothing, True, True)
        counts = count_sets(texts.data, texts.offsets, *spans, np.asarray(statistics.alive), self._sets)
        share = counts[:, FIRST_SET] / np.maximum(counts[:, CHARS], 1)
        return (share > self.share).astype(np.float64)

    def __getstate__(self) -> dict[str, Any]:
        return {key: value for key, value in self.__dict__.items() if key != "_sets"}

    def _file(self) -> Path:
        folder = Path(self.cache_dir or os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
        for inside in _INSIDE:
            path = folder / inside / self.lang
            if path.is_file():
                return path
        raise InputNotFoundError(
            f"There is no histogram of the language {self.lang!r} in {str(folder)!r}. Download {SOURCE}, unpack it "
            "into a folder 'histograms' there, and pass the folder as cache_dir.",
            path=str(folder / _INSIDE[0] / self.lang),
        )
