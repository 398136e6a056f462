"""The records of web archives (WARC and ARC): their positions, and the damaged parts of a file.

`CarefulReader` parses a file itself, checks everything, and finds the next record after damage, at the speed of Python
and zlib. `warc_library` is faster, and reads intact files.
"""

from __future__ import annotations

import re
from typing import Any, NamedTuple

from gristmill.figures import format_size
from gristmill.storage.compression import new_member
from gristmill.storage.formats import Codec
from gristmill.storage.row_formats import Broken

_PIECE = 1 << 18
_HANDED = 1 << 15
_MAX_HEAD_BYTES = 1 << 16
_RAW_BYTES = 1 << 12
_OVERLAP = 1 << 12
_END = b"\r\n\r\n"
_RECORD_LINE = re.compile(rb"WARC/\d+\.\d+\r?\n")
# URL, address, date, media type, (in version 2: result, checksum, location, offset, file name,) length.
_ARC_LINE = re.compile(
    rb"(?P<url>[a-z][a-z0-9+.-]*:[^\r\n]*) (?:[0-9a-fA-F.:]+) (?P<date>\d{8,20}) (?P<type>[^ \r\n]+)"
    rb"(?: [^ \r\n]+){0,5} (?P<length>-?\d+)\r?\n"
)
_HEAD_END = re.compile(rb"\n\r?\n")
_FOLDED = re.compile(rb"\r?\n[ \t]+")
_NEXT_RECORD = re.compile(rb"(?<=[\n\0])" + _RECORD_LINE.pattern + rb"[A-Za-z]")
_NEXT_ARC = re.compile(rb"(?<=[\n\0])" + _ARC_LINE.pattern)
_NEXT_MEMBER = {"gz": re.compile(rb"\x1f\x8b\x08"), "zst": re.compile(rb"\x28\xb5\x2f\xfd")}
_MAX_DIGITS = 18


class Record(NamedTuple):
    """A record as stored in the file.

    Attributes:
        offset: Its position in the stored file; with `length`, the range to fetch.
        length: Its stored size; 0 if it is compressed together with others.
        headers: Headers of the record, not of HTTP; names in lower case.
        block: Its content; None if that is over the limit, or not needed.
        size: Size of the block in bytes.
    """

    offset: int
    length: int
    headers: dict[bytes, bytes]
    block: bytes | None
    size: int


class _DamageError(Exception):
    def __init__(self, cause: str, detail: str) -> None:
        super().__init__(cause, detail)
        self.cause, self.detail = cause, detail


class _Members:
    """The content of a file, member by member: gzip members or zstd frames; a plain file is one member.

    Attributes:
        start: Position of the current member in the stored file.
        at: Read position in the stored file.
    """

    def __init__(self, raw: Any, codec: Codec, start: int, dictionary: bytes) -> None:
        self._raw = raw
        self._codec = codec
        self._dictionary = dictionary
        self.seek(start)

    def seek(self, start: int) -> None:
        """Go to the member at this position."""
        if start or self._raw.seekable():
            self._raw.seek(start)
        self._stored = b""
        self.start = self.at = start
        self._open()

    def _open(self) -> None:
        self._member = None if self._codec == "none" else new_member(self._codec, self._dictionary)
        self._problem: _DamageError | None = None
        self._decoded, self._given = b"", 0

    def advance(self) -> bool:
        """Advance to the next member; False if there is none."""
        if self._codec == "none":
            return False
        more = bool(self._stored) or self._fill()
        self.start = self.end
        self._open()
        return more

    def piece(self) -> bytes:
        """The next bytes of the content, a limited number; empty at the end of the member.

        Raises:
            _DamageError: It cannot be decoded, or lacks its end mark.
        """
        if self._given >= len(self._decoded):
            self._decoded, self._given = self._decode(), 0
        piece = self._decoded[self._given : self._given + _HANDED]
        self._given += len(piece)
        return piece

    def _decode(self) -> bytes:
        if self._member is None:
            self._fill()
            return self._stored
        if self._problem is not None:
            raise self._problem
        while not self._member.finished:
            stored = b""
            if self._member.wants_input:
                if not self._stored and not self._fill():
                    if self.at == self.start:
                        return b""  # an empty file
                    raise _DamageError("truncated_record", "the compressed record stops before its end mark")
                stored, self._stored = self._stored, b""
            decoded, problem = self._member.feed(stored)
            if problem is not None:
                self._problem = _DamageError("corrupt_archive", problem)
            elif self._member.finished:
                self._stored = self._member.rest
            if decoded:
                return decoded
            if self._problem is not None:
                raise self._problem
        return b""

    def _fill(self) -> bool:
        self._stored = self._raw.read(_PIECE) or b""
        self.at += len(self._stored)
        return bool(self._stored)

    @property
    def waiting(self) -> int:
        """The number of decoded bytes that are not returned yet."""
        return len(self._decoded) - self._given

    @property
    def end(self) -> int:
        """The end position of the current member, once reached."""
        return self.at - len(self._stored)


class CarefulReader:
    """Reads records one after another, from a position where one should begin.

    Args:
        raw: The stored bytes; searched after damage, if seekable.
        codec: Their compression.
        start: The position.
        max_block_bytes: Larger blocks are not held in memory.
        dictionary: Dictionary of its zstd frames.

    Attributes:
        position: Expected position of the next record.
        joined: Members do not begin with records, or hold several: their records are not seekable.
        is_arc: The last record was in ARC format.
    """

    def __init__(self, raw: Any, codec: Codec, start: int, max_block_bytes: int, dictionary: bytes = b"") -> None:
        self._raw = raw
        self._codec = codec
        self._dictionary = dictionary
        self._members = _Members(raw, codec, start, dictionary)
        self._max_block_bytes = max_block_bytes
        self._held = b""
        self._any = start > 0
        self.joined = self.is_arc = self._spans = False

    @property
    def position(self) -> int:
        if self._codec == "none":
            return self._members.at - self._members.waiting - len(self._held)
        return self._members.start

    def read(self) -> Record | Broken | None:
        """The next record, or the broken piece there; None at the end of the file."""
        start = self.position
        try:
            while not self._skip_blank():
                if not self._members.advance():
                    return None if self._any else self._empty()
                start = self.position
            start = self.position
            self._spans = False
            record = self._record(start)
        except _DamageError as damage:
            return self._broken(start, damage)
        self._any = True
        return record

    def _record(self, start: int) -> Record:
        headers, length = self._head()
        block = self._block(length)
        self._fill(len(_END))
        ended = self._held.startswith(_END)
        follows = self._skip_blank()
        if not follows:
            self._members.advance()
        elif self._at_record():
            self._spans = self._codec != "none"
        elif not ended:
            told = f"the record declares {length:,} bytes, but no record follows these"
            raise _DamageError("wrong_length", told)
        self.joined = self.joined or self._spans
        return Record(start, 0 if self.joined else self.position - start, headers, block, length)

    def _at_record(self) -> bool:
        self._fill(_MAX_HEAD_BYTES, line=True)
        return bool(_RECORD_LINE.match(self._held) or _ARC_LINE.match(self._held))

    def _head(self) -> tuple[dict[bytes, bytes], int]:
        while b"\n" not in self._held[:_MAX_HEAD_BYTES] and len(self._held) < _MAX_HEAD_BYTES and self._fill_over():
            pass
        arc = _ARC_LINE.match(self._held)
        if arc is not None:
            self.is_arc = True
            self._held = self._held[arc.end() :]
            return _arc_headers(arc), _length_of(arc["length"])
        line = _RECORD_LINE.match(self._held)
        if line is None:
            raise _DamageError("not_a_record", f"expected a record, found {self._held[:40]!r}")
        while (end := _HEAD_END.search(self._held, line.end() - 1)) is None:
            if len(self._held) > _MAX_HEAD_BYTES or not self._fill_over():
                raise _DamageError("truncated_record", "the headers of the record have no end")
        headers = parse_headers(self._held[line.end() : end.start()])
        self._held = self._held[end.end() :]
        return headers, _length_of(headers.get(b"content-length", b"none"))

    def _block(self, length: int) -> bytes | None:
        """The block; None if it is too large to hold in memory."""
        held = length <= self._max_block_bytes
        pieces, missing = [], length
        while missing:
            if not self._held and not self._fill_over():
                what = "the file ends" if self._codec == "none" else "its compressed member ends"
                told = f"the record declares {length:,} bytes, but {what} after {length - missing:,}"
                raise _DamageError("truncated_record" if self._codec == "none" else "wrong_length", told)
            piece, self._held = self._held[:missing], self._held[missing:]
            missing -= len(piece)
            if held:
                pieces.append(piece)
        return b"".join(pieces) if held else None

    def _fill_over(self) -> bool:
        """Read more of the record, including from the next member if that does not begin with a record itself."""
        if self._fill(len(self._held) + 1):
            return True
        held, self._held = self._held, b""
        if self._codec == "none" or not self._members.advance() or self._at_record() or not self._held:
            return False
        self._held = held + self._held
        self._spans = True
        return True

    def _fill(self, count: int, *, line: bool = False) -> bool:
        """Read `count` bytes of the current member, or a line; False if it has no more."""
        while len(self._held) < count and not (line and b"\n" in self._held):
            piece = self._members.piece()
            if not piece:
                return False
            self._held += piece
        return True

    def _skip_blank(self) -> bool:
        """Skip line ends; returns whether anything follows in this member."""
        while True:
            self._held = self._held.lstrip(b"\r\n")
            if self._held:
                return True
            if not self._fill(1):
                return False

    # Damage ----------------------------------------------------------------------------------------------------------

    def _empty(self) -> Broken:
        self._any = True
        return Broken("truncated_file", "the file is empty", 0)

    def _broken(self, start: int, damage: _DamageError) -> Broken:
        """The broken piece from `start` to the next record."""
        if self.joined or not self._raw.seekable():
            return Broken(damage.cause, damage.detail, start, rest=True)
        self._raw.seek(start)
        raw = self._raw.read(_RAW_BYTES)
        following, ends = self._search(start + 1)
        self._held = b""
        self._members.seek(following)
        size = following - start
        if ends and not self._any and damage.cause == "not_a_record":
            told = f"no record of a WARC or ARC file in its {format_size(size)}; it begins with {raw[:40]!r}"
            self._any = True
            return Broken("not_warc", told, start, raw, size)
        self._any = True
        told = f"{damage.detail}; {format_size(size)} up to the {'end of the file' if ends else 'next record'} not read"
        return Broken(damage.cause, told, start, raw, size)

    def next_record(self, start: int, most: int) -> int | None:
        """Position of the next record at or after `start`; None if there is none within `most` bytes."""
        place, ended = self._search(start, most)
        return None if ended else place

    def _search(self, start: int, most: int | None = None) -> tuple[int, bool]:
        """Position of the next record at or after `start`; otherwise True, and the end of the searched range."""
        pattern = _NEXT_MEMBER.get(self._codec) or (_NEXT_ARC if self.is_arc else _NEXT_RECORD)
        self._raw.seek(start)
        held, at = b"", start
        while (most is None or at - start < most) and (piece := self._raw.read(_PIECE)):
            held += piece
            for found in pattern.finditer(held):
                if self._codec == "none" or self._opens(at + found.start()):
                    return at + found.start(), False
            kept = held[-_OVERLAP:]
            at += len(held) - len(kept)
            held = kept
            self._raw.seek(at + len(held))
        return at + len(held), True

    def _opens(self, place: int) -> bool:
        """Whether a member that begins with a record begins there."""
        self._raw.seek(place)
        decoded, _ = new_member(self._codec, self._dictionary).feed(self._raw.read(_RAW_BYTES))
        return bool(_RECORD_LINE.match(decoded) or _ARC_LINE.match(decoded))


def _length_of(given: bytes) -> int:
    if not given.isdigit() or len(given) > _MAX_DIGITS:
        raise _DamageError("wrong_length", f"the length of the record is {given[:40].decode('ascii', 'replace')!r}")
    return int(given)


def parse_headers(head: bytes) -> dict[bytes, bytes]:
    """Header lines as names in lower case and values; a line that begins with whitespace continues the previous one."""
    if b"\n " in head or b"\n\t" in head:
        head = _FOLDED.sub(b" ", head)
    pairs = (line.partition(b":") for line in head.split(b"\n"))
    return {name.strip().lower(): value.strip() for name, colon, value in pairs if colon}


def _arc_headers(line: re.Match[bytes]) -> dict[bytes, bytes]:
    """The header line of an ARC record, with WARC's names."""
    url, date = line["url"], line["date"][:14].ljust(14, b"0").decode()
    is_page = url.startswith((b"http:", b"https:"))
    kind = b"response" if is_page else b"warcinfo" if url.startswith(b"filedesc:") else b"resource"
    return {
        b"warc-type": kind,
        b"warc-target-uri": url,
        b"warc-date": f"{date[:4]}-{date[4:6]}-{date[6:8]}T{date[8:10]}:{date[10:12]}:{date[12:]}Z".encode(),
        b"content-type": b"application/http; msgtype=response" if is_page else line["type"],
    }
