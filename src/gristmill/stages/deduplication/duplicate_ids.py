"""Writes the ids of the documents to remove as a Parquet file, for other programs and the removal workflow."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa

from gristmill.stages.deduplication.key_ranges import RangeReader
from gristmill.stages.deduplication.removal import cluster_numbers, survivor_names
from gristmill.stages.deduplication.sorted_runs import column, sorted_by_key
from gristmill.stages.deduplication.source import DocumentSource, partitions_of, rows_of
from gristmill.stages.text.io.reader.assign_ids import DEDUP_ID_FIELD
from gristmill.storage.atomic import write_json_atomic
from gristmill.storage.compression import open_raw
from gristmill.storage.partitions import Partition


class DuplicateIds(RangeReader):
    """Turns removal lists into a table of ids for other programs.

    Its column `id` holds the ids of the documents: their own if `id_field` is set, otherwise those assigned by a reader
    with `_assign_ids`. So does a column named like the one they come from: `id_field` or `_curator_dedup_id`. The other
    columns hold the survivor and the similarity.

    Args:
        partition_ids: The ids of the partitions by number.
        id_field: Column that holds the documents' own ids.
    """

    name = "duplicate_ids"
    fork_safe = True

    def __init__(self, partition_ids: Sequence[str], *, id_field: str | None) -> None:
        super().__init__()
        self._partition_ids = tuple(partition_ids)
        self.id_field = id_field

    def rows_from(self, low: int, high: int) -> Iterator[pa.Table]:
        table = self.runs.read(low, high)
        if not table.num_rows:
            return
        table = sorted_by_key(table)
        names: list[str | None] = [*self._assigned(table, "document")]
        if self.id_field is not None:
            # A document without an id is identified by its position; so is one with the same id as its survivor, which
            # must not be removed with it.
            own, kept = table.column("id").to_pylist(), table.column("survivor_id").to_pylist()
            names = [
                place if name is None or name == survivor else name
                for name, survivor, place in zip(own, kept, names, strict=True)
            ]
        ids = pa.array(names, pa.large_string())
        yield pa.table(
            {
                **dict.fromkeys(("id", self.id_field or DEDUP_ID_FIELD), ids),
                "survivor": pa.array(survivor_names(table, self._partition_ids), pa.large_string()),
                "cluster": cluster_numbers(column(table, "survivor")),
                "similarity": table.column("similarity"),
            }
        )

    def _assigned(self, table: pa.Table, name: str) -> list[str]:
        keys = column(table, name)
        places = zip(partitions_of(keys).tolist(), rows_of(keys).tolist(), strict=True)
        return [f"{self._partition_ids[partition]}:{row}" for partition, row in places]


def write_id_generator(
    path: str,
    source: DocumentSource,
    partitions: Sequence[Partition],
    *,
    storage_options: Mapping[str, Any] | None = None,
) -> None:
    """Record how the input was partitioned, so that the same documents get the same assigned ids again."""
    write_json_atomic(
        path,
        {
            "id_field": DEDUP_ID_FIELD,
            "blocksize": source.blocksize,
            "files_per_partition": source.files_per_partition,
            "partitions": {partition.id: partition.fingerprint() for partition in partitions},
        },
        storage_options=storage_options,
    )


def read_id_generator(path: str, *, storage_options: Mapping[str, Any] | None = None) -> dict[str, object]:
    """What `write_id_generator` recorded."""
    with open_raw(path, storage_options=storage_options) as file:
        values: dict[str, object] = json.loads(file.read())
    return values
