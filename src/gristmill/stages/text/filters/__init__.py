"""Filters: decide which documents to keep, with a score, and a reason for every drop."""

from __future__ import annotations

from gristmill.lazy import lazy_names
from gristmill.stages.text.filters import heuristic

_HOMES = {
    "cascade": ["CascadeResult", "FilterCascade"],
    "checking": ["FilterCheckError", "check_filter"],
    "doc_filter": ["DocumentFilter"],
    "extension": ["PerExtensionFilter"],
    "fasttext": ["FastTextLangId", "FastTextQualityFilter"],
    "heuristic": heuristic.__all__,
    "histogram": ["HistogramFilter"],
    "line_quality": ["LineQuality"],
    "published.stages": ["C4Quality", "FineWebQuality", "GopherQuality", "GopherRepetition"],
    "rule": ["ColumnFilter"],
    "score_filter": ["Filter", "Score", "ScoreFilter", "SlowFilterWarning"],
    "url.filters": [
        "AdultUrlFilter",
        "UrlAllowListFilter",
        "UrlBlockListFilter",
        "UrlExtensionFilter",
        "UrlHostFilter",
        "UrlLengthFilter",
    ],
    "url.stage": ["UrlRules"],
    "tokens": ["TokenCountFilter", "TokenizerFertilityFilter"],
}

__getattr__, __dir__ = lazy_names(__name__, _HOMES)
__all__ = __dir__()  # noqa: PLE0605
