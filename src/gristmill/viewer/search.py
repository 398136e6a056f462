"""Searching the documents of a run: page by page, in source order, for as long as a request may take.

A search reads the ledgers partition by partition (and the texts, if it searches for one) and stops when it has a page,
or when its time is up. The result contains the position to continue from, so that no state is kept between requests.
"""

from __future__ import annotations

import itertools
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from gristmill.errors import GristmillError, UsageError
from gristmill.ledger.ask.ledger import Ledger
from gristmill.ledger.ask.lookup import parsed, source_blocks, text_of
from gristmill.ledger.record.manifest import ManifestEntry
from gristmill.storage.jsonl_blocks import RecordBlock
from gristmill.storage.parquet_blocks import TableBlock
from gristmill.viewer.catalog import Catalog, PartitionFacts
from gristmill.viewer.labels import Labels, rating
from gristmill.viewer.query import Query
from gristmill.viewer.rows import Rows, matching_rows

SECONDS = 0.7
"""How long one request searches."""

_PROBE = re.compile(rb"[a-z0-9]{2,}")
_DAMAGE = (OSError, pa.ArrowException, GristmillError, EOFError, ValueError, KeyError)
_NO_ROWS = np.empty(0, np.int64)


@dataclass(frozen=True, slots=True)
class Cursor:
    """The place to continue from: a partition and the first row in it; "" is the start."""

    partition: str = ""
    row: int = 0

    def __str__(self) -> str:
        return f"{self.partition}#{self.row}" if self.partition else ""

    @classmethod
    def parse(cls, text: str, catalog: Catalog) -> Cursor:
        """The cursor from its `str` form.

        Raises:
            UsageError: There is no such place in this run.
        """
        if not text:
            return cls()
        partition, _, row = text.rpartition("#")
        if partition not in catalog.partitions or not (row.isascii() and row.isdigit() and len(row) <= 18):
            raise UsageError(f"There is no position {text!r} in this run.")
        return cls(partition, int(row))


@dataclass(slots=True)
class Page:
    """The results of a search so far.

    Attributes:
        places: Partition and row of each document.
        cursor: Where to continue; None when everything was searched.
        searched: Documents before that place.
        problems: Partitions that could not be searched, in sentences.
    """

    places: list[tuple[str, int]] = field(default_factory=list)
    cursor: Cursor | None = None
    searched: int = 0
    problems: list[str] = field(default_factory=list)


class Search:
    """A search in progress; call `page` again to continue.

    Args:
        ledger: The ledger of the run.
        catalog: Its partitions.
        query: What to look for.
        labels: The labels, for queries that need them.
        text_field: The field with the text.
        start: Where to begin.
    """

    def __init__(
        self,
        ledger: Ledger,
        catalog: Catalog,
        query: Query,
        labels: Labels,
        *,
        text_field: str = "text",
        start: Cursor | None = None,
    ) -> None:
        self._ledger = ledger
        self._catalog = catalog
        self._query = query
        self._labels = labels
        self._text_field = text_field
        self._selection = ledger.selection()
        self._problems: list[str] = []
        self._pieces = self._all(start or Cursor())
        self._left: tuple[str, Rows, Cursor | None] = ("", _NO_ROWS, start or Cursor())

    def page(self, limit: int, *, seconds: float = SECONDS) -> Page:
        """The next documents, at most `limit`; fewer if the time is up, in which case there is a cursor."""
        found = Page()
        until = time.monotonic() + seconds
        for piece in itertools.count():
            partition, rows, after = self._left
            taken = rows[: limit - len(found.places)]
            found.places += [(partition, int(row)) for row in taken]
            self._left = partition, rows[len(taken) :], after
            if len(self._left[1]):
                found.cursor = Cursor(partition, int(self._left[1][0]))
                break
            found.cursor = after
            # At least one piece per call, otherwise a slow one would never be completed.
            if after is None or len(found.places) >= limit or (piece and time.monotonic() > until):
                break
            self._left = next(self._pieces, ("", _NO_ROWS, None))
        found.searched = self._searched(found.cursor)
        found.problems = self._problems
        return found

    def count(self, *, seconds: float = SECONDS) -> tuple[int, Cursor | None, int]:
        """The number of matches up to a position, that position (None at the end), and the documents searched."""
        number = 0
        until = time.monotonic() + seconds
        for piece in itertools.count():
            _, rows, after = self._left
            number += len(rows)
            self._left = ("", _NO_ROWS, after)
            if after is None or (piece and time.monotonic() > until):
                break
            self._left = next(self._pieces, ("", _NO_ROWS, None))
        return number, after, self._searched(after)

    def _searched(self, cursor: Cursor | None) -> int:
        if cursor is None:
            return self._catalog.documents
        return self._catalog.starts.get(cursor.partition, 0) + cursor.row

    def _all(self, start: Cursor) -> Iterator[tuple[str, Rows, Cursor | None]]:
        """Matching rows piece by piece, each with the position after it."""
        names = list(self._catalog.partitions)
        begin = names.index(start.partition) if start.partition else 0
        for at, name in enumerate(names[begin:], begin):
            facts = self._catalog.partitions[name]
            behind = Cursor(names[at + 1]) if at + 1 < len(names) else None
            if not self._may_match(facts):
                continue
            first = start.row if name == start.partition else 0
            try:
                entry = self._ledger.entry(name)
                if entry is None:
                    raise KeyError("its manifest entry is gone")
                for end, rows in self._rows(entry, first):
                    yield name, rows, Cursor(name, end) if end < facts.rows else behind
            except _DAMAGE as error:
                self._problems.append(f"Partition {name} was searched only in part: {first_line(error)}")
            yield name, _NO_ROWS, behind
        yield "", _NO_ROWS, None

    def _may_match(self, facts: PartitionFacts) -> bool:
        if self._query.label not in ("", "none") and not self._labels.rows(facts.partition):
            return False
        return self._query.may_match(facts)

    def _rows(self, entry: ManifestEntry, first: int) -> Iterator[tuple[int, Rows]]:
        """Matching rows of a partition from `first` on, each piece with the row after it."""
        pieces = matching_rows(self._ledger, entry, self._query, selection=self._selection, first=first)
        narrowed = self._labelled(entry, pieces)
        files = {str(part["relative"]) for part in entry.source}
        if self._query.text or (self._query.source and not all(self._query.source in file for file in files)):
            return self._by_content(entry, narrowed, first)
        return narrowed

    def _labelled(self, entry: ManifestEntry, pieces: Iterator[tuple[int, Rows]]) -> Iterator[tuple[int, Rows]]:
        wanted = self._query.label
        if not wanted:
            yield from pieces
            return
        known = {
            row: one
            for row, one in self._labels.rows(entry.partition).items()
            if one.get("fingerprint") == entry.fingerprint
        }
        if wanted in ("right", "wrong"):
            decided = {item["row"] for item in self._ledger.recorded(entry, "ledger", sorted(known))}
            status = {row: "dropped" if row in decided else "kept" for row in known}
            known = {row: one for row, one in known.items() if rating(status[row], one["verdict"]) == wanted}
        for end, rows in pieces:
            yield end, rows[np.isin(rows, list(known), invert=wanted == "none")]

    def _by_content(
        self, entry: ManifestEntry, pieces: Iterator[tuple[int, Rows]], first: int
    ) -> Iterator[tuple[int, Rows]]:
        """The rows whose text or file matches; texts are read on the fly, block by block."""
        end, rows = 0, _NO_ROWS
        for block in source_blocks(entry):
            if not len(block.rows):
                continue
            last = int(block.rows[-1])
            while end <= last:
                more = next(pieces, None)
                if more is None:
                    break
                end, rows = more[0], np.concatenate([rows, more[1]])
            here, rows = rows[rows <= last], rows[rows > last]
            here = here[np.isin(here, block.rows)]
            if last >= first:
                yield last + 1, self._in_block(block, here)

    def _in_block(self, block: RecordBlock | TableBlock, rows: Rows) -> Rows:
        if self._query.source and len(rows):
            starts = np.array([row for row, _ in block.sources])
            fits = np.array([self._query.source in file.relative for _, file in block.sources])
            rows = rows[fits[np.searchsorted(starts, rows, side="right") - 1]]
        if not self._query.text or not len(rows):
            return rows
        places = np.searchsorted(block.rows, rows)
        if isinstance(block, TableBlock):
            return rows[_columns_match(block, places, self._text_field, self._query.text)]
        chosen = _lines_match(block, places, self._text_field, self._query.text.lower())
        return rows[chosen]


def _columns_match(block: TableBlock, places: Rows, field: str, text: str) -> Rows:
    if field not in block.table.column_names:
        return np.empty(0, np.int64)
    column = block.table.column(field).take(pa.array(places))
    mask = pc.match_substring(column.cast(pa.large_string()), text, ignore_case=True)
    return np.flatnonzero(mask.fill_null(False).to_numpy())


def _lines_match(block: RecordBlock, places: Rows, field: str, text: str) -> Rows:
    r"""Which of the records hold the text (in lower case).

    If the text has a word of plain letters or digits, the bytes of most records show that they do not contain it: JSON
    has such letters unescaped, or after `\u00`.
    """
    data = block.buffer.tobytes()
    probes = _PROBE.findall(text.encode("utf-8", "ignore"))
    chosen = list(range(len(places)))
    if probes:
        probe = max(probes, key=len)
        chosen_places = np.union1d(_records_with(data.lower(), probe, block), _records_with(data, b"\\u00", block))
        chosen = np.flatnonzero(np.isin(places, chosen_places)).tolist()
    found = []
    for at in chosen:
        line = data[int(block.starts[places[at]]) : int(block.ends[places[at]])]
        record = parsed(line)  # None for a quarantined one that is not JSON
        whole = line.decode("utf-8", "replace") if record is None else text_of(record, field)
        if whole is not None and text in whole.lower():
            found.append(at)
    return np.array(found, np.int64)


def _records_with(data: bytes, probe: bytes, block: RecordBlock) -> Rows:
    """The places of the records whose bytes hold the probe."""
    found = []
    at = data.find(probe)
    while at >= 0:
        place = int(np.searchsorted(block.starts, at, side="right")) - 1
        found.append(place)
        behind = int(block.ends[place]) if place >= 0 else at + 1
        at = data.find(probe, max(behind, at + 1))
    return np.array(found, np.int64)


def first_line(error: BaseException) -> str:
    """The first line of an error message."""
    text = str(error).strip()
    return text.splitlines()[0] if text else repr(error)
