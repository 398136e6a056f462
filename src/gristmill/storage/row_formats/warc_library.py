"""The records of web archives, read by FastWARC while a file is intact, and by `CarefulReader` around damage.

FastWARC is twice as fast, but stops at damage, and misses some of it.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

from gristmill.errors import optional_module
from gristmill.storage.compression import new_member
from gristmill.storage.formats import Codec
from gristmill.storage.row_formats import Broken
from gristmill.storage.row_formats.warc_records import CarefulReader, Record

_BUFFER_BYTES = 1 << 17
DICTIONARY_MAGIC = b"\x5d\x2a\x4d\x18"
_MAX_DICTIONARY_BYTES = 16 << 20
_SURE = 8
"""Number of valid records in a row after which a file is considered intact again."""


class LibraryReader:
    """Reads records up to the first doubtful one.

    A record is yielded only once the next one begins properly: the library silently returns the rest of a truncated
    file, or the beginning of other records, as the content of a record.

    Args:
        raw: The stored bytes, seekable.
        codec: Their compression.
        start: Position of a record.
        max_block_bytes: Larger blocks are not held in memory.
        wanted: Types of records whose blocks are needed; all by default.
        dictionary: Dictionary of its zstd frames.

    Attributes:
        position: Position of the first record that was not yielded, at the end.
    """

    def __init__(
        self,
        raw: Any,
        codec: Codec,
        start: int,
        max_block_bytes: int,
        wanted: frozenset[bytes] | None = None,
        dictionary: bytes = b"",
    ) -> None:
        self._file = _File(raw, start)
        self._codec = codec
        self._max_block_bytes = max_block_bytes
        self._wanted = wanted
        self._options = {"dictionary": dictionary} if dictionary else {}
        self.position = start

    def __iter__(self) -> Iterator[Record]:
        try:
            yield from self._records()
        except (OSError, ValueError):
            pass  # damage, which the careful reader will find and name
        except BaseException as error:  # a panic of its Rust code is not an Exception
            if type(error).__name__ != "PanicException":
                raise
        if self._file.error is not None:
            raise self._file.error

    def _records(self) -> Iterator[Record]:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of its own older names, whenever it is imported
            library = optional_module("fastwarc", "Reading WARC files")
        kind = {"gz": library.stream_io.GzipReader, "zst": library.stream_io.ZstdReader}.get(self._codec)
        stream: Any = self._file if kind is None else kind(self._file, buffer_size=_BUFFER_BYTES, **self._options)
        member_start = None if kind is None else stream.frame_start_position
        limit, wanted = self._max_block_bytes, self._wanted
        records = library.ArchiveIterator(
            stream, parse_http=False, stream_detect=False, buffer_size=_BUFFER_BYTES, max_header_len=1 << 16
        )
        before = None
        for record in records:
            start = record.stream_pos if member_start is None else member_start()
            if before is not None:
                offset, headers, block, size = before
                if start <= offset:
                    return  # several records in a member
                self.position = start
                yield Record(offset, start - offset, headers, block, size)
            size = record.content_length
            headers = {name.lower(): value for name, value in record.headers.items_bytes()}
            block = None
            if not size and headers.get(b"content-length") != b"0":
                return  # no length
            if member_start is None and b"\n" in b"".join(headers.values()):
                return  # lines that do not end as they should; what is compressed has a checksum
            if size <= limit and (wanted is None or headers.get(b"warc-type") in wanted):
                block = record.reader.read()
                if len(block) != size or (member_start is not None and member_start() != start):
                    return
            before = start, headers, block, size


class _File:
    """The stored bytes as a file for the library. Errors are kept for the caller."""

    def __init__(self, raw: Any, start: int) -> None:
        raw.seek(start)
        self._raw = raw
        self.error: BaseException | None = None

    def read(self, size: int = -1) -> bytes:
        try:
            return self._raw.read(size) or b""
        except BaseException as error:  # raised again outside of the library, which would not propagate it
            self.error = error
            return b""

    def seek(self, offset: int, whence: int = 0) -> int:
        return int(self._raw.seek(offset, whence))

    def tell(self) -> int:
        return int(self._raw.tell())

    def close(self) -> None:
        """Does nothing: the file is closed by whoever opened it."""


def read_records(
    raw: Any, codec: Codec, *, max_block_bytes: int, wanted: frozenset[bytes] | None = None, start: int = 0
) -> Iterator[Record | Broken]:
    """The records of a file, and its broken pieces.

    Args:
        raw: The stored bytes.
        codec: Their compression.
        max_block_bytes: Larger blocks are not held in memory.
        wanted: Types of records whose blocks are needed; all by default. Others may have no block.
        start: Position of the first record to read.
    """
    dictionary, at = _dictionary(raw) if codec == "zst" and raw.seekable() else (b"", 0)
    at = max(at, start)
    fast = raw.seekable() and codec in ("none", "gz", "zst")
    while True:
        if fast:
            library = LibraryReader(raw, codec, at, max_block_bytes, wanted, dictionary)
            yield from library
            at = library.position
        reader = CarefulReader(raw, codec, at, max_block_bytes, dictionary)
        sound = 0
        while sound < _SURE:
            found = reader.read()
            if found is None:
                return
            yield found
            if isinstance(found, Broken) and found.rest:
                return
            sound = 0 if isinstance(found, Broken) or not fast or reader.joined or reader.is_arc else sound + 1
        at = reader.position


def _dictionary(raw: Any) -> tuple[bytes, int]:
    """The dictionary that a file of zstd frames may begin with, and where its first record is."""
    head = raw.read(8)
    size = int.from_bytes(head[4:], "little")
    if not head.startswith(DICTIONARY_MAGIC) or size > _MAX_DICTIONARY_BYTES:
        return b"", 0
    stored = raw.read(size)
    if not stored.startswith(b"\x28\xb5\x2f\xfd"):
        return stored, 8 + size
    dictionary, problem = new_member("zst").feed(stored)
    return (b"", 0) if problem else (dictionary, 8 + size)
