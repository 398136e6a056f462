"""The manifest: one small file per committed partition. Its entry is the commit; files without one are not output."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import orjson
import xxhash

from gristmill.errors import VerificationError
from gristmill.ledger.record.layout import RECORD_FOLDER, RunFolder
from gristmill.ledger.record.trail import StageCount
from gristmill.storage.atomic import TEMPORARY_PREFIX

COMMITTED = "committed"
PENDING = "pending"
"""The state of an entry that announces files which may already exist but do not count yet."""

_READ_AT_ONCE = 1000

_INTEGER_LIMIT = 2**63
COUNTS = {"rows_in": int, "rows_out": int, "created": int, "untracked": int, "changed": int, "touched": int,
          "dropped": {"*": int}, "quarantined": {"*": int}, "skipped": {"*": int}}  # fmt: skip
_FILE = {"path": str, "size": int, "hash": str, "rows": (int, None)}
_PART = {"path": str, "relative": str, "size": int, "stamp": str, "start": int, "end": int, "whole": bool}
_NEEDED = {"whole", "path", "relative", "size", "start", "end", "stage", "name"}
"""Keys that every version has written, so their presence is not checked."""

_ENTRY = {
    "partition": str, "index": int, "source": [_PART], "fingerprint": str, "plan": str, "files": [_FILE],
    "records": {"*": _FILE}, "stages": [{"stage": str, **COUNTS}], "rows_read": int, "rows_written": int,
    "rows_dropped": int, "quarantined": int, "row_numbers": int, "batches": [int], "state": str,
    "damaged": [{"file": str, "cause": str, "detail": str, "lost": int, "row": int, "salvaged": (int, None)}],
}  # fmt: skip
"""An entry, which may come from an untrusted source."""


@dataclass(frozen=True, slots=True)
class FileEntry:
    """A file that belongs to a partition, by its path below the output; `rows` is None for the index.

    A path that begins with `_gristmill/` is in the record, wherever that is.
    """

    path: str
    size: int
    hash: str
    rows: int | None = None


@dataclass(frozen=True, slots=True)
class DamagedFile:
    """A damaged input file, and what was lost and salvaged.

    Attributes:
        file: Its path below the input root.
        cause: As in the quarantine.
        detail: What was found, for people.
        lost: Approximate number of its records that are missing from the output.
        row: The row number of its record in the quarantine.
        salvaged: Number of rows before that one that were read and kept (`--salvage`); None if none were.
    """

    file: str
    cause: str
    detail: str
    lost: int
    row: int
    salvaged: int | None

    def __str__(self) -> str:
        return f"{self.file} is damaged: {self.detail}"


@dataclass(frozen=True, slots=True)
class ManifestEntry:
    """What a committed partition was made from, what it consists of, and what happened to its rows.

    Contains no times: two runs of the same plan over the same input produce equal entries.

    Attributes:
        partition: The id.
        index: Its place in source order.
        source: The ranges of input files, with size and stamp.
        fingerprint: `Partition.fingerprint()` of the source.
        plan: The digest of the plan.
        files: The data files.
        records: Ledger, index and quarantine, by kind: `ledger`, `changes`, `cuts`, `scores`, `ids`, `urls`,
            `quarantine`.
        stages: The counts of every stage, in the order of the plan.
        rows_read: Rows that the source created.
        row_numbers: One more than the highest row number in use; above `rows_read` if one quarantined record stands for
            several rows.
        batches: Only in entries of version 0.1: the first row of each batch that was read, if there were several.
        damaged: The damaged files of the source, if any.
    """

    partition: str
    index: int
    source: tuple[dict[str, Any], ...]
    fingerprint: str
    plan: str
    files: tuple[FileEntry, ...] = ()
    records: Mapping[str, FileEntry] = field(default_factory=dict)
    stages: Mapping[str, StageCount] = field(default_factory=dict)
    rows_read: int = 0
    rows_written: int = 0
    rows_dropped: int = 0
    quarantined: int = 0
    row_numbers: int = 0
    batches: tuple[int, ...] | None = None
    damaged: tuple[DamagedFile, ...] | None = None
    state: str = COMMITTED

    @property
    def lost(self) -> int:
        """Approximate number of records lost with damaged files, not counting the one that each has in quarantine."""
        return sum(file.lost - 1 for file in self.damaged or ())

    @property
    def all_files(self) -> list[FileEntry]:
        """Data files and records."""
        return [*self.files, *self.records.values()]

    def to_bytes(self) -> bytes:
        """The JSON text of the entry, with a checksum over all other values that reveals edits."""
        try:
            values = orjson.loads(orjson.dumps(self))  # plain values, many times faster than asdict
        except TypeError:  # file names that are not UTF-8
            values = asdict(self)
        counts = values["stages"]
        values |= {"format": 1, "stages": []}
        for name, count in counts.items():
            stage = {"stage": name, **count}
            # These depend on how rows were split into batches; like times, they belong to the record of a run.
            del stage["bytes_in"], stage["bytes_out"]
            if not stage["skipped"]:  # as earlier versions wrote it
                del stage["skipped"]
            values["stages"].append(stage)
        for key in ("batches", "damaged"):
            if values[key] is None:
                del values[key]
        values["seal"] = xxhash.xxh3_64_hexdigest(_dump(values, orjson.OPT_SORT_KEYS))
        return _dump(values, orjson.OPT_SORT_KEYS | orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE)

    def comparable(self) -> dict[str, Any]:
        """The values without paths and stamps, which differ between two copies of the same input."""
        values: dict[str, Any] = json.loads(self.to_bytes())
        for part in values["source"]:
            part.pop("stamp", None)
            part.pop("path", None)
        for key in ("fingerprint", "seal"):
            values.pop(key)
        return values

    @classmethod
    def from_bytes(cls, data: bytes) -> ManifestEntry:
        """The entry that `to_bytes` described.

        Raises:
            ValueError: It is not an entry, is incomplete, or was edited.
        """
        try:
            values = orjson.loads(data)
        except orjson.JSONDecodeError:  # file names that are not UTF-8 are only known to the slower parser
            values = json.loads(data)
        if not isinstance(values, dict) or values.get("format") != 1 or "partition" not in values:
            raise ValueError("it is not a manifest entry of this format")
        if values.pop("seal", None) != xxhash.xxh3_64_hexdigest(_dump(values, orjson.OPT_SORT_KEYS)):
            raise ValueError("its content does not match its checksum, so it was edited or damaged")
        check_shape(values, _ENTRY)
        del values["format"]
        values["source"] = tuple(values["source"])
        for kind, file in values["records"].items():
            values["records"][kind] = FileEntry(**file)
        for number, file in enumerate(values["files"]):
            values["files"][number] = FileEntry(**file)
        values["files"] = tuple(values["files"])
        stages = values["stages"]
        values["stages"] = {}
        for stage in stages:
            name = stage.pop("stage")
            values["stages"][name] = StageCount(**stage)
        if "batches" in values:
            values["batches"] = tuple(values["batches"])
        if "damaged" in values:
            values["damaged"] = tuple(DamagedFile(**file) for file in values["damaged"])
        return cls(**values)


@dataclass(slots=True)
class ManifestTotals:
    """Totals of committed partitions: the counts of their stages in plan order, rows and bytes."""

    partitions: int = 0
    stages: dict[str, StageCount] = field(default_factory=dict)
    rows_read: int = 0
    rows_written: int = 0
    rows_dropped: int = 0
    quarantined: int = 0
    source_bytes: int = 0
    output_bytes: int = 0
    damaged: list[DamagedFile] = field(default_factory=list)


def _dump(values: dict[str, Any], option: int) -> bytes:
    try:
        return orjson.dumps(values, option=option)
    except TypeError:  # file names that are not UTF-8 are only known to the slower writer
        return json.dumps(values, sort_keys=True, indent=2).encode()


_NO_ENTRY = (ValueError, KeyError, TypeError, AttributeError, RecursionError, VerificationError)


class Manifest:
    """The committed partitions of an output folder.

    Args:
        folder: The output folder, or its path.

    After `load`, `problems` names the files in the manifest that are not entries.
    """

    def __init__(self, folder: RunFolder | str) -> None:
        self.folder = folder if isinstance(folder, RunFolder) else RunFolder(folder)
        self.problems: list[str] = []
        self.pending: dict[str, ManifestEntry] = {}

    def scan(self) -> Iterator[ManifestEntry]:
        """All committed entries one by one, sorted by name, for outputs with very many partitions."""
        self.problems = []
        self.pending = {}
        root = self.folder.record_path("manifest")
        names = [name for name in self.folder.walk(root) if not name.startswith(TEMPORARY_PREFIX)]
        for first in range(0, len(names), _READ_AT_ONCE):
            paths = [f"{root}/{name}" for name in names[first : first + _READ_AT_ONCE]]
            for path, data in self.folder.read_many(paths).items():
                if isinstance(data, FileNotFoundError):
                    continue  # removed between listing and reading
                try:
                    if isinstance(data, Exception):
                        raise ValueError(str(data))
                    entry = self._checked(data)
                    if self.folder.record_path("manifest", entry.partition) != path:
                        raise ValueError(f"it describes the partition {entry.partition!r}")
                except _NO_ENTRY as error:
                    self.problems.append(
                        f"{self.folder.shown(self.folder.relative(path))} is not a usable manifest entry: {error}."
                    )
                    continue
                if entry.state == COMMITTED:
                    yield entry
                else:
                    self.pending[entry.partition] = entry

    def load(self) -> dict[str, ManifestEntry]:
        """All committed entries by partition id, in source order."""
        found = sorted(self.scan(), key=lambda entry: (entry.index, entry.partition))
        return {entry.partition: entry for entry in found}

    def totals(self, entries: Iterable[ManifestEntry] | None = None) -> ManifestTotals:
        """Totals of all committed entries, or of those passed in."""
        found = ManifestTotals()
        for entry in self.scan() if entries is None else entries:
            found.partitions += 1
            for stage, counts in entry.stages.items():
                found.stages.setdefault(stage, StageCount()).add(counts)
            found.rows_read += entry.rows_read
            found.rows_written += entry.rows_written
            found.rows_dropped += entry.rows_dropped
            found.quarantined += entry.quarantined
            found.damaged += entry.damaged or ()
            for file in entry.files:
                found.output_bytes += file.size
            for part in entry.source:
                if part["whole"]:
                    found.source_bytes += part["size"]
                elif 0 <= part["start"] <= part["end"] <= part["size"] and ".parquet" not in part["relative"].lower():
                    found.source_bytes += part["end"] - part["start"]  # Parquet is cut by row groups, not by bytes
        return found

    def ordered(self) -> list[ManifestEntry]:
        """All committed entries, in source order."""
        return list(self.load().values())

    def get(self, partition_id: str) -> ManifestEntry | None:
        """The entry of one partition, committed or pending; None if there is none or it is unreadable."""
        try:
            return self._checked(self.folder.read(self.folder.record_path("manifest", partition_id)))
        except (FileNotFoundError, *_NO_ENTRY):
            return None

    def _checked(self, data: bytes) -> ManifestEntry:
        """An entry that names files of this output and its record only."""
        entry = ManifestEntry.from_bytes(data)
        for file in entry.all_files:
            self.folder.join(file.path)
            if "/" in file.path and not file.path.startswith(f"{RECORD_FOLDER}/"):  # a link could lead anywhere
                raise ValueError("it names a data file in another folder")
        return entry

    def add(self, entry: ManifestEntry) -> None:
        """Write an entry atomically; for a committed entry, this is the commit."""
        self.folder.write(self.folder.record_path("manifest", entry.partition), entry.to_bytes())

    def settle(self) -> list[str]:
        """Commit the pending entries whose files are all in place, byte for byte; returns their partitions.

        Two processes that run the same plan into one folder may announce a partition that the other one has just
        committed. Both write the same bytes, so the first to finish may mark them as valid.
        """
        for _ in self.scan():
            pass  # fills `pending`
        settled = []
        for entry in self.pending.values():
            # Announced with leftovers of an earlier commit in it: its own process has to clean up first.
            whole = sum(file.rows or 0 for file in entry.files) == entry.rows_written
            if whole and all(self._in_place(file) for file in entry.all_files):
                self.add(replace(entry, state=COMMITTED))
                settled.append(entry.partition)
        return settled

    def _in_place(self, file: FileEntry) -> bool:
        try:
            data = self.folder.read(self.folder.join(file.path))
        except OSError:
            return False
        return len(data) == file.size and "xxh3:" + xxhash.xxh3_128_hexdigest(data) == file.hash

    def renumber(self, partitions: Mapping[str, int]) -> None:
        """Update the index of committed entries after partitions were added before them."""
        for entry in self.ordered():
            index = partitions.get(entry.partition, entry.index)
            if index != entry.index:
                self.add(replace(entry, index=index))


def check_shape(value: Any, shape: Any, place: str = "") -> None:
    """Compare a value with a shape: a type, a list of one shape, a mapping of keys to shapes, or a choice of these.

    Missing and unknown keys are ignored, except for the few in `_NEEDED`; "*" stands for any key.

    Raises:
        ValueError: It does not fit; names the first place.
    """
    if isinstance(shape, tuple):
        if value is None and None in shape:
            return
        shape = shape[0]
    if isinstance(shape, list):
        fits = isinstance(value, list)
        for number, item in enumerate(value if fits else ()):
            check_shape(item, shape[0], f"{place}[{number}]")
    elif isinstance(shape, dict):
        fits = isinstance(value, dict)
        for key in value if fits else ():
            if key in shape or "*" in shape:
                check_shape(value[key], shape.get(key, shape.get("*")), f"{place}.{key}" if place else key)
        missing = _NEEDED.intersection(shape).difference(value) if fits else ()
        if missing:
            raise ValueError(f"{place or 'it'} has no {min(missing)!r}")
    elif shape is int:
        fits = type(value) is int and -_INTEGER_LIMIT <= value < _INTEGER_LIMIT
    elif shape is float:
        fits = type(value) in (int, float)
    else:
        fits = isinstance(value, shape)
    if not fits:
        raise ValueError(f"{place or 'it'} cannot be {str(value)[:40]!r}")
