"""Splitting inputs into partitions: deterministic units of work whose names depend only on paths.

Readers of partitions report the origin of records as `SourceFile`, and unreadable ones as `BadRecord`.
"""

from __future__ import annotations

import hashlib
import itertools
import re
from collections import Counter
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from operator import attrgetter, itemgetter
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from gristmill.errors import UsageError
from gristmill.figures import parse_size, plural
from gristmill.storage.files import InputFile, StorageOptions, is_local
from gristmill.storage.formats import COMPRESSED_SUFFIXES, EXTENSIONS, FORMATS, Format

if TYPE_CHECKING:
    from gristmill.storage.parquet_blocks import Footers

DEFAULT_BLOCKSIZE = 128 * 10**6
MAX_ID_CHARS = 180

# How much of a bad record is kept for the quarantine.
MAX_RAW_BYTES = 64 * 1024

# Typical compressed size of a web text record, for files in which no record can be read.
_STORED_RECORD_BYTES = 1000

# The longest readable part, so that a hash and a block or group mark still fit below MAX_ID_CHARS.
_MAX_STEM_CHARS = 140
_PLAIN_COMPONENT = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9.,=+_-]*[A-Za-z0-9.,=+-])?")
_ENDINGS = [ending[1:] for ending in (*COMPRESSED_SUFFIXES, *itertools.chain(*EXTENSIONS.values()))]
_MARK = re.compile(rf"~({'|'.join(_ENDINGS)})(?=$|\.[bn]\d)")
_LOOKS_MARKED = re.compile(r"\.b\d{4,}|\.n\d+-[0-9a-f]{10}")


def is_whole_file(partition_id: str) -> bool:
    """Whether a partition is exactly one file, neither a block of one nor a group of several."""
    return not re.search(rf"({_LOOKS_MARKED.pattern})$", partition_id)


@dataclass(frozen=True, slots=True)
class FileRange:
    """A file or a part of one.

    Attributes:
        start: First stored byte, or first row group (Parquet).
        end: One past the last; -1 means to the end of the file, for files whose size is unknown when planning.
        whole: The range is the whole file.
        reading: How to read it, as returned by `row_formats.reading_of`; empty for JSONL and Parquet.
    """

    path: str
    relative: str
    size: int
    stamp: str
    start: int
    end: int
    whole: bool
    reading: str = ""


@dataclass(frozen=True, slots=True)
class Partition:
    """A unit of input with a name that output files inherit.

    Attributes:
        index: Position among the partitions of this input.
        id: Derived only from relative path and block index; safe as a file name.
        ranges: The ranges to read, in this order.
        name: Name of its output files; defaults to its id.
    """

    index: int
    id: str
    ranges: tuple[FileRange, ...]
    name: str = ""

    @property
    def source_files(self) -> list[str]:
        """The paths read, each once, in order."""
        return list(dict.fromkeys(map(attrgetter("path"), self.ranges)))

    def fingerprint(self) -> str:
        """A hash that changes when a source file or the partitioning does, but not when the input root is moved."""
        digest = hashlib.sha256()
        for part in self.ranges:
            facts = (part.relative, part.size, part.stamp, part.start, part.end)
            digest.update(repr(facts).encode("ascii", "backslashreplace") + b"\n")
        return digest.hexdigest()[:32]

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        ranges = list(map(asdict, self.ranges))
        return {"index": self.index, "id": self.id, "ranges": ranges, "name": self.name}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Partition:
        """The partition that `to_dict` described."""
        ranges = tuple(FileRange(**part) for part in values["ranges"])
        return cls(values["index"], values["id"], ranges, values.get("name", ""))


@dataclass(frozen=True, slots=True)
class SourceFile:
    """The file a block was read from.

    Attributes:
        path: Its path or URL.
        relative: The path below the input root.
    """

    path: str
    relative: str


@dataclass(frozen=True, slots=True)
class BadRecord:
    """A record, or the rest of a file, that could not be read.

    Attributes:
        row: Row number in the partition; bad records are numbered too.
        file: The file that contains it.
        offset: Byte offset of its line in the uncompressed file (JSONL); -1 if there is none (Parquet).
        cause: "record_too_large", "truncated_file", "corrupt_archive", "corrupt_parquet", "other_format".
        raw: Its first 64 KiB.
        size: Size in bytes, as far as known.
        detail: Description of the problem.
        lost: Approximate number of records missing because their file is damaged; 0 if only this record is bad.
        salvaged: Number of records of the damaged file that are kept, the rows just before this one; None for none.
    """

    row: int
    file: SourceFile
    offset: int
    cause: str
    raw: bytes
    size: int
    detail: str
    lost: int = 0
    salvaged: int | None = None

    @property
    def told(self) -> str:
        """The detail, with the consequences for a damaged file."""
        if not self.lost:
            return self.detail
        # The original size of a truncated file is unknown.
        lost = f"{'at least' if self.cause == 'truncated_file' else 'about'} {plural(self.lost, 'record')} lost"
        if self.salvaged is None:
            return f"{self.detail}; nothing of it was kept, {lost}"
        return f"{self.detail}; {plural(self.salvaged, 'record')} salvaged but not verified, {lost}"


class Block(Protocol):
    """Records that were read together."""

    @property
    def bad(self) -> list[BadRecord]:
        """Records that could not be read."""

    @property
    def sources(self) -> list[tuple[int, SourceFile]]:
        """The files they come from in order, each with its first row number."""

    @property
    def nbytes(self) -> int:
        """Approximate memory use."""


B = TypeVar("B", bound=Block)
B_co = TypeVar("B_co", bound=Block, covariant=True)


class FileReader(Protocol[B_co]):
    """One pass over a file; `row` is the next row number after its blocks."""

    row: int

    def blocks(self) -> Iterator[B_co]:
        """Its blocks, in order."""


def join_small(
    ranges: Iterable[FileRange],
    open_file: Callable[[FileRange, int], FileReader[B]],
    block_bytes: int,
    join: Callable[[list[B]], B],
) -> Iterator[B]:
    """The blocks of several files; those of small files are combined up to `block_bytes`.

    Boundaries within a file are kept. A block that is at least half full is passed on at once, so that at most one is
    held back.
    """
    held: list[B] = []
    filled = row = 0
    for part in ranges:
        reader = open_file(part, row)
        for number, block in enumerate(reader.blocks()):
            size = block.nbytes
            if held and (number or filled + size > block_bytes):
                yield _emptied(held, join)
                filled = 0
            held.append(block)
            filled += size
            del block  # do not keep a reference to what is passed on
            if 2 * filled >= block_bytes:
                yield _emptied(held, join)
                filled = 0
        row = reader.row
    if held:
        yield _emptied(held, join)


def _emptied(held: list[B], join: Callable[[list[B]], B]) -> B:
    """Flush the held blocks as one block."""
    block = held[0] if len(held) == 1 else join(held)
    held.clear()
    return block


def find_damage(partition: Partition, read: Callable[[Partition], Iterable[Block]]) -> dict[str, BadRecord]:
    """The damaged files of a partition by path, found by reading each once; none of their rows are kept."""
    found: dict[str, BadRecord] = {}
    for part in partition.ranges:
        for block in read(replace(partition, ranges=(part,))):
            for bad in block.bad:
                if bad.lost:
                    found[part.path] = replace(bad, lost=bad.lost + (bad.salvaged or 0), salvaged=None)
    return found


def estimated_records(rows: int, read_bytes: int, stored_bytes: int) -> int:
    """Estimated number of records in a file whose first `read_bytes` contain `rows`; at least one more than these."""
    if rows and read_bytes > 0:
        return max(rows + 1, round(rows * stored_bytes / read_bytes))
    return max(rows + 1, stored_bytes // _STORED_RECORD_BYTES)


def make_partitions(
    files: Iterable[InputFile],
    *,
    format: Format,
    files_per_partition: int | None = None,
    blocksize: str | int | None = None,
    limit: int | None = None,
    storage_options: StorageOptions = None,
    footers: Footers | None = None,
    whole: Container[str] = (),
    reading: str = "",
    find_cuts: Callable[[InputFile, int], list[int]] | None = None,
) -> list[Partition]:
    """Partitions of `files`, the same for any order of them.

    Args:
        files: The result of `list_files`.
        format: ``"jsonl"`` splits at byte offsets (line ends are found while reading), ``"parquet"`` at row groups.
        files_per_partition: Number of whole files per partition.
        blocksize: Small files are packed together up to this size, larger ones split; ``"128MB"`` or bytes. With
            neither option each file is a partition, and files above 128 MB are split (local WARC files above 32 MB; for
            a remote file, each cut is a request). Compressed files are split only where `find_cuts` allows it.
        limit: Keep only the first `limit` partitions.
        storage_options: File system options, used where Parquet footers must be read.
        footers: Cache of footers, for a caller that needs them again.
        whole: Paths of files that cannot be split, whatever their size (JSON arrays).
        reading: How to read files of other formats.
        find_cuts: Returns where to split a large file of another format; see `row_formats.cuts_of`.

    Raises:
        UsageError: Both sizes are set, or one is not positive.
    """
    if files_per_partition is not None and blocksize is not None:
        raise UsageError(
            f"files_per_partition={files_per_partition} and blocksize={blocksize!r} are mutually exclusive. Use one.",
            files_per_partition=files_per_partition,
            blocksize=blocksize,
        )
    counts: list[tuple[str, object, int]] = [("files_per_partition", files_per_partition, 1), ("limit", limit, 0)]
    for name, value, least in counts:
        if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < least):
            raise UsageError(f"{name}={value!r} must be a whole number of at least {least}.", value=value)
    block_bytes = None if blocksize is None else parse_size(blocksize, name="blocksize")
    if block_bytes == 0:
        raise UsageError("blocksize=0 cannot hold anything. Use a size such as '128MB', or omit it.", value=blocksize)
    if format not in FORMATS:
        raise UsageError(f"format={format!r} is unknown. Use one of {', '.join(FORMATS)}.", value=format)

    ordered = sorted(files, key=attrgetter("relative"))
    groups: list[tuple[str, tuple[FileRange, ...]]] = []
    if files_per_partition is not None:
        starts = range(0, len(ordered), files_per_partition)
        groups += [_file_group(ordered[at : at + files_per_partition], format) for at in starts]
    else:
        pending: list[InputFile] = []
        pending_bytes = 0
        for file in ordered:
            if limit is not None and len(groups) >= limit:
                break
            pack = block_bytes is not None and 0 <= file.size <= block_bytes
            if pending and (not pack or pending_bytes + file.size > (block_bytes or 0)):
                groups.append(_file_group(pending, format))
                pending, pending_bytes = [], 0
            if pack:
                pending.append(file)
                pending_bytes += file.size
            else:
                default = FORMATS[format].split_bytes if is_local(file.path) else DEFAULT_BLOCKSIZE
                largest = file.size if file.path in whole else block_bytes or default
                groups += _blocks(file, format, largest, storage_options, footers, find_cuts)
        if pending:
            groups.append(_file_group(pending, format))
    if limit is not None:
        groups = groups[:limit]
    partitions, alone = [], Counter(map(plain_name, map(itemgetter(0), groups))) if len(groups) > 1 else {}
    for index, (stem, ranges) in enumerate(groups):
        if reading:
            ranges = tuple(replace(part, reading=reading) for part in ranges)
        plain = _MARK.sub("", stem)
        partitions.append(Partition(index, stem, ranges, plain if alone.get(plain, 1) == 1 else ""))
    if len(set(map(attrgetter("id"), partitions))) != len(partitions):
        raise UsageError(
            "Two input files have the same path below the input root. Name each of them once in file_paths."
        )
    return partitions


def plain_name(partition_id: str) -> str:
    """The id without the suffix that distinguishes files whose names differ only in their extensions.

    Example:
        >>> plain_name("sub__corpus~gz"), plain_name("corpus~json.b0003")
        ('sub__corpus', 'corpus.b0003')
    """
    return _MARK.sub("", partition_id)


def _file_group(files: Sequence[InputFile], kind: Format) -> tuple[str, tuple[FileRange, ...]]:
    first = partition_stem(files[0].relative, format=kind)
    if len(files) > 1:
        members = hashlib.sha256(
            "\0".join(file.relative for file in files).encode("utf-8", "surrogatepass")
        ).hexdigest()
        first = f"{first}.n{len(files)}-{members[:10]}"
    ranges = []
    for file in files:
        end = file.size if kind == "jsonl" else -1
        ranges.append(FileRange(file.path, file.relative, file.size, file.stamp, 0, end, True))
    return first, tuple(ranges)


def _blocks(
    file: InputFile,
    kind: Format,
    block_bytes: int,
    storage_options: StorageOptions,
    footers: Footers | None,
    find_cuts: Callable[[InputFile, int], list[int]] | None,
) -> list[tuple[str, tuple[FileRange, ...]]]:
    cuts: list[int] = []
    if file.size > block_bytes and find_cuts is not None:
        cuts = find_cuts(file, block_bytes)
    elif file.size > block_bytes and not file.path.lower().endswith(COMPRESSED_SUFFIXES):
        if kind == "jsonl":
            cuts = [*range(0, file.size, block_bytes), file.size]
        elif kind == "parquet":
            from gristmill.storage.parquet_blocks import row_group_cuts

            cuts = row_group_cuts(file.path, block_bytes=block_bytes, storage_options=storage_options, footers=footers)
    if len(cuts) <= 2:
        return [_file_group([file], kind)]
    stem = partition_stem(file.relative, format=kind)
    return [
        (f"{stem}.b{block:04d}", (FileRange(file.path, file.relative, file.size, file.stamp, start, end, False),))
        for block, (start, end) in enumerate(itertools.pairwise(cuts))
    ]


def partition_stem(relative: str, *, format: Format) -> str:
    """A readable, file-system-safe name for the file at `relative`; different paths get different names.

    ``sub/corpus-00000.jsonl`` becomes ``sub__corpus-00000``, a second or different suffix follows a tilde
    (``corpus~gz``, ``corpus~json``), and names that would be ambiguous get a hash of the path.
    """
    main = "." + format
    folder, _, name = relative.rpartition("/")
    stem, mark = name, ""
    lower = name.lower()
    suffix = next((suffix for suffix in COMPRESSED_SUFFIXES if lower.endswith(main + suffix)), "")
    if name.endswith(main + suffix):
        stem, mark = name[: len(name) - len(main + suffix)], suffix[1:]
    else:
        stem, _, mark = name.rpartition(".")
        if not re.fullmatch(r"[a-z0-9]{1,8}", mark):
            stem, mark = name, "?"
    parts = [*folder.split("/"), stem] if folder else [stem]
    readable = "__".join(parts)
    clear = (
        mark != "?"
        and len(readable) <= _MAX_STEM_CHARS
        and all(_PLAIN_COMPONENT.fullmatch(part) and "__" not in part for part in parts)
        and not _LOOKS_MARKED.search(stem)
    )
    if clear:
        return f"{readable}~{mark}" if mark else readable
    # Never a leading '_' or '.': such outputs would be skipped when the folder is read again.
    safe = re.sub(r"[^A-Za-z0-9.,=+_-]+", "-", readable).strip("._-") or "file"
    return f"{safe[:_MAX_STEM_CHARS]}~{hashlib.sha256(relative.encode('utf-8', 'surrogatepass')).hexdigest()[:12]}"
