"""Reads tables in files: CSV, TSV, Arrow, SQLite and DuckDB."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from gristmill.errors import UsageError
from gristmill.stages.text.io.reader.partitioning import Paths
from gristmill.stages.text.io.reader.rows import RowReader, known_encoding
from gristmill.storage.formats import Format


class CsvReader(RowReader):
    """Reads CSV and TSV, compressed or not; every value stays the text that it is, an empty one without quotes is null.

    A line with too many or too few values is quarantined, and the rest goes on.

    Args:
        file_paths: A file, a folder, a glob, a URL, or a list of these.
        delimiter: What separates values; by default a tab in `.tsv`, otherwise the one the header seems to have.
        column_names: The columns, for files without a header.
        encoding: The encoding of the files; by default UTF-8, or UTF-16 where a byte order mark says so.
        **options: Those of `RowReader`.

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
            raise UsageError(f"CsvReader(delimiter={delimiter!r}): give one character.", value=delimiter)
        self.delimiter = delimiter
        self.column_names = None if column_names is None else list(column_names)
        self.encoding = known_encoding("CsvReader", encoding)
        super().__init__(file_paths, **options)

    def options(self) -> dict[str, Any]:
        return {"delimiter": self.delimiter, "column_names": self.column_names, "encoding": self.encoding}


class ArrowReader(RowReader):
    """Reads Arrow files: Feather, the IPC file format and IPC streams.

    Args:
        file_paths: A file, a folder, a glob, a URL, or a list of these.
        **options: Those of `RowReader`.

    Example:
        >>> pipeline.add_stage(ArrowReader("dataset/"))
    """

    name = "arrow_reader"
    format: ClassVar[Format] = "arrow"

    def __init__(self, file_paths: Paths, **options: Any) -> None:
        super().__init__(file_paths, **options)


class SqlReader(RowReader):
    """Reads a table or a query of an SQLite or DuckDB file; the file is only read, and no other one is touched.

    A database is one partition. Rows come in the order of the query, which has to be the same every time for a run to
    be resumed: end the query with ORDER BY. DuckDB files need the extra `sql`.

    Args:
        file_paths: The database file, or several.
        query: One SELECT.
        table: A table or a view, instead of a query; by default the only one.
        **options: Those of `RowReader`.

    Example:
        >>> pipeline.add_stage(SqlReader("forum.sqlite", query="SELECT id, body AS text FROM posts ORDER BY id"))
    """

    name = "sql_reader"
    format: ClassVar[Format] = "sql"

    def __init__(self, file_paths: Paths, query: str | None = None, table: str | None = None, **options: Any) -> None:
        if query is not None and table is not None:
            raise UsageError("SqlReader: give query or table, not both.", query=query, table=table)
        self.query = query
        self.table = table
        super().__init__(file_paths, **options)

    def options(self) -> dict[str, Any]:
        return {"query": self.query, "table": self.table}
