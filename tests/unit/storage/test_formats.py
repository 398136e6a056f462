"""Recognising what files hold by their first bytes, and saying what to do about it."""

from __future__ import annotations

import bz2
import contextlib
import gzip
import io
import json
import lzma
import os
import re
import shutil
import sqlite3
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import fsspec
import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet as pq
import pytest
import zstandard

from gristmill.stages.text import io as readers
from gristmill.storage.compression import kinds_of
from gristmill.storage.files import list_files
from gristmill.storage.formats import codec_of, format_of, mismatch, recognise

RECORDS = [{"id": number, "text": f"the text, number {number}"} for number in range(40)]
JSONL = "".join(json.dumps(record) + "\n" for record in RECORDS).encode()
TABLE = pa.Table.from_pylist(RECORDS)
CSV = "id,text\n" + "".join(f'{one["id"]},"{one["text"]}"\n' for one in RECORDS)
HTML = "<!DOCTYPE html>\n<html><body>\n<script>\n{ var a = 1 }\n</script></body></html>\n"


def stored(write) -> bytes:
    target = io.BytesIO()
    write(target)
    return target.getvalue()


def archive_of(kind: str) -> bytes:
    def write(target: io.BytesIO) -> None:
        if kind == "zip":
            with zipfile.ZipFile(target, "w") as archive:
                archive.writestr("a.jsonl", JSONL)
        else:
            with tarfile.open(fileobj=target, mode="w") as archive:
                member = tarfile.TarInfo("a.jsonl")
                member.size = len(JSONL)
                archive.addfile(member, io.BytesIO(JSONL))

    return stored(write)


def arrow_stream() -> bytes:
    def write(target: io.BytesIO) -> None:
        with pa.ipc.new_stream(target, TABLE.schema) as stream:
            stream.write_table(TABLE)

    return stored(write)


def sqlite_file(folder: Path) -> bytes:
    with contextlib.closing(sqlite3.connect(folder / "a.db")) as database, database:
        database.execute("create table t (id, text)")
    return (folder / "a.db").read_bytes()


CONTENTS = {
    "jsonl": JSONL,
    "json_array": json.dumps(RECORDS).encode(),
    "json_object": json.dumps({"data": RECORDS}, indent=2).encode(),
    "json_values": json.dumps([one["text"] for one in RECORDS], indent=1).encode(),
    "csv": CSV.encode(),
    "tsv": CSV.replace(",", "\t", 1).replace(',"', '\t"').encode(),
    "utf-16": JSONL.decode().encode("utf-16"),
    "utf-32": JSONL.decode().encode("utf-32"),
    "html": HTML.encode(),
    "xml": b"<?xml version='1.0'?>\n<a>\n{}\n</a>",
    "text": b"It was a dark night.\n" * 20,
    "parquet": stored(lambda target: pq.write_table(TABLE, target)),
    "arrow": stored(lambda target: pa.feather.write_feather(TABLE, target)),
    "arrow_stream": arrow_stream(),
    "gzip": gzip.compress(JSONL),
    "zstd": zstandard.compress(JSONL),
    "bzip2": bz2.compress(JSONL),
    "xz": lzma.compress(JSONL),
    "zip": archive_of("zip"),
    "tar": archive_of("tar"),
    "pdf": b"%PDF-1.7\n1 0 obj\n",
    "warc": b"WARC/1.0\r\nWARC-Type: warcinfo\r\n",
}


@pytest.mark.parametrize("kind", CONTENTS)
def test_contents_are_recognised(kind):
    assert recognise(CONTENTS[kind][:16384]) == kind


def test_a_database_is_recognised(tmp_path):
    assert recognise(sqlite_file(tmp_path)) == "sqlite"


@pytest.mark.parametrize(
    ("head", "kind"),
    [
        (b"\xef\xbb\xbf" + JSONL, "jsonl"),
        (JSONL.decode().encode("utf-16-le"), "utf-16"),
        (JSONL.decode().encode("utf-16-be"), "utf-16"),
        (JSONL.decode().encode("utf-32-le"), "utf-32"),
        (JSONL.decode().encode("utf-32-be"), "utf-32"),
        (b"\n\n [\n  {\n", "json_array"),
        (b"[]", "json_array"),
        (b'[{"a": 1},\n{"a": 2}]\n', "json_array"),
        (b'[{"text": "' + b"x" * 9000, "json_array"),
        (b'{\n  "a": 1\n}\n{\n  "a": 2\n}\n', "json_object"),
        (b'{"a": 1,\n "b": [\n  {"c": 2}]}', "json_object"),
        (b"\xef\xbb\xbfid;text\n1;a\n2;b\n", "csv"),
        (b"id,text\n1," + b"word " * 4000, "csv"),
        (b'id,text\n1,"two\nlines"\n2,one\n3,"{ braces"\n', "csv"),
    ],
)
def test_variants_are_recognised(head, kind):
    assert recognise(head[:16384]) == kind


@pytest.mark.parametrize(
    "first",
    [
        b"oops",
        b"a,b,c",
        b"",
        b"{",
        b'{"id": 1, "text": "cut',
        b"<p>",
        b"[1, 2]",
        b'[{"a": 1}]',
        b"\x00\x00",
        b"\xff\xff\xff\xff\xff\xff\xff\xff",
        b"ORCID,name",
        b"x" * 9000,
    ],
)
def test_a_bad_first_line_does_not_make_another_format_of_jsonl(first):
    assert recognise((first + b"\n" + JSONL)[:16384]) in ("jsonl", None)
    assert recognise((first + b"\n" + JSONL[:60])[:16384]) in ("jsonl", None)


@pytest.mark.parametrize("head", [b"", b"\n\n", b"{", b"oops", b"one\ntwo\n", bytes(200), b"\x93\x01\xfe" * 30, b"[1]"])
def test_what_says_nothing_for_certain_is_left_to_the_reader(head):
    assert recognise(head) in (None, "jsonl")


def test_names_say_format_and_compression():
    names = {
        "a.jsonl": "jsonl",
        "b.JSON.gz": "jsonl",
        "c.ndjson.xz": "jsonl",
        "d.json.zstd": "jsonl",
        "e.parquet": "parquet",
        "f.csv.zst": "csv",
        "g.TSV": "csv",
        "h.feather": "arrow",
        "i.md": "text",
        "j.htm.gz": "html",
    }
    assert {name: format_of(name) for name in names} == names
    assert [format_of(name) for name in ("a.cs", "b.xz", "json", "c.jsonl.bak")] == [None] * 4
    assert codec_of("c.ndjson.lzma") == "xz"


CODECS = {"gz": gzip.compress, "zst": zstandard.compress, "bz2": bz2.compress, "xz": lzma.compress}


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("store", ["local", "memory"])
def test_compressed_files_are_recognised_by_what_is_inside(tmp_path, codec, store):
    folder = str(tmp_path) if store == "local" else f"memory://inside-{codec}"
    fs = fsspec.filesystem("file" if store == "local" else "memory")
    contents = {
        name: CODECS[codec](CONTENTS[name] * (1 if name == "parquet" else 50)) for name in ("jsonl", "csv", "parquet")
    }
    for name, data in contents.items():
        fs.pipe(f"{folder}/{name}.jsonl.{codec}", data)
    fs.pipe(f"{folder}/plain.jsonl.{codec}", JSONL)
    fs.pipe(f"{folder}/array.json.{codec}", CODECS[codec](CONTENTS["json_array"]))
    fs.pipe(f"{folder}/other.jsonl.{codec}", CODECS["gz" if codec != "gz" else "xz"](JSONL))
    fs.pipe(f"{folder}/torn.jsonl.{codec}", CODECS[codec](CONTENTS["csv"] * 50)[:200] + bytes(300))
    fs.pipe(f"{folder}/none.jsonl.{codec}", b"")
    files = list_files(folder, extensions=[".jsonl", ".json"])
    kinds = {
        path.rpartition("/")[2].split(".")[0]: kind for path, kind in kinds_of(file.path for file in files).items()
    }
    assert kinds.pop("torn", "csv") == "csv"
    other = "gzip" if codec != "gz" else "xz"
    assert kinds == {name: name for name in contents} | {"plain": "uncompressed", "array": "json_array", "other": other}


def test_the_message_says_what_it_is_and_what_to_do():
    for kind in (*CONTENTS, "sqlite", "lz4", "7z", "avro", "hdf5", "uncompressed"):
        for wanted in ("jsonl", "parquet"):
            said = mismatch("my data.jsonl.gz", kind, wanted)
            if said is None:
                assert kind in ("jsonl", "json_array", "parquet")
            else:
                assert said.startswith("my data.jsonl.gz cannot be read as ")
                assert "{" not in said.replace('{"text', "")
    assert mismatch("a.jsonl", "jsonl", "jsonl") is mismatch("a.json", "json_array", "jsonl") is None
    assert mismatch("a.jsonl", None, "jsonl") is None
    assert "end with .csv and read it with CsvReader." in str(mismatch("my data.jsonl", "csv", "jsonl"))
    # Text may begin like anything, but not like something that is never text.
    assert (
        mismatch("a.txt", "jsonl", "text")
        is mismatch("a.md", "html", "text")
        is mismatch("a.csv", "xml", "csv")
        is None
    )
    assert mismatch("a.txt", "utf-16", "text") is None
    assert "it is Parquet" in str(mismatch("a.csv", "parquet", "csv"))
    assert "iconv -f UTF-16 -t UTF-8 'my data.jsonl' >" in str(mismatch("my data.jsonl", "utf-16", "jsonl"))
    assert "end with .gz" in str(mismatch("a.jsonl", "gzip", "jsonl"))
    assert "end without .gz" in str(mismatch("a.jsonl.gz", "uncompressed", "jsonl"))
    assert "twice" in str(mismatch("a.jsonl.gz", "gzip", "jsonl"))
    assert "with JsonlReader" in str(mismatch("a.parquet", "jsonl", "parquet"))
    assert "with ParquetReader" in str(mismatch("a.jsonl", "parquet", "jsonl"))


@pytest.mark.parametrize(
    ("kind", "tool"),
    [
        ("utf-16", "iconv"),
        ("utf-32", "iconv"),
        ("json_object", "jq"),
    ],
)
def test_the_command_in_the_message_works_as_it_stands(tmp_path, monkeypatch, kind, tool):
    monkeypatch.setenv("PATH", f"{os.path.dirname(sys.executable)}:{os.environ['PATH']}")
    if shutil.which(tool) is None:
        pytest.skip(f"{tool} is not installed")
    (tmp_path / "it's data.jsonl").write_bytes(CONTENTS[kind])
    said = str(mismatch("it's data.jsonl", kind, "jsonl"))
    command = said.split("`")[1]
    if kind == "json_object":
        command = command.replace("jq -c .", "jq -c '.data[]'", 1)  # as the message says
    subprocess.run(command, shell=True, check=True, cwd=tmp_path)
    (made,) = tmp_path.glob("records.*")
    rows = list(map(json.loads, made.read_text().splitlines()))
    assert len(rows) == 40
    assert rows[3] == RECORDS[3]


@pytest.mark.parametrize("kind", ["csv", "tsv", "arrow", "arrow_stream", "text"])
def test_the_reader_in_the_message_reads_the_renamed_file(tmp_path, kind):
    found = re.search(r"end with (\.\w+) and read it with (\w+)", str(mismatch("data.jsonl", kind, "jsonl")))
    (tmp_path / f"data{found[1]}").write_bytes(CONTENTS[kind])
    source, reader = getattr(readers, found[2])(tmp_path).decompose()
    rows = [
        row for task in source.process(None) for batch in reader.process(task) for row in batch.to_pyarrow().to_pylist()
    ]
    if kind == "text":
        assert [row["text"] for row in rows] == [CONTENTS[kind].decode()]
    else:
        assert len(rows) == 40
        assert {name: str(value) for name, value in rows[3].items()} == {n: str(v) for n, v in RECORDS[3].items()}
