"""Web archives (WARC, WET, ARC): one row per page; other records are counted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from gristmill.errors import InputError
from gristmill.storage.block_memory import room_for
from gristmill.storage.compression import SourceFileObject, open_raw, open_source
from gristmill.storage.files import StorageOptions
from gristmill.storage.formats import CODEC_KINDS, HEAD_BYTES, Codec, codec_of, recognise
from gristmill.storage.partitions import FileRange
from gristmill.storage.row_formats import Broken, Rows, Skipped
from gristmill.storage.row_formats.http_messages import (
    BodyError,
    Content,
    content_facts,
    decoded_body,
    parse_message,
)
from gristmill.storage.row_formats.warc_library import DICTIONARY_MAGIC, read_records
from gristmill.storage.row_formats.warc_records import CarefulReader, Record

RECORD_TYPES = (
    "warcinfo", "response", "resource", "request", "metadata", "revisit", "conversion", "continuation",
)  # fmt: skip
PAGE_TYPES = ("response", "resource", "conversion")
MEDIA_TYPES = ("text/html", "application/xhtml+xml", "text/plain")
MAX_BODY_BYTES = 64 << 20
# Nearly a block, so that each table becomes one without being copied again. The first one is small, for planning,
# which looks at no more than that.
_TABLE_BYTES = 15 << 20
_FIRST_TABLE_BYTES = 1 << 18
_TABLE_ROWS = 4096
_MOST_SEARCHED = 64 << 20
"""A file without a record in this many bytes is not split there."""
_COLUMNS: dict[str, pa.DataType] = {
    **dict.fromkeys(("id", "url", "date", "record_type"), pa.string()),
    "status": pa.int32(),
    **dict.fromkeys(("content_type", "charset", "language", "digest", "truncated"), pa.string()),
    **dict.fromkeys(("offset", "length"), pa.int64()),
}


def read_rows(
    part: FileRange,
    *,
    storage_options: StorageOptions = None,
    record_types: Sequence[str] = PAGE_TYPES,
    media_types: Sequence[str] = MEDIA_TYPES,
    max_body_bytes: int = MAX_BODY_BYTES,
) -> Rows:
    """Rows with `html` (the bytes of a body) or, from WET files, with `text`.

    Revisits and bodies of other media types are rows without a body, so that they can be dropped with a reason. For a
    range, the records that begin in it.

    Raises:
        InputError: The file was split where no record begins.
    """
    pages = _Pages(part.relative, frozenset(map(str.encode, record_types)), media_types, max_body_bytes)
    with _open(part.path, storage_options) as (raw, codec):
        start, end = (0, -1) if part.whole else (part.start, part.end)
        for record in read_records(raw, codec, max_block_bytes=max_body_bytes, wanted=pages.taken, start=start):
            if 0 <= end <= record.offset:
                _check_cut(part.path, record.offset, end)
                break
            broken = record if isinstance(record, Broken) else pages.add(record)
            if broken is not None:
                yield from pages.table()
                yield broken
            elif pages.is_full:
                yield from pages.table()
    yield from pages.table()
    if pages.skipped:
        yield Skipped(pages.skipped)


def find_cuts(path: str, size: int, *, block_bytes: int, storage_options: StorageOptions = None, **_: Any) -> list[int]:
    """Where to split a file so that each piece has about `block_bytes` and begins with a record: 0, …, `size`.

    Only files of many gzip members or zstd frames are split: a member that opens with a record is hardly ever found
    inside another one, while the text of a page may well contain the beginning of a record.
    """
    cuts = [0]
    with _open(path, storage_options) as (raw, codec):
        if codec not in ("gz", "zst") or not raw.seekable() or raw.read(4) == DICTIONARY_MAGIC:
            return []
        reader = CarefulReader(raw, codec, 0, 0)
        while size - cuts[-1] >= 3 * block_bytes // 2:
            place = reader.next_record(cuts[-1] + block_bytes, _MOST_SEARCHED)
            if place is None:
                break
            cuts.append(place)
    return [*cuts, size]


def _check_cut(path: str, offset: int, end: int) -> None:
    if offset != end:
        raise InputError(
            f"{path} was split at byte {end:,}, but that is inside a record: a page in it contains compressed records "
            "of another archive. Delete the output and read the file whole: WarcReader(..., files_per_partition=1).",
            path=path,
        )


class _open:  # noqa: N801
    """The stored bytes of a file and their compression, by its first bytes rather than its name."""

    def __init__(self, path: str, storage_options: StorageOptions) -> None:
        self._raw = open_raw(path, storage_options=storage_options)
        self._codec: Codec = codec_of(path)
        if self._raw.seekable():
            head = self._raw.read(HEAD_BYTES)
            self._codec = CODEC_KINDS.get(recognise(head) or "", "none")
            if head.startswith(DICTIONARY_MAGIC):
                self._codec = "zst"
            self._raw.seek(0)
        if self._codec in ("bz2", "xz"):
            self._raw.close()
            self._raw, self._codec = SourceFileObject(open_source(path, storage_options=storage_options)), "none"

    def __enter__(self) -> tuple[Any, Codec]:
        return self._raw, self._codec

    def __exit__(self, *_: object) -> None:
        self._raw.close()


class _Pages:
    """Collects rows, column by column."""

    def __init__(
        self, file_name: str, types: frozenset[bytes], media_types: Sequence[str], max_body_bytes: int
    ) -> None:
        self.taken = types | {b"revisit"}
        self.skipped: Counter[str] = Counter()
        self._types = types
        self._media = frozenset(kind.lower().encode() for kind in media_types)
        self._file_name = file_name
        self._max_body_bytes = max_body_bytes
        self._table_bytes = _FIRST_TABLE_BYTES
        self._clear()

    def _clear(self) -> None:
        self._facts: list[tuple[Any, ...]] = []
        self._bodies: list[Content | None] = []
        self._is_text: list[bool] = []
        self._size = 0

    @property
    def is_full(self) -> bool:
        return self._size >= self._table_bytes or len(self._facts) >= _TABLE_ROWS

    def add(self, record: Record) -> Broken | None:
        """Add a record as a row, or return the problem with it."""
        headers = record.headers
        kind = headers.get(b"warc-type", b"unknown")
        if kind not in self.taken:
            self.skipped[kind.decode("ascii", "replace") if kind.isalpha() and len(kind) < 32 else "unknown"] += 1
            return None
        block = record.block
        if block is None and kind in self._types:
            told = f"the record has {record.size:,} bytes, over max_body_bytes={self._max_body_bytes}"
            return Broken("record_too_large", told, record.offset, b"", record.size)
        status, language = None, headers.get(b"warc-identified-content-language")
        body: Content | None = block
        declared, identified = headers.get(b"content-type", b""), headers.get(b"warc-identified-payload-type", b"")
        if kind in (b"response", b"revisit") and declared[:16].lower() == b"application/http":
            message = parse_message(block or b"")
            status, declared = message.status, message.headers.get(b"content-type", b"")
            language = language or message.headers.get(b"content-language")
            body = None
            if kind in self._types and self._is_wanted(declared, identified, message.body):
                try:
                    body = decoded_body(message, self._max_body_bytes, cut=b"warc-truncated" in headers)
                except BodyError as error:
                    return Broken(error.cause, str(error), record.offset, (block or b"")[: 1 << 16], record.size)
        elif kind in (b"response", b"resource") and not self._is_wanted(declared, identified, block or b""):
            body = None
        media, charset = content_facts(declared or identified)
        self._facts.append(
            (
                headers.get(b"warc-record-id") or f"{self._file_name}#{record.offset}".encode(),
                headers.get(b"warc-target-uri", b"").strip(b"<>") or None,
                headers.get(b"warc-date"),
                kind,
                status,
                media,
                charset,
                language,
                headers.get(b"warc-payload-digest") or headers.get(b"warc-block-digest"),
                headers.get(b"warc-truncated"),
                record.offset,
                record.length or None,
            )
        )
        self._bodies.append(body)
        self._is_text.append(kind == b"conversion")
        if body is not None:
            self._size += len(body)
        return None

    def _is_wanted(self, declared: bytes, identified: bytes, body: Content) -> bool:
        """Whether a wanted media type is declared or was identified; without either, whether it looks like a page."""
        if not self._media:
            return True
        if not declared and not identified:
            return recognise(bytes(body[:HEAD_BYTES])) == "html"
        return content_facts(declared)[0] in self._media or content_facts(identified)[0] in self._media

    def table(self) -> Iterator[pa.Table]:
        """The collected rows as a table, if there are any; resets the collection."""
        count = len(self._facts)
        if not count:
            return
        columns: dict[str, Any] = dict(
            zip(_COLUMNS, map(_column, zip(*self._facts, strict=True), _COLUMNS.values()), strict=True)
        )
        columns["file_name"] = pa.repeat(pa.scalar(self._file_name, pa.string()), count)
        if not any(self._is_text):
            columns["html"] = _body_column(self._bodies, pa.large_binary())
        elif all(self._is_text):
            columns["text"] = _body_column(self._bodies, pa.large_string())
        else:
            both = list(zip(self._bodies, self._is_text, strict=True))
            columns["html"] = _body_column([None if is_text else body for body, is_text in both], pa.large_binary())
            columns["text"] = _body_column([body if is_text else None for body, is_text in both], pa.large_string())
        self._clear()
        self._table_bytes = _TABLE_BYTES
        yield pa.table(columns)


def _column(values: Sequence[Any], kind: pa.DataType) -> pa.Array:
    """Values of headers; old archives use other encodings than UTF-8."""
    if kind != pa.string():
        return pa.array(values, kind)
    try:
        return pa.array(values, pa.binary()).cast(kind)
    except pa.ArrowInvalid:
        return pa.array([_text(value) for value in values], kind)


def _text(value: bytes | None) -> str | None:
    if value is None:
        return None
    try:
        return value.decode()
    except UnicodeDecodeError:
        return value.decode("latin-1")


def _body_column(bodies: list[Content | None], kind: pa.DataType) -> pa.Array:
    """Bytes as a column, copied once; UTF-8 of text columns is checked with the block."""
    offsets = np.zeros(len(bodies) + 1, np.int64)
    np.cumsum([0 if body is None else len(body) for body in bodies], out=offsets[1:])
    known = pa.array([body is not None for body in bodies]).buffers()[1] if None in bodies else None
    content = room_for(int(offsets[-1]))
    room = content.data
    for body, start, end in zip(bodies, offsets[:-1].tolist(), offsets[1:].tolist(), strict=True):
        if body is not None:
            room[start:end] = body
    return pa.Array.from_buffers(kind, len(bodies), [known, pa.py_buffer(offsets), pa.py_buffer(content)])
