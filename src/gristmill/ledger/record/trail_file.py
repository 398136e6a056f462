"""A whole trail in one file and back, exactly: Arrow for the columns, JSON for the rest, no pickle.

Worker processes hand over what happened to a piece of a partition in this form.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import asdict, fields
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from gristmill.errors import InputError
from gristmill.ledger.record.trail import (
    Changes,
    Decisions,
    Identity,
    QuarantinedRecord,
    Scores,
    StageCount,
    StageTime,
    Trail,
)
from gristmill.storage.atomic import write_bytes_atomic
from gristmill.storage.compression import open_raw
from gristmill.storage.files import StorageOptions

_MAGIC = b"GMTRAIL2"
_RECORD_TEXT = [field.name for field in fields(QuarantinedRecord) if field.name != "raw"]


def write_trail(trail: Trail, path: str | os.PathLike[str], *, storage_options: StorageOptions = None) -> None:
    """Put `trail` at `path` in one step."""
    write_bytes_atomic(path, trail_to_bytes(trail), storage_options=storage_options)


def read_trail(path: str | os.PathLike[str], *, storage_options: StorageOptions = None) -> Trail:
    """The trail that `write_trail` put at `path`.

    Raises:
        InputError: The file is something else, or damaged.
    """
    with open_raw(os.fspath(path), storage_options=storage_options) as file:
        data = file.read()
    try:
        return trail_from_bytes(data)
    except (ValueError, KeyError, TypeError, OSError, pa.ArrowException) as error:
        raise InputError(f"{os.fspath(path)!r} does not hold a trail: {error}", path=os.fspath(path)) from error


def trail_to_bytes(trail: Trail) -> bytes:
    """`trail` as bytes from which `trail_from_bytes` makes an equal one."""
    head: dict[str, Any] = {
        "counts": {stage: asdict(counts) for stage, counts in trail.counts.items()},
        "times": {stage: asdict(times) for stage, times in trail.times.items()},
        "output_rows": trail.output_rows,
        "decisions": [
            {
                "stage": block.stage,
                "outcome": block.outcome,
                "reason": block.reason,
                "threshold": block.threshold,
                "rows": len(block.rows),
                "scores": block.scores is not None,
                "survivors": block.survivors is not None,
                "similarities": block.similarities is not None,
                "clusters": block.clusters is not None,
            }
            for block in trail.decisions
        ],
        "changes": [{"stage": b.stage, "field": b.field, "rows": len(b.rows)} for b in trail.changes],
        "scores": [{"stage": b.stage, "score": b.score, "rows": len(b.rows)} for b in trail.scores],
        "quarantine": [{name: getattr(record, name) for name in _RECORD_TEXT} for record in trail.quarantine],
        "identities": [
            {
                "rows": len(identity.rows),
                "ids": identity.ids is not None,
                "id_hashes": identity.id_hashes is not None,
                "url_hashes": identity.url_hashes is not None,
            }
            for identity in trail.identities
        ],
    }
    ids = [identity.ids.cast(pa.large_string()) for identity in trail.identities if identity.ids is not None]
    flat_ids = [chunk for item in ids for chunk in (item.chunks if isinstance(item, pa.ChunkedArray) else [item])]
    columns: list[pa.Array] = [
        _numbers([block.rows for block in trail.decisions], np.int64),
        _numbers([block.scores for block in trail.decisions], np.float64),
        _numbers([block.similarities for block in trail.decisions], np.float64),
        pa.array([_utf8(text) for block in trail.decisions for text in block.survivors or ()], pa.large_binary()),
        _numbers([block.rows for block in trail.changes], np.int64),
        _numbers([block.characters for block in trail.changes], np.int64),
        _numbers([block.rows for block in trail.scores], np.int64),
        _numbers([block.values for block in trail.scores], np.float64),
        pa.array([record.raw for record in trail.quarantine], pa.large_binary()),
        _numbers([identity.rows for identity in trail.identities], np.int64),
        _numbers([identity.id_hashes for identity in trail.identities], np.uint64),
        _numbers([identity.url_hashes for identity in trail.identities], np.uint64),
        pa.concat_arrays(flat_ids) if flat_ids else pa.array([], pa.large_string()),
        _numbers([block.clusters for block in trail.decisions], np.int64),
    ]
    # json writes NaN and infinities as Python reads them back; nobody else reads this file.
    text = json.dumps(head).encode()
    text += b" " * (-(len(text) + 16) % 64)  # the columns that follow stay aligned
    sink = pa.BufferOutputStream()
    sink.write(_MAGIC + len(text).to_bytes(8, "little") + text)
    for column in columns:
        # Columns differ in length, so each is a stream of its own.
        with pa.ipc.new_stream(sink, pa.schema([("c", column.type)])) as stream:
            stream.write_batch(pa.record_batch([column], names=["c"]))
    return sink.getvalue().to_pybytes()  # type: ignore[no-any-return]


def trail_from_bytes(data: bytes) -> Trail:
    """The trail that `trail_to_bytes` described.

    Raises:
        ValueError: The bytes are something else.
    """
    if data[: len(_MAGIC)] != _MAGIC:
        raise ValueError("it does not begin as one")
    size = int.from_bytes(data[8:16], "little")
    head = json.loads(data[16 : 16 + size])
    reader = pa.BufferReader(data)
    reader.seek(16 + size)
    columns = [_one(pa.ipc.open_stream(reader).read_all().column(0)) for _ in range(14)]
    cuts = [_Cut(column) for column in columns]
    d_rows, d_scores, d_similar, d_survivors, c_rows, c_chars, s_rows, s_values, q_raw = cuts[:9]
    i_rows, i_ids, i_urls, i_texts, d_clusters = cuts[9:]
    trail = Trail(output_rows=head["output_rows"])
    trail.counts = {stage: StageCount(**counts) for stage, counts in head["counts"].items()}
    trail.times = {stage: StageTime(**times) for stage, times in head["times"].items()}
    for note in head["decisions"]:
        n = note["rows"]
        trail.decisions.append(
            Decisions(
                note["stage"],
                note["outcome"],
                note["reason"],
                d_rows.numbers(n),
                d_scores.numbers(n) if note["scores"] else None,
                note["threshold"],
                [value.decode("utf-8", "surrogatepass") for value in d_survivors.take(n).to_pylist()]
                if note["survivors"]
                else None,
                d_similar.numbers(n) if note["similarities"] else None,
                d_clusters.numbers(n) if note["clusters"] else None,
            )
        )
    for note in head["changes"]:
        n = note["rows"]
        trail.changes.append(Changes(note["stage"], note["field"], c_rows.numbers(n), c_chars.numbers(n)))
    for note in head["scores"]:
        n = note["rows"]
        trail.scores.append(Scores(note["stage"], note["score"], s_rows.numbers(n), s_values.numbers(n)))
    for note in head["quarantine"]:
        trail.quarantine.append(QuarantinedRecord(**note, raw=q_raw.take(1)[0].as_py()))
    for note in head["identities"]:
        n = note["rows"]
        trail.identities.append(
            Identity(
                i_rows.numbers(n),
                i_ids.numbers(n) if note["id_hashes"] else None,
                i_urls.numbers(n) if note["url_hashes"] else None,
                i_texts.take(n) if note["ids"] else None,
            )
        )
    return trail


class _Cut:
    """A column handed out piece by piece."""

    def __init__(self, column: pa.Array) -> None:
        self._column = column
        self._at = 0

    def take(self, count: int) -> pa.Array:
        piece = self._column.slice(self._at, count)
        if len(piece) != count:
            raise ValueError("it ends too early")
        self._at += count
        return piece

    def numbers(self, count: int) -> npt.NDArray[Any]:
        numbers: npt.NDArray[Any] = self.take(count).to_numpy(zero_copy_only=True)
        return numbers


def _one(column: pa.ChunkedArray) -> pa.Array:
    return column.chunk(0) if column.num_chunks == 1 else pa.concat_arrays(column.chunks)


def _numbers(parts: Sequence[npt.NDArray[Any] | None], dtype: Any) -> pa.Array:
    present = list(_present(parts))
    return pa.array(np.concatenate(present).astype(dtype, copy=False) if present else np.array([], dtype))


def _present(parts: Sequence[npt.NDArray[Any] | None]) -> Iterator[npt.NDArray[Any]]:
    return (part for part in parts if part is not None)


def _utf8(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")
