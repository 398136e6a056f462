"""What happened: counts, decisions, the manifest of committed partitions, and the questions one can ask of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gristmill.ledger.ask.diff import LedgerDiff
    from gristmill.ledger.ask.ledger import Ledger
    from gristmill.ledger.ask.why import Why
    from gristmill.ledger.prove.verify import VerifyReport
    from gristmill.ledger.record.layout import RunFolder
    from gristmill.ledger.record.manifest import Manifest, ManifestEntry

__all__ = ["Ledger", "LedgerDiff", "Manifest", "ManifestEntry", "RunFolder", "VerifyReport", "Why"]

_HOMES = {
    "Ledger": "ask.ledger", "LedgerDiff": "ask.diff", "Manifest": "record.manifest", "ManifestEntry": "record.manifest",
    "RunFolder": "record.layout", "VerifyReport": "prove.verify", "Why": "ask.why",
}  # fmt: skip


def __getattr__(name: str) -> Any:
    # Loaded on first use: these need Arrow, which `import gristmill` must not load.
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
