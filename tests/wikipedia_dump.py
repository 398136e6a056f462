"""Dumps of MediaWiki, made of the real pages in `tests/data/wikipedia`."""

from __future__ import annotations

import bz2
from pathlib import Path

from gristmill.storage.bz2_streams import index_path

DUMP = Path(__file__).parent / "data" / "wikipedia" / "enwiki-pages.xml"
NAME = "enwiki-20240101-pages-articles-multistream.xml.bz2"
HEAD, *_PAGES = DUMP.read_bytes().replace(b"</mediawiki>\n", b"").split(b"  <page>")
PAGES = [b"  <page>" + page for page in _PAGES]
TITLES = [
    "AccessibleComputing", "Aa River", "Actrius", "Affirming the consequent", "Algorithms (journal)", "Ampere",
    "Brahui language", "List of anthropologists", "Transport in Angola",
]  # fmt: skip
"""Of the pages: a redirect, one of a name with several meanings, and articles and a list."""


def write_multistream(folder: Path, *, pages_per_stream: int = 2, index: bool = True) -> tuple[Path, list[int]]:
    """A dump as Wikimedia writes it: its head, some pages at a time and its end are streams of their own.

    Returns:
        The file, and where the streams behind the first begin.
    """
    groups = [PAGES[at : at + pages_per_stream] for at in range(0, len(PAGES), pages_per_stream)]
    stored, offsets, lines = bz2.compress(HEAD), [], []
    for number, group in enumerate(groups):
        offsets.append(len(stored))
        lines += [f"{len(stored)}:{number}:{page[20:30]!r}\n" for page in group]
        stored += bz2.compress(b"".join(group))
    offsets.append(len(stored))
    stored += bz2.compress(b"</mediawiki>\n")
    path = folder / NAME
    path.write_bytes(stored)
    if index:
        place = index_path(str(path))
        assert place is not None
        Path(place).write_bytes(bz2.compress("".join(lines).encode()))
    return path, offsets
