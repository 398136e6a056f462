"""The quarantine on disk: one JSON line per record that could not be processed, with its raw bytes."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gristmill.errors import VerificationError
from gristmill.ledger.record.earlier_names import recorded_name
from gristmill.ledger.record.layout import RunFolder
from gristmill.ledger.record.manifest import check_shape
from gristmill.ledger.record.shape import QUARANTINE
from gristmill.ledger.record.trail import QuarantinedRecord
from gristmill.storage.files import StorageOptions

if TYPE_CHECKING:
    import os

    import polars as pl

_FIELDS = ("row", "stage", "cause", "detail", "file", "offset", "size")


@dataclass(frozen=True, slots=True)
class QuarantineEntry:
    """A quarantined record as read back, with its partition and its id, if it has one."""

    partition: str
    id: str | None
    record: QuarantinedRecord


def quarantine_lines(
    records: Sequence[QuarantinedRecord], *, stage_order: Sequence[str] = (), ids: Sequence[str | None] | None = None
) -> bytes:
    """The records as JSONL in row order, the same bytes for any input order.

    `raw` is the text itself if the bytes are UTF-8, otherwise base64; `raw_encoding` says which.
    """
    place = {stage: number for number, stage in enumerate(stage_order)}
    known = list(ids) if ids is not None else [None] * len(records)
    pairs = sorted(
        zip(records, known, strict=True),
        key=lambda pair: (
            pair[0].row, place.get(pair[0].stage, len(place)), pair[0].stage, pair[0].cause, pair[0].file,
            pair[0].offset, pair[0].size, pair[0].detail, pair[0].raw,
        ),
    )  # fmt: skip
    return b"".join(_line(record, name) for record, name in pairs)


def _line(record: QuarantinedRecord, name: str | None) -> bytes:
    values: dict[str, Any] = {field: getattr(record, field) for field in _FIELDS}
    if name is not None:
        values["id"] = name
    if record.lost:
        values |= {"lost": record.lost, "salvaged": record.salvaged}
    try:
        values["raw"], values["raw_encoding"] = record.raw.decode("utf-8"), "utf-8"
    except UnicodeDecodeError:
        values["raw"], values["raw_encoding"] = base64.b64encode(record.raw).decode(), "base64"
    try:
        return json.dumps(values, ensure_ascii=False).encode() + b"\n"
    except UnicodeEncodeError:  # a file name or a traceback that is not UTF-8
        return json.dumps(values).encode() + b"\n"


def parse_quarantine(data: bytes, *, partition: str) -> list[QuarantineEntry]:
    """The records that `quarantine_lines` wrote.

    Raises:
        VerificationError: A line is damaged.
    """
    entries = []
    # Not splitlines(): a record may contain other line separators.
    lines = data.removesuffix(b"\n").split(b"\n") if data else []
    for number, line in enumerate(lines, start=1):
        try:
            values = json.loads(line)
            check_shape(values, QUARANTINE)
            encoding = values["raw_encoding"]
            raw = base64.b64decode(values["raw"]) if encoding == "base64" else values["raw"].encode("utf-8")
            damage = {"lost": values.get("lost", 0), "salvaged": values.get("salvaged")}
            record = QuarantinedRecord(**{field: values[field] for field in _FIELDS}, raw=raw, **damage)
            entries.append(QuarantineEntry(partition, values.get("id"), record))
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise VerificationError(
                f"Line {number} of the quarantine of partition {partition!r} cannot be read: {error}. "
                "Run `gristmill verify` on the output.",
                partition=partition,
                line=number,
            ) from error
    return entries


def read_quarantine(
    output: str | os.PathLike[str] | RunFolder,
    *,
    cause: str | None = None,
    stage: str | None = None,
    storage_options: StorageOptions = None,
    record_path: str | os.PathLike[str] | None = None,
) -> Iterator[QuarantineEntry]:
    """Every quarantined record of the committed partitions, in source order, with its raw bytes.

    Args:
        output: The output of a run.
        cause: Only records quarantined for this cause.
        stage: Only records that this stage could not process.
        storage_options: File system options for URLs.
        record_path: Where the record of the run is, if not beside the output.
    """
    from gristmill.ledger.record.manifest import Manifest

    folder = output if isinstance(output, RunFolder) else RunFolder(output, storage_options, record_path=record_path)
    folder.require_run()
    for entry in Manifest(folder).ordered():
        if entry.quarantined:
            asked = None if stage is None else recorded_name(stage, entry.stages)
            data = folder.read(folder.record_path("quarantine", entry.partition))
            for item in parse_quarantine(data, partition=entry.partition):
                if cause in (None, item.record.cause) and asked in (None, item.record.stage):
                    yield item


def list_quarantine(
    output: str | os.PathLike[str] | RunFolder,
    *,
    storage_options: StorageOptions = None,
    record_path: str | os.PathLike[str] | None = None,
) -> pl.DataFrame:
    """Number of quarantined records by cause and stage, most frequent first, each with an example."""
    import polars as pl

    counts: dict[tuple[str, str], list[Any]] = {}
    for item in read_quarantine(output, storage_options=storage_options, record_path=record_path):
        record = item.record
        found = counts.setdefault((record.cause, record.stage), [0, 0, record.file, record.offset, record.detail])
        found[0] += 1
        found[1] += max(record.size, len(record.raw))
    rows = [(*key, *values) for key, values in counts.items()]
    rows.sort(key=lambda row: (-row[2], row[0], row[1]))
    schema = {
        "cause": pl.String, "stage": pl.String, "records": pl.Int64, "bytes": pl.Int64,
        "example_file": pl.String, "example_offset": pl.Int64, "example_detail": pl.String,
    }  # fmt: skip
    safe = [tuple(_shown(value) if isinstance(value, str) else value for value in row) for row in rows]
    return pl.DataFrame(safe, schema=schema, orient="row")


def _shown(text: str) -> str:
    return text.encode("utf-8", "backslashreplace").decode()
