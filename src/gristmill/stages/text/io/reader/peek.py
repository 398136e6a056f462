"""Looks at the beginning of the input to learn its columns, so that a missing one is found before data is read."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from gristmill.stages.source_sink import SourceColumns
from gristmill.storage.json_records import JsonRecords
from gristmill.storage.jsonl_blocks import read_blocks
from gristmill.storage.parquet_blocks import Footers
from gristmill.storage.partitions import Partition

_PEEK_BYTES = 1 << 20
_PEEK_FILES = 3
_SEARCH_BYTES = 64 << 20
"""How much to look through for a key that is not in the first records. Bytes and no time: what is found must not depend
on the pace of the machine."""


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

    A key may be rare, or only in files of another source, so the search takes some of every part of the input until it
    has found all that is wanted or looked through so many bytes. The result is complete where every record was seen.
    """
    search = _Search(wanted, storage_options)
    for partition in partitions[:_PEEK_FILES]:
        search.look_into(partition, room=_PEEK_BYTES)
    if not search.found_all and not search.complete(partitions):
        # A large input is looked at in many places, a small one gone through.
        large = sum(map(_stored_bytes, partitions)) > _SEARCH_BYTES
        share = max(_PEEK_BYTES, _SEARCH_BYTES // len(partitions)) if large else _SEARCH_BYTES
        search = _Search(wanted, storage_options, known=search.names)
        for number in _spread(len(partitions)):
            search.look_into(partitions[number], room=min(share, _SEARCH_BYTES - search.seen))
            if search.found_all or search.seen >= _SEARCH_BYTES:
                break
    if not search.records:
        return None
    complete = search.complete(partitions)
    looked_at = f"all {search.records} records" if complete else f"{search.records} records"
    return SourceColumns(tuple(search.names), complete=complete, looked_at=looked_at)


class _Search:
    """What a look at some partitions has shown."""

    def __init__(
        self, wanted: Sequence[str], storage_options: Mapping[str, Any] | None, *, known: Iterable[str] = ()
    ) -> None:
        self.names: dict[str, None] = dict.fromkeys(known)
        self.records = 0
        self.seen = 0
        self._wanted = wanted
        self._storage_options = storage_options
        self._whole = 0

    @property
    def found_all(self) -> bool:
        """Whether every wanted key was seen."""
        return all(name in self.names for name in self._wanted)

    def complete(self, partitions: Sequence[Partition]) -> bool:
        """Whether there is no more to see."""
        return self._whole == len(partitions)

    def look_into(self, partition: Partition, *, room: int) -> None:
        """Take the keys of its records, until about `room` bytes are seen or nothing more is wanted."""
        for block in read_blocks(partition, block_bytes=_PEEK_BYTES, storage_options=self._storage_options):
            good, _, _ = JsonRecords.scan(block.buffer, block.starts, block.ends)
            self.names.update(dict.fromkeys(good.keys()))
            self.records += len(good)
            size = int(block.ends[-1] - block.starts[0]) if len(block.ends) else 0
            self.seen += size
            room -= size
            if self.found_all or room < _PEEK_BYTES // 2:  # less than a block, which ends with a line
                return
        self._whole += 1


def _stored_bytes(partition: Partition) -> int:
    return sum(piece.size if piece.whole or piece.end < 0 else piece.end - piece.start for piece in partition.ranges)


def _spread(count: int) -> Iterator[int]:
    """The numbers below `count`, in such an order that the first of them lie far apart."""
    step = 1 << max(0, count - 1).bit_length()
    yield from range(0, count, step)
    while step > 1:
        half = step // 2
        yield from range(half, count, step)
        step = half
