"""What readers hand over: where a record came from, and records that could not be read."""

from __future__ import annotations

from dataclasses import dataclass

# How much of a bad record is kept for the quarantine.
MAX_RAW_BYTES = 64 * 1024


@dataclass(frozen=True, slots=True)
class SourceFile:
    """The file a block was read from.

    Attributes:
        path: What fsspec opens.
        relative: The path below the input root.
    """

    path: str
    relative: str


@dataclass(frozen=True, slots=True)
class BadRecord:
    """A record, or the rest of a file, that could not be read.

    Attributes:
        row: Row number in the partition; bad records take part in the numbering.
        file: Where it lies.
        offset: Byte offset of its line in the uncompressed file (JSONL); -1 where there is none (Parquet).
        cause: "record_too_large", "truncated_file", "corrupt_archive", "corrupt_parquet".
        raw: Its first 64 KiB.
        size: Its bytes as far as known.
        detail: What was found, for people.
        count: How many row numbers it stands for; above 1 only for unreadable Parquet row groups.
    """

    row: int
    file: SourceFile
    offset: int
    cause: str
    raw: bytes
    size: int
    detail: str
    count: int = 1
