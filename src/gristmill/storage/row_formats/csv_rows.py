"""CSV and TSV: every value stays the text that it is."""

from __future__ import annotations

import csv
import io
from collections import Counter
from collections.abc import Sequence

import pyarrow as pa
import pyarrow.csv as pa_csv

from gristmill.storage.compression import SourceFileObject, open_source
from gristmill.storage.files import StorageOptions
from gristmill.storage.formats import has_extension
from gristmill.storage.partitions import FileRange
from gristmill.storage.row_formats import Broken, Rows

_BLOCK_BYTES = 16 << 20
"""Also the longest row that can be read: one must not reach over more than a block."""
_HEAD_BYTES = 1 << 20
_DELIMITERS = ",\t;|"


def read_rows(
    part: FileRange,
    *,
    storage_options: StorageOptions = None,
    delimiter: str | None = None,
    column_names: Sequence[str] | None = None,
    encoding: str | None = None,
) -> Rows:
    """The rows of a table; a line with another number of values than the header is one broken piece."""
    broken: list[Broken] = []
    stream = io.BufferedReader(SourceFileObject(open_source(part.path, storage_options=storage_options)), _HEAD_BYTES)
    with stream:
        head = _first_line(stream.peek(_HEAD_BYTES), encoding)
        if not head.strip():
            return
        delimiter = delimiter or _delimiter(part.relative, head)
        names = list(column_names or next(csv.reader([head], delimiter=delimiter)))
        problem = _wrong_names(names)
        if problem:
            yield Broken("corrupt_csv", problem, 0, head.encode(), len(head), rest=True)
            return

        def skip(row: pa_csv.InvalidRow) -> str:
            told = f"the line has {row.actual_columns} values, and there are {row.expected_columns} columns"
            broken.append(Broken("corrupt_csv", told, raw=row.text.encode(), size=len(row.text.encode())))
            return "skip"

        try:
            rows = pa_csv.open_csv(
                pa.PythonFile(stream, "r"),
                pa_csv.ReadOptions(
                    use_threads=False, block_size=_BLOCK_BYTES, column_names=column_names, encoding=encoding or "utf8"
                ),
                pa_csv.ParseOptions(delimiter=delimiter, newlines_in_values=True, invalid_row_handler=skip),
                pa_csv.ConvertOptions(
                    check_utf8=False,
                    column_types=dict.fromkeys(names, pa.large_string()),
                    null_values=[""],
                    strings_can_be_null=True,
                    quoted_strings_can_be_null=False,
                ),
            )
            for batch in rows:
                yield pa.Table.from_batches([batch])
                yield from broken
                broken.clear()
        except pa.ArrowInvalid as error:
            yield from broken
            told = str(error).splitlines()[0]
            if "straddling" in told:
                told = f"a row is longer than {_BLOCK_BYTES >> 20} MiB: perhaps a quote is not closed"
            yield Broken("corrupt_csv", told, rest=True)
            return
        yield from broken


def _first_line(head: bytes, encoding: str | None) -> str:
    """The header, whose quoted names may hold line ends."""
    text = head.decode(encoding or "utf-8", "replace").removeprefix("\N{ZERO WIDTH NO-BREAK SPACE}")
    line = ""
    for part in text.splitlines(keepends=True):
        line += part
        if line.count('"') % 2 == 0:
            break
    return line.rstrip("\r\n")


def _delimiter(name: str, head: str) -> str:
    if has_extension(name, (".tsv",)):
        return "\t"
    counts = Counter(head)
    return max(_DELIMITERS, key=lambda sign: (counts[sign], sign == ","))


def _wrong_names(names: Sequence[str]) -> str | None:
    twice = [name for name, count in Counter(names).items() if count > 1]
    if twice:
        return f"two columns are called {twice[0]!r}; rename one, or give column_names"
    return None
