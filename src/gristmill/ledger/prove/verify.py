"""Verifies a finished run from its files alone: hashes, row counts, conservation, and that there are no other files."""

from __future__ import annotations

import os
from collections.abc import Mapping, Set
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import xxhash

from gristmill import notebook
from gristmill.errors import GristmillError, VerificationError
from gristmill.figures import plural
from gristmill.ledger.record.commit import find_imbalance, source_rows
from gristmill.ledger.record.contamination import read_contamination
from gristmill.ledger.record.dataset_record import check_dataset
from gristmill.ledger.record.input_files import EXAMPLES, appeared_since, sentence
from gristmill.ledger.record.layout import RECORD_FILES, RECORD_FOLDER, RunFolder
from gristmill.ledger.record.manifest import FileEntry, Manifest, ManifestEntry
from gristmill.ledger.record.plan_record import plan_digest, read_plan
from gristmill.ledger.record.quarantine import parse_quarantine
from gristmill.ledger.record.run_record import checksum, file_hashes, read_run, with_checksum
from gristmill.ledger.record.shape import open_table, table_errors
from gristmill.ledger.record.summary import summary_problems
from gristmill.ledger.record.trail import QUARANTINED
from gristmill.ledger.record.workflow_record import belongs_to_workflow, check_workflow, is_list_only, verify_list
from gristmill.storage.atomic import TEMPORARY_PREFIX, json_bytes
from gristmill.storage.compression import open_source
from gristmill.storage.files import StorageOptions
from gristmill.storage.formats import codec_of, format_of
from gristmill.storage.row_blocks import count_rows

_CHUNK = 1 << 20
_TEXT_ENDINGS = (".jsonl", ".json", ".ndjson")
_MAX_STRAY = 20


@dataclass(slots=True)
class VerifyReport:
    """What was checked and all problems found, one sentence each; notes are not problems.

    `damaged` has a sentence for each damaged input file: its output cannot be verified or is missing altogether.
    """

    output: str
    problems: list[str] = field(default_factory=list)
    damaged: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    partitions: int = 0
    files: int = 0
    bytes: int = 0
    rows_read: int = 0
    rows_created: int = 0
    rows_written: int = 0
    rows_dropped: int = 0
    rows_quarantined: int = 0
    status: str | None = None
    steps: int = 0

    @property
    def ok(self) -> bool:
        """Whether everything agrees, and no input file was damaged."""
        return not self.problems and not self.damaged

    _repr_html_ = notebook.as_text

    def __str__(self) -> str:
        created = f" + {self.rows_created:,} created by stages" if self.rows_created else ""
        facts = (
            f"{plural(self.partitions, 'partition')}, {self.rows_read:,} rows read{created} = "
            f"{self.rows_written:,} written + {self.rows_dropped:,} dropped + {self.rows_quarantined:,} quarantined"
        )
        facts += f"; {plural(self.steps, 'step')} of the workflow" if self.steps else ""
        notes = "".join(f"\n{note}" for note in self.notes)
        if self.ok:
            return f"Verified: {self.output}: {facts}.{notes}"
        if not self.problems:
            told = f"{self.output} matches its record but is not verified"
            told += f": {plural(len(self.damaged), 'input file')} damaged"
        else:
            told = f"{self.output} has {plural(len(self.problems), 'problem')}"
        lines = "\n".join(f"  - {problem}" for problem in [*self.problems, *self.damaged])
        return f"{told} ({facts}):\n{lines}{notes}"

    def raise_for_problems(self) -> None:
        """Raise if anything is wrong.

        Raises:
            VerificationError: The report as its message.
        """
        if not self.ok:
            raise VerificationError(str(self), problems=[*self.problems, *self.damaged], path=self.output)


def verify(
    output: str | os.PathLike[str] | RunFolder,
    *,
    storage_options: StorageOptions = None,
    record_path: str | os.PathLike[str] | None = None,
) -> VerifyReport:
    """Check every file of an output against the manifest, the ledger and the record of the run.

    Args:
        output: The output of a run.
        storage_options: File system options for URLs.
        record_path: Where the record of the run is, if not beside the output.

    Raises:
        InputNotFoundError: No run has written there.
    """
    folder = output if isinstance(output, RunFolder) else RunFolder(output, storage_options, record_path=record_path)
    report = VerifyReport(folder.path)
    if is_list_only(folder):
        return verify_list(folder, report, verify)
    folder.require_run()
    manifest = Manifest(folder)
    entries = manifest.load()
    report.problems += manifest.problems
    for key in manifest.pending:
        report.problems.append(f"The commit of partition {key} did not finish; run again to redo it.")
    listing = folder.walk()
    for entry in entries.values():
        report.problems += _check_entry(folder, entry, listing)
        report.partitions += 1
        report.files += len(entry.files)
        report.bytes += sum(file.size for file in entry.files)
        report.rows_read += entry.rows_read
        gone = entry.rows_dropped + entry.quarantined
        report.rows_created += entry.rows_written + gone - entry.rows_read
        report.rows_written += entry.rows_written
        report.rows_dropped += entry.rows_dropped
        report.rows_quarantined += entry.quarantined
        report.damaged += [f"{file}." for file in entry.damaged or ()]
    report.problems += _check_indexes(entries)
    report.problems += _check_entries(folder, {**entries, **manifest.pending})
    report.problems += _check_plan(folder, entries)
    report.problems += _check_run(folder, entries, report)
    report.problems += _check_page(folder, listing)
    report.problems += _check_contamination(folder)
    report.notes += _input_notes(folder, entries)
    found, described = summary_problems(folder, listing)
    report.problems += found
    report.problems += _check_strays(folder, {**entries, **manifest.pending}, listing, described)
    check_workflow(folder, report, listing, verify)
    check_dataset(folder, report, entries)
    return report


def _check_entry(folder: RunFolder, entry: ManifestEntry, listing: Mapping[str, int]) -> list[str]:
    problems: list[str] = []
    sound: dict[str, bytes | None] = {}
    for kind, file in [("data", file) for file in entry.files] + list(entry.records.items()):
        found, content = _check_file(folder, entry, file, kind, listing)
        problems += found
        if not found:
            sound[kind] = content
    who = f"Partition {entry.partition}"
    imbalance = find_imbalance(entry.stages)
    if imbalance:
        problems.append(f"{who}: {imbalance[1]}")
    counts = list(entry.stages.values())
    dropped = sum(sum(count.dropped.values()) for count in counts)
    quarantined = sum(sum(count.quarantined.values()) for count in counts)
    claims = [
        ("rows read", entry.rows_read, source_rows(entry.stages), "the counts of its source"),
        ("rows written", entry.rows_written, counts[-1].rows_out if counts else 0, "the counts of its last stage"),
        ("rows written", entry.rows_written, sum(file.rows or 0 for file in entry.files), "the sum over its files"),
        ("rows dropped", entry.rows_dropped, dropped, "the sum over its stages"),
        ("rows quarantined", entry.quarantined, quarantined, "the sum over its stages"),
    ]
    for what, claimed, found_number, where in claims:
        if claimed != found_number:
            problems.append(f"{who}: the manifest says {claimed} {what}, but {where} is {found_number}.")
    problems += _check_records(entry, sound)
    return problems


def _check_file(
    folder: RunFolder, entry: ManifestEntry, file: FileEntry, kind: str, listing: Mapping[str, int]
) -> tuple[list[str], bytes | None]:
    """Check size, hash and rows of one file; returns the content of records."""
    who = f"{folder.shown(file.path)} of partition {entry.partition}"
    if file.path not in listing:
        return [f"{who} is missing."], None
    path = folder.join(file.path)
    digest = xxhash.xxh3_128()
    size = lines = 0
    last = b"\n"
    pieces: list[bytes] = []
    try:
        with folder.open(path) as stream:
            while piece := stream.read(_CHUNK):
                digest.update(piece)
                size += len(piece)
                if kind == "data":
                    lines += piece.count(b"\n")
                    last = piece[-1:]
                else:
                    pieces.append(piece)
    except OSError as error:
        return [f"{who} cannot be read: {error}."], None
    problems = []
    if size != file.size:
        problems.append(f"{who} should have {file.size} bytes but has {size}.")
    if "xxh3:" + digest.hexdigest() != file.hash:
        problems.append(f"{who} was changed after it was written: its hash differs.")
    if kind == "data":
        if "documents" not in entry.records:  # otherwise files hold tokens, and that record the documents
            problems += _check_rows(folder, file, who, lines + (last != b"\n"))
        return problems, None
    return problems, b"".join(pieces)


def _check_rows(folder: RunFolder, file: FileEntry, who: str, lines: int) -> list[str]:
    name = file.path.lower()
    codec = codec_of(name)
    plain = name if codec == "none" else name.rpartition(".")[0]
    path = folder.join(file.path)
    try:
        if plain.endswith(".parquet"):
            with folder.open(path) as stream:
                rows = pq.read_metadata(stream).num_rows
        elif plain.endswith(_TEXT_ENDINGS):
            rows = lines if codec == "none" else _count_lines(folder, path)
        elif format_of(plain) != "csv":  # in other files, such as the steps of a workflow, rows need not be documents
            return []
        else:
            rows = count_rows(path, size=file.size, storage_options=folder.storage_options)
    except (OSError, ValueError, pa.ArrowException, GristmillError) as error:
        return [f"{who} cannot be read: {error}."]
    if rows != file.rows:
        return [f"{who} should have {file.rows} rows but has {rows}."]
    return []


def _count_lines(folder: RunFolder, path: str) -> int:
    source = open_source(path, storage_options=folder.storage_options)
    buffer = bytearray(_CHUNK)
    view = memoryview(buffer)
    lines, last = 0, 10
    try:
        while count := source.readinto(view):
            lines += buffer.count(b"\n", 0, count)
            last = buffer[count - 1]
    finally:
        source.close()
    return lines + (last != 10)


def _check_records(entry: ManifestEntry, sound: Mapping[str, bytes | None]) -> list[str]:
    """Check ledger, quarantine and index against the counts; `sound` has the content of intact records."""
    who = f"Partition {entry.partition}"
    problems: list[str] = []
    expected: dict[tuple[str, str], int] = {}
    for stage, count in entry.stages.items():
        expected |= {(stage, reason): number for reason, number in count.dropped.items() if number}
    held = {
        (stage, cause): number
        for stage, count in entry.stages.items()
        for cause, number in count.quarantined.items()
        if number
    }
    table = None
    if "ledger" in entry.records and "ledger" in sound:
        try:
            with table_errors(f"{who}: the ledger"):
                table = open_table(pa.BufferReader(sound["ledger"])).read()
                _tally(table)
                table.select(["row", "id"])
        except VerificationError as error:
            return [str(error)]
    if table is not None or "ledger" not in entry.records:
        decided, quarantined = _tally(table)
        problems += _differences(who, "dropped", "the ledger", expected, decided)
        problems += _differences(who, "quarantined", "the ledger", held, quarantined)
    if "quarantine" not in entry.records or "quarantine" in sound:
        lines: dict[tuple[str, str], int] = {}
        try:
            for item in parse_quarantine(sound.get("quarantine") or b"", partition=entry.partition):
                key = (item.record.stage, item.record.cause)
                lines[key] = lines.get(key, 0) + 1
            problems += _differences(who, "quarantined", "the quarantine", held, lines)
        except VerificationError as error:
            problems.append(str(error))
    for kind in ("ids", "urls"):
        if kind in entry.records and entry.records[kind].size != 8 * entry.row_numbers:
            problems.append(
                f"{who}: the index of {kind} has {entry.records[kind].size} bytes, but {entry.row_numbers} rows need "
                f"{8 * entry.row_numbers}."
            )
    if sound.get("documents") is not None:
        problems += _check_documents(entry, sound["documents"])
    if entry.row_numbers < entry.rows_read:
        problems.append(f"{who}: {entry.rows_read} rows were read, but only {entry.row_numbers} are numbered.")
    if table is not None:
        problems += _check_ids(entry, table, sound.get("ids"))
    return problems


def _check_documents(entry: ManifestEntry, content: bytes | None) -> list[str]:
    """Check that every written document has a place in a shard, and that no token belongs to two documents."""
    who = f"Partition {entry.partition}"
    try:
        with table_errors(f"{who}: the places of its documents"):
            table = open_table(pa.BufferReader(content)).read()
            row, start, shard, offset, tokens = (
                table.column(name).to_numpy() for name in ("row", "start", "shard", "offset", "tokens")
            )
    except VerificationError as error:
        return [str(error)]
    problems = []
    documents = int((start == 0).sum())
    if documents != entry.rows_written:
        problems.append(f"{who}: {entry.rows_written} documents were written, but {documents} have a place in a shard.")
    if len(row) and int(row.max()) >= entry.row_numbers:
        problems.append(f"{who}: row {int(row.max())} has a place in a shard, but only {entry.row_numbers} rows exist.")
    order = np.lexsort((offset, shard))
    order = order[tokens[order] > 0]
    same = shard[order][1:] == shard[order][:-1]
    if bool((same & (offset[order][1:] < (offset + tokens)[order][:-1])).any()):
        problems.append(f"{who}: two documents claim the same tokens of a shard.")
    return problems


def _tally(table: pa.Table | None) -> tuple[dict[tuple[str, str], int], dict[tuple[str, str], int]]:
    decided: dict[tuple[str, str], int] = {}
    quarantined: dict[tuple[str, str], int] = {}
    if table is not None:
        groups = table.group_by(["stage", "outcome", "reason"]).aggregate([([], "count_all")])
        for group in groups.to_pylist():
            target = quarantined if group["outcome"] == QUARANTINED else decided
            key = (group["stage"], group["reason"])
            target[key] = target.get(key, 0) + group["count_all"]
    return decided, quarantined


def _differences(
    who: str, what: str, where: str, expected: Mapping[tuple[str, str], int], found: Mapping[tuple[str, str], int]
) -> list[str]:
    return [
        f"{who}: the manifest counts {expected.get(key, 0)} rows {what} by {key[0]!r} for {key[1]!r}, {where} has "
        f"{found.get(key, 0)}."
        for key in sorted({*expected, *found})
        if expected.get(key, 0) != found.get(key, 0)
    ]


def _check_ids(entry: ManifestEntry, table: pa.Table, index: bytes | None) -> list[str]:
    """Every decision must be about a row that was read, and carry the id that the index has for that row."""
    known = table.filter(pc.is_valid(table.column("row")))
    rows = known.column("row").to_numpy()
    if len(rows) and (rows.min() < 0 or rows.max() >= entry.row_numbers):
        told = f"the ledger refers to row {int(rows.max())}, but only {entry.row_numbers} rows are numbered"
        return [f"Partition {entry.partition}: {told}."]
    if index is None or not len(rows) or len(index) != 8 * entry.row_numbers:
        return []
    from gristmill.kernels.hashing import hash_column

    hashes = hash_column(known.column("id").cast(pa.large_string()))
    wrong = np.flatnonzero((hashes != np.frombuffer(index, "<u8")[rows]) & (hashes != 0))
    if len(wrong):
        told = f"the id that the ledger has for row {int(rows[wrong[0]])} is not the one in the index"
        return [f"Partition {entry.partition}: {told}."]
    return []


def _check_indexes(entries: Mapping[str, ManifestEntry]) -> list[str]:
    places: dict[int, str] = {}
    problems = []
    for key, entry in entries.items():
        if entry.index in places:
            problems.append(f"Partitions {places[entry.index]} and {key} claim the same place {entry.index}.")
        places[entry.index] = key
    return problems


def _check_entries(folder: RunFolder, entries: Mapping[str, ManifestEntry]) -> list[str]:
    """Entries have exactly one serialised form, so that even an additional space was put there by another program."""
    paths = {folder.record_path("manifest", key): entry for key, entry in entries.items()}
    return [
        f"{folder.shown(folder.relative(path))} has the right content but was rewritten (bytes differ)."
        for path, data in folder.read_many(list(paths)).items()
        if data != paths[path].to_bytes()
    ]


def _check_plan(folder: RunFolder, entries: Mapping[str, ManifestEntry]) -> list[str]:
    name = folder.shown(f"{RECORD_FOLDER}/plan.json")
    try:
        plan = read_plan(folder)
    except VerificationError as error:
        return [str(error)]
    if plan is None:
        return [f"{name} is missing, so the plan that made this output is unknown."]
    other = [key for key, entry in entries.items() if entry.plan != plan_digest(plan)]
    if other:
        return [f"{len(other)} partitions, starting with {other[0]}, were not written by the plan in {name}."]
    return []


def _check_run(folder: RunFolder, entries: Mapping[str, ManifestEntry], report: VerifyReport) -> list[str]:
    try:
        run = read_run(folder)
    except VerificationError as error:
        return [str(error)]
    name = folder.shown(f"{RECORD_FOLDER}/run.json")
    if run is None:
        return [f"{name} is missing: the run did not finish; run again to complete it."]
    report.status = str(run.get("status"))
    if report.status != "done":
        return [f"The last run is {report.status!r}, not 'done'; run again to complete it."]
    problems = _check_seals(folder, run)
    claims: list[tuple[str, Any, Any]] = [
        ("partitions", run.get("partitions"), len(entries)),
        ("rows read", run.get("rows_read"), report.rows_read),
        ("rows written", run.get("rows_written"), report.rows_written),
        ("rows dropped", run.get("rows_dropped"), report.rows_dropped),
        ("rows quarantined", run.get("rows_quarantined"), report.rows_quarantined),
        ("bytes of output", run.get("output_bytes"), report.bytes),
    ]
    for what, claimed, found in claims:
        if claimed != found:
            problems.append(f"{name} says {claimed} {what}, the manifest has {found}.")
    recorded = {stage.get("stage"): stage for stage in run.get("stages") or ()}
    for stage, count in Manifest(folder).totals(entries.values()).stages.items():
        told, here = recorded.get(stage, {}), asdict(count)
        problems += [
            f"{name} says {key}={told.get(key)} for stage {stage!r}, the manifest has {here[key]}."
            for key in ("rows_in", "rows_out", "created", "dropped", "quarantined")
            if told.get(key) != here[key]
        ]
    return problems


def _input_notes(folder: RunFolder, entries: Mapping[str, ManifestEntry]) -> list[str]:
    """Report input that the run did not read, and files added to the input since."""
    try:
        run = read_run(folder) or {}
    except VerificationError:
        return []  # reported as a problem
    files = run.get("files")
    if not isinstance(files, dict):
        return []  # a record of an earlier version
    notes = [sentence(files["left_out"])] if files.get("left_out") else []
    read = (part["relative"] for entry in entries.values() for part in entry.source)
    # If the run did not finish, uncommitted files may simply not have been reached.
    new = appeared_since(folder, files, read) if run.get("status") == "done" else []
    if new:
        shown = ", ".join(new[:EXAMPLES]) + (", …" if len(new) > EXAMPLES else "")
        notes.append(f"Added to the input since the run: {plural(len(new), 'file')} ({shown}).")
    return notes


def _check_seals(folder: RunFolder, run: Mapping[str, Any]) -> list[str]:
    """Check that the record of the run, and the files it has hashes of, are unchanged since the run ended."""
    problems = []
    name = folder.shown(f"{RECORD_FOLDER}/run.json")
    if run.get("seal") != checksum(run):
        problems.append(f"{name} was edited or damaged: its content does not match its checksum.")
    elif folder.read(folder.record_path("run")) != json_bytes(run):
        problems.append(f"{name} has the right content but was rewritten (bytes differ).")
    was, now = run.get("sealed"), file_hashes(folder)
    was = was if isinstance(was, dict) else {}
    problems += [
        folder.shown(f"{RECORD_FOLDER}/{file} ") + ("is missing." if file not in now else "was changed after the run.")
        for file in sorted({*was, *now})
        if was.get(file) != now.get(file)
    ]
    return problems


def _check_contamination(folder: RunFolder) -> list[str]:
    """Check that the list of benchmark items, if there is one, is unchanged."""
    try:
        read_contamination(folder)
    except VerificationError as error:
        return [str(error)]
    return []


def _check_page(folder: RunFolder, listing: Mapping[str, int]) -> list[str]:
    """Check that the report page, if there is one, is unchanged."""
    name = f"{RECORD_FOLDER}/{RECORD_FILES['report']}"
    if name not in listing:
        return []
    page = folder.read(folder.join(name))
    if page == with_checksum(page[: page.rfind(b"<!-- xxh3:")]):
        return []
    return [f"{folder.shown(name)} was changed after it was written; rewrite it with 'gristmill report'."]


def _check_strays(
    folder: RunFolder, entries: Mapping[str, ManifestEntry], listing: Mapping[str, int], described: Set[str]
) -> list[str]:
    expected = {f"{RECORD_FOLDER}/{name}" for name in RECORD_FILES.values()}
    expected |= {"README.md", "_croissant.json", *described}  # the dataset card, and its description
    kept = f"{RECORD_FOLDER}/input/"  # standard input
    answers = f"{RECORD_FOLDER}/answers/"  # answers of language models, from this run and earlier ones
    for entry in entries.values():
        expected.add(folder.relative(folder.record_path("manifest", entry.partition)))
        expected.update(file.path for file in entry.all_files)
        expected.update(kept + part["relative"] for part in entry.source if f"{kept}{part['relative']}" in listing)
    # Files in the manifest that are not valid entries have already been reported.
    named = f"{RECORD_FOLDER}/manifest/"
    temporary = named + TEMPORARY_PREFIX
    of_workflow = belongs_to_workflow(folder, listing)
    strays = [
        name
        for name in listing
        if name not in expected
        and (not name.startswith((named, answers)) or name.startswith(temporary))
        and not of_workflow(name)
    ]
    problems = [f"{folder.shown(name)} {_what_stray(name)}." for name in strays[:_MAX_STRAY]]
    if len(strays) > _MAX_STRAY:
        problems.append(f"{len(strays) - _MAX_STRAY} more files in the output or its record do not belong to the run.")
    return problems


def _what_stray(name: str) -> str:
    if name.startswith(f"{RECORD_FOLDER}/staging/"):
        return "was left in staging by a run that did not finish"
    if name.rpartition("/")[2].startswith(TEMPORARY_PREFIX):
        return "is a temporary file that was left behind"
    return "does not belong to the run"
