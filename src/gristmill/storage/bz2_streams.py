"""bzip2 files of many streams, such as MediaWiki's multistream dumps: each stream is read independently."""

from __future__ import annotations

import bz2
import io
import os
import re
from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass
from typing import IO

from gristmill.storage.compression import DamagedArchiveError, SourceFileObject, open_raw, open_source
from gristmill.storage.files import StorageOptions, filesystem, is_local, local_path
from gristmill.storage.formats import codec_of

_MAGIC = re.compile(rb"BZh[1-9](?:1AY&SY|\x17rE8P\x90)")
_MAGIC_BYTES = 10
_READ_BYTES = 256 * 1024
_OUTPUT_BYTES = 1 << 20
_HELD_BYTES = 64 << 20
"""Streams up to this size are passed on once they have been fully checked; larger ones as they are decoded."""
_INDEX_NAME = re.compile(r"-multistream(\d*)\.xml((?:-p\d+p\d+)?)\.bz2$")


@dataclass(frozen=True, slots=True)
class BrokenStream:
    """A stream that does not decode; reading continues with the next one.

    Attributes:
        start: Its first stored byte.
        size: Number of stored bytes skipped.
        cut: The file ends inside it.
        rest: Part of it was already passed on: the whole file counts as damaged.
    """

    start: int
    size: int
    cut: bool
    rest: bool = False


BORDER = b""
"""Separates the content of a range from the content after it."""


def decoded_streams(
    path: str, start: int, end: int, *, storage_options: StorageOptions = None
) -> Iterator[bytes | BrokenStream]:
    """The content of the streams that begin in a range, then `BORDER`, then the content of the streams after it.

    Args:
        path: The file.
        start: First stored byte, where a stream begins.
        end: One past the last byte of the range; -1 for the end of the file.
        storage_options: File system options for URLs.
    """
    with open_raw(path, storage_options=storage_options) as raw:
        raw.seek(start)
        at = start
        stored = raw.read(_READ_BYTES)
        past = False
        while stored:
            if 0 <= end <= at and not past:
                past = True
                yield BORDER
            stream = _Stream(raw, stored)
            yield from stream.pieces()
            if stream.broken:
                yield BrokenStream(at, stream.size, cut=stream.cut, rest=stream.handed_on)
                if stream.handed_on:
                    return
            at += stream.size
            stored = stream.behind or raw.read(_READ_BYTES)
        if not past:
            yield BORDER


class _Stream:
    """One stream, which begins with `stored` and continues in `raw`.

    Attributes:
        broken: It does not decode.
        cut: It is broken because the file ends inside it.
        handed_on: Part of it was passed on before its end was checked.
        size: Number of stored bytes; for a broken one, the distance to the next.
        behind: Stored bytes after it, as far as read.
    """

    def __init__(self, raw: IO[bytes], stored: bytes) -> None:
        self._raw = raw
        self._stored = stored
        self.broken = self.cut = self.handed_on = False
        self.size = 0
        self.behind = b""

    def pieces(self) -> Iterator[bytes]:
        """Its content, in small pieces; empty for a broken stream, unless it is large."""
        decoder = bz2.BZ2Decompressor()
        held: list[bytes] = []
        decoded, stored, seen = 0, self._stored, bytearray()
        while not decoder.eof:
            if decoder.needs_input:
                stored = stored or self._raw.read(_READ_BYTES)
                if not self.handed_on:
                    seen += stored
                self.size += len(stored)
            try:
                if decoder.needs_input and not stored:
                    raise EOFError("the file ends inside the stream")
                piece = decoder.decompress(stored, _OUTPUT_BYTES)
            except (OSError, EOFError) as error:
                self.broken = True
                if not self.handed_on:
                    self.size, self.behind = _next_magic(self._raw, bytes(seen))
                self.cut = isinstance(error, EOFError) and not self.behind
                return
            stored = b""
            decoded += len(piece)
            held.append(piece)
            if decoded > _HELD_BYTES:
                self.handed_on = True
                seen.clear()
            if self.handed_on:
                yield from filter(None, held)
                held.clear()
        self.behind = decoder.unused_data
        self.size -= len(self.behind)
        yield from filter(None, held)


def _next_magic(raw: IO[bytes], stored: bytes) -> tuple[int, bytes]:
    """The distance from the start of `stored` to the next stream, and the bytes from there; none at the end."""
    passed = 0
    found = _MAGIC.search(stored, 1)
    while found is None:
        more = raw.read(_READ_BYTES)
        if not more:
            return passed + len(stored), b""
        passed += max(0, len(stored) - _MAGIC_BYTES)
        stored = stored[-_MAGIC_BYTES:] + more
        found = _MAGIC.search(stored)
    return passed + found.start(), stored[found.start() :]


def stream_cuts(path: str, size: int, *, block_bytes: int, storage_options: StorageOptions = None) -> list[int]:
    """Where to split a file so that each piece has about `block_bytes` and begins with a stream: 0, …, `size`.

    Uses the index that MediaWiki writes beside a dump if it exists and is correct, otherwise searches for streams.
    """
    wanted = range(block_bytes, size, block_bytes)
    offsets = _index_offsets(path, storage_options=storage_options)
    cuts = [0]
    with open_raw(path, storage_options=storage_options) as raw:
        for place in wanted:
            if place <= cuts[-1]:
                continue
            number = bisect_left(offsets, place)
            cut = offsets[number] if number < len(offsets) else None
            if cut is not None:
                raw.seek(cut)
                if not _MAGIC.match(raw.read(_MAGIC_BYTES)):
                    offsets, cut = [], None  # the index of another file
            if cut is None:
                raw.seek(place)
                distance, rest = _next_magic(raw, b"")
                cut = place + distance if rest else size
            if cut >= size:
                break
            cuts.append(cut)
    return [*cuts, size]


def dump_cuts(path: str, size: int, *, block_bytes: int, storage_options: StorageOptions = None) -> list[int]:
    """Where to split a dump, whose pages belong to the piece in which they begin; none if it is read whole."""
    codec = codec_of(path)
    if codec == "bz2":
        return stream_cuts(path, size, block_bytes=block_bytes, storage_options=storage_options)
    return [*range(0, size, block_bytes), size] if codec == "none" else []


def index_path(path: str) -> str | None:
    """The path of a multistream dump's index, by naming convention.

    Example:
        >>> index_path("enwiki-20240101-pages-articles-multistream1.xml-p1p41242.bz2")
        'enwiki-20240101-pages-articles-multistream-index1.txt-p1p41242.bz2'
    """
    index, count = _INDEX_NAME.subn(r"-multistream-index\1.txt\2.bz2", path)
    return index if count else None


def _index_offsets(path: str, *, storage_options: StorageOptions) -> list[int]:
    """Where streams begin, according to the index; empty if there is none or it cannot be read."""
    place = index_path(path)
    if place is None:
        return []
    for name in (place, place.removesuffix(".bz2")):
        if not _is_file(name, storage_options):
            continue
        offsets: dict[int, None] = {}
        try:
            with io.BufferedReader(SourceFileObject(open_source(name, storage_options=storage_options))) as lines:
                for line in lines:
                    offsets[int(line.partition(b":")[0])] = None
        except (DamagedArchiveError, ValueError):
            return []
        return sorted(offsets)
    return []


def _is_file(path: str, storage_options: StorageOptions) -> bool:
    if is_local(path):
        return os.path.isfile(local_path(path))
    fs, inner = filesystem(path, storage_options)
    return bool(fs.isfile(inner))
