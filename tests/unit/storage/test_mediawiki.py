"""Dumps of MediaWiki: pages out of whole files, of ranges, of streams by an index or without, and of damaged ones."""

from __future__ import annotations

import bz2
import gzip
import itertools
import random
import tracemalloc
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import fsspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gristmill.storage import bz2_streams, mediawiki_dump
from gristmill.storage.bz2_streams import index_path, stream_cuts
from gristmill.storage.compression import DamagedArchiveError
from gristmill.storage.files import InputFile, list_files
from gristmill.storage.formats import format_of, recognise
from gristmill.storage.mediawiki_dump import Page, Problem, Site, read_pages, site_of
from gristmill.storage.partitions import FileRange, Partition, make_partitions
from gristmill.storage.row_blocks import read_row_blocks
from gristmill.storage.row_formats import cuts_of, reading_of
from tests.wikipedia_dump import DUMP, HEAD, NAME, PAGES, TITLES, write_multistream


def cuts(file: InputFile, block_bytes: int) -> list[int]:
    return cuts_of(file.path, file.size, reading_of("mediawiki", {}), block_bytes=block_bytes)


def partitions(path: Path, blocksize: int | None = None, **options: Any) -> list[Partition]:
    return make_partitions(
        list_files(str(path), extensions=[".xml"]),
        format="mediawiki",
        blocksize=blocksize,
        reading=reading_of("mediawiki", options),
        find_cuts=cuts,
    )


def rows(parts: Sequence[Partition]) -> tuple[list[dict[str, str]], list[tuple[str, str]]]:
    found, bad = [], []
    for part in parts:
        for block in read_row_blocks(part):
            found += block.table.to_pylist()
            bad += [(one.cause, one.detail) for one in block.bad]
    return found, bad


def titles(parts: Sequence[Partition]) -> list[str]:
    return [row["title"] for row in rows(parts)[0]]


def test_columns_of_a_page() -> None:
    found, bad = rows(partitions(DUMP))
    assert not bad
    assert [row["title"] for row in found] == TITLES[2:]  # neither a redirect nor a page of several meanings
    assert [row["kind"] for row in found] == ["article"] * 5 + ["list", "article"]
    ampere = found[3]
    assert ampere["url"] == "https://en.wikipedia.org/wiki/Ampere"
    assert (ampere["id"], ampere["language"], ampere["timestamp"][:4]) == ("772", "en", "2016")
    assert ampere["text"].startswith("The ampere (SI unit symbol: A)")


def test_options() -> None:
    every = partitions(DUMP, kinds=["redirect", "disambiguation"], tables="drop", wikitext_field="source", language="x")
    found, _ = rows(every)
    assert [(row["title"], row["kind"]) for row in found] == [
        (TITLES[0], "redirect"),
        (TITLES[1], "disambiguation"),
    ]
    assert found[0]["source"].startswith("#REDIRECT [[Computer accessibility]]")
    assert {row["language"] for row in found} == {"x"}
    assert titles(partitions(DUMP, namespaces=[1])) == []


@given(size=st.integers(2000, 60_000))
@settings(max_examples=12)
def test_plain_dumps_are_split_anywhere(size: int) -> None:
    parts = partitions(DUMP, size)
    assert len(parts) > 1 or size >= DUMP.stat().st_size
    assert titles(parts) == TITLES[2:]


@pytest.mark.parametrize("index", [True, False])
@pytest.mark.parametrize("pages_per_stream", [1, 2, 100])
def test_multistream_dumps_are_split_at_streams(tmp_path: Path, index: bool, pages_per_stream: int) -> None:
    path, offsets = write_multistream(tmp_path, pages_per_stream=pages_per_stream, index=index)
    for size in (100, 9000, 10**6):
        parts = partitions(path, size)
        starts = [part.ranges[0].start for part in parts]
        assert set(starts) <= {0, *offsets}
        assert titles(parts) == TITLES[2:]
    if pages_per_stream == 1:
        assert len(partitions(path, 100)) == len(PAGES) + 2


def test_the_index_of_another_dump_is_not_believed(tmp_path: Path) -> None:
    path, offsets = write_multistream(tmp_path, index=False)
    Path(str(index_path(str(path)))).write_bytes(bz2.compress(b"5:1:a\n3001:2:b\n"))
    cuts = stream_cuts(str(path), path.stat().st_size, block_bytes=3000)
    assert set(cuts) <= {0, *offsets, path.stat().st_size}
    assert len(cuts) > 3


def test_streams_that_end_inside_pages(tmp_path: Path) -> None:
    # pbzip2 and others cut anywhere.
    whole = DUMP.read_bytes()
    path = tmp_path / "enwiki.xml.bz2"
    path.write_bytes(b"".join(bz2.compress(whole[at : at + 1717]) for at in range(0, len(whole), 1717)))
    for size in (1000, 5000):
        parts = partitions(path, size)
        assert len(parts) > 2
        assert titles(parts) == TITLES[2:]
    borders = [whole.index(b"<page>", 20_000) + shift for shift in range(7)]
    for border in borders:
        path.write_bytes(bz2.compress(whole[:border]) + bz2.compress(whole[border:]))
        parts = partitions(path, len(bz2.compress(whole[:border])) - 5)
        assert len(parts) == 2
        assert titles(parts) == TITLES[2:]


@pytest.mark.parametrize("blocksize", [None, 3000])
def test_a_damaged_stream_costs_its_pages_alone(tmp_path: Path, blocksize: int | None) -> None:
    path, offsets = write_multistream(tmp_path)
    stored = bytearray(path.read_bytes())
    stored[offsets[2] + 200] ^= 0xFF  # the stream of the third pair of pages
    path.write_bytes(stored)
    found, bad = rows(partitions(path, blocksize))
    assert [row["title"] for row in found] == [*TITLES[2:4], *TITLES[6:]]
    assert [cause for cause, _ in bad] == ["corrupt_archive"]
    assert f"stream at byte {offsets[2]}" in bad[0][1]


def test_a_dump_that_was_cut_off(tmp_path: Path) -> None:
    path, offsets = write_multistream(tmp_path)
    stored = path.read_bytes()
    for size, kept in ((offsets[3] + 100, 6), (offsets[3], 6), (len(stored) - 3, 9)):
        path.write_bytes(stored[:size])
        found, bad = rows(partitions(path))
        assert [row["title"] for row in found] == TITLES[2:kept]
        assert [cause for cause, _ in bad] == ["truncated_file"]
    plain = tmp_path / "enwiki.xml"
    plain.write_bytes(DUMP.read_bytes()[:-2000])
    found, bad = rows(partitions(plain))
    assert [row["title"] for row in found] == TITLES[2:-1]
    assert [cause for cause, _ in bad] == ["truncated_file"]
    packed = tmp_path / "enwiki.xml.gz"
    packed.write_bytes(gzip.compress(DUMP.read_bytes())[:-2000])
    assert [cause for cause, _ in rows(partitions(packed))[1]] == ["truncated_file"]


def test_a_page_that_is_no_xml_costs_itself_alone(tmp_path: Path) -> None:
    path = tmp_path / "enwiki.xml"
    path.write_bytes(DUMP.read_bytes().replace(b"<id>772</id>", b"<id>&lol;</id>"))
    found, bad = rows(partitions(path))
    assert len(found) == len(TITLES) - 3
    assert [cause for cause, _ in bad] == ["corrupt_xml"]
    assert "undefined entity" in bad[0][1]


def test_a_document_type_is_refused(tmp_path: Path) -> None:
    laughs = b'<!ENTITY a0 "ha">' + b"".join(
        b'<!ENTITY a%d "%s">' % (level, b"&a%d;" % (level - 1) * 10) for level in range(1, 10)
    )
    path = tmp_path / "enwiki.xml"
    path.write_bytes(b"<!DOCTYPE mediawiki [" + laughs + b"]>\n" + DUMP.read_bytes().replace(b"Ampere", b"&a9;"))
    found, bad = rows(partitions(path))
    assert found == []
    assert [cause for cause, _ in bad] == ["unsafe_xml"]


def test_other_xml_is_named(tmp_path: Path) -> None:
    path = tmp_path / "posts.xml"
    path.write_bytes(b'<?xml version="1.0"?><posts><row Id="1"/></posts>')
    assert rows(partitions(path))[1][0][0] == "other_format"
    path.write_bytes(DUMP.read_text().encode("utf-16"))
    assert "UTF-16" in rows(partitions(path))[1][0][1]


def test_huge_pages_are_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mediawiki_dump, "MAX_PAGE_BYTES", 9000)
    monkeypatch.setattr(mediawiki_dump, "_PIECE", 1000)
    large = sum(len(page) > 9500 for page in PAGES)
    found = list(read_pages(str(DUMP)))
    assert large == 2
    assert [one.title for one in found if isinstance(one, Page)] == [
        title for title in TITLES if title not in ("Ampere", "Brahui language")
    ]
    assert [one.cause for one in found if isinstance(one, Problem)] == ["record_too_large"] * large


def test_titles_in_addresses() -> None:
    site = Site("de", "https://de.wikipedia.org/wiki/")
    assert site.url("C++ & Müll? (x/y)") == "https://de.wikipedia.org/wiki/C%2B%2B_%26_M%C3%BCll%3F_(x/y)"


def test_language_without_a_head(tmp_path: Path) -> None:
    path = tmp_path / "dewiki-latest-pages-articles1.xml-p1p20.bz2"
    path.write_bytes(bz2.compress(PAGES[1]))
    site = site_of(str(path))
    assert site == Site("de", "https://de.wikipedia.org/wiki/")


def test_names_and_first_bytes() -> None:
    assert format_of("enwiki-latest-pages-articles1.xml-p1p41242.bz2") == "mediawiki"
    assert format_of(NAME) == "mediawiki"
    assert format_of("enwiki-latest-pages-articles-multistream-index1.txt-p1p41242.bz2") is None
    assert recognise(HEAD) == "mediawiki"


def test_several_revisions_give_the_last(tmp_path: Path) -> None:
    page = b"<page><title>A</title><ns>0</ns><id>1</id>%s</page>" % b"".join(
        b"<revision><id>%d</id><timestamp>t%d</timestamp><text>v%d</text></revision>" % (n, n, n) for n in range(3)
    )
    path = tmp_path / "enwiki.xml"
    path.write_bytes(HEAD + page + b"</mediawiki>")
    assert list(read_pages(str(path))) == [Page("1", "A", 0, False, "t2", "v2")]


def test_ranges_name_how_they_are_read(tmp_path: Path) -> None:
    path, _ = write_multistream(tmp_path)
    for part in itertools.chain.from_iterable(part.ranges for part in partitions(path, 3000)):
        assert isinstance(part, FileRange)
        assert '"format": "mediawiki"' in part.reading


def test_a_large_stream_that_is_damaged_takes_its_file_with_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # What came of it may not be right, and was handed on: only salvage keeps it.
    path = tmp_path / "enwiki.xml.bz2"
    random.seed(5)
    filler = "".join(random.choices("abcdefgh \n", k=3_000_000))
    page = f"<page><title>Filler</title><ns>0</ns><id>1</id><revision><text>{filler}</text></revision></page>"
    stored = bytearray(bz2.compress(HEAD + b"".join(PAGES) + page.encode() + b"</mediawiki>"))
    stored[-100_000] ^= 0xFF
    path.write_bytes(stored)
    monkeypatch.setattr(bz2_streams, "_HELD_BYTES", 500_000)
    found, bad = rows(partitions(path))
    assert [row["title"] for row in found] == TITLES[2:]
    assert [cause for cause, _ in bad] == ["corrupt_archive"]
    with pytest.raises(DamagedArchiveError, match="salvage"):
        list(read_row_blocks(partitions(path)[0], strict=True))


def test_a_bomb_takes_little_memory(tmp_path: Path) -> None:
    path = tmp_path / "enwiki.xml.bz2"
    path.write_bytes(bz2.compress(HEAD) + bz2.compress(bytes(150_000_000)) + bz2.compress(b"</mediawiki>"))
    assert path.stat().st_size < 1500
    tracemalloc.start()
    try:
        assert list(read_pages(str(path))) == []
        assert tracemalloc.get_traced_memory()[1] < 110_000_000
    finally:
        tracemalloc.stop()


def test_dumps_in_a_store_are_split_too(tmp_path: Path) -> None:
    path, offsets = write_multistream(tmp_path)
    store = fsspec.filesystem("memory")
    store.put(str(tmp_path), "/dumps", recursive=True)
    try:
        parts = make_partitions(
            list_files(f"memory://dumps/{path.name}", extensions=[".xml"]),
            format="mediawiki",
            blocksize=3000,
            reading=reading_of("mediawiki", {}),
            find_cuts=cuts,
        )
        assert {part.ranges[0].start for part in parts[1:]} < set(offsets)
        assert titles(parts) == TITLES[2:]
    finally:
        store.rm("/dumps", recursive=True)
