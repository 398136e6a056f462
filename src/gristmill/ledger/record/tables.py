"""The decisions, changes, cuts and scores of a partition as Parquet, and the ids and URLs of its documents as an index.

The bytes do not depend on the order of recording: rows are sorted by everything that distinguishes them and the
writer's settings are fixed, so equal content produces equal files.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from operator import methodcaller
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from gristmill.errors import MissingColumnError
from gristmill.ledger.record.trail import QUARANTINED, Decisions, Identity, Rows, Trail
from gristmill.storage.arrow_functions import call_function

if TYPE_CHECKING:
    from gristmill.kernels.hashing import Hashes
    from gristmill.tasks.document import DocumentBatch

_WORD = pa.dictionary(pa.int32(), pa.string())

DECISIONS = pa.schema(
    [
        ("row", pa.int64()),
        ("id", pa.large_string()),
        ("stage", _WORD),
        ("outcome", _WORD),
        ("reason", _WORD),
        ("score", pa.float64()),
        ("threshold", pa.float64()),
        ("survivor", pa.large_string()),
        ("similarity", pa.float64()),
        ("cluster", pa.int64()),
    ]
)
CHANGES = pa.schema([("row", pa.int64()), ("stage", _WORD), ("field", _WORD), ("characters", pa.int64())])
CUTS = pa.schema(
    [
        ("row", pa.int64()),
        ("stage", _WORD),
        ("field", _WORD),
        ("reason", _WORD),
        ("start", pa.int64()),
        ("end", pa.int64()),
    ]
)
SCORES = pa.schema([("row", pa.int64()), ("stage", _WORD), ("score", _WORD), ("value", pa.float64())])

# Small enough that looking up one row decodes little; large enough to compress well.
_ROW_GROUP = 65_536
_REPEATING = ("stage", "outcome", "reason", "threshold", "field")
_ENCODINGS = {
    "row": "DELTA_BINARY_PACKED",
    "id": "DELTA_BYTE_ARRAY",
    "survivor": "DELTA_BYTE_ARRAY",
    "characters": "DELTA_BINARY_PACKED",
    "start": "DELTA_BINARY_PACKED",
    "end": "DELTA_BINARY_PACKED",
    "value": "BYTE_STREAM_SPLIT",
    "similarity": "BYTE_STREAM_SPLIT",
    "cluster": "DELTA_BINARY_PACKED",
}

_utf8 = methodcaller("encode", "utf-8", "surrogatepass")

# For each table its columns, the attributes of a block that fill them, and its sort keys.
_TABLES: dict[str, tuple[pa.Schema, dict[str, str], tuple[str, ...]]] = {
    "ledger": (
        DECISIONS,
        {
            "row": "rows", "stage": "stage", "outcome": "outcome", "reason": "reason", "score": "scores",
            "threshold": "threshold", "similarity": "similarities", "cluster": "clusters",
        },
        ("row", "stage", "outcome", "reason", "score", "threshold", "similarity"),
    ),
    "changes": (
        CHANGES,
        {"row": "rows", "stage": "stage", "field": "field", "characters": "characters"},
        ("row", "stage", "field", "characters"),
    ),
    "cuts": (
        CUTS,
        {"row": "rows", "stage": "stage", "field": "field", "reason": "reason", "start": "starts", "end": "ends"},
        ("row", "stage", "field", "start", "end", "reason"),
    ),
    "scores": (
        SCORES,
        {"row": "rows", "stage": "stage", "score": "score", "value": "values"},
        ("stage", "score", "row", "value"),
    ),
}  # fmt: skip


def parquet_bytes(table: pa.Table) -> bytes:
    """`table` as a Parquet file with the fixed settings of the ledger."""
    repeating: list[str] = []
    encodings: dict[str, str] = {}
    for column in table.schema:
        if column.name in _REPEATING or pa.types.is_dictionary(column.type):
            repeating.append(column.name)
        elif column.name in _ENCODINGS:
            encodings[column.name] = _ENCODINGS[column.name]
    sink = pa.BufferOutputStream()
    pq.write_table(
        table,
        sink,
        version="2.6",
        compression="zstd",
        compression_level=1,  # ids are the bulk, and higher levels gain nothing on them
        use_dictionary=repeating,
        column_encoding=encodings,
        row_group_size=_ROW_GROUP,
        write_statistics=["row"],
        store_schema=False,
        data_page_version="1.0",
    )
    return sink.getvalue().to_pybytes()  # type: ignore[no-any-return]


def ledger_table(kind: str, trail: Trail, stage_order: Sequence[str]) -> pa.Table:
    """One table of the ledger of a partition.

    Args:
        kind: `ledger` (decisions, also on quarantined records), `changes` or `cuts`, all sorted by row and then by
            stage; or `scores`, one stage and score after the other, each sorted by row, because runs of equal values
            compress best.
        trail: Everything recorded about the partition.
        stage_order: The stages in the order of the plan, which is their sort order.
    """
    schema, attributes, sorted_by = _TABLES[kind]
    blocks = [block for block in getattr(trail, "decisions" if kind == "ledger" else kind) if len(block.rows)]
    if kind == "ledger":
        blocks = [block for block in blocks if block.outcome != QUARANTINED]
        held: dict[tuple[str, str], list[int]] = {}
        for record in trail.quarantine:
            held.setdefault((record.stage, record.cause), []).append(record.row)
        blocks += [
            Decisions(stage, QUARANTINED, cause, np.array(rows, np.int64)) for (stage, cause), rows in held.items()
        ]
    if not blocks:
        return schema.empty_table()
    values, missing, words = _columns(schema, attributes, blocks, stage_order)
    keys: list[npt.NDArray[Any]] = []
    for name in reversed(sorted_by):
        keys.append(values[name].view(np.int64) if values[name].dtype == np.float64 else values[name])
        if name != "row" and name in missing and missing[name].any():
            keys.append(missing[name])
    order = np.lexsort(keys)
    survivors: list[str | None] | None = None
    if kind == "ledger" and any(block.survivors is not None for block in blocks):
        survivors = [text for block in blocks for text in block.survivors or [None] * len(block.rows)]
        order = _settle_ties(order, keys, survivors)
    columns = []
    for field in schema:
        if field.name == "id":
            columns.append(ids_of_rows(trail.identities, values["row"][order]))
        elif field.name == "survivor":
            texts = None if survivors is None else [None if (t := survivors[i]) is None else _clean(t) for i in order]
            columns.append(pa.nulls(len(order), field.type) if texts is None else pa.array(texts, field.type))
        elif field.name in words:
            dictionary = pa.array([_clean(word) for word in words[field.name]], pa.string())
            columns.append(pa.DictionaryArray.from_arrays(pa.array(values[field.name][order]), dictionary))
        else:
            columns.append(pa.array(values[field.name][order], mask=missing[field.name][order]))
    return pa.table(columns, schema=schema)


def _columns(
    schema: pa.Schema, attributes: Mapping[str, str], blocks: Sequence[Any], stage_order: Sequence[str]
) -> tuple[dict[str, npt.NDArray[Any]], dict[str, npt.NDArray[np.bool_]], dict[str, list[str]]]:
    """The values of all blocks by column, the masks of missing numbers, and the dictionaries of encoded columns.

    Stages are numbered by their place in the plan, other words alphabetically.
    """
    values: dict[str, npt.NDArray[Any]] = {}
    missing: dict[str, npt.NDArray[np.bool_]] = {}
    words: dict[str, list[str]] = {}
    lengths = [len(block.rows) for block in blocks]
    for name, attribute in attributes.items():
        given = [getattr(block, attribute) for block in blocks]
        kind = schema.field(name).type
        if pa.types.is_dictionary(kind):
            used = set(given)
            first = [word for word in dict.fromkeys(stage_order if name == "stage" else ()) if word in used]
            words[name] = [*first, *sorted(used.difference(first), key=_utf8)]
            codes = dict(zip(words[name], itertools.count(), strict=False))
            values[name] = np.repeat(np.array([codes[word] for word in given], np.int32), lengths)
            continue
        dtype = np.int64 if pa.types.is_int64(kind) else np.float64
        parts = zip(given, lengths, strict=True)
        values[name] = np.concatenate(
            [np.broadcast_to(np.asarray(0 if part is None else part, dtype), length) for part, length in parts]
        )
        missing[name] = np.repeat([part is None for part in given], lengths)
        if dtype is np.float64:
            values[name][np.isnan(values[name])] = np.nan  # every NaN becomes the same NaN
    missing["row"] = values["row"] < 0
    return values, missing, words


def _clean(text: str) -> str:
    # Arrow holds valid UTF-8 only; file names and user code can bring lone surrogates.
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode()


def _settle_ties(
    order: npt.NDArray[np.int64], keys: Sequence[npt.NDArray[Any]], survivors: Sequence[str | None]
) -> npt.NDArray[np.int64]:
    """`order` with rows that differ only in their survivor sorted by it."""
    same = np.ones(max(len(order) - 1, 0), bool)
    for key in keys:
        values = key[order]
        same &= values[1:] == values[:-1]
    if not same.any():
        return order
    group = np.concatenate([[0], np.cumsum(~same)])
    ranked = sorted(range(len(order)), key=lambda at: (group[at], _utf8(survivors[int(order[at])] or "")))
    return order[np.array(ranked, np.int64)]


def make_identity(batch: DocumentBatch, *, id_field: str | None, url_field: str | None) -> Identity:
    """The identity of every row of a batch as it was read; numbers are converted to text.

    Args:
        batch: Documents with their row numbers.
        id_field: The column with ids; None, or a missing column, means there are none.
        url_field: The same for URLs.
    """
    texts: list[pa.Array | None] = []
    for field in (id_field, url_field):
        try:
            found = None if field is None else batch.text(field)
        except MissingColumnError:
            found = None
        texts.append(None if found is None or found.null_count == len(found) else found)
    ids, urls = texts
    if ids is not None or urls is not None:
        from gristmill.kernels.hashing import hash_column
    return Identity(
        rows=batch.rows,
        id_hashes=None if ids is None else hash_column(ids),
        url_hashes=None if urls is None else hash_column(urls),
        ids=ids,
    )


def index_hashes(identities: Iterable[Identity], rows: int) -> tuple[Hashes | None, Hashes | None]:
    """The hashes of ids and of URLs by row number, 0 for a row without; None if no row has one."""
    found: list[Hashes | None] = [None, None]
    for identity in identities:
        for kind, hashes in enumerate((identity.id_hashes, identity.url_hashes)):
            if hashes is None or not hashes.any():
                continue
            target = found[kind]
            if target is None:
                target = found[kind] = np.zeros(rows, np.uint64)
            known = identity.rows >= 0
            target[identity.rows[known]] = hashes[known]
    return found[0], found[1]


def ids_of_rows(identities: Iterable[Identity], rows: Rows) -> pa.Array:
    """The id of each row among the identities of a partition, null if it has none."""
    known = [identity for identity in identities if identity.ids is not None and len(identity.rows)]
    if not known:
        return pa.nulls(len(rows), pa.large_string())
    there = np.concatenate([identity.rows for identity in known])
    order = np.argsort(there, kind="stable")
    there = there[order]
    texts = []
    for identity in known:
        ids = identity.ids
        texts.append(ids if ids.type == pa.large_string() else ids.cast(pa.large_string()))
    ids = pa.chunked_array(texts, pa.large_string())
    at = np.minimum(np.searchsorted(there, rows), len(there) - 1)
    taken = call_function("take", [ids, pa.array(order[at], mask=(there[at] != rows) | (rows < 0))])
    return pa.concat_arrays(taken.chunks) if taken.num_chunks != 1 else taken.chunk(0)
