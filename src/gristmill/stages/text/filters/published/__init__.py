"""Published sets of filters, each rule with its own reason: Gopher, C4, FineWeb."""

from __future__ import annotations

from gristmill.lazy import lazy_names

_HOMES = {
    "c4": ["C4QualityFilter"],
    "fineweb": ["FineWebQualityFilter"],
    "gopher": ["GopherQualityFilter", "GopherRepetitionFilter"],
}

__getattr__, __dir__ = lazy_names(__name__, _HOMES)
__all__ = __dir__()  # noqa: PLE0605
