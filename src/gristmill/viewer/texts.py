"""The texts of documents, read from the input (or the output) on demand; no copy is kept on disk."""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import xxhash

from gristmill.errors import GristmillError
from gristmill.ledger.ask.ledger import Ledger
from gristmill.ledger.ask.lookup import Record, output_record, source_records, text_of
from gristmill.ledger.record.manifest import ManifestEntry
from gristmill.storage.files import is_local, local_path

_CACHED_CHARS = 32 << 20
_MAX_CACHED_CHARS = 4 << 20
_UNREADABLE = (OSError, GristmillError, pa.ArrowException, EOFError, ValueError)


@dataclass(frozen=True, slots=True)
class Found:
    """A record read again from its file.

    Attributes:
        record: Its fields; None if it was not found.
        file: The file it is in.
        note: Why there is no record, or what makes it doubtful.
    """

    record: Record | None
    file: str = ""
    note: str = ""


class Texts:
    """Records of a run by partition and row, read again from the files; the latest are cached in memory, up to 64 MB.

    Args:
        ledger: The ledger of the run.
        text_field: The field with the text.
        id_field: The field with the id, which confirms that a record is the one that the run read.
    """

    def __init__(self, ledger: Ledger, text_field: str, id_field: str = "id") -> None:
        self._ledger = ledger
        self.text_field = text_field
        self.id_field = id_field
        self._lock = threading.Lock()
        self._held: OrderedDict[tuple[str, int], tuple[int, Found]] = OrderedDict()
        self._size = 0

    def text(self, record: Record) -> str | None:
        """The text of a record."""
        return text_of(record, self.text_field)

    def missing_text(self, record: Record) -> str:
        """The message for a record without text."""
        there = ", ".join(map(str, list(record)[:20])) or "no fields"
        return f"No text in the field {self.text_field!r}; there is {there}. Name the field with --text-field."

    def input(self, entry: ManifestEntry, row: int) -> Found:
        """The record of a row of a partition as it was read."""
        return next(found for _, found in self.each(entry, [row]))

    def each(self, entry: ManifestEntry, rows: Iterable[int]) -> Iterator[tuple[int, Found]]:
        """The records of some rows of a partition one by one, in one pass over its input; cached ones come first."""
        missing = set(rows)
        for row in sorted(missing):
            with self._lock:
                held = self._held.get((entry.partition, row))
                if held is not None:
                    self._held.move_to_end((entry.partition, row))
            if held is not None:
                missing.remove(row)
                yield row, held[1]
        if not missing:
            return
        note = changed_input(entry)
        hashes = self._ledger.index(entry)[0]
        try:
            for row, file, record in source_records(entry, list(missing)):
                doubt = note
                known = int(hashes[row]) if hashes is not None and row < len(hashes) else 0
                if known and record is not None and _is_other(record.get(self.id_field), known):
                    doubt = f"{file} has changed since the run: this is not the document that was read."
                if record is None:
                    doubt = "The record is not a JSON object."
                missing.remove(row)
                yield row, self._hold(entry.partition, row, Found(record, file, doubt))
            gone = note or "The input has no readable record at this position."
        except _UNREADABLE as error:
            gone = f"No text: {_gone(entry, error)}"
        for row in sorted(missing):
            yield row, Found(None, note=gone)

    def output(self, entry: ManifestEntry, row: int, name: str | None = None) -> Found:
        """The record of a kept document as it was written, found by its id or URL."""
        try:
            record = output_record(self._ledger, entry, row, name=name)
        except _UNREADABLE as error:
            return Found(None, note=f"The output cannot be read: {error}")
        file = ", ".join(self._ledger.folder.shown(one.path) for one in entry.files[:3])
        if record is None:
            return Found(None, file, "Not found in the output: a document needs an id or a URL to be looked up there.")
        return Found(record, file)

    def _hold(self, partition: str, row: int, found: Found) -> Found:
        size = sum(len(value) for value in (found.record or {}).values() if isinstance(value, str)) + 500
        if size <= _MAX_CACHED_CHARS:
            with self._lock:
                self._size += size - self._held.pop((partition, row), (0, found))[0]
                self._held[partition, row] = (size, found)
                while self._size > _CACHED_CHARS:
                    self._size -= self._held.popitem(last=False)[1][0]
        return found


def _is_other(name: Any, known: int) -> bool:
    """Whether an id differs from the one in the index; ids other than strings and numbers are not compared."""
    if isinstance(name, bool) or not isinstance(name, str | int):
        return False
    try:
        return (xxhash.xxh64_intdigest(str(name).encode()) or 1) != known
    except UnicodeEncodeError:
        return False


def changed_input(entry: ManifestEntry) -> str:
    """The message if a source file of a partition has changed since it was read; empty if nothing is known."""
    for part in entry.source:
        path = str(part["path"])
        if is_local(path):
            try:
                facts = os.stat(local_path(path))
            except OSError:
                continue
            if facts.st_size != part["size"]:
                return f"{part['relative']} has changed size since it was read; this may be a different text."
    return ""


def _gone(entry: ManifestEntry, error: BaseException) -> str:
    missing = [
        str(part["path"])
        for part in entry.source
        if is_local(str(part["path"])) and not os.path.exists(local_path(str(part["path"])))
    ]
    if missing:
        return f"the input file {missing[0]} no longer exists."
    return f"the input cannot be read: {str(error).strip().splitlines()[0] if str(error).strip() else error!r}"
