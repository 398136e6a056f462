"""Tables and queries of SQLite and DuckDB files: read only, typed as their values are, and nothing else is reached."""

from __future__ import annotations

import sqlite3
import sys
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest

from gristmill.errors import InputError, MissingExtraError, UsageError
from gristmill.ledger import Ledger
from gristmill.ledger.prove.verify import verify
from gristmill.pipeline import Pipeline
from gristmill.stages.text.filters import ScoreFilter, WordCountFilter
from gristmill.stages.text.io import DocumentReader, DocumentWriter, JsonlWriter, SqlReader
from gristmill.storage.files import list_files
from gristmill.storage.partitions import make_partitions
from gristmill.storage.row_blocks import read_row_blocks
from gristmill.storage.row_formats import reading_of
from tests.unit.pipeline.jobs import here, read_rows

ROWS = [
    (number, f"text {'of words ' * (number % 5)}{number}", None if number % 3 else number / 2) for number in range(3000)
]


@pytest.fixture(params=["sqlite", "duckdb"])
def database(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    path = tmp_path / f"forum.{request.param}"
    made: Any = sqlite3.connect(path) if request.param == "sqlite" else duckdb.connect(str(path))
    made.execute("CREATE TABLE posts (id BIGINT, text VARCHAR, score DOUBLE)")
    if request.param == "sqlite":
        made.executemany("INSERT INTO posts VALUES (?, ?, ?)", ROWS)
    else:
        given = pa.table(list(map(list, zip(*ROWS, strict=True))), names=["id", "text", "score"])  # noqa: F841
        made.execute("INSERT INTO posts SELECT * FROM given")
    made.commit()
    made.close()
    return path


def read(path: Path, **options: Any) -> pa.Table:
    (partition,) = make_partitions(list_files(path, extensions=".x"), format="sql", reading=reading_of("sql", options))
    blocks = list(read_row_blocks(partition))
    assert [bad.told for block in blocks for bad in block.bad] == []
    return pa.concat_tables([block.table for block in blocks])


def test_the_only_table_and_queries(database: Path) -> None:
    table = read(database)
    assert [tuple(row.values()) for row in table.to_pylist()] == ROWS
    assert table.schema.field("id").type == pa.int64()
    found = read(database, query="SELECT text AS body, id FROM posts WHERE id >= 2990 ORDER BY id DESC;")
    assert found.column("id").to_pylist() == list(range(2999, 2989, -1))
    assert found.column_names == ["body", "id"]
    assert read(database, table="posts").num_rows == 3000


@pytest.mark.parametrize(
    "query",
    [
        "DELETE FROM posts",
        "SELECT 1; SELECT 2",
        "ATTACH 'other.sqlite' AS other",
        "CREATE TABLE x (a INT)",
        "PRAGMA user_version = 5",
        "SELECT nothing FROM posts",
        "SELECT load_extension('x')",
        "SELECT * FROM read_csv('/etc/passwd')",
        "COPY posts TO 'out.csv'",
        "SELECT id, id FROM posts UNION ALL SELECT 1",
        "",
    ],
)
def test_a_query_that_does_more_than_read_is_refused(
    database: Path, query: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    before = database.read_bytes()
    with pytest.raises(InputError, match=r"Cannot run"):
        read(database, query=query)
    assert database.read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == [database.name]


def test_a_table_that_is_not_there_or_not_named(database: Path) -> None:
    with pytest.raises(InputError, match=r"has no table 'post'\. Did you mean 'posts'\?"):
        read(database, table="post")
    made: Any = sqlite3.connect(database) if database.suffix == ".sqlite" else duckdb.connect(str(database))
    made.execute("CREATE TABLE users (id BIGINT)")
    made.commit()
    made.close()
    with pytest.raises(InputError, match=r"several tables: 'posts', 'users'\. Choose one"):
        read(database)
    with pytest.raises(UsageError, match="not both"):
        SqlReader(database, query="SELECT 1", table="posts")


def test_a_column_of_several_kinds_is_text_and_broken_text_is_quarantined(tmp_path: Path) -> None:
    made = sqlite3.connect(tmp_path / "a.sqlite")
    made.execute("CREATE TABLE t (a, b)")
    made.executemany("INSERT INTO t VALUES (?, ?)", [(1, b"\x00\xff"), ("two", None), (3.5, b"")])
    made.execute("INSERT INTO t VALUES (CAST(x'ff61' AS TEXT), NULL)")
    made.commit()
    made.close()
    (partition,) = make_partitions(
        list_files(tmp_path / "a.sqlite", extensions=".x"), format="sql", reading=reading_of("sql", {})
    )
    (block,) = read_row_blocks(partition)
    assert block.table.to_pylist() == [{"a": "1", "b": b"\x00\xff"}, {"a": "two", "b": None}, {"a": "3.5", "b": b""}]
    assert [(bad.row, bad.cause) for bad in block.bad] == [(3, "invalid_utf8")]


def test_what_is_no_database_or_is_being_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.sqlite").write_bytes(b"not a database at all")
    with pytest.raises(InputError, match="neither an SQLite nor a DuckDB file"):
        read(tmp_path / "a.sqlite")
    made = sqlite3.connect(tmp_path / "b.sqlite")
    made.execute("PRAGMA journal_mode = WAL")
    made.execute("CREATE TABLE t (a)")
    made.commit()
    with pytest.raises(InputError, match=r"not in the file yet \(b\.sqlite-wal\)"):
        read(tmp_path / "b.sqlite")
    made.close()
    duckdb.connect(str(tmp_path / "c.duckdb")).close()
    monkeypatch.setitem(sys.modules, "duckdb", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'gristmill\[sql\]'"):
        read(tmp_path / "c.duckdb")


def test_a_damaged_database_is_a_damaged_file(tmp_path: Path) -> None:
    path = tmp_path / "a.sqlite"
    made = sqlite3.connect(path)
    made.execute("CREATE TABLE t (id, text)")
    made.executemany("INSERT INTO t VALUES (?, ?)", [(n, "x" * 500) for n in range(500)])
    made.commit()
    made.close()
    content = bytearray(path.read_bytes())
    content[8192 : 8192 + 40960] = b"\xff" * 40960
    path.write_bytes(content)
    (partition,) = make_partitions(list_files(path, extensions=".x"), format="sql", reading=reading_of("sql", {}))
    bad = [bad for block in read_row_blocks(partition) for bad in block.bad]
    assert [one.cause for one in bad] == ["corrupt_database"]


def test_a_run_from_a_database(database: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    query = "SELECT 'p' || id AS id, text FROM posts ORDER BY posts.id"
    reader = SqlReader(database, query=query)
    filters = ScoreFilter(WordCountFilter(min_words=3))
    report = Pipeline("job", stages=[reader, filters, JsonlWriter(str(out))]).run(executor=here()).report
    assert report.rows_read == 3000
    assert [row["id"] for row in read_rows(out)] == [f"p{number}" for number, text, _ in ROWS if len(text.split()) > 2]
    assert verify(str(out)).ok
    ledger = Ledger(str(out))
    assert ledger.why("p5").documents[0].status == "dropped"
    again = Pipeline("job", stages=[DocumentReader(database), DocumentWriter(str(tmp_path / "all"))])
    assert again.run(executor=here()).report.rows_written == 3000
