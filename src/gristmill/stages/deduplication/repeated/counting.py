"""Counts hashes of document parts on disk: sorted runs of hashes, and lists of those that repeat.

The parts are lines, paragraphs, sentences or windows of words. A first step writes a row for every hash of a batch (or
of a document), sorted by hash; the second reads ranges of hashes and lists, for each partition or document, the
repeated hashes in it, with the position of the first occurrence. Counts are exact, except for texts whose 128-bit
hashes collide.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from gristmill.kernels.repeats import NOWHERE, Hashes, build_lookup, look_up, repeated_rows
from gristmill.kernels.sorting import stable_order
from gristmill.kernels.text_column import Integers, Mask
from gristmill.stages.deduplication.key_ranges import RangeReader
from gristmill.stages.deduplication.sorted_runs import RunFiles, SortedRunWriter, column
from gristmill.stages.deduplication.source import Keys, first_key, partition_keys, partitions_of
from gristmill.tasks.document import DocumentBatch

_PARTS = ("hash", "hash_2", "place", "count")


def listed_parts(documents: Keys, bounds: Integers, *columns: Integers | Hashes) -> pa.Table:
    """A row for each document with the hash, second hash, position and count of its parts as lists.

    Args:
        documents: The key of every document.
        bounds: Document `i` has the parts `bounds[i]` to `bounds[i + 1]`.
        columns: Hash, second hash, position and count of all parts.
    """
    offsets = pa.array(bounds.astype(np.int64))
    lists = [pa.LargeListArray.from_arrays(offsets, pa.array(values)) for values in columns]
    return pa.table([pa.array(documents), *lists], ["document", *_PARTS])


class PartWriter(SortedRunWriter):
    """Writes one row for each part of each document, sorted by its hash."""

    name = "sorted_parts"
    fork_safe = True

    def encode(self, batch: DocumentBatch) -> pa.Table:
        table = batch.to_pyarrow().combine_chunks()
        parts = {name: [chunk.flatten() for chunk in table.column(name).chunks] for name in _PARTS}
        sizes = [np.diff(chunk.offsets.to_numpy()) for chunk in table.column("hash").chunks]
        documents = np.repeat(column(table, "document"), np.concatenate(sizes) if sizes else np.empty(0, np.int64))
        flat = {
            name: pa.chunked_array(chunks, table.schema.field(name).type.value_type) for name, chunks in parts.items()
        }
        return pa.table({"hash": flat["hash"], "hash_2": flat["hash_2"], "document": documents,
                         "place": flat["place"], "count": flat["count"]})  # fmt: skip


class RepeatedParts(RangeReader):
    """Lists the parts of a range of hashes that occur more than `max_count` times.

    Args:
        max_count: Maximum number of occurrences that does not count as repetition.
        keep_first: Whether to keep the first occurrence in source order.
        by_document: List the parts per document rather than per partition.
    """

    name = "repeated_parts"
    fork_safe = True

    def __init__(self, *, max_count: int, keep_first: bool, by_document: bool) -> None:
        super().__init__()
        self.max_count = max_count
        self.keep_first = keep_first
        self.by_document = by_document

    def rows_from(self, low: int, high: int) -> Iterator[pa.Table]:
        table = self.runs.read(low, high)
        if not table.num_rows:
            return
        first, second, documents = column(table, "hash"), column(table, "hash_2"), column(table, "document")
        places, counts = column(table, "place"), column(table, "count")
        rows, kept, kept_places = repeated_rows(
            stable_order(first), first, second, documents, places, counts, self.max_count
        )
        if not self.keep_first:
            kept[:], kept_places[:] = NOWHERE, 0
        holders = documents[rows]
        if not self.by_document:
            holders = partition_keys(holders)
        yield pa.table(
            {
                "document": holders,
                "hash": first[rows],
                "hash_2": second[rows],
                "kept": kept[rows],
                "kept_place": kept_places[rows],
            }
        )


def lookup_arrays(
    table: Integers, first: Hashes, second: Hashes, documents: Keys, kept: Keys, places: Integers
) -> tuple[Integers, Hashes, Hashes, Keys, Keys, Integers]:
    """A list in the form that kernels expect: read-only, so that one compilation serves mapped files and others."""
    views = tuple(array.view() for array in (table, first, second, documents, kept, places))
    for view in views:
        view.flags.writeable = False
    return views  # type: ignore[return-value]


class RepeatLists:
    """The lists of repeated parts, for one partition or for the documents of one batch at a time.

    Args:
        runs: The output of `RepeatedParts`.
        by_document: Whether a hash applies to its document only.
    """

    def __init__(self, runs: RunFiles, *, by_document: bool) -> None:
        self._runs = runs
        self._by_document = by_document
        self._range = (-1, -1)
        self._columns: tuple[Hashes, ...] = ()
        self._places: Integers = np.empty(0, np.int64)
        self._table: Integers = np.empty(0, np.int64)

    def load(self, documents: Keys) -> bool:
        """Read the lists for these documents of one partition; returns whether there is anything in them."""
        partition = int(partitions_of(documents[:1])[0])
        low, high = first_key(partition), first_key(partition + 1)
        if self._by_document:
            low, high = int(documents.min()), int(documents.max()) + 1
        if (low, high) != self._range:
            table = self._runs.read(low, high)
            names = ("hash", "hash_2", "document", "kept")
            if table.num_rows:
                self._columns = tuple(column(table, name) for name in names)
                self._places = column(table, "kept_place")
                first, second, scopes, _ = self._columns
                self._table = build_lookup(first, second, self._scopes(scopes))
            else:
                self._columns, self._places = (), np.empty(0, np.int64)
            self._range = (low, high)
        return bool(self._columns)

    @property
    def documents(self) -> Keys:
        """The documents with repeated parts, or the partition."""
        return np.unique(self._columns[2]) if self._columns else np.empty(0, np.uint64)

    @property
    def arrays(self) -> tuple[Integers, Hashes, Hashes, Keys, Keys, Integers]:
        """The lookup table, and the columns of the lists: two hashes, document, and the kept document and position."""
        none = np.empty(0, np.uint64)
        first, second, documents, kept = self._columns or (none, none, none, none)
        return lookup_arrays(self._table, first, second, documents, kept, self._places)

    def find(self, first: Hashes, second: Hashes, documents: Keys) -> tuple[Mask, Keys, Integers]:
        """Which hashes repeat, and for these the document and position of the kept occurrence."""
        own, own_2, scopes, kept = self._columns
        at = look_up(self._table, own, own_2, self._scopes(scopes), first, second, self._scopes(documents))
        return at >= 0, kept[at], self._places[at]

    def _scopes(self, documents: Keys) -> Keys:
        return documents if self._by_document else np.zeros(len(documents), np.uint64)
