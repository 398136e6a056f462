"""Checks that a filter behaves correctly: for filter authors, and for every registered filter."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from gristmill.errors import GristmillError
from gristmill.stages.text.filters.cascade import FilterCascade
from gristmill.stages.text.filters.doc_filter import DocumentFilter
from gristmill.stages.text.filters.rule import ColumnFilter

EDGE_TEXTS: tuple[str | None, ...] = (
    "",
    None,
    " ",
    "\n",
    "\t \n \r\n ",
    "a",
    "1",
    ".",
    "\u00e9",
    "e\u0301",
    "\U0001f600",
    "\U0001f468\u200d\U0001f469\u200d\U0001f467\u200d\U0001f466 \U0001f1e9\U0001f1ea",
    "\u0301\u0302\u0303",
    "\ufffd\ufffd",
    "\x00",
    "nul \x00 inside",
    "\u2028\u2029\x85",
    "\u3000\u00a0",
    "漢字かな交じり文。",
    "مرحبا بالعالم",
    "word " * 60,
    "word\n" * 60,
    "One sentence. And another one, with the usual words of that kind. " * 8,
    "x" * 20_000,
    "a\n" * 5_000,
    "http://example.org/path " * 40,
    "- item\n" * 60,
    "{}();// not prose\n" * 40,
)
"""Texts that break careless filters: empty, blank, missing, one character, emoji, marks, one long line, many lines."""


class FilterCheckError(GristmillError, AssertionError):
    """A filter misbehaves; says on which text and how."""


def check_filter(filter_obj: DocumentFilter, texts: Sequence[str | None] = ()) -> None:
    """Raise if the filter would misbehave in a pipeline.

    Checked on texts that break careless filters, and on `texts`: nothing raises; a document gets the same score and
    decision alone and in a column; its score does not depend on its neighbours or their order; calls are repeatable;
    the filter can be pickled; every dropped document has a reason.

    Args:
        filter_obj: The filter, as passed to `ScoreFilter`.
        texts: Additional texts to try.

    Raises:
        FilterCheckError: Says what is wrong and on which text.

    Example:
        >>> from gristmill.stages.text.filters import WordCountFilter
        >>> check_filter(WordCountFilter(min_words=3))
    """
    if not isinstance(filter_obj, DocumentFilter):
        raise FilterCheckError(f"{filter_obj!r} is not a DocumentFilter object.")
    if not filter_obj.name or not isinstance(filter_obj.name, str):
        raise FilterCheckError(f"{type(filter_obj).__name__} has no name.")
    everything = [*EDGE_TEXTS, *texts]
    alone = [_alone(filter_obj, "" if text is None else text) for text in everything]
    again = pickle.loads(pickle.dumps(filter_obj))  # noqa: S301 - our own object, made a line before
    for text, (score, kept) in zip(everything, alone, strict=True):
        repeated = _alone(again, "" if text is None else text)
        if not _same(repeated[0], score) or repeated[1] != kept:
            raise FilterCheckError(
                f"{filter_obj.name}: the second call on {_shown(text)} returns {repeated}, the first returned "
                f"{(score, kept)}."
            )
    if isinstance(filter_obj, ColumnFilter):
        _check_column(filter_obj, everything, alone)


def _alone(filter_obj: DocumentFilter, text: str) -> tuple[Any, bool]:
    try:
        score = filter_obj.score_document(text)
        return score, bool(filter_obj.keep_document(score))
    except Exception as error:
        raise FilterCheckError(f"{filter_obj.name} raises {type(error).__name__} on {_shown(text)}: {error}") from error


def _check_column(filter_obj: ColumnFilter, texts: Sequence[str | None], alone: Sequence[tuple[Any, bool]]) -> None:
    for order in (np.arange(len(texts)), np.arange(len(texts))[::-1]):
        column = pa.array([texts[place] for place in order], pa.large_string())
        try:
            result = FilterCascade([filter_obj]).evaluate(column, keep_scores=True, every_score=True)
        except Exception as error:
            raise FilterCheckError(f"{filter_obj.name} raises {type(error).__name__} on a column: {error}") from error
        for row, place in enumerate(order.tolist()):
            score, kept = alone[place]
            found = float(result.scores[0][row])
            number = float(score) if isinstance(score, int | float) else found
            if not _same(found, number):
                raise FilterCheckError(
                    f"{filter_obj.name} scores {_shown(texts[place])} {found} in a column, and {number} alone."
                )
            if bool(result.kept[row]) != kept:
                raise FilterCheckError(f"{filter_obj.name} decides differently on {_shown(texts[place])} in a column.")
            if not kept and not filter_obj.reason(found):
                raise FilterCheckError(f"{filter_obj.name} returns no reason for dropping {_shown(texts[place])}.")


def _same(one: Any, other: Any) -> bool:
    try:
        return bool(np.isclose(float(one), float(other), rtol=0, atol=1e-9, equal_nan=True))
    except (TypeError, ValueError):
        return bool(one == other)


def _shown(text: str | None) -> str:
    return "a missing text" if text is None else f"{text[:40]!r} ({len(text)} characters)"
