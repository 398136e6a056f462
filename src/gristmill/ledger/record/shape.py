"""Whether the JSON of a record has the shape that this version writes: a record may come from somebody else."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pyarrow as pa

from gristmill.errors import VerificationError

_INTEGER_LIMIT = 2**63
_COUNT = {"rows_in": int, "rows_out": int, "created": int, "untracked": int, "changed": int, "touched": int,
          "dropped": {"*": int}, "quarantined": {"*": int}}  # fmt: skip
_FILE = {"path": str, "size": int, "hash": str, "rows": (int, None)}
_PART = {"path": str, "relative": str, "size": int, "stamp": str, "start": int, "end": int, "whole": bool}
_NEEDED = {"whole", "path", "relative", "size", "start", "end", "stage", "name"}
"""Keys that every version has written, and that are read without a look whether they are there."""

ENTRY = {
    "partition": str, "index": int, "source": [_PART], "fingerprint": str, "plan": str, "files": [_FILE],
    "records": {"*": _FILE}, "stages": [{"stage": str, **_COUNT}], "rows_read": int, "rows_written": int,
    "rows_dropped": int, "quarantined": int, "row_numbers": int, "batches": [int], "state": str,
    "damaged": [{"file": str, "cause": str, "detail": str, "lost": int, "row": int, "salvaged": (int, None)}],
}  # fmt: skip
"""An entry of the manifest."""
_RUN = {
    "pipeline": str, "status": str, "output": str, "alarms": [str], "notices": [object], "partitions": int,
    "partitions_done_before": int, "wall_seconds": float, "rows_read": int, "source_bytes": int,
    "files": {"paths": [str], "extensions": [str], "left_out": {"*": {"files": int, "examples": [str]}}},
    "stages": [{"stage": str, "busy_seconds": float, "calls": int, "bytes_in": int, "bytes_out": int, **_COUNT}],
    "last_done": {"partitions": (int, None), "rows_read": (int, None), "source_bytes": (int, None)},
    "sealed": {"*": str},
}  # fmt: skip
RUN = {key: (shape, None) for key, shape in _RUN.items()}
"""`run.json`; while a run goes on, some of its values are not known."""
PLAN = {
    "settings": {"*": object}, "version": str,
    "stages": [{"name": str, "type": str, "role": str, "parameters": {"*": object}, "never_drops": bool,
                "bounds": ([[(str, None)]], None), "for_dropped": (str, None)}],
}  # fmt: skip
"""`plan.json`."""


QUARANTINE = {"row": int, "stage": str, "cause": str, "detail": str, "file": str, "offset": int, "size": int,
              "raw": str, "lost": int, "salvaged": (int, None), "id": (str, None)}  # fmt: skip
"""A line of the quarantine."""


@contextmanager
def table_errors(place: str) -> Iterator[None]:
    """Turn what is raised where a table of the ledger is not what it should be into an error that names it.

    Raises:
        VerificationError: It is damaged, or was edited.
    """
    try:
        yield
    except (pa.ArrowException, ValueError, KeyError, TypeError, UnicodeDecodeError) as error:
        told = (str(error) or type(error).__name__).splitlines()[0]
        raise VerificationError(
            f"{place} is damaged ({told}). Run `gristmill verify` on the output.", path=place
        ) from error


def check_shape(value: Any, shape: Any, place: str = "") -> None:
    """Compare a value with a shape: a type, a list of one shape, a mapping of keys to shapes, or a choice of these.

    Keys that are missing or unknown are passed over, but for a few; "*" stands for any key.

    Raises:
        ValueError: It does not fit; names the first place.
    """
    if isinstance(shape, tuple):
        if value is None and None in shape:
            return
        shape = shape[0]
    if isinstance(shape, list):
        fits = isinstance(value, list)
        for number, item in enumerate(value if fits else ()):
            check_shape(item, shape[0], f"{place}[{number}]")
    elif isinstance(shape, dict):
        fits = isinstance(value, dict)
        for key in value if fits else ():
            if key in shape or "*" in shape:
                check_shape(value[key], shape.get(key, shape.get("*")), f"{place}.{key}" if place else key)
        missing = _NEEDED.intersection(shape).difference(value) if fits else ()
        if missing:
            raise ValueError(f"{place or 'it'} has no {min(missing)!r}")
    elif shape is int:
        fits = type(value) is int and -_INTEGER_LIMIT <= value < _INTEGER_LIMIT
    elif shape is float:
        fits = type(value) in (int, float)
    else:
        fits = isinstance(value, shape)
    if not fits:
        raise ValueError(f"{place or 'it'} cannot be {str(value)[:40]!r}")
