"""Mail: a row per message of an mbox file, or per file of one message."""

from __future__ import annotations

import email.errors
import email.message
import email.parser
import email.policy
import email.utils
import re
from collections.abc import Iterator
from email.header import decode_header

import pyarrow as pa

from gristmill.figures import format_size
from gristmill.storage.compression import ByteSource, open_source
from gristmill.storage.files import StorageOptions
from gristmill.storage.partitions import FileRange
from gristmill.storage.row_formats import Broken, Rows
from gristmill.storage.row_formats.simple_html import text_of

MAX_MESSAGE_BYTES = 64 << 20
_PIECE = 4 << 20
_GROUP_BYTES = 4 << 20
# The line before a message: it follows a blank one and ends with a date. A line of a text that begins so has none.
_DATED = re.compile(rb"(?:\A|(?<=\n\n)|(?<=\n\r\n))From [^\r\n]{0,300}\d\d:\d\d[^\r\n]{0,100}\r?\n")
_PLAIN = re.compile(rb"(?:\A|(?<=\n\n)|(?<=\n\r\n))From [^\r\n]{0,400}\r?\n")
_LONGEST_BORDER = 512
_ESCAPED = re.compile(rb"^>(>*From )", re.MULTILINE)
_HEADER = re.compile(rb"[!-9;-~]+[ \t]*:")
# What texts without a charset, or with a wrong one, are taken for.
_FALLBACK = "cp1252"


def read_rows(part: FileRange, *, storage_options: StorageOptions = None, sender: bool = False) -> Rows:
    """Rows with subject, date and text of messages, and the sender if requested."""
    source = open_source(part.path, storage_options=storage_options)
    group: list[dict[str, str | None]] = []
    size = 0
    try:
        for number, found in enumerate(_messages(source)):
            row = found if isinstance(found, Broken) else _row(part, *found, number, sender=sender)
            if isinstance(row, Broken) or size > _GROUP_BYTES:
                yield from _table(group, sender)
                group, size = [], 0
            if isinstance(row, Broken):
                yield row
            else:
                group.append(row)
                size += len(row["text"] or "")
    finally:
        source.close()
    yield from _table(group, sender)


def _table(group: list[dict[str, str | None]], sender: bool) -> Iterator[pa.Table]:
    names = ["id", "file_name", "message_id", "subject", "date", *(["from"] if sender else []), "text"]
    if group:
        columns = [pa.array([row[name] for row in group], pa.large_string()) for name in names]
        yield pa.table(columns, names=names)


def _messages(source: ByteSource) -> Iterator[tuple[bytes, int, bool] | Broken]:
    """Messages with their positions, and whether they are in a mailbox."""
    held, offset = bytearray(), 0
    border: re.Pattern[bytes] | None = None
    first, searched, ended, lost = True, 0, False, 0
    buffer = bytearray(_PIECE)
    while not ended:
        count = _fill(source, buffer)
        held += memoryview(buffer)[:count]
        ended = count < _PIECE
        if first:
            first = False
            if held.startswith(b"From "):
                border = _DATED if _DATED.match(held) else _PLAIN
                start = border.match(held)
                searched = start.end() if start else 0
                del held[:searched]
                offset, searched = searched, 0
        at = 0
        if border is not None:
            # A border needs what stands before it, and may not be complete yet.
            for found in border.finditer(held, max(0, searched - 3)):
                if found.start() == 0 or (found.end() == len(held) and not ended):
                    continue
                if lost:
                    yield _too_large(offset + at, lost + found.start() - at)
                    lost = 0
                else:
                    yield bytes(held[at : found.start()]), offset + at, True
                at = found.end()
        del held[:at]
        offset += at
        searched = max(0, len(held) - _LONGEST_BORDER)
        if len(held) > MAX_MESSAGE_BYTES:
            # Only its end is kept, where the next message may begin.
            cut = len(held) - _LONGEST_BORDER
            lost += cut
            del held[:cut]
            offset, searched = offset + cut, 3
    if lost:
        yield _too_large(offset, lost + len(held))
    elif held.strip() or border is not None:
        yield bytes(held), offset, border is not None


def _fill(source: ByteSource, buffer: bytearray) -> int:
    """Read until the buffer is full or the source ends, so that a line is not cut by a short read."""
    filled = 0
    while filled < len(buffer) and (count := source.readinto(memoryview(buffer)[filled:])):
        filled += count
    return filled


def _too_large(offset: int, size: int) -> Broken:
    told = f"the message has {format_size(size)}, over {format_size(MAX_MESSAGE_BYTES)}"
    return Broken("record_too_large", told, offset, size=size)


def _row(
    part: FileRange, content: bytes, offset: int, in_mailbox: bool, number: int, *, sender: bool
) -> dict[str, str | None] | Broken:
    if in_mailbox:
        content = _ESCAPED.sub(rb"\1", content)
    if not _HEADER.match(content.lstrip(b"\r\n")):
        return Broken("corrupt_mail", "it does not begin with a mail header", offset, content, len(content))
    try:
        message = email.parser.BytesParser(policy=email.policy.compat32).parsebytes(content.lstrip(b"\r\n"))
        text = "\n\n".join(filter(None, _texts(message)))
        row = {
            "id": f"{part.relative}#{number}" if in_mailbox else part.relative,
            "file_name": part.relative,
            "message_id": (_header(message, "Message-ID") or "").strip("<> ") or None,
            "subject": _header(message, "Subject"),
            "date": _date(message),
            "text": text,
        }
        return {**row, "from": _header(message, "From")} if sender else row
    except (RecursionError, email.errors.MessageError, ValueError, LookupError, AssertionError) as error:
        told = f"the message cannot be parsed: {type(error).__name__}: {error}"
        return Broken("corrupt_mail", told, offset, content, len(content))


def _texts(message: email.message.Message) -> Iterator[str]:
    """The texts of a message; of alternatives the plain one, and HTML only if there is no other."""
    kind = message.get_content_type()
    if message.get_content_disposition() == "attachment":
        return
    if message.is_multipart():
        parts = [part for part in message.get_payload() if isinstance(part, email.message.Message)]
        if kind == "multipart/alternative":
            plain = [part for part in parts if part.get_content_type() == "text/plain"]
            parts = plain or [part for part in parts if part.get_content_type().startswith(("text/", "multipart/"))]
        for part in parts:
            yield from _texts(part)
    elif kind in ("text/plain", "text/html"):
        text = _decoded(message)
        yield text_of(text) if kind == "text/html" else text.strip("\n")


def _decoded(part: email.message.Message) -> str:
    content = part.get_payload(decode=True)
    if not isinstance(content, bytes):
        return ""
    declared = part.get_content_charset()
    for charset in (declared, "utf-8"):
        try:
            if charset and charset not in ("us-ascii", "ascii"):
                return content.decode(charset).replace("\r\n", "\n")
        except (LookupError, UnicodeError, ValueError):
            continue
    return content.decode(_FALLBACK, "replace").replace("\r\n", "\n")


def _header(message: email.message.Message, name: str) -> str | None:
    value = message.get(name)
    if value is None:
        return None
    given = str(value)[:10_000]
    try:
        parts = [
            part.decode(charset if charset and charset != "unknown-8bit" else "utf-8", "replace")
            if isinstance(part, bytes)
            else part
            for part, charset in decode_header(given)
        ]
    except (LookupError, ValueError, email.errors.HeaderParseError):
        parts = [given]
    text = "".join(parts).encode("utf-8", "replace").decode("utf-8")
    return " ".join(text.split())


def _date(message: email.message.Message) -> str | None:
    try:
        return email.utils.parsedate_to_datetime(str(message.get("Date"))[:200]).isoformat()
    except (ValueError, TypeError, IndexError, OverflowError):
        return None
