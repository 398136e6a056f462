"""The files of the input that a run does not read: their totals for people, their list for the record.

The list is a separate file beside `run.json`, one JSON object per line.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping
from typing import Any

import orjson

from gristmill.errors import GristmillError
from gristmill.figures import plural
from gristmill.ledger.record.layout import RunFolder
from gristmill.storage.files import LeftOut, is_local, survey

EXAMPLES = 5
"""Number of files named per reason if not all are."""
_REASONS = {
    "extension": "with another extension",
    "shard": "in other shards of the array",
    "hidden": "hidden by '_' or '.'",
    "record": "in the record of a run",
    "empty": "empty",
    "other_format": "in another format",
    "limit": "beyond the limit",
}


def totals(left_out: Iterable[LeftOut]) -> dict[str, dict[str, Any]]:
    """The number of files for each reason, with the first ones as examples."""
    found: dict[str, dict[str, Any]] = {}
    for item in left_out:
        total = found.setdefault(item.reason, {"files": 0, "examples": []})
        total["files"] += item.files
        if len(total["examples"]) < EXAMPLES:
            total["examples"].append(item.relative)
    return {reason: found[reason] for reason in _REASONS if reason in found}


def sentence(found: Mapping[str, Mapping[str, Any]]) -> str:
    """Totals in words."""
    number = sum(total["files"] for total in found.values())
    reasons = []
    for reason in sorted(found, key=list(_REASONS).index):
        total = found[reason]
        examples = list(total["examples"])
        shown = ", ".join(examples) + (", …" if total["files"] > len(examples) else "")
        reasons.append(f"{total['files']} {_REASONS[reason]}: {shown}")
    return f"Not read: {plural(number, 'file')} of the input ({'; '.join(reasons)})."


def record_list(folder: RunFolder, left_out: Iterable[LeftOut]) -> None:
    """Write the list to the record."""
    lines = [
        orjson.dumps({"path": _text(item.relative), "reason": item.reason, "files": item.files}) for item in left_out
    ]
    folder.write(folder.record_path("left_out"), b"\n".join([*lines, b""]))


def _text(name: str) -> str:
    """A file's name in a form that JSON can hold, even if it is not UTF-8."""
    return name.encode("utf-8", "backslashreplace").decode()


def appeared_since(folder: RunFolder, files: Mapping[str, Any], read: Iterable[str]) -> list[str]:
    """The input files that were added since the run; none if the input is not on this machine.

    Args:
        folder: The output.
        files: What `run.json` says about the input.
        read: The paths of the files that were read, below the input root.
    """
    paths = files.get("paths") or []
    if not paths or not all(map(is_local, paths)):
        return []
    known = set(map(_text, read))
    try:
        now = survey(paths, extensions=files.get("extensions"))
    except (GristmillError, OSError):
        return []  # the input is gone or no longer readable
    with contextlib.suppress(FileNotFoundError):  # no list: everything was read
        known.update(orjson.loads(line)["path"] for line in folder.read(folder.record_path("left_out")).splitlines())
    there = [*(file.relative for file in now.files), *(item.relative for item in now.left_out)]
    return sorted(set(map(_text, there)) - known)
