"""The ledger of a finished run: why a document is (not) in the output, or all decisions as a frame."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Mapping
from operator import attrgetter
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import xxhash

from gristmill import notebook
from gristmill.errors import UsageError, VerificationError
from gristmill.ledger.ask.why import KEPT, Change, Cut, Decision, DocumentHistory, RecordedScore, Why, whole_number
from gristmill.ledger.record.answer_cache import AnswerCache, CachedAnswer, noted_elsewhere, record_id
from gristmill.ledger.record.layout import RunFolder
from gristmill.ledger.record.manifest import COMMITTED, Manifest, ManifestEntry
from gristmill.ledger.record.plan_record import missing_scores, read_plan
from gristmill.ledger.record.quarantine import parse_quarantine
from gristmill.ledger.record.shape import open_table, table_errors
from gristmill.ledger.record.trail import QUARANTINED, UNTRACKED
from gristmill.storage.arrow_functions import call_function
from gristmill.storage.files import StorageOptions, is_local
from gristmill.storage.selection import Selection

if TYPE_CHECKING:
    import polars as pl

    from gristmill.ledger.ask.diff import LedgerDiff
    from gristmill.ledger.ask.rethreshold import Recut
    from gristmill.ledger.ask.text_diff import TextDiff

Hashes = npt.NDArray[np.uint64]
_MAX_DIGITS = 18  # digits of a row number; longer ones do not fit into 64 bits

_COLUMNS = {
    "ledger": ["row", "stage", "outcome", "reason", "id", "score", "threshold"],
    "changes": ["row", "stage", "field", "characters"],
    "cuts": ["row", "stage", "field", "reason", "start", "end"],
    "scores": ["row", "stage", "score", "value"],
}
"""The columns that every version has written to the tables of a ledger."""


class Ledger:
    """Answers questions about a finished (or still running) run from the record beside its output.

    Args:
        path: The output of the run.
        storage_options: File system options for URLs.
        record_path: Where the record of the run is, if not beside the output.

    Raises:
        InputNotFoundError: No run has written there.

    Example:
        >>> print(Ledger("out").why("doc-17"))  # doctest: +SKIP
        doc-17: dropped by stage 'WordCountFilter': too_few_words (score 12, threshold 50)
    """

    def __init__(
        self,
        path: str | os.PathLike[str] | RunFolder,
        *,
        storage_options: StorageOptions = None,
        record_path: str | os.PathLike[str] | None = None,
    ) -> None:
        if not isinstance(path, RunFolder):
            path = RunFolder(path, storage_options, record_path=record_path)
        self.folder = path
        self.folder.require_run()
        self.manifest = Manifest(self.folder)

    _repr_html_ = notebook.of_ledger

    def __repr__(self) -> str:
        return f"Ledger({self.folder.path!r})"

    # --- one document ---

    def why(self, document: str | int) -> Why:
        """What happened to a document.

        Scans eight bytes per input document and opens only the records of the partitions that match.

        Args:
            document: Its id, its URL, or `partition#row` for documents that have neither.
        """
        answer = self._looked_up(str(document))
        for history in answer.documents:
            history.notes += self._later_decision_on_survivor(history)
        return answer

    def document(self, partition: str, row: int) -> DocumentHistory | None:
        """What happened to the document in this row of a partition; None if the run read no such row."""
        entry = self.entry(partition)
        for history in self._histories(entry, [row]) if entry is not None else ():
            history.notes += self._later_decision_on_survivor(history)
            return history
        return None

    def _later_decision_on_survivor(self, history: DocumentHistory) -> list[str]:
        """What happened to the survivor of a duplicate, if stages after the deduplication dropped it."""
        survivor = history.decisions[-1].survivor if history.decisions else None
        entry = self.entry(history.partition)
        if survivor is None or entry is None:
            return []
        behind = list(entry.stages)[list(entry.stages).index(history.decisions[-1].stage) + 1 : -1]
        place = (history.partition, history.row)
        others = (
            [one for one in self._looked_up(survivor).documents if (one.partition, one.row) != place] if behind else []
        )
        if not others or any(one.status == KEPT for one in others):
            return []
        return [f"the survivor is not in the output either: {others[0].lines()[0]}"]

    def _looked_up(self, query: str) -> Why:
        # The hash that `kernels.hashing.hash_column` computes for a row with this text, without loading the compiler.
        wanted = xxhash.xxh64_intdigest(query.encode("utf-8", "surrogatepass")) or 1
        names = list(self.folder.walk(self.folder.record_path("ids")))
        recorded = tuple(kind for kind in ("ids", "urls") if any(name.endswith(f".{kind}") for name in names))
        hits: dict[str, set[int]] = {}
        for name in names:
            partition, _, kind = name.rpartition(".")
            if kind in ("ids", "urls"):
                rows = np.flatnonzero(self._hashes(name) == np.uint64(wanted))
                if len(rows):
                    hits.setdefault(partition, set()).update(int(row) for row in rows)
        if not hits and "#" in query:
            partition, _, number = query.rpartition("#")
            if partition and number.isascii() and number.isdigit() and len(number) <= _MAX_DIGITS:
                hits[partition] = {int(number)}
        documents: list[tuple[int, DocumentHistory]] = []
        for partition, found in hits.items():
            entry = self.entry(partition)
            if entry is not None:
                documents += [(entry.index, history) for history in self._histories(entry, sorted(found))]
        documents.sort(key=lambda pair: (pair[0], pair[1].row))
        if documents:
            return Why(query, [history for _, history in documents], recorded)
        damaged = dict.fromkeys(file.file for file in self.manifest.totals().damaged)
        return Why(query, [], recorded, tuple(damaged), str(self.selection() or ""))

    def selection(self) -> Selection | None:
        """The documents of the input that the run has read; None for all of them."""
        stages = (read_plan(self.folder) or {}).get("stages") or [{}]
        given = stages[0].get("parameters") or {}
        values = {name: given[name] for name in ("sample", "seed", "max_documents") if name in given}
        return Selection(**values) if values else None

    def entry(self, partition: str) -> ManifestEntry | None:
        """The entry of a committed partition; None if there is no such partition."""
        try:
            entry = self.manifest.get(partition)
        except UsageError:  # the query looked like partition#row but is something else
            return None
        return entry if entry is not None and entry.state == COMMITTED else None

    def _hashes(self, name: str) -> Hashes:
        path = f"{self.folder.record_path('ids')}/{name}"
        try:
            if is_local(path):
                return np.fromfile(path, "<u8")
            return np.frombuffer(self.folder.read(path), "<u8")
        except (FileNotFoundError, ValueError):
            return np.array([], np.uint64)

    def _histories(self, entry: ManifestEntry, rows: list[int]) -> Iterator[DocumentHistory]:
        rows = [row for row in rows if row < entry.row_numbers]
        selection = self.selection()
        if selection is not None:
            rows = np.array(rows, np.int64)[selection.mask(entry.partition, np.array(rows, np.int64))].tolist()
        decisions = self.recorded(entry, "ledger", rows)
        changes = self.recorded(entry, "changes", rows)
        cuts = self.recorded(entry, "cuts", rows)
        scores = self.recorded(entry, "scores", rows)
        answers = self.answers(entry.partition, rows) if rows else []
        elsewhere = noted_elsewhere(self.folder)
        order = {stage: number for number, stage in enumerate(entry.stages)}
        for row in rows:
            found = [item for item in decisions if item["row"] == row]
            history = DocumentHistory(
                status=found[-1]["outcome"] if found else KEPT,
                partition=entry.partition,
                row=row,
                id=next((item["id"] for item in found if item["id"] is not None), None),
                sources=list(dict.fromkeys(part["path"] for part in entry.source)),
                files=[] if found else [self.folder.shown(file.path) for file in entry.files],
                decisions=[
                    # Records of earlier versions have no clusters.
                    Decision(**{key: whole_number(item[key]) for key in Decision.__slots__ if key in item})
                    for item in found
                ],
                changes=[
                    Change(item["stage"], item["field"], item["characters"])
                    for item in sorted(changes, key=lambda item: order.get(item["stage"], 0))
                    if item["row"] == row
                ],
                cuts=[
                    Cut(**{name: item[name] for name in Cut.__slots__})
                    for item in sorted(cuts, key=lambda item: order.get(item["stage"], 0))
                    if item["row"] == row
                ],
                scores=[
                    RecordedScore(item["stage"], item["score"], whole_number(item["value"]))
                    for item in scores
                    if item["row"] == row
                ],
            )
            if history.status == QUARANTINED:
                history.quarantine = self._quarantine(entry, row)
            history.answers = [answer for answer in answers if answer.source == (entry.partition, row)]
            history.notes = _notes(entry, history)
            history.notes += [
                f"no answer for stage {stage!r} is recorded under this document: its answers are in {place!r}, and "
                "this one may have been asked for another document or output first, or on another machine"
                for stage, place in elsewhere.items()
                if stage in entry.stages and not any(answer.stage == stage for answer in history.answers)
            ]
            if history.scores and history.decisions:
                history.notes += self._unscored(history.decisions[-1].stage)
            yield history

    def answers(self, partition: str | None = None, rows: Collection[int] | None = None) -> list[CachedAnswer]:
        """What language models answered for this output, the earliest first, with the document each was asked about.

        Answers of earlier prompts are included. If the same question was asked for several documents, the first one is
        named.

        Args:
            partition: Only about documents of this partition.
            rows: Only about these rows of it.
        """
        own, mine = self.folder.record_path("answers"), record_id(self.folder.record)
        found = []
        for folder in {own, *noted_elsewhere(self.folder).values()}:
            if not is_local(folder):
                continue
            cache = AnswerCache(folder)
            try:
                found += [
                    answer
                    for answer in cache.answers()
                    if partition in (None, answer.source[0])
                    and (rows is None or answer.source[1] in rows)
                    and (folder == own or answer.record == mine)
                ]
            finally:
                cache.close()
        return sorted(found, key=attrgetter("at"))

    def _unscored(self, stage: str) -> list[str]:
        """Which filters have no score for a document dropped by `stage`, and why."""
        missing = missing_scores((read_plan(self.folder) or {}).get("stages") or (), after=stage)
        return [
            f"not scored by {', '.join(map(repr, scoring))}: stage {stop!r} before them does not receive dropped "
            "documents"
            for stop, scoring in missing.items()
        ]

    def recorded(self, entry: ManifestEntry, kind: str, rows: list[int]) -> list[dict[str, Any]]:
        """The entries for some rows in a table of the ledger (`ledger`, `changes`, `cuts`, `scores`), in its order."""
        file = entry.records.get(kind)
        if file is None or not rows:
            return []
        found: list[dict[str, Any]] = []
        path = self.folder.join(file.path)
        with self.folder.open(path) as stream, table_errors(path):
            parquet = open_table(stream)
            for group in range(parquet.num_row_groups):
                # The statistics of most row groups show that they hold none of these rows.
                bounds = parquet.metadata.row_group(group).column(0).statistics
                if bounds is None or not bounds.has_min_max or any(bounds.min <= row <= bounds.max for row in rows):
                    table = parquet.read_row_group(group, use_threads=False)
                    table.select(_COLUMNS[kind])  # raises an error here if one is missing
                    places = pa.array(np.array(_places(table.column("row"), rows), np.int64))
                    items = call_function("take", [table, places]).to_pylist()
                    found += [item for item in items if item["row"] is not None]
        return found

    def _quarantine(self, entry: ManifestEntry, row: int) -> list[dict[str, Any]]:
        data = self.folder.read(self.folder.record_path("quarantine", entry.partition))
        return [
            {
                "stage": item.record.stage,
                "cause": item.record.cause,
                "detail": item.record.detail,
                "file": item.record.file,
                "offset": item.record.offset,
                "raw": item.record.raw,
            }
            for item in parse_quarantine(data, partition=entry.partition)
            if item.record.row == row
        ]

    def text_diff(
        self, history: DocumentHistory, *, text_field: str = "text", max_chars: int | None = None
    ) -> TextDiff | None:
        """What differs between a duplicate and its survivor, or between a changed document and its result.

        Reads the removed text from its input file and the other one from the output; None if there is nothing to
        compare with.

        Args:
            history: One of `why(…).documents`.
            text_field: The field with the text.
            max_chars: Longer texts are not compared; the answer says so.
        """
        from gristmill.ledger.ask.text_diff import text_diff

        return text_diff(self, history, text_field=text_field, max_chars=max_chars)

    # --- all documents ---

    def entries(self) -> dict[str, ManifestEntry]:
        """The committed partitions by id, in source order."""
        return self.manifest.load()

    def frame(self) -> pl.DataFrame:
        """All decisions as a Polars frame: the columns of the ledger after the partition's id."""
        from gristmill.ledger.record.tables import DECISIONS

        return self._frame("ledger", DECISIONS)

    def documents(self) -> pl.DataFrame:
        """Every document that was read, in source order, with its last decision; `status` is `kept` without one."""
        import polars as pl

        entries = self.entries()
        sizes = pl.DataFrame(
            {"partition": list(entries), "size": [entry.row_numbers for entry in entries.values()]},
            schema={"partition": pl.String, "size": pl.Int64},
        )
        rows = sizes.select("partition", pl.int_ranges("size").alias("row")).explode("row", empty_as_null=False)
        selection = self.selection()
        if selection is not None:
            masks = [selection.mask(key, np.arange(entry.row_numbers)) for key, entry in entries.items()]
            rows = rows.with_columns(pl.Series("read", np.concatenate([np.array([], bool), *masks])))
        last = self.frame().unique(["partition", "row"], keep="last", maintain_order=True)
        last = last.rename({"outcome": "status"}).select(
            "partition", "row", "id", "status", "stage", "reason", "score", "threshold"
        )
        found = rows.join(last, on=["partition", "row"], how="left", maintain_order="left")
        if selection is not None:
            found = found.filter(pl.col("read") | pl.col("status").is_not_null()).drop("read")
        return found.with_columns(pl.col("status").fill_null(KEPT))

    def changes(self) -> pl.DataFrame:
        """All changes of texts as a Polars frame."""
        from gristmill.ledger.record.tables import CHANGES

        return self._frame("changes", CHANGES)

    def cuts(self) -> pl.DataFrame:
        """All passages that stages cut or marked, as a Polars frame; positions count characters of the input."""
        from gristmill.ledger.record.tables import CUTS

        return self._frame("cuts", CUTS)

    def scores(self) -> pl.DataFrame:
        """All recorded scores as a Polars frame; empty unless the run recorded all scores."""
        from gristmill.ledger.record.tables import SCORES

        return self._frame("scores", SCORES)

    def _frame(self, kind: str, schema: pa.Schema) -> pl.DataFrame:
        import polars as pl

        plain = pa.schema([(f.name, pa.large_string() if pa.types.is_dictionary(f.type) else f.type) for f in schema])
        whole = pa.schema([("partition", pa.large_string()), *plain])
        tables = [whole.empty_table()]
        for entry in self.entries().values():
            file = entry.records.get(kind)
            if file is not None:
                path = self.folder.join(file.path)
                with self.folder.open(path) as stream, table_errors(path):
                    table = open_table(stream).read(use_threads=False).cast(plain)
                name = pa.repeat(pa.scalar(entry.partition, pa.large_string()), table.num_rows)
                tables.append(table.add_column(0, "partition", name))
        return cast("pl.DataFrame", pl.from_arrow(pa.concat_tables(tables)))

    def damaged(self) -> pl.DataFrame:
        """The damaged input files: roughly how many records were lost, and the rows that were salvaged, if any.

        The `salvaged` rows from `first_row` on were read from the file and are not verified.
        """
        import polars as pl

        rows = [
            (key, file.file, file.cause, file.detail, file.lost, file.row - (file.salvaged or 0), file.salvaged)
            for key, entry in self.entries().items()
            for file in entry.damaged or ()
        ]
        schema = {
            "partition": pl.String, "file": pl.String, "cause": pl.String, "detail": pl.String, "lost": pl.Int64,
            "first_row": pl.Int64, "salvaged": pl.Int64,
        }  # fmt: skip
        return pl.DataFrame(rows, schema=schema, orient="row")

    def summary(self) -> pl.DataFrame:
        """One row per stage and reason: how many rows went in, and how many ended there."""
        import polars as pl

        rows: list[tuple[str, str, str | None, int, int, int]] = []
        for stage, count in self.manifest.totals().stages.items():
            endings: list[tuple[str, str | None, int]] = [
                ("dropped", key, n) for key, n in sorted(count.dropped.items())
            ]
            endings += [(QUARANTINED, key, n) for key, n in sorted(count.quarantined.items())]
            for outcome, reason, number in endings or [("none", None, 0)]:
                rows.append((stage, outcome, reason, count.rows_in + count.created, number, count.rows_out))
        schema = {
            "stage": pl.String, "outcome": pl.String, "reason": pl.String, "rows_in": pl.Int64, "rows": pl.Int64,
            "rows_out": pl.Int64,
        }  # fmt: skip
        return pl.DataFrame(rows, schema=schema, orient="row")

    def index(self, entry: ManifestEntry) -> tuple[Hashes | None, Hashes | None]:
        """The hashes of the ids and URLs of a partition's rows, if there are any."""
        ids = self._hashes(f"{entry.partition}.ids") if "ids" in entry.records else None
        urls = self._hashes(f"{entry.partition}.urls") if "urls" in entry.records else None
        for hashes in (ids, urls):
            if hashes is not None and len(hashes) != entry.row_numbers:
                raise VerificationError(
                    f"The index of partition {entry.partition!r} has {len(hashes)} rows, not {entry.row_numbers}. "
                    "Run `gristmill verify` on the output.",
                    partition=entry.partition,
                )
        return ids, urls

    def rethreshold(self, thresholds: Mapping[str, Any]) -> Recut:
        """What the run would have decided with other thresholds, from the recorded scores alone.

        Needs a run with `scores="all"`. A document that now passes a stage which dropped it, and that a later stage has
        never seen because it is not part of the same pass, is `undecided`: only a run can tell.

        Args:
            thresholds: By the name of a score filter (its class), its new bounds by the parameters that set them, such
                as `{"min_words": 80}`, or as `{"lower": …, "upper": …}`; a number where it has one bound. Where a stage
                has several filters, `stage:filter`. Others keep the bounds they had. Filters written in Python that
                declare no `lower_parameter` or `upper_parameter` have no recorded bounds: name them to decide on their
                scores.

        Raises:
            UsageError: The run did not record all scores.
            UnknownNameError: There is no such stage.

        Example:
            >>> Ledger("out").rethreshold({"WordCountFilter": {"min_words": 20}}).counts()  # doctest: +SKIP
            {'kept': 812, 'dropped': 188}
        """
        from gristmill.ledger.ask.rethreshold import rethreshold

        return rethreshold(self, thresholds)

    def diff(self, other: Ledger | str | os.PathLike[str]) -> LedgerDiff:
        """What a later run (`other`) decided differently, document by document, from the two ledgers alone."""
        from gristmill.ledger.ask.diff import compare_ledgers

        return compare_ledgers(self, other if isinstance(other, Ledger) else Ledger(other))


def _places(column: pa.ChunkedArray, rows: list[int]) -> list[int]:
    """The positions of `rows` in a column of integers, possibly including some that do not match.

    Works on the column's memory: Arrow's own comparisons load pandas and take longer than everything else.
    """
    places: list[int] = []
    start = 0
    for chunk in column.chunks:
        values = np.frombuffer(chunk.buffers()[1], np.int64)[chunk.offset : chunk.offset + len(chunk)]
        places += [start + int(at) for at in np.flatnonzero(np.isin(values, rows))]
        start += len(chunk)
    return places


def _notes(entry: ManifestEntry, history: DocumentHistory) -> list[str]:
    """What makes the answer uncertain: rows that stages split or could not track."""
    notes = []
    source = next((stage for stage, count in entry.stages.items() if count.created), None)
    for decision in history.decisions:
        count = entry.stages.get(decision.stage)
        if decision.reason == UNTRACKED and count is not None:
            notes.append(
                f"stage {decision.stage!r} returned {count.untracked} rows of this partition that could not be matched "
                "with their input; this document may be one of them"
            )
    splitting = [stage for stage, count in entry.stages.items() if stage != source and count.created > count.untracked]
    if splitting and history.decisions:
        notes.append(
            f"stage {splitting[0]!r} splits one document into several rows; other pieces of this one may be in the "
            "output"
        )
    notes += [
        f"salvaged and not verified: {file}"
        for file in entry.damaged or ()
        if file.row - (file.salvaged or 0) <= history.row < file.row
    ]
    return notes
