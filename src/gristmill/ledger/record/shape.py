"""Checks that a record has the shape that this version writes: a record may come from an untrusted source."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import pyarrow as pa
import pyarrow.parquet as pq

from gristmill.errors import VerificationError
from gristmill.ledger.record.manifest import COUNTS

# Reading ahead leaves the last piece to one of Arrow's threads, and a process that exits while that thread frees
# Python's memory is aborted.
open_table = partial(pq.ParquetFile, pre_buffer=False)
"""Open a table of the ledger, as `pq.ParquetFile` does."""

_RUN = {
    "pipeline": str, "status": str, "output": str, "alarms": [str], "notices": [object], "partitions": int,
    "partitions_done_before": int, "wall_seconds": float, "rows_read": int, "source_bytes": int,
    "files": {"paths": [str], "extensions": [str], "left_out": {"*": {"files": int, "examples": [str]}}},
    "stages": [{"stage": str, "busy_seconds": float, "calls": int, "bytes_in": int, "bytes_out": int, **COUNTS}],
    "last_done": {"partitions": (int, None), "rows_read": (int, None), "source_bytes": (int, None)},
    "sealed": {"*": str},
}  # fmt: skip
RUN = {key: (shape, None) for key, shape in _RUN.items()}
"""`run.json`; some values are unknown during a run."""
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
    """Turn exceptions caused by a malformed ledger table into an error that names it.

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
