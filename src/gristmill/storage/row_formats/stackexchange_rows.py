"""Posts.xml of a StackExchange dump: one row per question, answer or other post."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any
from xml.parsers import expat

import pyarrow as pa

from gristmill.figures import format_size
from gristmill.storage.compression import open_source
from gristmill.storage.files import StorageOptions
from gristmill.storage.partitions import FileRange
from gristmill.storage.row_formats import Broken, Rows
from gristmill.storage.row_formats.simple_html import text_of

_PIECE = 4 << 20
_LONGEST_ROW = 64 << 20
_GROUP = 1000
_KINDS = {
    "1": "question", "2": "answer", "3": "wiki", "4": "tag_wiki_excerpt", "5": "tag_wiki", "6": "election",
    "7": "placeholder", "8": "privilege_wiki",
}  # fmt: skip
_TAG = re.compile(r"[^<>|]+")
_SCHEMA = pa.schema(
    [
        ("id", pa.string()),
        ("file_name", pa.string()),
        ("kind", pa.string()),
        ("parent_id", pa.string()),
        ("accepted_answer_id", pa.string()),
        ("title", pa.string()),
        ("tags", pa.list_(pa.string())),
        ("score", pa.int64()),
        ("date", pa.string()),
        ("license", pa.string()),
        ("text", pa.large_string()),
    ]
)


class _UnsafeXmlError(Exception):
    """The document declares entities, which dumps never do."""


class _Posts:
    """Collects the elements of the document as they are parsed."""

    def __init__(self, file_name: str) -> None:
        self.rows: list[dict[str, Any] | Broken] = []
        self.count = 0
        self._file_name = file_name
        self._depth = 0
        self.parser = expat.ParserCreate()
        self.parser.StartElementHandler = self._start
        self.parser.EndElementHandler = self._end
        self.parser.EntityDeclHandler = self._entity

    def _entity(self, name: str, *_: Any) -> None:
        raise _UnsafeXmlError(f"the file declares the entity {name[:80]!r}, and entities may expand without limit")

    def _end(self, name: str) -> None:
        self._depth -= 1

    def _start(self, name: str, values: Mapping[str, str]) -> None:
        self._depth += 1
        if self._depth == 1:
            if name != "posts":
                raise _UnsafeXmlError(f"the file holds <{name[:80]}>, not the <posts> of a StackExchange dump")
            return
        self.count += 1
        offset = self.parser.CurrentByteIndex
        if name != "row" or "Id" not in values or "Body" not in values:
            told = f"<{name[:80]}> with {', '.join(sorted(values)[:20]) or 'nothing'} is not a post: no Id or no Body"
            self.rows.append(Broken("not_a_post", told, offset, values.get("Id", "").encode()))
            return
        kind = values.get("PostTypeId", "")
        self.rows.append(
            {
                "id": values["Id"],
                "file_name": self._file_name,
                "kind": _KINDS.get(kind, kind),
                "parent_id": values.get("ParentId"),
                "accepted_answer_id": values.get("AcceptedAnswerId"),
                "title": values.get("Title"),
                "tags": _TAG.findall(values.get("Tags", "")),
                "score": _number(values.get("Score")),
                "date": values.get("CreationDate"),
                "license": values.get("ContentLicense"),
                "text": text_of(values["Body"]),
            }
        )


def read_rows(part: FileRange, *, storage_options: StorageOptions = None) -> Rows:
    """The posts in order; anything else is `Broken`, and so is everything after an XML error."""
    posts = _Posts(part.relative)
    source = open_source(part.path, storage_options=storage_options)
    buffer = bytearray(_PIECE)
    silent = 0
    try:
        while True:
            count = source.readinto(memoryview(buffer)) or 0
            before = posts.count
            problem = _fed(posts, bytes(memoryview(buffer)[:count]), last=not count)
            # What came before a fault is complete.
            if len(posts.rows) >= _GROUP or problem is not None or not count:
                yield from _tables(posts.rows)
                posts.rows = []
            if problem is not None:
                yield problem
                return
            if not count:
                return
            silent = 0 if posts.count > before else silent + count
            if silent > _LONGEST_ROW:
                told = f"over {format_size(_LONGEST_ROW)} without a post"
                yield Broken("record_too_large", told, posts.parser.CurrentByteIndex, size=silent, rest=True)
                return
    finally:
        source.close()


def _fed(posts: _Posts, piece: bytes, *, last: bool) -> Broken | None:
    try:
        posts.parser.Parse(piece, last)
    except _UnsafeXmlError as error:
        return Broken("unsafe_xml", str(error), posts.parser.CurrentByteIndex, rest=True)
    except expat.ExpatError as error:
        offset = posts.parser.ErrorByteIndex
        cause = "truncated_file" if last else "corrupt_xml"
        return Broken(cause, f"the XML is not well-formed: {error}", offset, rest=True)
    except LookupError as error:  # an encoding that does not exist
        return Broken("corrupt_xml", f"the XML cannot be decoded: {error}", 0, rest=True)
    return None


def _tables(rows: list[dict[str, Any] | Broken]) -> Rows:
    group: list[dict[str, Any]] = []
    for row in rows:
        if isinstance(row, Broken):
            if group:
                yield pa.Table.from_pylist(group, _SCHEMA)
                group = []
            yield row
        else:
            group.append(row)
    if group:
        yield pa.Table.from_pylist(group, _SCHEMA)


def _number(text: str | None) -> int | None:
    text = (text or "").strip()
    return int(text) if re.fullmatch(r"-?[0-9]{1,18}", text) else None
