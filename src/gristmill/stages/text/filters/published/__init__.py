"""Published sets of filters, each rule with its own reason: Gopher, C4, FineWeb."""

from __future__ import annotations

from importlib import import_module
from typing import Any

_HOME_OF = {
    "C4QualityFilter": "c4",
    "FineWebQualityFilter": "fineweb",
    "GopherQualityFilter": "gopher",
    "GopherRepetitionFilter": "gopher",
}

__all__ = [*sorted(_HOME_OF)]  # noqa: PLE0604


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOME_OF[name]}"), name)


def __dir__() -> list[str]:
    return __all__
