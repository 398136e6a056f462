"""What the viewer keeps in memory about a run: its partitions with their counts, but no documents."""

from __future__ import annotations

import os
import posixpath
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from gristmill.errors import VerificationError
from gristmill.ledger.ask.ledger import Ledger
from gristmill.ledger.record.layout import RECORD_FOLDER, STEPS_FOLDER, RunFolder
from gristmill.ledger.record.manifest import ManifestEntry
from gristmill.ledger.record.plan_record import read_plan
from gristmill.ledger.record.run_record import RUNNING, read_run
from gristmill.ledger.record.shape import open_table
from gristmill.ledger.record.trail import QUARANTINED
from gristmill.storage.files import RECORD_SUFFIX, is_local

MAX_SOURCES = 2000
"""Maximum number of source files to list; if there are more, the page asks for a part of the name."""
_RECORDS = (RECORD_SUFFIX, f"/{RECORD_FOLDER}")


@dataclass(frozen=True, slots=True)
class PartitionFacts:
    """Facts that decide whether a partition can contain matches."""

    partition: str
    rows: int
    endings: dict[tuple[str, str, str], int]
    """(stage, `dropped` or `quarantined`, reason) → documents; duplicates count as dropped here."""
    sources: tuple[str, ...]
    has_changes: bool


@dataclass(slots=True)
class Catalog:
    """The partitions of a run in source order, with the sums over all of them.

    Attributes:
        partitions: The committed partitions by id.
        starts: The number of documents before each of them.
        documents: Documents that were read.
        endings: As in `PartitionFacts`, summed over all partitions.
        splits: Whether a stage splits documents into several rows, so that counts refer to rows.
        problems: Sentences about unreadable parts of the record.
    """

    partitions: dict[str, PartitionFacts] = field(default_factory=dict)
    starts: dict[str, int] = field(default_factory=dict)
    documents: int = 0
    kept: int = 0
    written: int = 0
    endings: Counter[tuple[str, str, str]] = field(default_factory=Counter)
    sources: dict[str, int] = field(default_factory=dict)
    splits: bool = False
    problems: list[str] = field(default_factory=list)


def read_catalog(ledger: Ledger) -> Catalog:
    """Read the manifest of a run, entry by entry."""
    catalog = Catalog()
    manifest = ledger.manifest
    found: list[tuple[int, str, PartitionFacts]] = []
    for entry in manifest.scan():
        endings = _endings(entry)
        sources = tuple(dict.fromkeys(str(part["relative"]) for part in entry.source))
        facts = PartitionFacts(entry.partition, entry.row_numbers, endings, sources, "changes" in entry.records)
        found.append((entry.index, entry.partition, facts))
        catalog.endings.update(endings)
        catalog.kept += entry.rows_read - sum(endings.values())
        catalog.written += entry.rows_written
        created = [count.created - count.untracked for count in entry.stages.values()]
        catalog.splits |= sum(created) > entry.rows_read
    for _, partition, facts in sorted(found, key=lambda item: item[:2]):
        catalog.partitions[partition] = facts
        catalog.starts[partition] = catalog.documents
        catalog.documents += facts.rows
        for source in facts.sources:
            catalog.sources[source] = catalog.sources.get(source, 0) + facts.rows
    catalog.problems = list(manifest.problems)
    return catalog


def _endings(entry: ManifestEntry) -> dict[tuple[str, str, str], int]:
    found: dict[tuple[str, str, str], int] = {}
    for stage, count in entry.stages.items():
        found |= {(stage, "dropped", reason): number for reason, number in count.dropped.items()}
        found |= {(stage, QUARANTINED, cause): number for cause, number in count.quarantined.items()}
    return found


def manifest_stamp(folder: RunFolder) -> int:
    """Changes when a partition is committed; always 0 if the store has no folder times."""
    path = folder.record_path("manifest")
    try:
        return os.stat(path).st_mtime_ns if is_local(path) else 0
    except FileNotFoundError:
        return 0


def run_notes(folder: RunFolder, catalog: Catalog) -> tuple[str, list[str]]:
    """The status of the run, and sentences that explain what is shown."""
    try:
        run: dict[str, Any] = dict(read_run(folder) or {})
    except VerificationError as error:
        return "unknown", [f"The record of the run cannot be read: {error}"]
    status = str(run.get("status", "unknown"))
    total = int(run.get("partitions") or 0)
    done = f"{len(catalog.partitions):,} of {max(total, len(catalog.partitions)):,} partitions"
    notes = []
    parent = posixpath.dirname(folder.path)
    if posixpath.basename(parent) == STEPS_FOLDER and parent.removesuffix(f"/{STEPS_FOLDER}").endswith(_RECORDS):
        notes.append(
            "This is one step of a multi-step run: its rows are intermediate results, and some have no text. Pass the "
            "output of the whole run to see its documents."
        )
    if status == RUNNING:
        notes.append(f"The run is still running or was killed: showing what is committed, {done}.")
    elif status == "failed":
        cause = str(run.get("error") or "").strip().split("\n", 1)[0].rstrip(".")
        notes.append(f"The run failed{': ' + cause if cause else ''}. Showing what is committed, {done}.")
    elif status != "done":
        notes.append(f"The run did not finish ({status}): showing what is committed, {done}.")
    if not catalog.documents:
        notes.append("No document has been committed, so there is nothing to show.")
    return status, notes


def plan_facts(folder: RunFolder) -> tuple[list[str], str]:
    """The stages of the plan in their order, and the field with the text: the one that most stages read."""
    try:
        stages = (read_plan(folder) or {}).get("stages") or []
    except VerificationError:
        return [], "text"
    fields: Counter[str] = Counter()
    for stage in stages:
        named = (stage.get("parameters") or {}).get("text_field")
        fields.update(name for name in (named if isinstance(named, list) else [named]) if isinstance(name, str))
    most = fields.most_common(1)
    return [str(stage.get("name")) for stage in stages], most[0][0] if most else "text"


def score_names(ledger: Ledger, catalog: Catalog) -> list[str]:
    """The scores recorded for every document, as `stage:score`; empty unless all scores were requested."""
    for partition in catalog.partitions:
        entry = ledger.entry(partition)
        file = entry.records.get("scores") if entry is not None else None
        if file is not None:
            try:
                with ledger.folder.open(ledger.folder.join(file.path)) as stream:
                    table = open_table(stream).read(columns=["stage", "score"], use_threads=False)
            except (OSError, pa.ArrowException):
                continue
            pairs = table.group_by(["stage", "score"], use_threads=False).aggregate([]).to_pylist()
            return [f"{pair['stage']}:{pair['score']}" for pair in pairs]
    return []
