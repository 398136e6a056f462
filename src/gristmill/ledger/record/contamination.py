"""`contamination.json`: which benchmark items a decontamination found, how much of each, and in which documents."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from gristmill.errors import VerificationError
from gristmill.ledger.record.layout import RunFolder
from gristmill.ledger.record.run_record import checksum
from gristmill.storage.atomic import json_bytes

FORMAT = 1


def write_contamination(folder: RunFolder, found: Mapping[str, Any]) -> None:
    """Record what was found, with a checksum."""
    record = {**found, "format": FORMAT}
    record["seal"] = checksum(record)
    folder.write(folder.record_path("contamination"), json_bytes(record))


def read_contamination(folder: RunFolder) -> dict[str, Any] | None:
    """What `write_contamination` wrote; None if there was no search.

    Raises:
        VerificationError: The file is damaged.
    """
    place = folder.record_path("contamination")
    if not folder.exists(place):
        return None
    shown = folder.shown(folder.relative(place))
    try:
        record = json.loads(folder.read(place))
    except ValueError as error:
        raise VerificationError(f"{shown} is damaged: {error}. Run the decontamination again.", path=place) from error
    if not isinstance(record, dict) or record.get("seal") != checksum(record):
        raise VerificationError(
            f"{shown} was edited or damaged: its content does not match its checksum. Run the decontamination again.",
            path=place,
        )
    return record
