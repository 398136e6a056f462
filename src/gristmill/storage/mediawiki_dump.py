"""Pages of a MediaWiki dump, extracted from its XML and parsed one by one.

So an invalid page affects only itself, a file can be read from the middle, and nothing outside a page is ever parsed,
such as a document type and its entities.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple
from urllib.parse import quote
from xml.parsers import expat

from gristmill.figures import format_size
from gristmill.storage.bz2_streams import BORDER, BrokenStream, decoded_streams
from gristmill.storage.compression import DamagedArchiveError, open_raw, open_source
from gristmill.storage.files import StorageOptions
from gristmill.storage.formats import codec_of

MAX_PAGE_BYTES = 64 << 20
"""A page with more XML than this is not read; Wikipedia's largest have two megabytes."""
_PIECE = 1 << 20
_HEAD_BYTES = 1 << 20
_OPEN, _CLOSE, _END = b"<page>", b"</page>", b"</mediawiki>"
_BASE = re.compile(r"<base>([^<]+)</base>")
_LANGUAGE = re.compile(r"""<mediawiki\b[^<>]*\bxml:lang=["']([\w-]+)["']""")
_DECLARATION = re.compile(r"<!(?:DOCTYPE|ENTITY)", re.IGNORECASE)
_FILE_LANGUAGE = re.compile(r"(?:^|/)([a-z_]{2,12})wiki(?:-|$)")
_UNQUOTED = ";@$!*(),/~:-._"  # what MediaWiki itself leaves as it is


class Page(NamedTuple):
    """A page of the dump; the last revision if there are several."""

    id: str
    title: str
    namespace: int
    redirect: bool
    timestamp: str
    wikitext: str


class Problem(NamedTuple):
    """A piece of the dump that is not a page; with `rest`, nothing after it is usable."""

    cause: str
    detail: str
    offset: int
    raw: bytes
    size: int
    rest: bool


@dataclass(frozen=True, slots=True)
class Site:
    """The description of the wiki in the head of a dump.

    Attributes:
        language: Language of its articles, such as "en".
        prefix: Prefix of page titles in URLs.
    """

    language: str
    prefix: str

    def url(self, title: str) -> str:
        """The address of a page."""
        return self.prefix + quote(title.replace(" ", "_"), safe=_UNQUOTED)


def site_of(path: str, *, language: str | None = None, storage_options: StorageOptions = None) -> Site | Problem:
    """The wiki of a dump by its head; a `Problem` if it is not a dump, or defines entities."""
    head = _head(path, storage_options)
    declared = _DECLARATION.search(head)
    if declared is not None:
        told = (
            f"the file has a document type declaration ({declared[0]}), which MediaWiki dumps never have and which "
            "can expand a few bytes to gigabytes; it is not read"
        )
        return Problem("unsafe_xml", told, declared.start(), head.encode()[: 1 << 16], len(head), True)
    if head and "<mediawiki" not in head and _OPEN.decode() not in head:
        told = f"the file is not a MediaWiki dump: it begins with {head.lstrip()[:60]!r} and not with <mediawiki>"
        if "\0" in head[:60]:
            told = "the file is in UTF-16, and MediaWiki writes its dumps in UTF-8; convert it with iconv"
        return Problem("other_format", told, 0, head.encode()[: 1 << 16], len(head), True)
    by_name = _FILE_LANGUAGE.search(path)
    declared_language = _LANGUAGE.search(head)
    found = declared_language or by_name
    language = language or (found[1].replace("_", "-") if found else "en")
    base = _BASE.search(head)
    prefix = base[1].rpartition("/")[0] + "/" if base else f"https://{language}.wikipedia.org/wiki/"
    return Site(language, prefix)


def _head(path: str, storage_options: StorageOptions) -> str:
    """The first bytes up to the end of the wiki's description, as far as readable."""
    source = open_source(path, storage_options=storage_options)
    head, piece = bytearray(), memoryview(bytearray(1 << 16))
    try:
        while len(head) < _HEAD_BYTES and b"</siteinfo>" not in head and (count := source.readinto(piece)):
            head += piece[:count]
    except DamagedArchiveError:
        pass  # reported where the pages are read
    finally:
        source.close()
    return bytes(head).decode("utf-8-sig", "replace")


def read_pages(
    path: str, start: int = 0, end: int = -1, *, size: int = -1, storage_options: StorageOptions = None
) -> Iterator[Page | Problem]:
    """The pages that begin in a range of the stored bytes, in order.

    Args:
        path: The dump, compressed or not.
        start: First stored byte; in a bzip2 file the beginning of a stream.
        end: One past the last; -1 for the end of the file.
        size: Size of the file; a range that reaches it must contain the end of the dump.
        storage_options: File system options for URLs.
    """
    cutter = _Cutter(check_end=end < 0 or end >= size >= 0)
    parser = _PageParser()
    for found in cutter.pages(_pieces(path, start, end, storage_options)):
        if isinstance(found, Problem):
            yield found
            continue
        try:
            yield parser.page(bytes(found))
        except (expat.ExpatError, ValueError) as error:
            told = f"a page is not well-formed XML: {error}"
            yield Problem("corrupt_xml", told, cutter.offset, bytes(found[: 1 << 16]), len(found), False)


def _pieces(path: str, start: int, end: int, storage_options: StorageOptions) -> Iterator[bytes | Problem]:
    codec = codec_of(path)
    if codec == "bz2":
        for piece in decoded_streams(path, start, end, storage_options=storage_options):
            yield _told(piece) if isinstance(piece, BrokenStream) else piece
        return
    if codec == "none":
        source = open_raw(path, storage_options=storage_options)
        source.seek(start)
    else:
        source = open_source(path, storage_options=storage_options)
        end = -1
    buffer = memoryview(bytearray(_PIECE))
    left = end - start
    try:
        while count := source.readinto(buffer if end < 0 or left <= 0 else buffer[:left]):
            yield bytes(buffer[:count])
            if end >= 0:
                left -= count
                if left == 0:
                    yield BORDER
    finally:
        source.close()
    yield BORDER


def _told(broken: BrokenStream) -> Problem:
    place = f"the bzip2 stream at byte {broken.start}"
    if broken.cut:
        told = f"{place} is truncated: the file ends inside it, and its pages are lost"
    else:
        told = f"{place} is damaged: its pages are lost, and reading continues {format_size(broken.size)} further"
        if broken.rest:
            told = f"{place} is damaged, and nothing after the damage can be read"
    cause = "truncated_file" if broken.cut else "corrupt_archive"
    return Problem(cause, told, -1, b"", broken.size, broken.rest)


@dataclass
class _Cutter:
    """Finds pages in pieces of XML; those that begin after the border belong to the next range.

    Attributes:
        check_end: The range reaches the end of the file, where the dump must be closed.
        offset: Start of the last page found, relative to the first byte read.
    """

    check_end: bool
    offset: int = 0
    _held: bytearray = field(default_factory=bytearray)
    _passed: int = 0  # bytes that were held before those that are held now
    _border: int = -1

    def pages(self, pieces: Iterator[bytes | Problem]) -> Iterator[bytes | Problem]:
        held, searched, too_large, any_damage, closed = self._held, 0, 0, False, False
        for piece in pieces:
            if isinstance(piece, Problem):
                yield piece  # and the page that it breaks off is lost with it
                if piece.rest:
                    return
                self._passed += len(held)
                held.clear()
                searched = too_large = 0
                any_damage = True
                continue
            if piece == BORDER:
                if self._border >= 0:
                    continue
                self._border = self._passed + len(held)
                if not too_large and b"<" not in held[-len(_OPEN) :] and not held.startswith(_OPEN):
                    break
                continue
            held += piece
            at = 0
            while True:
                if not too_large and not held.startswith(_OPEN, at):
                    start = held.find(_OPEN, at)
                    if start < 0:
                        closed = closed or _END in held
                        at = max(at, len(held) - len(_OPEN) + 1)
                        break
                    at = searched = start
                    if 0 <= self._border <= self._passed + start:
                        return
                stop = held.find(_CLOSE, max(at, searched))
                if stop < 0:
                    searched = max(at, len(held) - len(_CLOSE) + 1)
                    if len(held) - at > MAX_PAGE_BYTES or too_large:
                        too_large += searched - at
                        at = searched
                    break
                if too_large:
                    yield self._too_large(too_large + stop - at)
                    too_large = 0
                else:
                    self.offset = self._passed + at
                    yield bytes(memoryview(held)[at : stop + len(_CLOSE)])
                at = searched = stop + len(_CLOSE)
            self._passed += at
            del held[:at]
            searched = max(0, searched - at)
        if too_large:
            yield self._too_large(too_large + len(held))
        elif held.startswith(_OPEN) or (self.check_end and not closed and not any_damage and _END not in held):
            told = "the dump ends inside a page" if held.startswith(_OPEN) else "the dump ends without </mediawiki>"
            told += ": it is truncated, and the rest is lost"
            yield Problem("truncated_file", told, self._passed, bytes(held[: 1 << 16]), len(held), False)

    def _too_large(self, size: int) -> Problem:
        told = f"a page has {format_size(size)} of XML, over {format_size(MAX_PAGE_BYTES)}"
        return Problem("record_too_large", told, self._passed, b"", size, False)


class _PageParser:
    """Parses the XML of single pages."""

    def __init__(self) -> None:
        self._path: list[str] = []
        self._values: dict[str, str] = {}
        self._text: list[str] = []

    def page(self, xml: bytes) -> Page:
        """The page of a `<page>` element.

        Raises:
            ExpatError: It is not well-formed, or uses an entity that XML itself does not have.
            ValueError: Its namespace is not a number.
        """
        parser = expat.ParserCreate("utf-8")
        parser.buffer_text = True
        parser.StartElementHandler = self._start
        parser.EndElementHandler = self._end
        parser.CharacterDataHandler = self._text.append
        self._path.clear()
        self._values.clear()
        parser.Parse(xml, True)
        get = self._values.get
        return Page(
            id=get("page/id", ""),
            title=get("page/title", ""),
            namespace=int(get("page/ns", "0")),
            redirect="page/redirect" in self._values,
            timestamp=get("page/revision/timestamp", ""),
            wikitext=get("page/revision/text", ""),
        )

    def _start(self, name: str, attributes: dict[str, str]) -> None:
        self._path.append(name)
        self._text.clear()

    def _end(self, name: str) -> None:
        if len(self._path) <= 3:
            self._values["/".join(self._path)] = "".join(self._text)
        self._path.pop()
        self._text.clear()
