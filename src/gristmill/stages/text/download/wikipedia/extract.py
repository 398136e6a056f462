"""The text of a page of Wikipedia."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gristmill.stages.text.download.base.extract import DocumentExtractor
from gristmill.wikitext import PageKind, Tables, to_text


class WikipediaExtractor(DocumentExtractor):
    """Turns the wikitext of a page into text.

    Args:
        language: Language code; pages of all languages are converted alike.
        kinds: Kinds of pages to keep: `article`, `list`, `disambiguation`.
        tables: `rows` writes one line per table row, `drop` removes tables.

    Example:
        >>> WikipediaExtractor().extract({"title": "Aa", "raw_content": "'''Aa''' is a [[river]]."})["text"]
        'Aa is a river.'
    """

    def __init__(
        self, language: str = "en", *, kinds: Sequence[PageKind] = ("article", "list"), tables: Tables = "rows"
    ) -> None:
        self.language = language
        self.kinds = tuple(kinds)
        self.tables: Tables = tables

    def extract(self, record: dict[str, Any]) -> dict[str, Any] | None:
        """The page with its text; None for other kinds of pages, or pages with only boxes and notes."""
        if record.get("kind", "article") not in self.kinds:
            return None
        text = to_text(record["raw_content"], title=record.get("title") or "", tables=self.tables)
        if not text:
            return None
        return {"text": text, **{name: record.get(name) for name in self.output_columns()[1:]}}

    def input_columns(self) -> list[str]:
        """The keys of a record."""
        return ["id", "title", "url", "language", "source_id", "raw_content"]

    def output_columns(self) -> list[str]:
        """The keys of a document."""
        return ["text", "id", "title", "url", "language", "source_id", "kind"]
