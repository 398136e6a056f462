"""Collects everything a report shows from the record of a run, as one value of plain types."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from operator import attrgetter, methodcaller
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from gristmill import __version__
from gristmill.errors import GristmillError
from gristmill.ledger.ask.lookup import text_of
from gristmill.ledger.performance import model_usage
from gristmill.ledger.record.contamination import read_contamination
from gristmill.ledger.record.layout import RunFolder
from gristmill.ledger.record.manifest import COMMITTED, Manifest, ManifestEntry
from gristmill.ledger.record.plan_record import read_plan
from gristmill.ledger.record.quarantine import parse_quarantine
from gristmill.ledger.record.run_record import RUNNING, read_run
from gristmill.ledger.record.trail import DUPLICATE, QUARANTINED
from gristmill.report.decisions import Example, LedgerDigest, plan_filters
from gristmill.report.marks import marked_excerpt
from gristmill.report.texts import TextReader
from gristmill.storage.atomic import TEMPORARY_PREFIX
from gristmill.storage.files import is_local

UNREADABLE = (GristmillError, OSError, ValueError, LookupError, TypeError, AttributeError, pa.ArrowException)
"""Exceptions that reading a damaged record can raise."""
_RUN = (
    "status", "error", "pipeline", "executor", "output", "started", "updated", "finished", "wall_seconds", "version",
    "time_to_first_output_seconds", "peak_memory_bytes", "partitions", "partitions_done_before", "partitions_committed",
    "source_bytes", "output_bytes", "rows_read", "rows_written", "rows_dropped", "rows_quarantined", "worker_deaths",
    "alarms", "notices",
)  # fmt: skip
_STAGE = (
    "stage", "rows_in", "rows_out", "created", "dropped", "quarantined", "skipped", "changed", "busy_seconds",
    "starved_seconds", "blocked_seconds", "calls", "workers",
)  # fmt: skip
_MAX_LINES = 100
_MAX_PROBLEMS = 10
_QUARANTINE_EXAMPLES = 5
_RAW_CHARS = 300
_PAIR_CHARS = 900
_FEW_DOCUMENTS = 100
"""Runs with fewer documents say nothing about speed."""
_SHOWN_ITEMS = 50
_GOLDEN = 0.6180339887498949


class Extent(NamedTuple):
    """How much of a run a report reads.

    Attributes:
        decisions: Number of ledger rows after which no further partition is read; None reads all.
        partitions: Maximum number of partitions to read; None for all.
        score_rows: Maximum number of recorded scores to read, by whole partitions; None reads all.
        text_partitions: Number of partitions whose texts are read.
        text_bytes: Maximum bytes of text to read.
        lengths: Number of documents per partition whose length is counted.
        examples: Number of documents to show per reason.
        pairs: Number of duplicates to show per deduplication.
        lookups: Maximum number of documents of a run for which survivors of duplicates are looked up in its index.
    """

    decisions: int | None
    partitions: int | None
    score_rows: int | None
    text_partitions: int
    text_bytes: int
    lengths: int
    examples: int
    pairs: int
    lookups: int


AFTER_RUN = Extent(200_000, 16, 300_000, 4, 2_000_000, 250, 2, 3, 300_000)
"""Small enough not to prolong a run noticeably."""
WHOLE = Extent(None, None, None, 64, 200_000_000, 2_000, 4, 6, 20_000_000)


class ReportContents:
    """Collects the parts one by one; anything unreadable becomes a sentence in `missing`.

    Args:
        folder: The run.
        extent: How much of it to read.
    """

    def __init__(self, folder: RunFolder, extent: Extent) -> None:
        self.folder = folder
        self.extent = extent
        self.missing: list[str] = []
        self.is_sample = False

    def collect(self) -> dict[str, Any]:
        """All parts."""
        run = self._part("run.json", partial(read_run, self.folder)) or {}
        plan = self._part("plan.json", partial(read_plan, self.folder)) or {}
        stages = plan.get("stages") or []
        entries = self._part("The manifest", self._entries) or []
        run = self._settled(run)
        filters = self._part("plan.json", partial(plan_filters, stages)) or []
        extent = self.extent
        digest = LedgerDigest(self.folder, filters, examples=extent.examples, score_rows=extent.score_rows)
        read = 0
        for entry in entries:
            read += self._part(f"The ledger of partition {entry.partition}", partial(_add, digest, entry)) or 0
        fields = {str(stage.get("name")): _stage_field(stage) for stage in stages}
        digest.sort([*fields])
        texts = TextReader(self.folder, _text_field(plan), budget=extent.text_bytes, documents=extent.lengths)
        looks_up = not self.is_sample and (run.get("rows_read") or 0) <= extent.lookups
        pairs = self._part("The duplicates", partial(self._pairs, digest, looks_up=looks_up)) or []
        self._read_texts(texts, entries, digest, pairs)
        is_short = (run.get("rows_read") or 0) < _FEW_DOCUMENTS
        searched = self.folder.exists(self.folder.record_path("contamination"))
        return {
            "format": 1,
            "kind": "run",
            "made": dt.datetime.now(dt.UTC).isoformat(timespec="seconds"),
            "made_by": __version__,
            "run": {name: run.get(name) for name in _RUN} | _shortened(run),
            "stages": [{name: stage.get(name) for name in _STAGE} for stage in run.get("stages") or ()],
            "history": run.get("history"),
            "sample": {"is_sample": self.is_sample, "partitions": read, "documents": _documents(entries)},
            "scores": {
                "recorded": (plan.get("settings") or {}).get("scores"),
                "documents": digest.scored_documents,
                "is_sample": self.is_sample or digest.is_scores_sample,
                "filters": self._part("The scores", partial(digest.described_scores, stages)) or [],
            },
            "lengths": texts.described_lengths(),
            "languages": texts.described_languages(),
            "text_sample": {"before": len(texts.before), "after": len(texts.after)},
            "contamination": self._part("contamination.json", self._contamination) if searched else None,
            "duplicates": {
                "stages": digest.described_clusters(),
                "pairs": [_pair(texts, digest, one, place, fields) for one, place in pairs],
            },
            "dropped": self._examples(digest, texts, fields),
            "quarantine": self._part("The quarantine", partial(self._quarantine, run, entries)) or [],
            "suggestion": None if is_short else self._part("run.json", partial(_suggested, run, plan)),
            "missing": _first(self.missing) + _text_problems(texts),
        }

    def _part(self, what: str, collect: Callable[[], Any]) -> Any:
        try:
            return collect()
        except UNREADABLE as error:
            self.missing.append(f"{what} cannot be read: {error}")
            return None

    # --- the record ---

    def _settled(self, run: dict[str, Any]) -> dict[str, Any]:
        """The record with the rows of all committed partitions, even if no run finished."""
        if run.get("status") not in (None, RUNNING):
            return run
        totals = self._part("The manifest", Manifest(self.folder).totals)
        if totals is None or not totals.partitions:
            return run
        times = {str(stage["stage"]): stage for stage in run.get("stages") or ()}
        return run | {
            "partitions_committed": totals.partitions,
            "rows_read": totals.rows_read,
            "rows_written": totals.rows_written,
            "rows_dropped": totals.rows_dropped,
            "rows_quarantined": totals.quarantined,
            "source_bytes": totals.source_bytes,
            "output_bytes": totals.output_bytes,
            "stages": [times.get(name, {}) | {"stage": name} | asdict(count) for name, count in totals.stages.items()],
        }

    def _entries(self) -> list[ManifestEntry]:
        """The committed partitions to read: all, or a selection spread over the input."""
        manifest, extent = Manifest(self.folder), self.extent
        if extent.decisions is None or extent.partitions is None:
            found = manifest.ordered()
            self.missing += manifest.problems
            return found
        root = self.folder.record_path("manifest")
        names = [name for name in self.folder.walk(root) if not name.startswith(TEMPORARY_PREFIX)]
        most = extent.partitions if is_local(root) else extent.partitions // 4
        # Multiples of the golden ratio reach every part of the list early.
        spread = np.argsort(np.arange(len(names)) * _GOLDEN % 1.0).tolist()
        chosen: list[ManifestEntry] = []
        decisions = 0
        for at in spread if len(names) > most else range(len(names)):
            if decisions >= extent.decisions or len(chosen) >= most:
                self.is_sample = True
                break
            entry = manifest.get(names[at].removesuffix(".json"))
            if entry is not None and entry.state == COMMITTED:
                chosen.append(entry)
                decisions += entry.rows_dropped + entry.quarantined
        return sorted(chosen, key=attrgetter("index"))

    def _quarantine(self, run: Mapping[str, Any], entries: Sequence[ManifestEntry]) -> list[dict[str, Any]]:
        """The quarantined records by stage and cause, with some of their positions."""
        found: dict[tuple[str, str], dict[str, Any]] = {}
        for stage in run.get("stages") or ():
            for cause, number in (stage.get("quarantined") or {}).items():
                found[stage["stage"], cause] = {
                    "stage": stage["stage"], "cause": cause, "number": number, "examples": [],
                }  # fmt: skip
        for entry in entries if found else ():
            if all(len(one["examples"]) >= min(_QUARANTINE_EXAMPLES, one["number"]) for one in found.values()):
                break
            if not entry.quarantined:
                continue
            for item in parse_quarantine(
                self.folder.read(self.folder.record_path("quarantine", entry.partition)), partition=entry.partition
            ):
                record = item.record
                group = found.get((record.stage, record.cause))
                if group is not None and len(group["examples"]) < _QUARANTINE_EXAMPLES:
                    raw = record.raw[: 4 * _RAW_CHARS].decode("utf-8", "replace")[:_RAW_CHARS]
                    group["examples"].append(
                        {
                            "id": item.id, "place": f"{entry.partition}#{record.row}", "file": record.file,
                            "offset": record.offset, "detail": record.detail[:2000], "raw": raw, "size": record.size,
                        }
                    )  # fmt: skip
        return list(found.values())

    def _contamination(self) -> dict[str, Any] | None:
        """The benchmark items that were found, limited to those shown."""
        found = read_contamination(self.folder)
        if found is None:
            return None
        items = found["items"][:_SHOWN_ITEMS]
        left = len(found["items"]) - len(items) + found["items_not_shown"]
        return {**found, "items": items, "items_not_shown": left}

    # --- documents ---

    def _pairs(self, digest: LedgerDigest, *, looks_up: bool) -> list[tuple[Example, tuple[str, int] | None]]:
        """Duplicates to show, each with the position of its survivor."""
        chosen = [
            example
            for group in digest.groups.values()
            if group.outcome == DUPLICATE
            for example in group.examples[: self.extent.pairs]
            if example.survivor is not None
        ]
        if not chosen or not looks_up:
            return [(example, None) for example in chosen]
        from gristmill.ledger.ask.ledger import Ledger

        ledger = Ledger(self.folder)
        found: list[tuple[Example, tuple[str, int] | None]] = []
        for example in chosen:
            own = (example.partition, example.row)
            documents = [(one.partition, one.row) for one in ledger.why(str(example.survivor)).documents]
            found.append((example, next((place for place in documents if place != own), None)))
        return found

    def _read_texts(
        self,
        texts: TextReader,
        entries: Sequence[ManifestEntry],
        digest: LedgerDigest,
        pairs: Sequence[tuple[Example, tuple[str, int] | None]],
    ) -> None:
        """Read the documents that are shown, partitions with most of them first, and some others for their lengths."""
        wanted: dict[str, set[int]] = {}
        shown = [example for group in digest.groups.values() for example in group.examples]
        places = [place for _, place in pairs if place is not None]
        for partition, row in (*((one.partition, one.row) for one in shown), *places):
            wanted.setdefault(partition, set()).add(row)
        by_name = {entry.partition: entry for entry in entries}
        order = sorted(by_name, key=lambda name: -len(wanted.get(name, ())))[: self.extent.text_partitions]
        for name in order:
            if texts.budget > 0:
                texts.read_input(by_name[name], wanted.get(name, ()))
        texts.budget = max(texts.budget, self.extent.text_bytes // 4)
        for name in order:
            if texts.budget > 0:
                texts.read_output(by_name[name])

    def _examples(
        self, digest: LedgerDigest, texts: TextReader, fields: Mapping[str, str | None]
    ) -> list[dict[str, Any]]:
        """For each stage and reason, some of the documents that it dropped."""
        found = []
        for (stage, reason), group in digest.groups.items():
            if group.outcome in (DUPLICATE, QUARANTINED):
                continue
            documents = []
            for one in group.examples:
                record = texts.found.get((one.partition, one.row))
                text = None if record is None else text_of(record, fields.get(stage) or texts.text_field)
                documents.append(
                    {
                        "id": one.id, "place": f"{one.partition}#{one.row}", "score": one.score,
                        "threshold": one.threshold, **({} if text is None else marked_excerpt(text, reason)),
                    }
                )  # fmt: skip
            documents.sort(key=methodcaller("__contains__", "text"), reverse=True)  # those that can be shown first
            found.append({"stage": stage, "reason": reason, "number": group.number, "documents": documents})
        return found


def _suggested(run: dict[str, Any], plan: dict[str, Any]) -> str | None:
    """The one change that would have helped most; None if there is none."""
    from gristmill.ledger.ask.bottleneck import suggestion

    advice = suggestion(run, plan)
    return None if advice.gain is None else str(advice)


def _add(digest: LedgerDigest, entry: ManifestEntry) -> int:
    digest.add(entry)
    return 1


def _shortened(run: Mapping[str, Any]) -> dict[str, Any]:
    """The lists of a record that may be long, shortened."""
    error = run.get("error")
    lines = {name: (run.get(name) or [])[:_MAX_LINES] for name in ("alarms", "notices")}
    for stage in run.get("stages") or ():
        if "llm_requests" in (stage.get("custom") or ()):
            usage = model_usage(stage["custom"], stage.get("busy_seconds") or 0.0)
            lines["notices"] = [*lines["notices"], {"level": "info", "message": f"{stage['stage']}: {usage}"}]
    return lines | {"error": None if error is None else str(error)[:5000]}


def _first(problems: Sequence[str]) -> list[str]:
    more = len(problems) - _MAX_PROBLEMS
    return [*problems[:_MAX_PROBLEMS], *([f"And {more} more; see 'gristmill verify' for all."] if more > 0 else [])]


def _documents(entries: Sequence[ManifestEntry]) -> int:
    return sum(entry.rows_read for entry in entries)


def _stage_field(stage: Mapping[str, Any]) -> str | None:
    value = (stage.get("parameters") or {}).get("text_field")
    value = value[0] if isinstance(value, list) and value else value
    return value if isinstance(value, str) else None


def _text_field(plan: Mapping[str, Any]) -> str:
    named = [_stage_field(stage) for stage in plan.get("stages") or ()]
    return next((name for name in named if name), "text")


def _pair(
    texts: TextReader,
    digest: LedgerDigest,
    example: Example,
    place: tuple[str, int] | None,
    fields: Mapping[str, str | None],
) -> dict[str, Any]:
    """A duplicate and its survivor side by side, starting shortly before the first difference."""
    sides = []
    for where in ((example.partition, example.row), place):
        record = None if where is None else texts.found.get(where)
        sides.append(None if record is None else text_of(record, fields.get(example.stage) or texts.text_field))
    start = 0
    if sides[0] is not None and sides[1] is not None and sides[0] != sides[1]:
        pairs = enumerate(zip(sides[0], sides[1], strict=False))
        same = next((at for at, (a, b) in pairs if a != b), min(len(sides[0]), len(sides[1])))
        start = max(0, same - _PAIR_CHARS // 3)
    shown = [None if side is None else side[start : start + _PAIR_CHARS] for side in sides]
    return {
        "stage": example.stage, "id": example.id, "place": f"{example.partition}#{example.row}",
        "survivor": example.survivor, "similarity": example.similarity, "size": digest.cluster_size(example),
        "from": start, "removed_text": shown[0], "survivor_text": shown[1],
        "lengths": [None if side is None else len(side) for side in sides],
    }  # fmt: skip


def _text_problems(texts: TextReader) -> list[str]:
    if not texts.problems:
        return []
    output = texts.problems.pop("output", None)
    found = [] if output is None else [f"Documents of the output cannot be read: {output}"]
    if texts.problems:
        partition, error = next(iter(texts.problems.items()))
        more = f" (and {len(texts.problems) - 1} more partitions)" if len(texts.problems) > 1 else ""
        found.append(f"The input is no longer readable, so some texts are missing: {partition}{more}: {error}")
    return found
