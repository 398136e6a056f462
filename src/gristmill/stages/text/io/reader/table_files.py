"""Reads tables in files: CSV, TSV, Arrow, SQLite and DuckDB."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from gristmill.errors import UsageError
from gristmill.stages.text.io.reader.partitioning import Paths
from gristmill.stages.text.io.reader.rows import RowReader, known_encoding
from gristmill.storage.formats import Format


class CsvReader(RowReader):
    """Reads CSV and TSV, compressed or not; every value stays text, and an empty value without quotes is null.

    A line with too many or too few values is quarantined, and reading continues.

    Args:
        file_paths: A file, folder, glob or URL, or a list of these.
        delimiter: Separator of values. Defaults to a tab for `.tsv`, otherwise it is detected from the header.
        column_names: Column names, for files without a header.
        encoding: Encoding of the files. Defaults to UTF-8, or UTF-16 if there is a byte order mark.
        **options: See `RowReader`.

    Example:
        >>> pipeline.add_stage(CsvReader("posts.csv.gz", fields=["id", "body"]))
    """

    name = "csv_reader"
    format: ClassVar[Format] = "csv"

    def __init__(
        self,
        file_paths: Paths,
        delimiter: str | None = None,
        column_names: Sequence[str] | None = None,
        encoding: str | None = None,
        **options: Any,
    ) -> None:
        if delimiter is not None and len(delimiter) != 1:
            raise UsageError(f"CsvReader(delimiter={delimiter!r}): must be a single character.", value=delimiter)
        self.delimiter = delimiter
        self.column_names = None if column_names is None else list(column_names)
        self.encoding = known_encoding("CsvReader", encoding)
        super().__init__(file_paths, **options)

    def options(self) -> dict[str, Any]:
        return {"delimiter": self.delimiter, "column_names": self.column_names, "encoding": self.encoding}


class ArrowReader(RowReader):
    """Reads Arrow files: Feather, the IPC file format and IPC streams.

    Args:
        file_paths: A file, folder, glob or URL, or a list of these.
        **options: See `RowReader`.

    Example:
        >>> pipeline.add_stage(ArrowReader("dataset/"))
    """

    name = "arrow_reader"
    format: ClassVar[Format] = "arrow"

    def __init__(self, file_paths: Paths, **options: Any) -> None:
        super().__init__(file_paths, **options)


class SqlReader(RowReader):
    """Reads a table or query of an SQLite or DuckDB file, opened read-only; no other file is touched.

    A database is one partition. Rows come in the order of the query, which must be the same every time for a run to
    resume: end the query with ORDER BY. DuckDB files need the extra `sql`.

    Args:
        file_paths: One or more database files.
        query: A single SELECT statement.
        table: A table or view, instead of a query; defaults to the only one.
        **options: See `RowReader`.

    Example:
        >>> pipeline.add_stage(SqlReader("forum.sqlite", query="SELECT id, body AS text FROM posts ORDER BY id"))
    """

    name = "sql_reader"
    format: ClassVar[Format] = "sql"

    def __init__(self, file_paths: Paths, query: str | None = None, table: str | None = None, **options: Any) -> None:
        if query is not None and table is not None:
            raise UsageError("SqlReader: pass query or table, not both.", query=query, table=table)
        self.query = query
        self.table = table
        super().__init__(file_paths, **options)

    def options(self) -> dict[str, Any]:
        return {"query": self.query, "table": self.table}
