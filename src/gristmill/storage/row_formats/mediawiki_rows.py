"""MediaWiki dumps, such as Wikipedia's: one row per article, with wikitext converted to text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from gristmill.storage.bz2_streams import dump_cuts
from gristmill.storage.files import StorageOptions
from gristmill.storage.mediawiki_dump import Page, Problem, Site, read_pages, site_of
from gristmill.storage.partitions import FileRange
from gristmill.storage.row_formats import Broken, Rows
from gristmill.wikitext import PageKind, Tables, page_kind, to_text

_TABLE_CHARS = 4 << 20
_SCHEMA = pa.schema(
    [(name, pa.large_string()) for name in ("id", "title", "url", "language", "kind", "timestamp", "text")]
)


def read_rows(
    part: FileRange,
    *,
    storage_options: StorageOptions = None,
    kinds: Sequence[PageKind] = ("article", "list"),
    namespaces: Sequence[int] = (0,),
    language: str | None = None,
    tables: Tables = "rows",
    wikitext_field: str | None = None,
) -> Rows:
    """The pages of these kinds and namespaces; a page that cannot be parsed yields one `Broken`."""
    site = site_of(part.path, language=language, storage_options=storage_options)
    if isinstance(site, Problem):
        yield Broken(*site)
        return
    schema = _SCHEMA if wikitext_field is None else _SCHEMA.append(pa.field(wikitext_field, pa.large_string()))
    columns: list[list[str]] = [[] for _ in schema]
    chars = 0
    end = -1 if part.whole else part.end
    for page in read_pages(part.path, max(0, part.start), end, size=part.size, storage_options=storage_options):
        if isinstance(page, Problem):
            if columns[0]:  # rows keep the order in which they were found
                yield pa.table(columns, schema=schema)
                columns, chars = [[] for _ in schema], 0
            yield Broken(*page)
            continue
        if page.namespace not in namespaces:
            continue
        kind = page_kind(page.title, page.wikitext, redirect=page.redirect)
        if kind not in kinds:
            continue
        for column, value in zip(columns, _values(page, kind, site, tables), strict=False):
            column.append(value)
        if wikitext_field is not None:
            columns[-1].append(page.wikitext)
        chars += len(page.wikitext)
        if chars >= _TABLE_CHARS:
            yield pa.table(columns, schema=schema)
            columns, chars = [[] for _ in schema], 0
    if columns[0]:
        yield pa.table(columns, schema=schema)


def find_cuts(path: str, size: int, *, block_bytes: int, storage_options: StorageOptions = None, **_: Any) -> list[int]:
    """Where to split a dump: at streams, or anywhere in plain XML; 0, …, `size`."""
    return dump_cuts(path, size, block_bytes=block_bytes, storage_options=storage_options)


def _values(page: Page, kind: PageKind, site: Site, tables: Tables) -> tuple[str, ...]:
    text = to_text(page.wikitext, title=page.title, tables=tables)
    return page.id, page.title, site.url(page.title), site.language, kind, page.timestamp, text
