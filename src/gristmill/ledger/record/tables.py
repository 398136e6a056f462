"""The decisions, changes and scores of a partition as Parquet, the same bytes whatever order they were recorded in.

Rows are sorted by all that distinguishes them and the writer's settings are fixed, so equal content is an equal file.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from gristmill.ledger.record.identity import IdLookup
from gristmill.ledger.record.trail import QUARANTINED, Decisions, Trail

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
SCORES = pa.schema([("row", pa.int64()), ("stage", _WORD), ("score", _WORD), ("value", pa.float64())])

# Small enough that looking for one row decodes little; large enough to compress well.
_ROW_GROUP = 65_536
_REPEATING = ("stage", "outcome", "reason", "threshold", "field")
_ENCODINGS = {
    "row": "DELTA_BINARY_PACKED",
    "id": "DELTA_BYTE_ARRAY",
    "survivor": "DELTA_BYTE_ARRAY",
    "characters": "DELTA_BINARY_PACKED",
    "value": "BYTE_STREAM_SPLIT",
    "similarity": "BYTE_STREAM_SPLIT",
    "cluster": "DELTA_BINARY_PACKED",
}

Codes = npt.NDArray[np.int32]
Floats = npt.NDArray[np.float64]


def parquet_bytes(table: pa.Table) -> bytes:
    """`table` as a Parquet file with the fixed settings of the ledger."""
    names = table.column_names
    repeating = [name for name in names if name in _REPEATING or pa.types.is_dictionary(table.schema.field(name).type)]
    sink = pa.BufferOutputStream()
    pq.write_table(
        table,
        sink,
        version="2.6",
        compression="zstd",
        compression_level=1,  # ids are the bulk, and higher levels gain nothing on them
        use_dictionary=repeating,
        column_encoding={name: _ENCODINGS[name] for name in names if name in _ENCODINGS and name not in repeating},
        row_group_size=_ROW_GROUP,
        write_statistics=["row"],
        store_schema=False,
        data_page_version="1.0",
    )
    return sink.getvalue().to_pybytes()  # type: ignore[no-any-return]


class _Words:
    """Numbers the names of stages by their place in the plan, and other words alphabetically."""

    def __init__(self, words: Sequence[str], order: Sequence[str] = ()) -> None:
        used = set(words)
        first = [word for word in dict.fromkeys(order) if word in used]
        self.words = [*first, *sorted(used.difference(first), key=_utf8)]
        self._codes = {word: code for code, word in enumerate(self.words)}

    def codes(self, words: Sequence[str], lengths: Sequence[int]) -> Codes:
        """One code per row, where each word stands for a block of rows."""
        return np.repeat(np.array([self._codes[word] for word in words], np.int32), lengths)

    def array(self, codes: Codes) -> pa.Array:
        """The words of `codes` as a dictionary array."""
        words = pa.array([_clean(word) for word in self.words], pa.string())
        return pa.DictionaryArray.from_arrays(pa.array(codes), words)


def _utf8(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


def _clean(text: str) -> str:
    # Arrow holds valid UTF-8 only; file names and user code can bring lone surrogates.
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode()


def decision_table(trail: Trail, stage_order: Sequence[str]) -> pa.Table:
    """All decisions of `trail`, quarantined records among them, sorted by row and then by stage."""
    blocks = [block for block in trail.decisions if len(block.rows) and block.outcome != QUARANTINED]
    blocks += [
        Decisions(record.stage, QUARANTINED, record.cause, np.array([record.row], np.int64))
        for record in trail.quarantine
    ]
    if not blocks:
        return DECISIONS.empty_table()
    lengths = [len(block.rows) for block in blocks]
    rows = np.concatenate([block.rows for block in blocks]).astype(np.int64, copy=False)
    stages = _Words([block.stage for block in blocks], stage_order)
    outcomes = _Words([block.outcome for block in blocks])
    reasons = _Words([block.reason for block in blocks])
    stage = stages.codes([block.stage for block in blocks], lengths)
    outcome = outcomes.codes([block.outcome for block in blocks], lengths)
    reason = reasons.codes([block.reason for block in blocks], lengths)
    score, no_score = _optional([block.scores for block in blocks], lengths)
    threshold, no_threshold = _optional(
        [None if block.threshold is None else np.full(len(block.rows), block.threshold) for block in blocks], lengths
    )
    similarity, no_similarity = _optional([block.similarities for block in blocks], lengths)
    survivors = _survivors(blocks)
    cluster, no_cluster = _clusters(blocks, lengths)
    keys: list[npt.NDArray[Any]] = [
        similarity.view(np.int64), no_similarity, threshold.view(np.int64), no_threshold, score.view(np.int64),
        no_score, reason, outcome, stage, rows,
    ]  # fmt: skip
    order = np.lexsort(keys)
    if survivors is not None:
        order = _settle_ties(order, keys, survivors)
    sorted_rows = rows[order]
    untracked = sorted_rows < 0
    columns = [
        pa.array(sorted_rows, mask=untracked),
        IdLookup(trail.identities).take(sorted_rows),
        stages.array(stage[order]),
        outcomes.array(outcome[order]),
        reasons.array(reason[order]),
        pa.array(score[order], mask=no_score[order]),
        pa.array(threshold[order], mask=no_threshold[order]),
        pa.nulls(len(rows), pa.large_string())
        if survivors is None
        else pa.array([None if (text := survivors[i]) is None else _clean(text) for i in order], pa.large_string()),
        pa.array(similarity[order], mask=no_similarity[order]),
        pa.array(cluster[order], mask=no_cluster[order]),
    ]
    return pa.table(columns, schema=DECISIONS)


def _optional(values: Sequence[Floats | None], lengths: Sequence[int]) -> tuple[Floats, npt.NDArray[np.bool_]]:
    """The values of all blocks, and a mask of those that are not there. Every NaN becomes the same NaN."""
    pairs = zip(values, lengths, strict=True)
    present = [np.zeros(n) if value is None else np.asarray(value, np.float64) for value, n in pairs]
    whole: Floats = np.concatenate(present)
    whole[np.isnan(whole)] = np.nan
    missing = np.repeat(np.array([value is None for value in values]), lengths)
    return whole, missing


def _survivors(blocks: Sequence[Decisions]) -> list[str | None] | None:
    if all(block.survivors is None for block in blocks):
        return None
    parts = (block.survivors if block.survivors is not None else [None] * len(block.rows) for block in blocks)
    return list(itertools.chain.from_iterable(parts))


def _clusters(
    blocks: Sequence[Decisions], lengths: Sequence[int]
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
    """The clusters of all blocks, and a mask of those that are not there."""
    pairs = zip(blocks, lengths, strict=True)
    present = [np.zeros(n, np.int64) if block.clusters is None else block.clusters for block, n in pairs]
    missing = np.repeat(np.array([block.clusters is None for block in blocks]), lengths)
    return np.concatenate(present).astype(np.int64, copy=False), missing


def _settle_ties(
    order: npt.NDArray[np.int64], keys: Sequence[npt.NDArray[Any]], survivors: Sequence[str | None]
) -> npt.NDArray[np.int64]:
    """`order` with rows that only their survivor tells apart sorted by it."""
    same = np.ones(max(len(order) - 1, 0), bool)
    for key in keys:
        values = key[order]
        same &= values[1:] == values[:-1]
    if not same.any():
        return order
    group = np.concatenate([[0], np.cumsum(~same)])
    ranked = sorted(range(len(order)), key=lambda at: (group[at], _utf8(survivors[int(order[at])] or "")))
    return order[np.array(ranked, np.int64)]


def changes_table(trail: Trail, stage_order: Sequence[str]) -> pa.Table:
    """All changes of texts, sorted by row and then by stage."""
    blocks = [block for block in trail.changes if len(block.rows)]
    if not blocks:
        return CHANGES.empty_table()
    lengths = [len(block.rows) for block in blocks]
    rows = np.concatenate([block.rows for block in blocks]).astype(np.int64, copy=False)
    characters = np.concatenate([block.characters for block in blocks]).astype(np.int64, copy=False)
    stages = _Words([block.stage for block in blocks], stage_order)
    fields = _Words([block.field for block in blocks])
    stage = stages.codes([block.stage for block in blocks], lengths)
    field = fields.codes([block.field for block in blocks], lengths)
    order = np.lexsort((characters, field, stage, rows))
    columns = [
        pa.array(rows[order], mask=rows[order] < 0),
        stages.array(stage[order]),
        fields.array(field[order]),
        pa.array(characters[order]),
    ]
    return pa.table(columns, schema=CHANGES)


def scores_table(trail: Trail, stage_order: Sequence[str]) -> pa.Table:
    """All scores, one stage and score after the other, each sorted by row (equal neighbours compress best)."""
    blocks = [block for block in trail.scores if len(block.rows)]
    if not blocks:
        return SCORES.empty_table()
    lengths = [len(block.rows) for block in blocks]
    rows = np.concatenate([block.rows for block in blocks]).astype(np.int64, copy=False)
    values, _ = _optional([block.values for block in blocks], lengths)
    stages = _Words([block.stage for block in blocks], stage_order)
    names = _Words([block.score for block in blocks])
    stage = stages.codes([block.stage for block in blocks], lengths)
    name = names.codes([block.score for block in blocks], lengths)
    order = np.lexsort((values.view(np.int64), rows, name, stage))
    columns = [
        pa.array(rows[order], mask=rows[order] < 0),
        stages.array(stage[order]),
        names.array(name[order]),
        pa.array(values[order]),
    ]
    return pa.table(columns, schema=SCORES)
