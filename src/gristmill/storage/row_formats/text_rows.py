"""Plain text: a document per file, per line or per paragraph."""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from gristmill.figures import format_size
from gristmill.storage.compression import ByteSource, open_source
from gristmill.storage.files import StorageOptions
from gristmill.storage.partitions import FileRange
from gristmill.storage.row_formats import Broken, Rows
from gristmill.storage.row_formats.file_rows import MAX_FILE_BYTES, read_whole

_PIECE = 4 << 20
_BOM = b"\xef\xbb\xbf"
_BLANK_LINES = re.compile(rb"(?:[ \t\r\f\v]*\n){2,}")


def read_rows(
    part: FileRange, *, storage_options: StorageOptions = None, document: str = "file", text_field: str = "text"
) -> Rows:
    """Rows with the text, the file's name, and an id made of the name and the number of the document in it."""
    if document == "file":
        content = read_whole(part.path, storage_options=storage_options)
        if isinstance(content, Broken):
            yield content
        else:
            yield _table(part, [content.removeprefix(_BOM)], [part.relative], text_field)
        return
    border = re.compile(rb"\n") if document == "line" else _BLANK_LINES
    number = 0
    source = open_source(part.path, storage_options=storage_options)
    try:
        for found in _pieces(source, border):
            if isinstance(found, Broken):
                yield found
                continue
            texts = [text for text in map(bytes.strip, found) if text]
            ids = [f"{part.relative}#{number + at}" for at in range(len(texts))]
            number += len(texts)
            if texts:
                yield _table(part, texts, ids, text_field)
    finally:
        source.close()


def _pieces(source: ByteSource, border: re.Pattern[bytes]) -> Iterator[list[bytes] | Broken]:
    """What lies between borders, some megabytes at a time."""
    held = b""
    buffer = bytearray(_PIECE)
    first = True
    while count := source.readinto(memoryview(buffer)):
        held += memoryview(buffer)[:count]
        if first:
            held, first = held.removeprefix(_BOM), False
        *whole, held = border.split(held)
        if whole:
            yield whole
        if len(held) > MAX_FILE_BYTES:
            told = f"over {format_size(MAX_FILE_BYTES)} without an end; a document has to fit into memory"
            yield Broken("record_too_large", told, raw=held[: 1 << 16], size=len(held), rest=True)
            return
    yield border.split(held)


def _table(part: FileRange, texts: list[bytes], ids: list[str], text_field: str) -> pa.Table:
    """Bytes become a column of text as they are; whether they are UTF-8 is checked with the block."""
    offsets = np.zeros(len(texts) + 1, np.int64)
    np.cumsum([len(text) for text in texts], out=offsets[1:])
    content = pa.py_buffer(b"".join(texts))
    column = pa.LargeStringArray.from_buffers(len(texts), pa.py_buffer(offsets), content)
    return pa.table({"id": ids, "file_name": [part.relative] * len(texts), text_field: column})
