"""What happened: counts, decisions, the manifest of committed partitions, and queries over them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gristmill.lazy import lazy_names

if TYPE_CHECKING:
    from gristmill.ledger.ask.diff import LedgerDiff
    from gristmill.ledger.ask.ledger import Ledger
    from gristmill.ledger.ask.why import Why
    from gristmill.ledger.prove.verify import VerifyReport
    from gristmill.ledger.record.layout import RunFolder
    from gristmill.ledger.record.manifest import Manifest, ManifestEntry

__all__ = ["Ledger", "LedgerDiff", "Manifest", "ManifestEntry", "RunFolder", "VerifyReport", "Why"]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "ask.diff": ["LedgerDiff"],
        "ask.ledger": ["Ledger"],
        "ask.why": ["Why"],
        "prove.verify": ["VerifyReport"],
        "record.layout": ["RunFolder"],
        "record.manifest": ["Manifest", "ManifestEntry"],
    },
)
