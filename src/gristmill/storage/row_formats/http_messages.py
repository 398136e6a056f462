"""HTTP responses in web archives: status, headers, and the decoded body."""

from __future__ import annotations

import re
import zlib
from functools import lru_cache
from typing import Any, NamedTuple

import zstandard

from gristmill.errors import optional_module
from gristmill.figures import format_size
from gristmill.storage.row_formats.warc_records import parse_headers

_STATUS = re.compile(rb"HTTP/\d(?:\.\d)? +(\d{3})\b")
_HEAD_END = re.compile(rb"\r?\n\r?\n")
_CHARSET = re.compile(rb"charset\s*=\s*[\"']?([\w.:+-]{1,40})", re.IGNORECASE)
_CHUNK_SIZE = re.compile(rb"[ \t]*([0-9a-fA-F]{1,15})[ \t]*(?:;[^\r\n]*)?\r?\n")
_CONTROL = re.compile(rb"[\x00-\x08\x0e-\x1a]")
_MAX_HEAD_BYTES = 1 << 16
Content = bytes | memoryview
_ZSTD_PIECE = 512
"""A zstd decompressor does not limit its output, and a dozen bytes can expand to 128 KiB."""


class Message(NamedTuple):
    """A response.

    Attributes:
        status: Its code; None if there is no status line.
        headers: By name in lower case.
        body: The body as sent, a view of the block, still chunked and compressed.
    """

    status: int | None
    headers: dict[bytes, bytes]
    body: memoryview


class BodyError(ValueError):
    """A body does not match its headers; `cause` is the cause for the quarantine."""

    def __init__(self, cause: str, detail: str) -> None:
        super().__init__(detail)
        self.cause = cause


def parse_message(block: bytes) -> Message:
    """The response in the block of a record; without a status line, all of it is the body."""
    status = _STATUS.match(block)
    if status is None and not block.startswith(b"HTTP/"):
        return Message(None, {}, memoryview(block))
    end = _HEAD_END.search(block, 0, _MAX_HEAD_BYTES)
    head_end, body_start = (_MAX_HEAD_BYTES, len(block)) if end is None else end.span()
    headers = parse_headers(block[:head_end])
    return Message(None if status is None else int(status[1]), headers, memoryview(block)[body_start:])


@lru_cache(4096)
def content_facts(content_type: bytes) -> tuple[bytes | None, bytes | None]:
    """The media type of a Content-Type, such as `text/html`, and the charset, both in lower case."""
    media = content_type.partition(b";")[0].strip().lower()
    charset = _CHARSET.search(content_type)
    return media or None, None if charset is None else charset[1].lower()


def decoded_body(message: Message, most: int, *, cut: bool = False) -> Content:
    """The body without chunks and compression.

    Archives often store a decoded body with the original headers: a body that does not begin as these say is returned
    unchanged.

    Args:
        message: The response.
        most: Maximum size of the decoded body; decoding stops beyond it.
        cut: The archive marks the body as truncated, so a missing end is not an error.

    Raises:
        BodyError: It begins as its headers say, but cannot be decoded to its end, or is too large.
    """
    body: Content = message.body
    if b"chunked" in message.headers.get(b"transfer-encoding", b"").lower():
        body = _joined_chunks(body, cut=cut)
    encodings = message.headers.get(b"content-encoding", b"").lower().replace(b",", b" ").split()
    for encoding in reversed(encodings):
        decoder = _DECODERS.get(encoding)
        if decoder is not None and len(body):
            body = _decoded(body, encoding.decode(), decoder(body), most, cut=cut)
    return body


def _joined_chunks(body: Content, *, cut: bool) -> Content:
    pieces: list[Content] = []
    at = 0
    while at < len(body) or not pieces:
        size = _CHUNK_SIZE.match(body, at)
        if size is None:
            if not pieces:
                return body  # not sent in chunks, or joined by the crawler
            if cut:
                break
            raise BodyError("corrupt_body", f"the body is sent in chunks, but none begins at byte {at:,}")
        length, start = int(size[1], 16), size.end()
        if not length:
            break
        pieces.append(body[start : start + length])
        if start + length > len(body):
            if len(pieces) == 1 and not cut:
                return body  # a text that begins with a number
            if cut:
                break
            told = f"the last chunk of the body should have {length:,} bytes and has {len(body) - start:,}"
            raise BodyError("corrupt_body", told)
        at = start + length
        at += 2 if body[at : at + 2] == b"\r\n" else 1 if body[at : at + 1] == b"\n" else 0
    return b"".join(pieces)


class _Inflate:
    """gzip, zlib, or the bare stream that some servers send for "deflate"."""

    def __init__(self, body: Content) -> None:
        bits = -15
        if body[:2] == b"\x1f\x8b":
            bits = 31
        elif body[0] & 15 == 8 and int.from_bytes(body[:2]) % 31 == 0:
            bits = 15
        self._decoder = zlib.decompressobj(bits)

    def decode(self, body: Content, most: int) -> bytes:
        return self._decoder.decompress(body, most)

    @property
    def finished(self) -> bool:
        return self._decoder.eof


class _Brotli:
    def __init__(self, body: Content) -> None:
        self._decoder: Any = optional_module("brotli", "A page compressed by Brotli").Decompressor()

    def decode(self, body: Content, most: int) -> bytes:
        decoded = self._decoder.process(body, output_buffer_limit=most)
        while len(decoded) < most and not self._decoder.is_finished() and not self._decoder.can_accept_more_data():
            decoded += self._decoder.process(b"", output_buffer_limit=most - len(decoded))
        return bytes(decoded)

    @property
    def finished(self) -> bool:
        return bool(self._decoder.is_finished())


class _Zstandard:
    def __init__(self, body: Content) -> None:
        self._decoder = zstandard.ZstdDecompressor(max_window_size=1 << 27).decompressobj()

    def decode(self, body: Content, most: int) -> bytes:
        decoded = bytearray()
        for at in range(0, len(body), _ZSTD_PIECE):
            decoded += self._decoder.decompress(body[at : at + _ZSTD_PIECE])
            if len(decoded) >= most or self._decoder.eof:
                break
        return bytes(decoded)

    @property
    def finished(self) -> bool:
        return bool(self._decoder.eof)


_DECODERS: dict[bytes, Any] = {
    b"gzip": _Inflate, b"x-gzip": _Inflate, b"deflate": _Inflate, b"br": _Brotli, b"zstd": _Zstandard,
}  # fmt: skip


def _decoded(body: Content, encoding: str, decoder: Any, most: int, *, cut: bool) -> Content:
    try:
        decoded = decoder.decode(body, most + 1)
        problem = None if decoder.finished or len(decoded) > most else "it stops before its end"
    except Exception as error:
        if type(error).__module__ not in ("zlib", "brotli", "zstd"):
            raise
        decoded, problem = b"", str(error)
    if len(decoded) > most:
        told = f"the body, {format_size(len(body))} of {encoding}, has more than {format_size(most)} when decompressed"
        raise BodyError("record_too_large", told)
    if problem is None or (cut and decoded):
        return bytes(decoded)
    if not decoded and not _CONTROL.search(body, 0, 512):
        return body
    raise BodyError("corrupt_body", f"the body is compressed ({encoding}) and cannot be decompressed: {problem}")
