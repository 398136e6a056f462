"""Web archives made for tests."""

from __future__ import annotations

import gzip

import zstandard

PAGE = b"<html><body>" + b"A page of some length. " * 40 + b"</body></html>"


def response(
    body: bytes = PAGE, headers: bytes = b"Content-Type: text/html; charset=ISO-8859-2", status: int = 200
) -> bytes:
    """An HTTP response."""
    return b"HTTP/1.1 %d OK\r\n%s\r\n\r\n%s" % (status, headers, body)


def record(
    number: int, block: bytes | None = None, *, kind: str = "response", length: int | None = None, more: bytes = b""
) -> bytes:
    """A record of a WARC file; `length` is what its header says, where that is not true."""
    block = response() if block is None else block
    content_type = b"application/http; msgtype=response" if kind in ("response", "revisit") else b"text/plain"
    return (
        b"WARC/1.0\r\nWARC-Type: %s\r\nWARC-Record-ID: <urn:uuid:%d>\r\nWARC-Target-URI: http://example.org/%d\r\n"
        b"WARC-Date: 2026-01-02T03:04:05Z\r\nContent-Type: %s\r\n%sContent-Length: %d\r\n\r\n%s\r\n\r\n"
        % (kind.encode(), number, number, content_type, more, len(block) if length is None else length, block)
    )


def stored(records: list[bytes], codec: str) -> list[bytes]:
    """Each record as it is stored: a gzip member, a zstd frame, or as it is."""
    if codec == "gz":
        return [gzip.compress(one, mtime=0) for one in records]
    if codec == "zst":
        return [zstandard.ZstdCompressor(write_checksum=True).compress(one) for one in records]
    return records
