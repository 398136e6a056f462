"""Reads plain text, Markdown and HTML, including inside archives: one document per file, line or paragraph."""

from __future__ import annotations

from typing import Any, ClassVar

from gristmill.stages.text.io.reader.partitioning import Paths
from gristmill.stages.text.io.reader.rows import RowReader, known_encoding, one_of
from gristmill.storage.formats import Format

UNITS = ("file", "line", "paragraph")


class TextReader(RowReader):
    """Reads text files (`.txt`, `.md`, compressed or not); columns are `text`, `file_name` and `id`.

    Args:
        file_paths: A file, folder, glob or URL, or a list of these.
        document: Unit of a document: a `file`, a `line`, or a `paragraph` (separated by blank lines).
        text_field: Column for the text.
        encoding: Encoding of the files. Defaults to UTF-8, or UTF-16 if there is a byte order mark.
        **options: See `RowReader`.

    Example:
        >>> pipeline.add_stage(TextReader("books/", document="paragraph"))
    """

    name = "text_reader"
    format: ClassVar[Format] = "text"

    def __init__(
        self,
        file_paths: Paths,
        document: str = "file",
        text_field: str = "text",
        encoding: str | None = None,
        **options: Any,
    ) -> None:
        self.document = one_of("TextReader", "document", document, UNITS)
        self.text_field = text_field
        self.encoding = known_encoding("TextReader", encoding)
        super().__init__(file_paths, **options)

    def options(self) -> dict[str, Any]:
        return {"document": self.document, "text_field": self.text_field, "encoding": self.encoding}


class HtmlReader(RowReader):
    """Reads HTML files, one page per file; columns are `html` (bytes), `file_name` and `id`.

    `HtmlExtractor` turns the pages into text.

    Args:
        file_paths: A file, folder, glob or URL, or a list of these.
        **options: See `RowReader`.

    Example:
        >>> pipeline.add_stage(HtmlReader("site/")).add_stage(HtmlExtractor())
    """

    name = "html_reader"
    format: ClassVar[Format] = "html"

    def __init__(self, file_paths: Paths, **options: Any) -> None:
        super().__init__(file_paths, **options)


class ArchiveReader(RowReader):
    """Reads text and HTML files inside archives: `.tar` (compressed or not), `.tgz` and `.zip`.

    Nothing is unpacked to disk. Links, and members whose paths are absolute or lead out of the archive, are quarantined
    and never followed. Columns are those of `TextReader` or `HtmlReader`.

    Args:
        file_paths: A file, folder, glob or URL, or a list of these.
        content: Members to read: `text` or `html`; defaults to the type of the first one in an archive.
        document: Unit of a document in a text: the `file`, a `line`, or a `paragraph`.
        text_field: Column for the text.
        encoding: Encoding of texts. Defaults to UTF-8, or UTF-16 if there is a byte order mark.
        **options: See `RowReader`.

    Example:
        >>> pipeline.add_stage(ArchiveReader("books.tar.gz"))
    """

    name = "archive_reader"
    format: ClassVar[Format] = "archive"

    def __init__(
        self,
        file_paths: Paths,
        content: str | None = None,
        document: str = "file",
        text_field: str = "text",
        encoding: str | None = None,
        **options: Any,
    ) -> None:
        self.content = None if content is None else one_of("ArchiveReader", "content", content, ("text", "html"))
        self.document = one_of("ArchiveReader", "document", document, UNITS)
        self.text_field = text_field
        self.encoding = known_encoding("ArchiveReader", encoding)
        super().__init__(file_paths, **options)

    def options(self) -> dict[str, Any]:
        return {
            "content": self.content,
            "document": self.document,
            "text_field": self.text_field,
            "encoding": self.encoding,
        }
