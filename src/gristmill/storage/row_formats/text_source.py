"""The bytes of a text file as UTF-8, whatever its encoding."""

from __future__ import annotations

import codecs

from gristmill.storage.compression import ByteSource

_PIECE = 1 << 16
_UNDECODABLE = "gristmill.undecodable"
# A lone surrogate is not UTF-8 once it is encoded, so that its document is found to be broken, or repaired.
codecs.register_error(_UNDECODABLE, lambda error: ("\udcff", error.end))  # type: ignore[attr-defined]


class TextSource:
    """A source of UTF-8 without a byte order mark.

    Args:
        source: The bytes of the file.
        encoding: Their encoding; defaults to UTF-8, or UTF-16 if there is a byte order mark.
    """

    def __init__(self, source: ByteSource, encoding: str | None = None) -> None:
        self._source = source
        self._piece = bytearray(_PIECE)
        self._encoding = encoding
        self._decoder: codecs.IncrementalDecoder | None = None
        self._begun = self._ended = False
        self._ready = memoryview(b"")

    def readinto(self, target: memoryview, /) -> int:
        """Fill the front of `target`; 0 at the end.

        Raises:
            DamagedArchiveError: All bytes before the damage have been delivered.
        """
        while not self._ready and not self._ended:
            self._ready = memoryview(self._next())
        count = min(len(target), len(self._ready))
        target[:count] = self._ready[:count]
        self._ready = self._ready[count:]
        return count

    def _next(self) -> bytes:
        data = self._read()
        if not self._begun:
            while 0 < len(data) < 3 and (more := self._read()):
                data += more
            self._begun = True
            if self._encoding is None and data[:2] in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE):
                self._encoding = "utf-16"
            if self._encoding is not None and codecs.lookup(self._encoding).name not in ("utf-8", "utf-8-sig"):
                self._decoder = codecs.getincrementaldecoder(self._encoding)(_UNDECODABLE)
            data = data.removeprefix(codecs.BOM_UTF8)
        self._ended = not data
        if self._decoder is None:
            return data
        return self._decoder.decode(data, final=self._ended).encode("utf-8", "surrogatepass")

    def _read(self) -> bytes:
        count = self._source.readinto(memoryview(self._piece))
        return bytes(memoryview(self._piece)[: count or 0])

    def close(self) -> None:
        """Close the file."""
        self._source.close()
