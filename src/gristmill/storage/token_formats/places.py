"""The positions of each document's tokens: the list of places in the record of a partition.

A row represents a run of tokens: `tokens` tokens of the document in row `row` of the partition, beginning with its
token number `start`, are in the shard number `shard`, starting at `offset`. Offsets count tokens from the start of the
shard, padding included. `id` is the document's id and `source` the input file, if known. A document has one run, or
several if packing split it. The metadata describes the shards.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

METADATA_KEY = b"gristmill.tokens"
SCHEMA = pa.schema(
    [
        pa.field("row", pa.int64()),
        pa.field("id", pa.large_string()),
        pa.field("source", pa.dictionary(pa.int32(), pa.large_string())),
        pa.field("start", pa.int64()),
        pa.field("shard", pa.int32()),
        pa.field("offset", pa.int64()),
        pa.field("tokens", pa.int64()),
    ]
)


def merge_runs(columns: dict[str, Any]) -> dict[str, Any]:
    """Join adjacent runs of one document, which were split at the end of a batch."""
    document, start, shard = columns["document"], columns["start"], columns["shard"]
    offset, tokens = columns["offset"], columns["tokens"]
    if len(document) < 2:
        return columns
    joined = (
        (document[1:] == document[:-1])
        & (shard[1:] == shard[:-1])
        & (start[1:] == start[:-1] + tokens[:-1])
        & (offset[1:] == offset[:-1] + tokens[:-1])
    )
    first = np.flatnonzero(np.concatenate([[True], ~joined]))
    merged = {name: values[first] for name, values in columns.items()}
    merged["tokens"] = np.add.reduceat(tokens, first)
    return merged


def places_bytes(table: pa.Table, facts: Mapping[str, Any]) -> bytes:
    """The list as a Parquet file; equal lists produce equal bytes."""
    table = table.cast(SCHEMA).replace_schema_metadata({METADATA_KEY: json.dumps(facts, sort_keys=True)})
    sink = pa.BufferOutputStream()
    pq.write_table(
        table.combine_chunks(),
        sink,
        version="2.6",
        compression="zstd",
        compression_level=1,
        use_dictionary=["source", "shard"],
        column_encoding=dict.fromkeys(("row", "start", "offset", "tokens"), "DELTA_BINARY_PACKED"),
        write_statistics=["row"],
        data_page_version="1.0",
        store_schema=True,
    )
    return bytes(sink.getvalue())


def facts_of(schema: pa.Schema) -> dict[str, Any]:
    """The description of the shards in the metadata of a list.

    Raises:
        ValueError: It is missing or unreadable.
    """
    found = json.loads((schema.metadata or {}).get(METADATA_KEY, b"null"))
    if not isinstance(found, dict) or not isinstance(found.get("shards"), list):
        raise ValueError("it does not describe its shards")
    return found
