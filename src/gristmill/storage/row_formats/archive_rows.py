"""Archives (`.tar`, compressed or not, and `.zip`) of text and HTML files: nothing is unpacked, no link is followed."""

from __future__ import annotations

import io
import posixpath
import re
import tarfile
import zipfile
import zlib
from collections import Counter
from collections.abc import Iterator
from typing import IO, Any, Literal

from gristmill.figures import format_size
from gristmill.storage.compression import ByteSource, DecompressedSource, SourceFileObject, open_raw, open_source
from gristmill.storage.files import StorageOptions, skip_reason
from gristmill.storage.formats import format_of
from gristmill.storage.partitions import FileRange
from gristmill.storage.row_formats import Broken, Rows
from gristmill.storage.row_formats.file_rows import page_of
from gristmill.storage.row_formats.text_rows import documents_of
from gristmill.storage.row_formats.text_source import TextSource

Content = Literal["text", "html"]

_MOST_TIMES = 1000
_FREE_BYTES = 1 << 30
"""An archive that yields over a gibibyte and this many times its own size is malicious."""
_MOST_HEADER_BYTES = 1 << 20
_BESIDE = re.compile(r"(readme|licen[cs]e|notice|copying|changelog)\b", re.IGNORECASE)
"""Files that accompany the data of an archive, and do not indicate its type."""


def read_rows(
    part: FileRange,
    *,
    storage_options: StorageOptions = None,
    content: Content | None = None,
    document: str = "file",
    text_field: str = "text",
    encoding: str | None = None,
) -> Rows:
    """The documents of text or HTML members; without `content`, the first such member decides the type."""
    skipped: Counter[str] = Counter()
    found = False
    try:
        for member in _members(part, storage_options):
            if isinstance(member, Broken):
                yield member
                continue
            name, source = posixpath.normpath(member[0]), member[1]  # `tar -c .` has ./ before every name
            kind = format_of(name)
            if content is None and kind in ("text", "html") and not _BESIDE.match(posixpath.basename(name)):
                content = kind
            shown = f"{part.relative}/{name}"
            if kind is not None and kind == content and _takes(name):
                found = True
                yield from _documents(source, shown, kind, document, text_field, encoding)
            elif kind not in (None, "text", "html") and _takes(name):
                told = f"{shown} is a data file, which is not read inside an archive: unpack the archive"
                yield Broken("other_format", told, size=0)
            else:
                skipped[posixpath.splitext(name)[1] or "(none)"] += 1
    except _ExpandsError as error:
        yield Broken("corrupt_archive", str(error), rest=True)
        return
    except (tarfile.TarError, zipfile.BadZipFile) as error:
        yield Broken("corrupt_archive", f"the archive cannot be read further: {error}", rest=True)
        return
    if not found and skipped:
        listed = ", ".join(f"{count} × {ending}" for ending, count in skipped.most_common(5))
        yield Broken("other_format", f"no member of the archive is a text or HTML file by its name; it holds {listed}")


def _takes(name: str) -> bool:
    return all(skip_reason(piece, folder=False) is None for piece in name.split("/"))


def _documents(source: ByteSource, name: str, kind: str, document: str, text_field: str, encoding: str | None) -> Rows:
    """The documents of a member; a damaged one yields one `Broken`, and reading continues with the next."""
    try:
        if kind == "html":
            yield from page_of(source, name)
        else:
            yield from documents_of(TextSource(source, encoding), name, document=document, text_field=text_field)
    except (zipfile.BadZipFile, zlib.error, NotImplementedError, EOFError) as error:
        if isinstance(source, _Counted) and source.of_zip:
            yield Broken("corrupt_archive", f"the member {name} cannot be read: {error}")
            return
        raise


class _ExpandsError(Exception):
    """An archive expands to far more data than plausible."""


class _Counted:
    """A member, or a whole tar file, with a limit on its size relative to the archive."""

    def __init__(self, source: Any, budget: list[int], *, of_zip: bool) -> None:
        self._source = source
        self._budget = budget
        self.of_zip = of_zip

    def readinto(self, target: memoryview, /) -> int:
        """Fill the front of `target`; 0 at the end."""
        count: int = self._source.readinto(target) or 0
        self._budget[0] -= count
        if self._budget[0] < 0:
            raise _ExpandsError(
                f"it expands to over {_MOST_TIMES} times its own size, and over {format_size(_FREE_BYTES)}; the rest "
                "is not read"
            )
        return count

    def close(self) -> None:
        """Close it."""
        self._source.close()


def _members(part: FileRange, storage_options: StorageOptions) -> Iterator[tuple[str, ByteSource] | Broken]:
    """The regular files of an archive by name; `Broken` for links and paths outside of it."""
    size = max(part.size, 0)
    budget = [max(_FREE_BYTES, size * _MOST_TIMES)]
    if part.relative.lower().endswith(".zip"):
        with open_raw(part.path, storage_options=storage_options) as raw:
            yield from _zip_members(raw, budget)
        return
    source: ByteSource = open_source(part.path, storage_options=storage_options)
    if part.relative.lower().endswith(".tgz"):
        source = DecompressedSource(source, "gz", path=part.path)  # type: ignore[arg-type]
    # A whole buffer at a time: a member is read piece by piece.
    with io.BufferedReader(SourceFileObject(_Counted(source, budget, of_zip=False)), 1 << 20) as stream:
        yield from _tar_members(stream)


def _zip_members(raw: IO[bytes], budget: list[int]) -> Iterator[tuple[str, ByteSource] | Broken]:
    with zipfile.ZipFile(raw) as archive:
        for info in archive.infolist():
            if info.is_dir():
                continue
            if (problem := _unsafe(info.filename)) or (info.external_attr >> 28) == 0o12:
                yield _refused(info.filename, problem or "is a link, which is not followed")
                continue
            if info.flag_bits & 1:
                yield Broken("corrupt_archive", f"the member {info.filename} is encrypted")
                continue
            try:
                member = archive.open(info)
            except (zipfile.BadZipFile, NotImplementedError, zlib.error) as error:
                yield Broken("corrupt_archive", f"the member {info.filename} cannot be read: {error}")
                continue
            with member:
                yield info.filename, _Counted(member, budget, of_zip=True)


def _tar_members(stream: Any) -> Iterator[tuple[str, ByteSource] | Broken]:
    with tarfile.open(fileobj=stream, mode="r|", tarinfo=_TarMember, errorlevel=1) as archive:
        for info in archive:
            archive.members = []  # type: ignore[attr-defined]  # otherwise all of them are kept
            if info.isdir():
                continue
            if problem := _unsafe(info.name):
                yield _refused(info.name, problem)
            elif info.islnk() or info.issym():
                yield _refused(info.name, f"is a link to {info.linkname!r}, which is not followed")
            elif not info.isreg():
                yield _refused(info.name, "is a device or a pipe")
            elif (member := archive.extractfile(info)) is not None:
                with member:
                    yield info.name, member  # type: ignore[misc]


class _TarMember(tarfile.TarInfo):
    """Raises for a broken header, which the library would treat as the end of the archive."""

    @classmethod
    def frombuf(cls, buf: Any, encoding: str, errors: str) -> _TarMember:
        """The header in a block."""
        try:
            made = super().frombuf(buf, encoding, errors)
        except (tarfile.InvalidHeaderError, tarfile.TruncatedHeaderError) as error:  # type: ignore[attr-defined]
            raise tarfile.ReadError(f"the header of a member is broken ({error})") from None
        special = made.type not in tarfile.SUPPORTED_TYPES or made.type in tarfile.GNU_TYPES
        if (special or made.type in b"xgX") and made.size > _MOST_HEADER_BYTES:
            raise tarfile.ReadError(f"a header claims a size of {format_size(made.size)}")
        return made


def _unsafe(name: str) -> str | None:
    """The problem with the name of a member, if any."""
    plain = name.replace("\\", "/")
    if plain.startswith("/") or re.match(r"[A-Za-z]:/", plain):
        return "has an absolute path"
    if ".." in plain.split("/"):
        return "has a path that leads out of the archive"
    return "has a name with a NUL character" if "\0" in name else None


def _refused(name: str, problem: str) -> Broken:
    return Broken("unsafe_member", f"the member {name!r} {problem}")
