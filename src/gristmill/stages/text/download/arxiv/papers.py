"""The papers of an arXiv archive: a tar of one compressed source per paper. Nothing is written to disk."""

from __future__ import annotations

import io
import posixpath
import re
import tarfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import IO, Self

from gristmill.figures import format_size
from gristmill.stages.text.download.arxiv.latex.source import decoded
from gristmill.storage.row_formats import Broken

MAX_MEMBER_BYTES = 256 << 20
MAX_LATEX_BYTES = 32 << 20
_MOST_FILES = 20_000
_TEXT_SUFFIXES = (".tex", ".ltx", ".latex", ".sty", ".cls", ".def", ".inc")
_OLD_ID = re.compile(r"([a-z-]+(?:\.[A-Z]{2})?)(\d{7})")
# What `tarfile` raises for a damaged archive, in addition to its own errors.
_DAMAGE = (tarfile.TarError, EOFError, OSError, ValueError, OverflowError, IndexError)


@dataclass(frozen=True, slots=True)
class Paper:
    """The source of one paper.

    Attributes:
        id: Its identifier, such as `2101.00001` or `astro-ph/0001001`.
        files: The LaTeX files by their path in the source.
    """

    id: str
    files: dict[str, str]


class _Member(tarfile.TarInfo):
    """A member with a valid header; `tarfile` treats a damaged header as the end of the archive."""

    @classmethod
    def fromtarfile(cls, archive: tarfile.TarFile) -> Self:
        try:
            return super().fromtarfile(archive)
        except (tarfile.EmptyHeaderError, tarfile.EOFHeaderError):  # type: ignore[attr-defined]
            raise
        except tarfile.HeaderError as error:
            raise tarfile.ReadError(f"a damaged header ({error})") from error


def papers(archive: IO[bytes]) -> Iterator[Paper | Broken]:
    """The papers in archive order; anything else is `Broken`, with its cause.

    Links, devices and names that lead out of the archive are never followed: each yields one `Broken`.
    """
    try:
        opened = tarfile.open(fileobj=archive, mode="r|", tarinfo=_Member)  # noqa: SIM115 (the caller closes the file beneath)
    except _DAMAGE as error:
        yield Broken("corrupt_archive", f"it is not a tar archive: {error}", 0, rest=True)
        return
    while True:
        try:
            member = opened.next()
            if member is None:
                return
            unsafe = _unsafe(member)
            if unsafe is None and not member.isdir() and member.size <= MAX_MEMBER_BYTES:
                file = opened.extractfile(member)
                content = b"" if file is None else file.read()
        except _DAMAGE as error:
            yield Broken("truncated_file", f"the rest of the archive cannot be read: {error}", rest=True)
            return
        opened.members = []  # type: ignore[attr-defined]  # a stream never goes back: they would only pile up
        if unsafe is not None:
            yield unsafe
        elif member.isdir():
            continue
        elif member.size > MAX_MEMBER_BYTES:
            yield _too_large(member.name, member.size, MAX_MEMBER_BYTES)
        else:
            yield from _paper(member.name, content, member.offset)


def _unsafe(member: tarfile.TarInfo) -> Broken | None:
    name = member.name
    if not member.isfile() and not member.isdir():
        kind = "a link" if member.issym() or member.islnk() else "a device or pipe"
        told = f"{name!r} is {kind}, which is not followed"
        return Broken("unsafe_member", told, member.offset, name.encode("utf-8", "replace"))
    if name.startswith(("/", "\\")) or ".." in name.replace("\\", "/").split("/"):
        told = f"the name {name!r} leads out of the archive"
        return Broken("unsafe_member", told, member.offset, name.encode("utf-8", "replace"))
    return None


def _paper(name: str, content: bytes, offset: int) -> Iterator[Paper | Broken]:
    """The paper of one archive member, whatever its packing."""
    if content.startswith(b"\x1f\x8b"):
        decoder = zlib.decompressobj(wbits=31)
        try:
            unpacked = decoder.decompress(content, MAX_MEMBER_BYTES)
        except zlib.error as error:
            yield Broken("corrupt_archive", f"{name!r} does not decompress: {error}", offset, content, len(content))
            return
        if decoder.unconsumed_tail:
            yield _too_large(name, len(unpacked), MAX_MEMBER_BYTES)
            return
        if not decoder.eof:
            yield Broken("truncated_file", f"{name!r} ends prematurely", offset, content, len(content))
            return
        content = unpacked
    if not content.strip():
        yield Broken("no_latex", f"{name!r} is empty", offset)
        return
    if content[257:262] == b"ustar" or (content[100:108].rstrip(b"\0 ").isdigit() and b"\0" in content[:512]):
        files: dict[str, str] = {}
        for found in _files(name, content):
            if isinstance(found, Broken):
                yield replace(found, rest=False)  # the next paper is not affected
                if found.rest:
                    return
            else:
                files[found[0]] = found[1]
    else:
        files = {} if _other_kind(content) else {"paper.tex": decoded(content)}
        if len(content) > MAX_LATEX_BYTES:
            yield _too_large(name, len(content), MAX_LATEX_BYTES)
            return
    if any("\\" in text for text in files.values()):
        yield Paper(_identifier(name), files)
    else:
        told = _other_kind(content) or "it contains no LaTeX file"
        yield Broken("no_latex", f"{name!r}: {told}", offset, content[:1000], len(content))


def _other_kind(content: bytes) -> str | None:
    """The type of a submission that is not LaTeX."""
    head = content[:2000].lstrip()
    if head.startswith(b"%PDF-"):
        return "the paper is a PDF, which PdfReader reads"
    if head.startswith((b"%!PS", b"\x04%!PS")):
        return "the paper is PostScript"
    if head.lower().startswith((b"<!doctype html", b"<html")):
        return "the paper is HTML"
    if head.startswith(b"PK\3\4"):
        return "the paper is a ZIP archive, such as DOCX"
    if head.startswith(b"%auto-ignore"):
        return "the paper has been withdrawn"
    return "it contains bytes that are not text" if b"\0" in content[:100_000] else None


def _files(paper: str, content: bytes) -> Iterator[tuple[str, str] | Broken]:
    """The LaTeX files of a source; a damaged archive ends with a `Broken` that covers its `rest`."""
    total = 0
    try:
        with tarfile.open(fileobj=io.BytesIO(content), mode="r:", tarinfo=_Member) as opened:
            for count, member in enumerate(opened):
                unsafe = _unsafe(member)
                if unsafe is not None:
                    yield Broken(unsafe.cause, f"in {paper!r}: {unsafe.detail}", raw=unsafe.raw)
                    continue
                if not member.isfile() or not _is_text(member.name):
                    continue
                total += member.size
                if total > MAX_LATEX_BYTES or count > _MOST_FILES:
                    yield _too_large(paper, total, MAX_LATEX_BYTES, rest=True)
                    return
                file = opened.extractfile(member)
                text = b"" if file is None else file.read()
                if b"\0" not in text[:10_000]:
                    yield posixpath.normpath(member.name), decoded(text)
    except _DAMAGE as error:
        yield Broken("corrupt_archive", f"the source {paper!r} cannot be read: {error}", raw=content[:1000], rest=True)


def _is_text(name: str) -> bool:
    base = posixpath.basename(name)
    return base.lower().endswith(_TEXT_SUFFIXES) or "." not in base or base.startswith("00README")


def _identifier(name: str) -> str:
    """The identifier of a paper from the name of its member, such as `2101/2101.00001.gz`."""
    stem = posixpath.basename(name)
    for suffix in (".gz", ".tar", ".tex", ".pdf"):
        stem = stem.removesuffix(suffix)
    old = _OLD_ID.fullmatch(stem)
    return f"{old[1]}/{old[2]}" if old else stem


def _too_large(name: str, size: int, most: int, *, rest: bool = False) -> Broken:
    told = f"{name!r} holds more than {format_size(most)}, the maximum size of a source"
    return Broken("record_too_large", told, size=size, raw=name.encode("utf-8", "replace"), rest=rest)
