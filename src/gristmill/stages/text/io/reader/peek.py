"""Looks at the beginning of the input to learn its columns, so that a missing one is found before data is read."""

from __future__ import annotations

import time
from collections.abc import Container, Mapping, Sequence
from typing import Any

from gristmill.stages.ends import SourceColumns
from gristmill.storage.json_records import JsonRecords
from gristmill.storage.jsonl_blocks import read_blocks
from gristmill.storage.parquet_blocks import Footers
from gristmill.storage.partitions import Partition

_PEEK_BYTES = 1 << 20
_PEEK_FILES = 3
_SEARCH_SECONDS = 0.7
"""How long to go on looking for a key that is not in the first records, before it is called missing."""


def parquet_columns(partitions: Sequence[Partition], footers: Footers) -> SourceColumns | None:
    """The columns of all Parquet files together."""
    files = list({piece.path: piece for partition in partitions for piece in partition.ranges}.values())
    if not files:
        return None
    schema = footers.unified(files)
    return SourceColumns(tuple(schema.names), complete=True, looked_at=f"the footers of {len(files)} files")


def jsonl_columns(
    partitions: Sequence[Partition], wanted: Sequence[str], *, storage_options: Mapping[str, Any] | None
) -> SourceColumns | None:
    """The keys of the first records; keys in `wanted` that are not among them are looked for further on.

    A key may be rare, so the search goes through the input until it has found all that is wanted, or for a moment. The
    result is complete where every record was seen.
    """
    names: dict[str, None] = {}
    records = 0
    begun = time.monotonic()
    complete = True
    for number, partition in enumerate(partitions):
        if number >= _PEEK_FILES and _enough(names, wanted, begun):
            complete = False
            break
        for block in read_blocks(partition, block_bytes=_PEEK_BYTES, storage_options=storage_options):
            good, _, _ = JsonRecords.scan(block.buffer, block.starts, block.ends)
            names.update(dict.fromkeys(good.keys()))
            records += len(good)
            if _enough(names, wanted, begun):
                complete = False
                break
    if not records:
        return None
    looked_at = f"all {records} records" if complete else f"the first {records} records"
    return SourceColumns(tuple(names), complete=complete, looked_at=looked_at)


def _enough(names: Container[str], wanted: Sequence[str], begun: float) -> bool:
    """Whether all is found, or there was enough time to find it."""
    return all(name in names for name in wanted) or time.monotonic() - begun > _SEARCH_SECONDS
