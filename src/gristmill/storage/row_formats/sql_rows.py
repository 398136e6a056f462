"""Tables and queries of SQLite and DuckDB files, opened read-only; no other file is touched."""

from __future__ import annotations

import os
import sqlite3
from collections import Counter
from collections.abc import Sequence
from typing import Any
from urllib.parse import quote

import pyarrow as pa

from gristmill.errors import InputError, did_you_mean, first_line, missing_extra
from gristmill.storage.compression import open_raw
from gristmill.storage.files import StorageOptions, is_local, local_path
from gristmill.storage.partitions import FileRange
from gristmill.storage.row_formats import Broken, Rows

_BATCH_ROWS = 1000
_MOST_VALUE_BYTES = 256 << 20
_ALLOWED = (sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ, sqlite3.SQLITE_RECURSIVE)
_SQLITE_TABLES = """
SELECT name FROM sqlite_master WHERE type IN ('table', 'view') AND name NOT LIKE 'sqlite~_%' ESCAPE '~' ORDER BY name
"""
_FORBIDDEN_FUNCTIONS = ("load_extension", "readfile", "writefile", "edit", "fts3_tokenizer")
_TYPES = {
    frozenset[str](): pa.null(),
    frozenset({"integer"}): pa.int64(),
    frozenset({"real"}): pa.float64(),
    frozenset({"text"}): pa.large_string(),
    frozenset({"blob"}): pa.large_binary(),
}


def read_rows(
    part: FileRange, *, storage_options: StorageOptions = None, query: str | None = None, table: str | None = None
) -> Rows:
    """The rows of a query or a table, in its order; without either, those of the only table.

    Raises:
        InputError: The file is not a database or has no such table, or the query does more than read.
        MissingExtraError: It is a DuckDB file, and DuckDB is not installed.
    """
    if not is_local(part.path):
        raise InputError(f"{part.path!r}: a database must be on this machine. Copy it first.", path=part.path)
    with open_raw(part.path, storage_options=storage_options) as raw:
        head = raw.read(16)
    path = local_path(part.path)
    if head.startswith(b"SQLite format 3\0"):
        return _sqlite_rows(path, query, table)
    if head[8:12] == b"DUCK":
        return _duckdb_rows(path, query, table)
    raise InputError(
        f"{path!r} is neither an SQLite nor a DuckDB file by its first bytes. If it is compressed, decompress it.",
        path=path,
    )


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _chosen(path: str, query: str | None, table: str | None, tables: Sequence[str]) -> str:
    """The table to read.

    Raises:
        InputError: There is no such table, or none was chosen.
    """
    listed = ", ".join(map(repr, tables[:20])) or "none"
    if table is None and len(tables) == 1:
        return tables[0]
    if table is None:
        raise InputError(
            f"{path!r} has {'several' if tables else 'no'} tables: {listed}. Choose one, as in SqlReader(…, "
            "table='posts'), or pass a query.",
            path=path,
        )
    if table not in tables:
        told = f"{path!r} has no table {table!r}.{did_you_mean(table, tables)} It has {listed}."
        raise InputError(told, path=path)
    return table


def _refusal(path: str, query: str | None, error: Exception) -> InputError:
    told = f"Cannot run {query!r} on {path!r}: {first_line(error)}. Pass a single SELECT that only reads this file."
    return InputError(told, path=path)


# SQLite --------------------------------------------------------------------------------------------------------------


def _authorize(action: int, name: str | None, function: str | None, *_: Any) -> int:
    """Allow only reading this file: no attaching of other files, no changed settings, no loaded code."""
    if action in _ALLOWED or (action == sqlite3.SQLITE_FUNCTION and function not in _FORBIDDEN_FUNCTIONS):
        return sqlite3.SQLITE_OK
    return sqlite3.SQLITE_DENY


def _sqlite_rows(path: str, query: str | None, table: str | None) -> Rows:
    for ending in ("-wal", "-journal"):
        if os.path.exists(path + ending) and os.path.getsize(path + ending):
            raise InputError(
                f"{path!r} has changes that are not in the file yet ({os.path.basename(path)}{ending}). Close the "
                "program that writes to it, or make a copy: sqlite3 DATABASE '.backup COPY'",
                path=path,
            )
    # Immutable: no lock is taken and no file is made beside it.
    connection = sqlite3.connect(f"file:{quote(path)}?mode=ro&immutable=1", uri=True)
    try:
        connection.text_factory = lambda value: value.decode("utf-8", "surrogateescape")
        connection.execute("PRAGMA trusted_schema = OFF")
        connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, _MOST_VALUE_BYTES)
        connection.set_authorizer(_authorize)
        try:
            if query is None:
                found = connection.execute(_SQLITE_TABLES)
                query = "SELECT * FROM " + _quoted(_chosen(path, query, table, [row[0] for row in found]))  # noqa: S608
            query = query.strip().rstrip(";")
            columns = _sqlite_columns(connection, path, query)
        except (sqlite3.Error, sqlite3.Warning) as error:
            if "malformed" in str(error) or "not a database" in str(error):
                yield Broken("corrupt_database", first_line(error), rest=True)
                return
            raise _refusal(path, query, error) from error
        schema = pa.schema(columns)
        cursor = connection.execute(query)
        try:
            while rows := cursor.fetchmany(_BATCH_ROWS):
                yield pa.table(
                    [_array(values, kind) for values, kind in zip(zip(*rows, strict=True), schema.types, strict=True)],
                    schema=schema,
                )
        except sqlite3.Error as error:
            yield Broken("corrupt_database", first_line(error), rest=True)
    finally:
        connection.close()


def _sqlite_columns(connection: sqlite3.Connection, path: str, query: str) -> list[tuple[str, pa.DataType]]:
    """The columns of a query, with types that hold all their values: in SQLite, every value has its own type."""
    # The query is the user's own, and the connection may do nothing but read this file.
    described = connection.execute(f"SELECT * FROM ({query}) LIMIT 0").description  # noqa: S608
    names = [column[0] for column in described]
    twice = [name for name, count in Counter(names).items() if count > 1]
    if twice:
        raise InputError(f"{path!r}: two columns of {query!r} are named {twice[0]!r}. Rename one with AS.", path=path)
    kinds = ("integer", "real", "text", "blob")
    asked = ", ".join(f"max(typeof({_quoted(name)}) = '{kind}')" for name in names for kind in kinds)
    marks = connection.execute(f"SELECT {asked} FROM ({query})").fetchone()  # noqa: S608
    types = []
    for at, name in enumerate(names):
        held = frozenset(kind for kind, mark in zip(kinds, marks[4 * at : 4 * at + 4], strict=True) if mark)
        types.append((name, _TYPES.get(held, pa.large_string())))
    return types


def _array(values: Sequence[Any], kind: pa.DataType) -> pa.Array:
    """A column; if its values have several types, all are converted to text."""
    if not pa.types.is_large_string(kind):
        return pa.array(values, kind)
    texts = [value if value is None else _utf8(value) for value in values]
    # Bytes become text as they are; whether they are UTF-8 is checked with the block.
    plain = pa.array(texts, pa.large_binary())
    return pa.Array.from_buffers(kind, len(plain), plain.buffers(), plain.null_count)


def _utf8(value: Any) -> bytes:
    return value if isinstance(value, bytes) else str(value).encode("utf-8", "surrogateescape")


# DuckDB --------------------------------------------------------------------------------------------------------------


def _duckdb_rows(path: str, query: str | None, table: str | None) -> Rows:
    try:
        import duckdb
    except ImportError as error:
        raise missing_extra("duckdb", f"The database {path!r}") from error
    settings: dict[str, Any] = {
        "enable_external_access": "false",
        "autoinstall_known_extensions": "false",
        "autoload_known_extensions": "false",
        "threads": "1",
        "lock_configuration": "true",
    }
    try:
        connection = duckdb.connect(path, read_only=True, config=settings)
    except duckdb.Error as error:
        yield Broken("corrupt_database", first_line(error), rest=True)
        return
    with connection:
        try:
            if query is None:
                found = connection.execute("SELECT table_name FROM information_schema.tables ORDER BY table_name")
                tables = [row[0] for row in found.fetchall()]
                query = "SELECT * FROM " + _quoted(_chosen(path, query, table, tables))  # noqa: S608
            statements = duckdb.extract_statements(query)
            if len(statements) != 1 or statements[0].type != duckdb.StatementType.SELECT:
                raise InputError(f"Cannot run {query!r} on {path!r}: pass a single SELECT.", path=path)
            asked: Any = connection.sql(query)
            # Called otherwise before version 2.
            give = getattr(asked, "to_arrow_reader", None) or asked.fetch_record_batch
            batches = give(_BATCH_ROWS)
        except duckdb.Error as error:
            raise _refusal(path, query, error) from error
        try:
            for batch in batches:
                yield pa.Table.from_batches([batch])
        except (duckdb.Error, pa.ArrowInvalid) as error:
            yield Broken("corrupt_database", first_line(error), rest=True)
