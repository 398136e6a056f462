"""CSV and TSV: every value stays text."""

from __future__ import annotations

import csv
import io
import re
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.csv as pa_csv

from gristmill.storage.compression import DamagedArchiveError, SourceFileObject, open_source
from gristmill.storage.files import StorageOptions
from gristmill.storage.formats import has_extension
from gristmill.storage.partitions import FileRange
from gristmill.storage.row_formats import Broken, Rows
from gristmill.storage.row_formats.text_source import TextSource

_BLOCK_BYTES = (1 << 20, 16 << 20)
"""Bytes parsed at once. About thirty blocks are read ahead, so they are small; but a row must not be longer than a
block, so a file with a longer row is read again from there in larger blocks."""
_HEAD_BYTES = 1 << 20
_TAIL_BYTES = 1 << 12
_UNTOLD = re.compile(r"Row #(\d+): Expected \d+ columns, got \d+")
_TOO_LONG = "row_too_long"
_DELIMITERS = ",\t;|"


def read_rows(
    part: FileRange,
    *,
    storage_options: StorageOptions = None,
    delimiter: str | None = None,
    column_names: Sequence[str] | None = None,
    encoding: str | None = None,
) -> Rows:
    """The rows of a table; a line with a different number of values than the header yields one `Broken`."""
    done = 0
    for block_bytes in _BLOCK_BYTES:
        place = 0
        source = TextSource(open_source(part.path, storage_options=storage_options), encoding)
        for found in _rows(source, part.relative, delimiter, column_names, block_bytes):
            if isinstance(found, Broken) and found.cause == _TOO_LONG:
                break
            count = 1 if isinstance(found, Broken) else found.num_rows
            if place + count > done:
                yield found if isinstance(found, Broken) else found.slice(max(0, done - place))
                done = place + count
            place += count
        else:
            return
    told = f"a row is longer than {_BLOCK_BYTES[-1] >> 20} MiB: possibly an unclosed quote"
    yield Broken("corrupt_csv", told, rest=True)


def _rows(
    source: TextSource, name: str, delimiter: str | None, column_names: Sequence[str] | None, block_bytes: int
) -> Iterator[pa.Table | Broken]:
    file = _UntilDamage(source)
    with io.BufferedReader(file, _HEAD_BYTES) as stream:
        head = _first_line(stream.peek(_HEAD_BYTES))
        if head.strip():
            delimiter = delimiter or _delimiter(name, head)
            names = list(column_names or next(csv.reader([head], delimiter=delimiter)))
            twice = [name for name, count in Counter(names).items() if count > 1]
            if twice:
                told = f"two columns are named {twice[0]!r}; rename one, or pass column_names"
                yield Broken("corrupt_csv", told, 0, head.encode(), len(head.encode()), rest=True)
                return
            rows = _parsed(stream, delimiter, names, block_bytes, given=column_names is not None)
            yield from _whole_rows(rows, file, delimiter)
        if file.damage is not None:
            raise file.damage


def _whole_rows(rows: Rows, file: _UntilDamage, delimiter: str) -> Rows:
    """All but the last row of a damaged file, whose end is unknown, or of a file that ends inside quotes."""
    held: pa.Table | Broken | None = None
    for found in rows:
        if held is not None:
            yield held
        held = found
    open_value = file.open_value(held, delimiter) if isinstance(held, pa.Table) else b""
    if isinstance(held, pa.Table) and (open_value or file.damage is not None):
        held = held.slice(0, held.num_rows - 1)
    if held is not None and (file.damage is None or isinstance(held, pa.Table)):
        yield held
    if open_value and file.damage is None:
        told = "the file ends inside quotes: a closing quote is missing, or the end of the file"
        yield Broken("corrupt_csv", told, raw=open_value, size=len(open_value))


def _parsed(
    stream: io.BufferedReader[_UntilDamage], delimiter: str, names: list[str], block_bytes: int, *, given: bool
) -> Rows:
    """Rows and the broken pieces between them, in order."""
    broken: deque[tuple[int, Broken]] = deque()

    def skip(row: pa_csv.InvalidRow) -> str:
        # Lines are parsed ahead of the rows that are returned, so that only their number identifies their position.
        told = f"the line has {row.actual_columns} values, but there are {row.expected_columns} columns"
        raw = row.text.encode("utf-8", "surrogateescape")
        broken.append((row.number - (1 if given else 2), Broken("corrupt_csv", told, raw=raw, size=len(raw))))
        return "skip"

    place = 0
    try:
        for batch in pa_csv.open_csv(
            pa.PythonFile(stream, "r"),
            pa_csv.ReadOptions(use_threads=False, block_size=block_bytes, column_names=names if given else None),
            pa_csv.ParseOptions(delimiter=delimiter, newlines_in_values=True, invalid_row_handler=skip),
            pa_csv.ConvertOptions(
                check_utf8=False,
                column_types=dict.fromkeys(names, pa.large_string()),
                null_values=[""],
                strings_can_be_null=True,
                quoted_strings_can_be_null=False,
            ),
        ):
            table = pa.Table.from_batches([batch])
            while broken and broken[0][0] <= place + table.num_rows:
                before = broken[0][0] - place
                if before:
                    yield table.slice(0, before)
                yield broken.popleft()[1]
                table, place = table.slice(before), place + before + 1
            if table.num_rows:
                yield table
                place += table.num_rows
    except pa.ArrowInvalid as error:
        told = str(error).splitlines()[0]
        if "Empty CSV" in told:  # a header and nothing else
            return
        if found := _UNTOLD.search(told):  # the library drops what it cannot decode, and with it the handler
            told = f"row {found[1]} has the wrong number of values and is not UTF-8; if the file has another encoding, "
            told += "set it: CsvReader(…, encoding='latin-1')"
        cause = _TOO_LONG if "straddling" in told else "corrupt_csv"
        broken.append((place, Broken(cause, told, rest=True)))
    for _, last in broken:
        yield last


class _UntilDamage(SourceFileObject):
    """A file that ends at the damage, so that a library returns everything before it."""

    damage: DamagedArchiveError | None = None
    _tail = b""

    def readinto(self, target: Any, /) -> int:
        try:
            size = super().readinto(target)
        except DamagedArchiveError as error:
            self.damage = error
            return 0
        self._tail = (self._tail + bytes(target[max(0, size - _TAIL_BYTES) : size]))[-_TAIL_BYTES:]
        return size

    def open_value(self, table: pa.Table, delimiter: str) -> bytes:
        """The last value of the file if its closing quote is missing; the library takes it for a whole one."""
        last = table.column(table.num_columns - 1)[-1]
        value: bytes = last.as_buffer().to_pybytes() if last.is_valid else b""
        written = value.replace(b'"', b'""')
        if not value or not self._tail.endswith(written[-_TAIL_BYTES:]):
            return b""
        # A closed value of nothing but line ends looks like one that was opened at the start of a line.
        signs = [delimiter.encode(), *((b"\n", b"\r") if value.strip(b"\r\n") else ())]
        if len(written) < _TAIL_BYTES:
            return value if self._tail.removesuffix(written).endswith(tuple(sign + b'"' for sign in signs)) else b""
        return value if any(sign in value for sign in signs) else b""


def _first_line(head: bytes) -> str:
    """The header, whose quoted names may contain line ends."""
    line = ""
    for part in head.decode("utf-8", "replace").lstrip("\r\n").splitlines(keepends=True):
        line += part
        if line.count('"') % 2 == 0:
            break
    return line.rstrip("\r\n")


def _delimiter(name: str, head: str) -> str:
    if has_extension(name, (".tsv",)):
        return "\t"
    counts = Counter(head)
    return max(_DELIMITERS, key=lambda sign: (counts[sign], sign == ","))
