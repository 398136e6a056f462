"""Filters: which documents stay, with a score and a reason for each that goes."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from gristmill.stages.text.filters.heuristic import _HOME_OF as _HEURISTICS

_HOME_OF = {
    "C4Quality": "published.stages",
    "CascadeResult": "cascade",
    "ColumnFilter": "rule",
    "DocumentFilter": "doc_filter",
    "FastTextLangId": "fasttext",
    "FastTextQualityFilter": "fasttext",
    "FilterCheckError": "checking",
    "FineWebQuality": "published.stages",
    "GopherQuality": "published.stages",
    "GopherRepetition": "published.stages",
    "Filter": "score_filter",
    "FilterCascade": "cascade",
    "HistogramFilter": "histogram",
    "PerExtensionFilter": "extension",
    "Score": "score_filter",
    "ScoreFilter": "score_filter",
    "SlowFilterWarning": "score_filter",
    "TokenCountFilter": "tokens",
    "TokenizerFertilityFilter": "tokens",
    "check_filter": "checking",
    **{name: f"heuristic.{module}" for name, module in _HEURISTICS.items()},
}

__all__ = [*sorted(_HOME_OF)]  # noqa: PLE0604


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOME_OF[name]}"), name)


def __dir__() -> list[str]:
    return __all__
