"""Reads dumps of Wikipedia and other MediaWiki sites."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from gristmill.stages.text.io.reader.partitioning import Paths
from gristmill.stages.text.io.reader.rows import RowReader, one_of
from gristmill.storage.formats import Format

PAGE_KINDS = ("article", "list", "disambiguation", "redirect")


class WikipediaReader(RowReader):
    """Reads dumps of MediaWiki (`.xml`, `.xml.bz2`), a document per page, its wikitext turned into text.

    Columns are `text`, `id`, `title`, `url`, `language`, `kind` and `timestamp`. A bzip2 dump of many streams (the
    `-multistream` ones of Wikimedia) is split at its streams, by its index where that lies beside it.

    Args:
        file_paths: A file, a folder, a glob, a URL, or a list of these.
        kinds: The pages to read: `article`, `list` ("List of …"), `disambiguation`, `redirect`.
        namespaces: The namespaces to read; 0 holds the articles.
        language: Of the wiki; by default what the dump says.
        tables: `rows` gives a line per row of a table, `drop` leaves tables out.
        wikitext_field: A column for the page as its authors wrote it; by default none.
        **options: Those of `RowReader`.

    Example:
        >>> pipeline.add_stage(WikipediaReader("simplewiki-20240101-pages-articles-multistream.xml.bz2"))
    """

    name = "wikipedia_reader"
    format: ClassVar[Format] = "mediawiki"

    def __init__(
        self,
        file_paths: Paths,
        kinds: Sequence[str] = ("article", "list"),
        namespaces: Sequence[int] = (0,),
        language: str | None = None,
        tables: str = "rows",
        wikitext_field: str | None = None,
        **options: Any,
    ) -> None:
        self.kinds = [one_of("WikipediaReader", "kinds", kind, PAGE_KINDS) for kind in kinds]
        self.namespaces = list(namespaces)
        self.language = language
        self.tables = one_of("WikipediaReader", "tables", tables, ("rows", "drop"))
        self.wikitext_field = wikitext_field
        super().__init__(file_paths, **options)

    def options(self) -> dict[str, Any]:
        return {
            "kinds": self.kinds,
            "namespaces": self.namespaces,
            "language": self.language,
            "tables": self.tables,
            "wikitext_field": self.wikitext_field,
        }
