"""Formats besides JSONL and Parquet: how the bytes of a file become rows.

Each format is a module with a function `read_rows(part, *, storage_options, **options)` that yields tables, `Broken`
for damaged pieces, and `Skipped` for pieces that it skips deliberately. If large files can be split, `find_cuts`
returns the positions (see `cuts_of`). All rows of a file have the same columns. The range records how a file is read
(its format and the options of its reader), so that a record can be found again from the ledger alone.
"""

from __future__ import annotations

import importlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import pyarrow as pa

from gristmill.errors import InputError
from gristmill.storage.files import StorageOptions
from gristmill.storage.formats import Format
from gristmill.storage.partitions import FileRange

# The only modules that are ever imported for a format, whatever a file or a record says.
_MODULES: Mapping[str, str] = {
    "archive": "archive_rows",
    "arrow": "arrow_rows",
    "csv": "csv_rows",
    "download": "downloaded_rows",
    "html": "file_rows",
    "mail": "mail_rows",
    "mediawiki": "mediawiki_rows",
    "pdf": "file_rows",
    "sql": "sql_rows",
    "stackexchange": "stackexchange_rows",
    "text": "text_rows",
    "warc": "warc_rows",
}


@dataclass(frozen=True, slots=True)
class Broken:
    """A piece of a file that is not a document.

    Attributes:
        cause: One of the causes of the quarantine, such as "corrupt_archive" or "truncated_record".
        detail: Description of the problem.
        offset: Its position in the uncompressed file; -1 if there is none.
        raw: Its first bytes.
        size: Size in bytes, as far as known.
        rest: Nothing after it can be read: the rest of the file is damaged, not only this record.
    """

    cause: str
    detail: str
    offset: int = -1
    raw: bytes = b""
    size: int = 0
    rest: bool = False


@dataclass(frozen=True, slots=True)
class Skipped:
    """Pieces of a file that are not documents and were not requested, such as the requests in an archive of a crawl.

    Attributes:
        counts: Number of pieces of each kind. They become metrics of the reader, `skipped_KIND`.
    """

    counts: Mapping[str, int]


Rows = Iterator[pa.Table | Broken | Skipped]


def reading_of(format: Format, options: Mapping[str, Any]) -> str:
    """How to read a file, as text for `FileRange.reading`."""
    given = {name: value for name, value in options.items() if value is not None}
    return json.dumps({"format": format, **given}, sort_keys=True, ensure_ascii=False)


def rows_of(part: FileRange, *, storage_options: StorageOptions = None) -> Rows:
    """The rows of a range with a `reading`.

    Raises:
        InputError: The format or one of its options is unknown.
    """
    reader, options = _reader_of(part.path, part.reading)
    try:
        rows: Rows = reader.read_rows(part, storage_options=storage_options, **options)
    except TypeError as error:
        raise InputError(f"{part.path} should be read as {part.reading!r}: {error}.") from error
    return rows


def cuts_of(
    path: str, size: int, reading: str, *, block_bytes: int, storage_options: StorageOptions = None
) -> list[int]:
    """Where to split a large file into independently readable ranges: 0, …, `size`; empty if it cannot be split.

    Calls the format's `find_cuts` with the options of its reader; formats without one are never split.
    """
    reader, options = _reader_of(path, reading)
    find_cuts = getattr(reader, "find_cuts", None)
    if find_cuts is None:
        return []
    found: list[int] = find_cuts(path, size, block_bytes=block_bytes, storage_options=storage_options, **options)
    return found


def _reader_of(path: str, reading: str) -> tuple[ModuleType, dict[str, Any]]:
    try:
        options = json.loads(reading)
        module = _MODULES[options.pop("format")]
    except (ValueError, KeyError, AttributeError, TypeError) as error:
        raise InputError(f"{path} should be read as {reading!r}, which is not a known format.") from error
    return importlib.import_module(f"{__name__}.{module}"), options
