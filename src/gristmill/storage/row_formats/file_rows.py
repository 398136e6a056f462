"""Whole files: one row per file, with its content as bytes."""

from __future__ import annotations

import pyarrow as pa

from gristmill.figures import format_size
from gristmill.storage.compression import ByteSource, open_source
from gristmill.storage.files import StorageOptions
from gristmill.storage.partitions import FileRange
from gristmill.storage.row_formats import Broken, Rows

MAX_FILE_BYTES = 256 << 20
_PIECE = 1 << 16


def read_whole(source: ByteSource, *, most: int = MAX_FILE_BYTES) -> bytes | Broken:
    """All bytes of a source, which is then closed; `Broken` if it has more than `most` bytes.

    Raises:
        DamagedArchiveError: It is compressed and damaged.
    """
    content = bytearray()
    piece = bytearray(_PIECE)
    try:
        while count := source.readinto(memoryview(piece)):
            content += memoryview(piece)[:count]
            if len(content) > most:
                told = f"the file holds more than {format_size(most)}; a document must fit into memory"
                return Broken("record_too_large", told, 0, bytes(content[: 1 << 16]), len(content))
    finally:
        source.close()
    return bytes(content)


def read_rows(part: FileRange, *, storage_options: StorageOptions = None, column: str = "html") -> Rows:
    """One row: `column` with the bytes of the file, `file_name` and `id`."""
    return page_of(open_source(part.path, storage_options=storage_options), part.relative, column=column)


def page_of(source: ByteSource, name: str, *, most: int = MAX_FILE_BYTES, column: str = "html") -> Rows:
    """One row with all bytes of a source."""
    content = read_whole(source, most=most)
    if isinstance(content, Broken):
        yield content
    else:
        yield pa.table({"id": [name], "file_name": [name], column: pa.array([content], pa.binary())})
