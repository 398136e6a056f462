"""Extracts the text of a paper from its LaTeX files."""

from __future__ import annotations

from typing import Any

from gristmill.stages.text.download.arxiv.latex import latex_to_text
from gristmill.stages.text.download.arxiv.latex.main_file import main_file
from gristmill.stages.text.download.base.extract import DocumentExtractor


class ArxivExtractor(DocumentExtractor):
    r"""Turns the LaTeX files of a paper into text.

    Macros are expanded, and files of the source that are included are inserted. Title, abstract and sections become
    headings (`#`, `##` …), formulas stay LaTeX between `$` and `$$` or in their environment, lists and tables become
    lines. Citations and references become their keys in brackets; comments, preamble, authors, figures and the
    bibliography are removed. A source whose macros expand to more text than any paper is quarantined.

    Example:
        >>> ArxivExtractor().extract(
        ...     {"id": "2101.00001", "source_id": "a.tar", "content": [r"\section{One} Let $x$ be % odd"]}
        ... )["text"]
        '## One\n\nLet $x$ be'
    """

    def extract(self, record: dict[str, Any]) -> dict[str, Any] | None:
        """The document, or None if the source contains no text.

        Raises:
            LatexError: Its macros never end, or expand to more text than any paper.
        """
        files: dict[str, str] = {}
        for number, one in enumerate(record["content"]):
            # Plain texts have no names; what one includes is then not found.
            files |= {f"{number}.tex": one} if isinstance(one, str) else {one["name"]: one["text"]}
        main = main_file(files)
        if main is None:
            return None
        found = latex_to_text(files, main)
        if not found.text:
            return None
        return {"id": record["id"], "source_id": record["source_id"], "title": found.title, "text": found.text}

    def input_columns(self) -> list[str]:
        """The keys that are read from a record."""
        return ["id", "source_id", "content"]

    def output_columns(self) -> list[str]:
        """The keys of the documents."""
        return ["id", "source_id", "title", "text"]
