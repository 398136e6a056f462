"""The writer's summary of the whole output, written once every partition is committed: totals, and optionally an index.

The summary is stored in the record as `summary.json`. Files that describe the whole output, such as the `index.json` of
a streaming data set, are in the output itself; the summary has their sizes and hashes.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import xxhash

from gristmill.errors import VerificationError
from gristmill.ledger.record.layout import RunFolder
from gristmill.storage.atomic import json_bytes


@dataclass(frozen=True, slots=True)
class OutputSummary:
    """Totals of an output, and the files that describe all of it.

    Attributes:
        facts: Plain values.
        files: Name in the output folder → content.
    """

    facts: Mapping[str, Any]
    files: Mapping[str, bytes] = field(default_factory=dict)


def write_summary(folder: RunFolder, summary: OutputSummary) -> None:
    """Write the summary to the record, and its files to the output."""
    files = []
    for name, data in sorted(summary.files.items()):
        folder.write(folder.join(name), data)
        files.append({"path": name, "size": len(data), "hash": "xxh3:" + xxhash.xxh3_128_hexdigest(data)})
    folder.write(folder.record_path("summary"), json_bytes({**summary.facts, "files": files}))


def read_summary(folder: RunFolder) -> dict[str, Any] | None:
    """The summary of an output; None if it has none.

    Raises:
        VerificationError: The file is damaged.
    """
    place = folder.record_path("summary")
    try:
        found = json.loads(folder.read(place))
        for file in found["files"]:
            if "/" in str(file["path"]):
                raise ValueError(f"{file['path']!r} is not a file of the output folder")
            folder.join(file["path"])
    except FileNotFoundError:
        return None
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise VerificationError(
            f"{place} is damaged ({error}). Run the same command again to rewrite it.", path=place
        ) from error
    return dict(found)


def remove_summary(folder: RunFolder) -> None:
    """Remove the summary and its files: partitions are about to change, and an index must not outlive them."""
    try:
        found = read_summary(folder)
    except VerificationError:
        found = None
    for file in (found or {}).get("files", ()):
        folder.remove(folder.join(file["path"]))
    folder.remove(folder.record_path("summary"))


def summary_problems(folder: RunFolder, listing: Mapping[str, int]) -> tuple[list[str], set[str]]:
    """What is wrong with the files that describe the whole output, and the names of those files."""
    try:
        found = read_summary(folder)
    except VerificationError as error:
        return [str(error)], set()
    problems, names = [], set()
    for file in (found or {}).get("files", ()):
        name = file["path"]
        names.add(name)
        if name not in listing:
            problems.append(f"{folder.shown(name)} is missing; run the same command again to rewrite it.")
        elif "xxh3:" + xxhash.xxh3_128_hexdigest(folder.read(folder.join(name))) != file["hash"]:
            problems.append(f"{folder.shown(name)} was changed after it was written: its hash differs.")
    return problems, names
