"""Formats besides JSONL and Parquet: how the bytes of a file become rows.

Each format is a module with a function `read_rows(part, *, storage_options, **options)` that yields tables and, where
something is broken, `Broken`; what it passes over on purpose, it counts (`Skipped`). How a file is read (its format and
the options of its reader) travels with the range, so that a record can be found again by the ledger alone.
"""

from __future__ import annotations

import importlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from gristmill.errors import InputError
from gristmill.storage.files import StorageOptions
from gristmill.storage.formats import Format
from gristmill.storage.partitions import FileRange

# The only modules that are ever imported for a format, whatever a file or a record says.
_MODULES: Mapping[str, str] = {
    "arrow": "arrow_rows",
    "csv": "csv_rows",
    "html": "file_rows",
    "text": "text_rows",
    "warc": "warc_rows",
}


@dataclass(frozen=True, slots=True)
class Broken:
    """A piece of a file that is not a document.

    Attributes:
        cause: One of the causes of the quarantine, such as "corrupt_archive" or "truncated_record".
        detail: What was found, for people.
        offset: Where it lies in the uncompressed file; -1 where there is no such place.
        raw: Its first bytes.
        size: How many bytes it has, as far as known.
        rest: Nothing behind it can be read: the file is damaged from here on, not only this record.
    """

    cause: str
    detail: str
    offset: int = -1
    raw: bytes = b""
    size: int = 0
    rest: bool = False


@dataclass(frozen=True, slots=True)
class Skipped:
    """Pieces of a file that are no documents and nobody asked for, such as the requests in an archive of a crawl.

    Attributes:
        counts: How many there are of each kind. They become figures of the reader, `skipped_KIND`.
    """

    counts: Mapping[str, int]


Rows = Iterator[pa.Table | Broken | Skipped]


def reading_of(format: Format, options: Mapping[str, Any]) -> str:
    """How to read a file, as text for `FileRange.reading`."""
    given = {name: value for name, value in options.items() if value is not None}
    return json.dumps({"format": format, **given}, sort_keys=True, ensure_ascii=False)


def rows_of(part: FileRange, *, storage_options: StorageOptions = None) -> Rows:
    """The rows of a range whose `reading` is given.

    Raises:
        InputError: There is no such format, or it has no such option.
    """
    try:
        options = json.loads(part.reading)
        module = _MODULES[options.pop("format")]
    except (ValueError, KeyError, AttributeError, TypeError) as error:
        raise InputError(f"{part.path} is to be read as {part.reading!r}, which is not a known format.") from error
    reader = importlib.import_module(f"{__name__}.{module}")
    try:
        rows: Rows = reader.read_rows(part, storage_options=storage_options, **options)
    except TypeError as error:
        raise InputError(f"{part.path} is to be read as {part.reading!r}: {error}.") from error
    return rows
