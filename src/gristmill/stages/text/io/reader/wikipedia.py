"""Reads dumps of Wikipedia and other MediaWiki sites."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from gristmill.stages.text.io.reader.partitioning import Paths
from gristmill.stages.text.io.reader.rows import RowReader, one_of
from gristmill.storage.formats import Format

PAGE_KINDS = ("article", "list", "disambiguation", "redirect")


class WikipediaReader(RowReader):
    """Reads MediaWiki dumps (`.xml`, `.xml.bz2`), one document per page, with wikitext converted to text.

    Columns are `text`, `id`, `title`, `url`, `language`, `kind` and `timestamp`. A multistream bzip2 dump (Wikimedia's
    `-multistream` files) is split at its streams, by its index if that is beside it.

    Args:
        file_paths: A file, folder, glob or URL, or a list of these.
        kinds: Pages to read: `article`, `list` ("List of …"), `disambiguation`, `redirect`.
        namespaces: Namespaces to read; 0 holds the articles.
        language: Language of the wiki; defaults to the one stated in the dump.
        tables: `rows` writes one line per table row, `drop` removes tables.
        wikitext_field: Column for the original wikitext; none by default.
        **options: See `RowReader`.

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
