"""Web archives as rows: what comes of a page, and of what is none."""

from __future__ import annotations

import bz2
import gzip
import struct
import zlib

import brotli
import pyarrow as pa
import pytest
import zstandard

from gristmill.errors import MissingExtraError
from gristmill.storage.partitions import FileRange
from gristmill.storage.row_formats import Broken, Skipped, reading_of, rows_of
from tests.unit.storage.warc_files import PAGE, record, response, stored


def read(path, **options):
    """Rows, broken pieces and counts of a file."""
    size = path.stat().st_size
    part = FileRange(str(path), path.name, size, "", 0, -1, True, reading_of("warc", options))
    found = list(rows_of(part))
    tables = [one for one in found if isinstance(one, pa.Table)]
    rows = pa.concat_tables(tables, promote_options="permissive").to_pylist() if tables else []
    counts = next((dict(one.counts) for one in found if isinstance(one, Skipped)), {})
    return rows, [one for one in found if isinstance(one, Broken)], counts


def written(folder, *blocks, kind="response", name="a.warc.gz", more=b""):
    path = folder / name
    path.write_bytes(b"".join(stored([record(n, block, kind=kind, more=more) for n, block in enumerate(blocks)], "gz")))
    return path


def test_a_page_has_its_facts(tmp_path):
    headers = b'Content-Type: Text/HTML; Charset="ISO-8859-2"\r\ncontent-language: pl'
    path = written(
        tmp_path, response(headers=headers), more=b"WARC-Payload-Digest: sha1:ABC\r\nWARC-Truncated: time\r\n"
    )
    [row], broken, counts = read(path)
    assert (broken, counts) == ([], {})
    assert row == {
        "id": "<urn:uuid:0>", "url": "http://example.org/0", "date": "2026-01-02T03:04:05Z", "record_type": "response",
        "status": 200, "content_type": "text/html", "charset": "iso-8859-2", "language": "pl", "digest": "sha1:ABC",
        "truncated": "time", "file_name": "a.warc.gz", "offset": 0, "length": path.stat().st_size, "html": PAGE,
    }  # fmt: skip


def chunked(body: bytes) -> bytes:
    pieces = [body[at : at + 300] for at in range(0, len(body), 300)]
    return b"".join(b"%x;name=value\r\n%s\r\n" % (len(piece), piece) for piece in pieces) + b"0\r\n\r\n"


def deflated(body: bytes) -> bytes:
    encoder = zlib.compressobj(wbits=-15)
    return encoder.compress(body) + encoder.flush()


@pytest.mark.parametrize(
    ("headers", "body"),
    [
        (b"Transfer-Encoding: chunked", chunked(PAGE)),
        (b"Transfer-Encoding: chunked", PAGE),  # joined by the crawler, which kept the header
        (b"Content-Encoding: gzip", gzip.compress(PAGE, mtime=0)),
        (b"Content-Encoding: GZIP", PAGE),
        (b"Content-Encoding: deflate", zlib.compress(PAGE)),
        (b"Content-Encoding: deflate", deflated(PAGE)),
        (b"Content-Encoding: br", brotli.compress(PAGE)),
        (b"Content-Encoding: br", PAGE),
        (b"Content-Encoding: zstd", zstandard.compress(PAGE)),
        (b"Content-Encoding: identity", PAGE),
        (b"Content-Encoding: br, gzip", gzip.compress(brotli.compress(PAGE), mtime=0)),
        (b"Transfer-Encoding: chunked\r\nContent-Encoding: gzip", chunked(gzip.compress(PAGE, mtime=0))),
    ],
)
def test_bodies_are_decoded(tmp_path, headers, body):
    [row], broken, _ = read(written(tmp_path, response(body, b"Content-Type: text/html\r\n" + headers)))
    assert broken == []
    assert row["html"] == PAGE


@pytest.mark.parametrize(
    ("headers", "body"),
    [
        (b"Content-Encoding: gzip", gzip.compress(PAGE, mtime=0)[:-20]),
        (
            b"Content-Encoding: gzip",
            gzip.compress(PAGE, mtime=0)[:30] + b"\xff" * 9 + gzip.compress(PAGE, mtime=0)[39:],
        ),
        (b"Content-Encoding: br", brotli.compress(PAGE)[:-9]),
        (b"Content-Encoding: zstd", zstandard.compress(PAGE)[:-9]),
        (b"Transfer-Encoding: chunked", chunked(PAGE)[:-200]),
    ],
)
def test_a_body_that_stops_halfway_is_broken_unless_the_archive_says_so(tmp_path, headers, body):
    block = response(body, b"Content-Type: text/html\r\n" + headers)
    rows, [broken], _ = read(written(tmp_path, block))
    assert (rows, broken.cause, broken.offset) == ([], "corrupt_body", 0)
    assert broken.raw.startswith(b"HTTP/1.1 200")
    if b"chunked" in headers:
        [row], broken, _ = read(written(tmp_path, block, more=b"WARC-Truncated: length\r\n"))
        assert broken == []
        assert PAGE.startswith(row["html"][:100])


@pytest.mark.parametrize("encoding", [b"gzip", b"br", b"zstd", b"deflate"])
def test_a_bomb_does_not_go_off(tmp_path, encoding):
    content = bytes(64 << 20)
    body = {
        b"gzip": gzip.compress, b"br": lambda data: brotli.compress(data, quality=1), b"zstd": zstandard.compress,
        b"deflate": zlib.compress,
    }[encoding](content)  # fmt: skip
    del content
    block = response(body, b"Content-Type: text/html\r\nContent-Encoding: " + encoding)
    rows, [broken], _ = read(written(tmp_path, block), max_body_bytes=1 << 20)
    assert (rows, broken.cause) == ([], "record_too_large")


def test_a_page_over_the_limit_is_broken(tmp_path):
    rows, [broken], _ = read(written(tmp_path, response(), response(b"x" * 5000)), max_body_bytes=2000)
    assert [row["id"] for row in rows] == ["<urn:uuid:0>"]
    assert (broken.cause, broken.size > 5000) == ("record_too_large", True)


def test_what_is_no_page_comes_without_a_body_or_is_counted(tmp_path):
    picture = response(b"\x89PNG", b"Content-Type: image/png")
    blocks = [
        record(0, b"software: x", kind="warcinfo"),
        record(1, b"GET / HTTP/1.1\r\n\r\n", kind="request"),
        record(2, picture),
        record(3, response(b"", b"Content-Type: text/html"), kind="revisit"),
        record(4, response(b"<!doctype html><html>no type</html>", b"Server: x")),
        record(5, response(PAGE, b"Content-Type: application/x"), more=b"WARC-Identified-Payload-Type: text/html\r\n"),
        record(6, b"Plain words.", kind="resource"),
        record(7, b"via: x", kind="metadata"),
    ]  # fmt: skip
    path = tmp_path / "a.warc"
    path.write_bytes(b"".join(blocks))
    rows, broken, counts = read(path)
    assert broken == []
    assert counts == {"warcinfo": 1, "request": 1, "metadata": 1}
    assert [(row["id"][10:-1], row["html"] is not None) for row in rows] == [
        ("2", False), ("3", False), ("4", True), ("5", True), ("6", True),
    ]  # fmt: skip
    assert [row["status"] for row in rows] == [200, 200, 200, 200, None]
    rows, _, counts = read(path, media_types=[], record_types=["response", "metadata"])
    assert [row["html"][:4] for row in rows if row["html"]] == [b"\x89PNG", b"<!do", b"<htm", b"via:"]
    assert counts == {"warcinfo": 1, "request": 1, "resource": 1}
    assert [row["record_type"] for row in rows if not row["html"]] == ["revisit"]


def test_extracted_texts_are_text(tmp_path):
    texts = ["Grüße aus Köln.\n", "Zażółć gęślą jaźń.\n"]
    more = b"WARC-Identified-Content-Language: deu,eng\r\n"
    path = written(tmp_path, *(text.encode() for text in texts), kind="conversion", name="a.warc.wet.gz", more=more)
    rows, broken, _ = read(path)
    assert broken == []
    assert [row["text"] for row in rows] == texts
    assert {row["language"] for row in rows} == {"deu,eng"}
    assert "html" not in rows[0]


def test_what_a_file_is_compressed_with_is_told_by_its_bytes(tmp_path):
    records = [record(number) for number in range(3)]
    content = {
        "a.warc.gz": b"".join(records),
        "b.warc": b"".join(stored(records, "gz")),
        "c.warc.zst": b"".join(stored(records, "zst")),
        "d.warc.bz2": bz2.compress(b"".join(records)),
    }
    for name, data in content.items():
        (tmp_path / name).write_bytes(data)
        rows, broken, _ = read(tmp_path / name)
        assert ([row["html"] for row in rows], broken) == ([PAGE] * 3, [])


def test_records_of_an_arc_file_have_names_and_dates(shared_data):
    [row], broken, counts = read(shared_data / "warc_real" / "warcio" / "example.arc.gz")
    assert (broken, counts) == ([], {"warcinfo": 1})
    assert (row["id"], row["url"], row["date"]) == ("example.arc.gz#171", "http://example.com/", "2014-02-16T05:02:21Z")
    assert row["html"].lstrip().startswith(b"<!doctype html>")


def test_pages_that_others_stored_in_chunks_and_compressed(shared_data):
    for name, size in (("warcio/example-iana.org-chunked.warc", 6_000), ("warcio/example-wrong-chunks.warc.gz", 0)):
        rows, broken, _ = read(shared_data / "warc_real" / name)
        assert broken == []
        assert len(rows) == 1
        assert len(rows[0]["html"] or b"") > size


@pytest.mark.parametrize("compressed", [False, True])
def test_zstd_frames_with_a_dictionary(tmp_path, compressed):
    records = [record(number, response(b"<html>page %d " % number * 30)) for number in range(200)]
    words = zstandard.train_dictionary(2048, records)
    frames = [zstandard.ZstdCompressor(dict_data=words, write_checksum=True).compress(one) for one in records[:30]]
    frames[10] = frames[10][:40] + b"\0\0\0\0" + frames[10][44:]
    content = zstandard.compress(words.as_bytes()) if compressed else words.as_bytes()
    path = tmp_path / "a.warc.zst"
    path.write_bytes(struct.pack("<II", 0x184D2A5D, len(content)) + content + b"".join(frames))
    rows, [broken], _ = read(path)
    assert len(rows) == 29
    assert broken.offset == rows[9]["offset"] + rows[9]["length"]


def test_without_the_library_the_extra_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr("gristmill.errors._is_installed", lambda package: False)
    with pytest.raises(MissingExtraError, match=r"Reading WARC files needs .*gristmill\[web\]"):
        read(written(tmp_path, response()))
