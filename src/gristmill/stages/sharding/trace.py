"""The table that maps every document to its shard: one Parquet file per shard, in the order of the shard."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa

from gristmill.stages.deduplication.source import partitions_of, rows_of
from gristmill.stages.sharding.shards import KeySlices, Shard, ShardReader
from gristmill.tasks.columns import TableColumns
from gristmill.tasks.document import DocumentBatch
from gristmill.tasks.file_group import FileGroupTask


class TraceReader(ShardReader):
    """Where the documents of a shard come from.

    Lists for each document its shard, its row and byte offset in the shard, its source, its partition and row in the
    source, its id if it has one, and its size and tokens.

    Args:
        sources: The names of the sources.
        partitions: For each source the names of its partitions.
        offsets: Whether shards are JSONL, so that documents have an offset in the (uncompressed) file.
    """

    name = "trace_reader"

    def __init__(self, sources: Sequence[str], partitions: Sequence[Sequence[str]], *, offsets: bool) -> None:
        super().__init__(None)
        self.sources = list(sources)
        self.partitions = [list(names) for names in partitions]
        self.offsets = offsets

    def process(self, task: FileGroupTask) -> Iterator[DocumentBatch]:
        shard: Shard = task._metadata["shard"]
        row = offset = 0
        for found in self.pieces(shard):
            count = len(found.keys)
            table = self._table(found, shard, row, offset)
            yield DocumentBatch.from_columns(TableColumns(table), rows=np.arange(row, row + count))
            row, offset = row + count, offset + int(found.numbers("size").sum())

    def _table(self, found: KeySlices, shard: Shard, row: int, offset: int) -> pa.Table:
        sizes, sources = found.numbers("size"), found.source_numbers()
        documents = found.numbers("document").view(np.uint64)
        numbers = partitions_of(documents)
        count = len(sizes)
        # Sources and partitions as dictionaries: they are few, and the same in every shard.
        first = np.cumsum([0, *map(len, self.partitions)])
        names = pa.array([name for one in self.partitions for name in one], pa.string())
        begins = offset + np.cumsum(sizes) - sizes
        return pa.table(
            {
                "shard": pa.DictionaryArray.from_arrays(pa.array(np.zeros(count, np.int32)), [shard.name]),
                "row": np.arange(row, row + count),
                "offset": begins if self.offsets else pa.nulls(count, pa.int64()),
                "id": found.texts("id"),
                "source": pa.DictionaryArray.from_arrays(pa.array(sources.astype(np.int32)), pa.array(self.sources)),
                "source_partition": pa.DictionaryArray.from_arrays(
                    pa.array((first[sources] + numbers).astype(np.int32)), names
                ),
                "source_row": rows_of(documents),
                "bytes": sizes,
                "tokens": found.numbers("tokens"),
            }
        )
