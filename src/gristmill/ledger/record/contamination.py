"""`contamination.json`: which benchmark items a decontamination found, how much of each, and in which documents."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gristmill.ledger.record.layout import RunFolder
from gristmill.ledger.record.run_record import checked_record, encoded_record

FORMAT = 1


def write_contamination(folder: RunFolder, found: Mapping[str, Any]) -> None:
    """Record what was found, with a checksum."""
    folder.write(folder.record_path("contamination"), encoded_record({**found, "format": FORMAT}))


def read_contamination(folder: RunFolder) -> dict[str, Any] | None:
    """What `write_contamination` wrote; None if there was no search.

    Raises:
        VerificationError: The file is damaged.
    """
    place = folder.record_path("contamination")
    if not folder.exists(place):
        return None
    return checked_record(folder.read(place), folder.shown(folder.relative(place)), " Run the decontamination again.")
