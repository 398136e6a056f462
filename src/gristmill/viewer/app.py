"""The answers of the viewer: the run, pages of documents, one document with its history and texts, and labels."""

from __future__ import annotations

import bisect
import dataclasses
import json
import random
import threading
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from typing import Any

import pyarrow as pa

from gristmill.errors import GristmillError, UsageError
from gristmill.ledger.ask.ledger import Ledger
from gristmill.ledger.ask.why import KEPT, DocumentHistory, whole_number
from gristmill.ledger.record.layout import RunFolder
from gristmill.ledger.record.manifest import ManifestEntry
from gristmill.ledger.record.plan_record import read_plan
from gristmill.ledger.record.trail import DUPLICATE
from gristmill.viewer.catalog import MAX_SOURCES, manifest_stamp, plan_facts, read_catalog, run_notes, score_names
from gristmill.viewer.labels import RIGHT, WRONG, Labels, rating, verdict
from gristmill.viewer.query import Query
from gristmill.viewer.search import Cursor, Search, first_line
from gristmill.viewer.texts import Found, Texts

PAGE = 50
PIECE_CHARS = 20_000
"""Number of characters of a text that are sent first."""
MORE_CHARS = 200_000
"""Number of characters per further request."""
MAX_FOUND = 200
"""Maximum number of documents with the same id or URL to list."""

_SNIPPET_CHARS = 240
_FIELD_CHARS = 2000
_MAX_FIELDS = 200
_DIFF_CHARS = 400_000  # comparing longer texts would take minutes
_DIFF_LINES = 2000
_HELD_SEARCHES = 4
_UNREADABLE = (pa.ArrowException, OSError, GristmillError, ValueError)

Answer = dict[str, Any]


class NotFoundError(UsageError):
    """There is no such document in the run."""


class View:
    """The answers about one run.

    Args:
        folder: The output of the run.
        labels: File for labels, if not in the record of the run.
        text_field: The field with the text; by default the one that most stages of the plan read.

    Raises:
        InputNotFoundError: The folder is not the output of a run.
    """

    def __init__(self, folder: RunFolder, *, labels: str | None = None, text_field: str | None = None) -> None:
        self.folder = folder
        self.ledger = Ledger(folder)
        self.labels = Labels(folder, labels)
        self._stages, known_field = plan_facts(folder)
        self.texts = Texts(self.ledger, text_field or known_field, self._id_field())
        self._lock = threading.Lock()
        self._searches: OrderedDict[tuple[Query, str], Search] = OrderedDict()
        self._load()

    def _id_field(self) -> str:
        try:
            return str(((read_plan(self.folder) or {}).get("settings") or {}).get("id_field") or "id")
        except GristmillError:
            return "id"

    def _load(self) -> None:
        self._stamp = manifest_stamp(self.folder)
        self.catalog = read_catalog(self.ledger)
        self._scores = score_names(self.ledger, self.catalog)
        self._searches.clear()

    # --- the run ---

    def run(self) -> Answer:
        """What the page needs for its filters; reads the manifest again if partitions were committed meanwhile."""
        with self._lock:
            if manifest_stamp(self.folder) != self._stamp:
                self._load()
        catalog, labels = self.catalog, self.labels
        status, notes = run_notes(self.folder, catalog)
        notes += [labels.why_not] if labels.why_not else []
        if labels.damaged:
            notes.append(f"{labels.damaged} lines of {labels.path} are not labels; they are ignored.")
        if catalog.splits:
            notes.append("A stage splits documents into several rows: counts refer to rows, the list to documents.")
        order = {name: number for number, name in enumerate(self._stages)}
        endings = sorted(catalog.endings.items(), key=lambda item: (order.get(item[0][0], len(order)), -item[1]))
        return {
            "output": self.folder.path,
            "status": status,
            "notes": [*notes, *catalog.problems],
            "documents": catalog.documents,
            "kept": catalog.written if catalog.splits else catalog.kept,
            "partitions": len(catalog.partitions),
            "reasons": [
                {"stage": stage, "outcome": outcome, "reason": reason, "documents": number}
                for (stage, outcome, reason), number in endings
            ],
            "sources": list(catalog.sources)[:MAX_SOURCES],
            "scores": self._scores,
            "text_field": self.texts.text_field,
            "labels": self._labels_answer(),
        }

    def _labels_answer(self) -> Answer:
        return {**self.labels.counts(), "file": self.labels.path, "writable": not self.labels.why_not}

    # --- lists ---

    def search(self, given: Mapping[str, str]) -> Answer:
        """A page of the documents that match, and where to continue."""
        query = Query.parse(given, self._scores)
        cursor = str(self._random_place()) if given.get("start") == "random" else given.get("cursor", "")
        with self._lock:
            search = self._searches.pop((query, cursor), None)
        if search is None:
            search = self._search(query, cursor)
        page = search.page(PAGE)
        if page.cursor is not None:
            with self._lock:
                self._searches[query, str(page.cursor)] = search
                while len(self._searches) > _HELD_SEARCHES:
                    self._searches.popitem(last=False)
        return {
            "hits": self._hits(page.places),
            "start": cursor,
            "cursor": None if page.cursor is None else str(page.cursor),
            "full": len(page.places) == PAGE,
            "searched": page.searched,
            "documents": self.catalog.documents,
            "matching": query.known_count(self.catalog),
            "problems": page.problems,
        }

    def count(self, given: Mapping[str, str]) -> Answer:
        """Number of matching documents from a position on, within the time limit of one request."""
        query = Query.parse(given, self._scores)
        number, cursor, searched = self._search(query, given.get("cursor", "")).count()
        return {"count": number, "cursor": None if cursor is None else str(cursor), "searched": searched}

    def find(self, name: str) -> Answer:
        """The documents with an id or a URL, or the one at `partition#row`."""
        try:
            answer = self.ledger.why(name)
        except OSError as error:
            raise UsageError(
                f"A file of the ledger cannot be read: {first_line(error)} Run `gristmill verify` to see which one."
            ) from error
        places = [(history.partition, history.row) for history in answer.documents[:MAX_FOUND]]
        more = len(answer.documents) - len(places)
        note = f"{more:,} more documents have the same id or URL." if more else ""
        return {"hits": self._hits(places), "note": note if answer.seen else str(answer)}

    def _search(self, query: Query, cursor: str) -> Search:
        start = Cursor.parse(cursor, self.catalog)
        return Search(self.ledger, self.catalog, query, self.labels, text_field=self.texts.text_field, start=start)

    def _random_place(self) -> Cursor:
        starts = list(self.catalog.starts.items())
        if not self.catalog.documents:
            return Cursor()
        number = random.randrange(self.catalog.documents)  # noqa: S311 - a place to look at, not a secret
        partition, first = starts[bisect.bisect_right([first for _, first in starts], number) - 1]
        return Cursor(partition, number - first)

    def _hits(self, places: list[tuple[str, int]]) -> list[Answer]:
        """The list entries of documents, from the ledger alone."""
        rows: dict[str, list[int]] = {}
        for partition, row in places:
            rows.setdefault(partition, []).append(row)
        found: dict[tuple[str, int], Answer] = {}
        for partition, wanted in rows.items():
            entry = self.ledger.entry(partition)
            try:
                decisions = self.ledger.recorded(entry, "ledger", wanted) if entry is not None else []
            except _UNREADABLE:
                decisions = []
            last = {item["row"]: item for item in decisions}
            for row in wanted:
                item = last.get(row, {})
                hit = {"ref": f"{partition}#{row}", "status": item.get("outcome", KEPT)}
                hit |= {key: item.get(key) for key in ("id", "stage", "reason")}
                hit |= {key: _plain(item.get(key)) for key in ("score", "threshold", "similarity")}
                label = None if entry is None else self.labels.get(partition, row, entry.fingerprint)
                hit["label"] = None if label is None else rating(hit["status"], label["verdict"])
                found[partition, row] = hit
        return [found[place] for place in places]

    def snippets(self, refs: list[str], needle: str = "") -> Answer:
        """The beginning of the text of some documents, or the surroundings of the search term."""
        rows: dict[str, list[int]] = {}
        for ref in refs[:MAX_FOUND]:
            partition, row = self._place(ref)
            rows.setdefault(partition, []).append(row)
        answer = {}
        for partition, wanted in rows.items():
            entry = self._entry(partition)
            for row, found in self.texts.each(entry, wanted):
                text = self.texts.text(found.record) if found.record is not None else None
                shown = {"text": _snippet(text, needle), "chars": len(text)} if text is not None else {}
                name = None if found.record is None else found.record.get(self.texts.id_field)
                identity = {"id": str(name)[:_FIELD_CHARS]} if isinstance(name, str | int) else {}
                answer[f"{partition}#{row}"] = {"note": "" if shown else found.note, **identity, **shown}
        return {"snippets": answer}

    # --- one document ---

    def document(self, ref: str) -> Answer:
        """What happened to a document, as `gristmill why` shows it, with its fields and the beginning of its text."""
        partition, row = self._place(ref)
        entry, history = self._entry(partition), self._history(ref)
        found = self.texts.input(entry, row)
        side = "input"
        if found.record is None and history.status == KEPT:
            other = self.texts.output(entry, row, history.id)
            if other.record is not None:
                side, found = "output", dataclasses.replace(other, note=f"{found.note} Showing the output.")
        if found.record is None and history.quarantine:
            found = dataclasses.replace(found, note="No text: the quarantined part of the record is shown above.")
        label = self.labels.get(partition, row, entry.fingerprint)
        return {
            "ref": ref,
            "id": history.id or (str(found.record.get(self.texts.id_field) or "") if found.record else ""),
            "status": history.status,
            "lines": history.lines(),
            "decisions": [_numbers(dataclasses.asdict(decision)) for decision in history.decisions],
            "changes": [dataclasses.asdict(change) for change in history.changes],
            "scores": [_numbers(dataclasses.asdict(score)) for score in history.scores],
            "quarantine": [_readable(item) for item in history.quarantine],
            "source": found.file if side == "input" and found.file else ", ".join(history.sources[:3]),
            "fields": self._fields(found),
            "side": side,
            **self._piece(found, 0, PIECE_CHARS),
            "has_output": history.status == KEPT and bool(history.changes) and side == "input",
            "has_diff": self._has_diff(history) and side == "input",
            "label": None if label is None else rating(history.status, label["verdict"]),
        }

    def text(self, ref: str, side: str, offset: int) -> Answer:
        """A piece of the text of a document, from the input or the output."""
        partition, row = self._place(ref)
        entry = self._entry(partition)
        if side == "output":
            found = self.texts.output(entry, row, self._history(ref).id)
        else:
            found = self.texts.input(entry, row)
        return self._piece(found, max(offset, 0), MORE_CHARS if offset > 0 else PIECE_CHARS)

    def diff(self, ref: str) -> Answer:
        """What differs between a duplicate and its survivor, or between a changed document and the output."""
        history = self._history(ref)
        found = self.ledger.text_diff(history, text_field=self.texts.text_field, max_chars=_DIFF_CHARS)
        if found is None:
            return {"lines": [], "notes": ["There is nothing to compare with."], "equal": False}
        lines = [line[:MORE_CHARS] for line in found.lines[:_DIFF_LINES]]
        notes = list(found.notes)
        if len(found.lines) > _DIFF_LINES:
            notes.append(f"Showing the first {_DIFF_LINES:,} of {len(found.lines):,} lines.")
        return {"before": found.before, "after": found.after, "lines": lines, "notes": notes, "equal": found.equal}

    def _has_diff(self, history: DocumentHistory) -> bool:
        return history.status == DUPLICATE or (history.status == KEPT and bool(history.changes))

    def _piece(self, found: Found, offset: int, chars: int) -> Answer:
        text = self.texts.text(found.record) if found.record is not None else None
        note = found.note
        if found.record is not None and text is None:
            note = f"{note} {self.texts.missing_text(found.record)}".strip()
        piece = (text or "")[offset : offset + chars]
        return {"text": piece, "offset": offset, "chars": len(text or ""), "note": note}

    def _fields(self, found: Found) -> list[Answer]:
        """The other fields of a record, each shortened to fit into a table."""
        fields = [(name, value) for name, value in (found.record or {}).items() if name != self.texts.text_field]
        shown = []
        for name, value in fields[:_MAX_FIELDS]:
            text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
            shown.append({"name": name, "value": text[:_FIELD_CHARS], "cut": len(text) > _FIELD_CHARS})
        return shown

    # --- labels ---

    def label(self, ref: str, label: str | None) -> Answer:
        """Record whether the decision on a document is right, or remove the label."""
        if label not in (None, RIGHT, WRONG):
            raise UsageError(f"A label is {RIGHT!r}, {WRONG!r} or null, not {label!r}.")
        partition, row = self._place(ref)
        entry, history = self._entry(partition), self._history(ref)
        last = history.decisions[-1] if history.decisions else None
        facts = {"id": history.id, "status": history.status}
        facts |= {"stage": last.stage if last else None, "reason": last.reason if last else None}
        wanted = None if label is None else verdict(history.status, label)
        self.labels.put(partition, row, entry.fingerprint, wanted, **facts)
        return {"ref": ref, "label": label, "labels": self._labels_answer()}

    def export(self) -> Iterator[bytes | None]:
        """The labelled documents as lines for `gristmill classifier train`; None for one whose text is gone."""
        for partition in self.labels.partitions():
            entry = self.ledger.entry(partition) if partition in self.catalog.partitions else None
            wanted = self.labels.rows(partition)
            known = {row: one for row, one in wanted.items() if entry and one.get("fingerprint") == entry.fingerprint}
            yield from [None] * (len(wanted) - len(known))
            if entry is None:
                continue
            for row, found in self.texts.each(entry, known):
                label, text = known[row], self._export_text(entry, row, found)
                if text is None:
                    yield None
                    continue
                told = {key: label.get(key) for key in ("id", "status", "stage", "reason", "partition", "row")}
                decision = rating(str(label.get("status")), label["verdict"])
                line = json.dumps({"text": text, "label": label["verdict"], "decision": decision, **told})
                yield line.encode() + b"\n"

    def _export_text(self, entry: ManifestEntry, row: int, found: Found) -> str | None:
        if found.record is None:
            found = self.texts.output(entry, row)
        text = self.texts.text(found.record) if found.record is not None else None
        # A training program could not read lone surrogates.
        return None if text is None else text.encode("utf-8", "replace").decode()

    # --- places ---

    def _place(self, ref: str) -> tuple[str, int]:
        """The partition and row that the page names; only positions of this run are accepted."""
        partition, _, row = ref.rpartition("#")
        facts = self.catalog.partitions.get(partition)
        if facts is None or not (row.isascii() and row.isdigit() and len(row) <= 18 and int(row) < facts.rows):
            raise NotFoundError(f"There is no document {ref[:_FIELD_CHARS]!r} in this run.")
        return partition, int(row)

    def _entry(self, partition: str) -> ManifestEntry:
        entry = self.ledger.entry(partition)
        if entry is None:
            raise NotFoundError(f"The manifest entry of partition {partition!r} is gone. Load the page again.")
        return entry

    def _history(self, ref: str) -> DocumentHistory:
        partition, row = self._place(ref)
        try:
            history = self.ledger.document(partition, row)
        except OSError as error:
            if isinstance(error, GristmillError):
                raise
            raise UsageError(f"The ledger of partition {partition!r} cannot be read: {first_line(error)}") from error
        if history is None:
            raise NotFoundError(f"{ref!r} is not in the sample that the run read.")
        return history


def _plain(value: Any) -> Any:
    """A number in a form that JSON can hold."""
    value = whole_number(value)
    return (
        str(value) if isinstance(value, float) and (value != value or value in (float("inf"), -float("inf"))) else value
    )


def _numbers(values: Answer) -> Answer:
    return {key: _plain(value) for key, value in values.items()}


def _readable(item: Mapping[str, Any]) -> Answer:
    raw = item["raw"].decode("utf-8", "backslashreplace")
    return {**item, "raw": raw[:PIECE_CHARS], "cut": len(raw) > PIECE_CHARS}


def _snippet(text: str, needle: str) -> str:
    at = text.lower().find(needle.lower()) if needle else 0
    begin = max(at - _SNIPPET_CHARS // 3, 0)
    return ("…" if begin else "") + text[begin : begin + _SNIPPET_CHARS]
