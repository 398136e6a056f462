"""Plain text: one document per file, line or paragraph."""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa

from gristmill.figures import format_size
from gristmill.storage.compression import ByteSource, open_raw, open_source
from gristmill.storage.files import StorageOptions
from gristmill.storage.formats import codec_of
from gristmill.storage.partitions import FileRange
from gristmill.storage.row_formats import Broken, Rows
from gristmill.storage.row_formats.file_rows import MAX_FILE_BYTES, read_whole
from gristmill.storage.row_formats.text_source import TextSource

_PIECE = 4 << 20
_BORDER_BYTES = 1024
"""Maximum length of a separator that is certainly found next to a document over the limit."""
_LINE_ENDS = re.compile(rb"\n")
_BLANK_LINES = re.compile(rb"(?:[ \t\r\f\v]*\n){2,}")


def read_rows(
    part: FileRange,
    *,
    storage_options: StorageOptions = None,
    document: str = "file",
    text_field: str = "text",
    encoding: str | None = None,
) -> Rows:
    """Rows with the text, the file name, and an id made of the file name and the document's number."""
    if part.whole:
        source = TextSource(open_source(part.path, storage_options=storage_options), encoding)
        return documents_of(source, part.relative, document=document, text_field=text_field)
    lines = _LineRange(open_raw(part.path, storage_options=storage_options), part.start, part.end)
    counted_as = f"{part.relative}#{part.start}+"
    return documents_of(TextSource(lines), part.relative, document="line", text_field=text_field, counted_as=counted_as)


def find_cuts(
    path: str,
    size: int,
    *,
    block_bytes: int,
    storage_options: StorageOptions = None,
    document: str = "file",
    encoding: str | None = None,
    **_: Any,
) -> list[int]:
    """Where to split a file with one document per line: 0, …, `size`; empty for files that are read whole.

    A line belongs to the range in which it begins, so any byte can be a cut. Only UTF-8 is split, in which a line-end
    byte is never part of another character.
    """
    known = codecs.lookup(encoding or "utf-8").name
    if document != "line" or known not in ("utf-8", "ascii") or codec_of(path) != "none":
        return []
    with open_raw(path, storage_options=storage_options) as raw:
        if raw.read(2) in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE):
            return []
    return [*range(0, size, block_bytes), size]


class _LineRange:
    """The lines of a file that begin in a range of its bytes."""

    def __init__(self, raw: Any, start: int, end: int) -> None:
        self._raw = raw
        self._left = end - start  # of the range; below zero behind it
        self._in_line = start > 0  # one that began before the range
        self._ended = False
        raw.seek(max(0, start - 1))
        if start:
            self._left += 1

    def readinto(self, target: memoryview, /) -> int:
        """Fill the front of `target`; 0 at the end."""
        while not self._ended:
            count = self._raw.readinto(target) or 0
            piece = bytes(target[:count])
            first = 0
            if self._in_line:
                first = piece.find(b"\n") + 1
                self._in_line = bool(count) and not first
                first = first or count
            last = count
            if self._left <= count:  # the line that holds the last byte of the range ends it
                found = piece.find(b"\n", max(0, self._left - 1))
                self._ended = found >= 0
                last = found + 1 or count
            self._left -= count
            self._ended = self._ended or not count
            if first < last:
                target[: last - first] = piece[first:last]
                return last - first
        return 0

    def close(self) -> None:
        """Close the file."""
        self._raw.close()


def documents_of(
    source: ByteSource,
    name: str,
    *,
    document: str,
    text_field: str,
    most: int = MAX_FILE_BYTES,
    counted_as: str | None = None,
) -> Rows:
    """The documents of the file `name`, whose content `source` returns; closes `source`.

    Args:
        source: UTF-8 without a byte order mark.
        name: File name, for ids and `file_name`.
        document: Unit of a document: `file`, `line` or `paragraph`.
        text_field: Column for the text.
        most: Maximum size of a document in bytes.
        counted_as: Prefix of the document's number in its id; defaults to the name and `#`.
    """
    if document == "file":
        content = read_whole(source, most=most)
        yield content if isinstance(content, Broken) else text_table([content], [name], name, text_field)
        return
    number = 0
    try:
        for found in _pieces(source, _LINE_ENDS if document == "line" else _BLANK_LINES, most):
            if isinstance(found, Broken):
                yield found
                continue
            texts = [text for text in map(bytes.strip, found) if text]
            ids = [f"{counted_as or f'{name}#'}{number + at}" for at in range(len(texts))]
            number += len(texts)
            if texts:
                yield text_table(texts, ids, name, text_field)
    finally:
        source.close()


def _pieces(source: ByteSource, border: re.Pattern[bytes], most: int) -> Iterator[list[bytes] | Broken]:
    """The pieces between separators, some megabytes at a time; of a document over the limit, only the end is held."""
    held: list[bytes] = []
    size = over = 0
    buffer = bytearray(_PIECE)
    ended = False
    while not ended:
        count = source.readinto(memoryview(buffer)) or 0
        ended = not count
        held.append(piece := bytes(memoryview(buffer)[:count]))
        size += count
        if count and b"\n" not in piece and size <= most:
            continue
        *whole, last = border.split(b"".join(held))
        if ended:
            whole, last = [*whole, last], b""
        if over and whole:
            over += len(whole.pop(0))
            told = f"the document has {format_size(over)}, over {format_size(most)}; it must fit into memory"
            yield Broken("record_too_large", told, size=over)
            over = 0
        if whole:
            yield whole
        if over or len(last) > most:
            over += len(last[:-_BORDER_BYTES])
            last = last[-_BORDER_BYTES:]
        held, size = [last], len(last)


def text_table(texts: list[bytes], ids: list[str], name: str, text_field: str) -> pa.Table:
    """Rows of a text file: the texts, their ids, and the file name.

    Bytes become a text column unchecked; UTF-8 is checked with the block.
    """
    offsets = np.zeros(len(texts) + 1, np.int64)
    np.cumsum([len(text) for text in texts], out=offsets[1:])
    content = pa.py_buffer(b"".join(texts))
    column = pa.LargeStringArray.from_buffers(len(texts), pa.py_buffer(offsets), content)
    return pa.table({"id": ids, "file_name": [name] * len(texts), text_field: column})
