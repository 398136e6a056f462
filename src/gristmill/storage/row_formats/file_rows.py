"""Files as they are: one row per file, its content as bytes."""

from __future__ import annotations

import pyarrow as pa

from gristmill.figures import format_size
from gristmill.storage.compression import open_source
from gristmill.storage.files import StorageOptions
from gristmill.storage.partitions import FileRange
from gristmill.storage.row_formats import Broken, Rows

MAX_FILE_BYTES = 256 << 20
_PIECE = 1 << 20


def read_whole(path: str, *, storage_options: StorageOptions, most: int = MAX_FILE_BYTES) -> bytes | Broken:
    """The content of a file, decompressed; `Broken` where it holds more than `most` bytes.

    Raises:
        DamagedArchiveError: It is compressed and damaged.
    """
    source = open_source(path, storage_options=storage_options)
    content = bytearray()
    piece = bytearray(_PIECE)
    try:
        while count := source.readinto(memoryview(piece)):
            content += memoryview(piece)[:count]
            if len(content) > most:
                told = f"the file holds more than {format_size(most)}; a document has to fit into memory"
                return Broken("record_too_large", told, 0, bytes(content[: 1 << 16]), len(content))
    finally:
        source.close()
    return bytes(content)


def read_rows(part: FileRange, *, storage_options: StorageOptions = None, column: str = "html") -> Rows:
    """One row: `column` with the bytes of the file, `file_name` and `id`."""
    content = read_whole(part.path, storage_options=storage_options)
    if isinstance(content, Broken):
        yield content
    else:
        yield pa.table({"id": [part.relative], "file_name": [part.relative], column: pa.array([content], pa.binary())})
