"""Reads mail and StackExchange posts."""

from __future__ import annotations

from typing import Any, ClassVar

from gristmill.stages.text.io.reader.partitioning import Paths
from gristmill.stages.text.io.reader.rows import RowReader
from gristmill.storage.formats import Format


class StackExchangeReader(RowReader):
    """Reads `Posts.xml` of StackExchange dumps, compressed or not: one document per post, with its HTML as text.

    Columns are `id`, `kind` (`question`, `answer` …), `parent_id` (the question of an answer), `accepted_answer_id`,
    `title`, `tags`, `score`, `date`, `license`, `text` and `file_name`. StackExchange publishes 7z archives, which are
    not supported: unpack them first (`7z x`).

    Args:
        file_paths: A file, folder, glob or URL, or a list of these.
        **options: See `RowReader`.

    Example:
        >>> pipeline.add_stage(StackExchangeReader("cooking.stackexchange.com/Posts.xml"))
    """

    name = "stackexchange_reader"
    format: ClassVar[Format] = "stackexchange"

    def __init__(self, file_paths: Paths, **options: Any) -> None:
        super().__init__(file_paths, **options)


class MailReader(RowReader):
    """Reads mail: mbox files (`.mbox`) and files of one message (`.eml`), compressed or not.

    Columns are `id`, `message_id`, `subject`, `date` (ISO 8601), `text` and `file_name`. The text is that of all
    plain-text parts, decoded by their charset; HTML is converted to text if there is no plain text. Attachments are
    skipped.

    Args:
        file_paths: A file, folder, glob or URL, or a list of these. Pass the files of a maildir, which have no
            extension, as a list: `MailReader(sorted(Path("Maildir/cur").iterdir()))`.
        sender: Add the column `from`.
        **options: See `RowReader`.

    Example:
        >>> pipeline.add_stage(MailReader("lists/debian-devel.mbox.gz"))
    """

    name = "mail_reader"
    format: ClassVar[Format] = "mail"

    def __init__(self, file_paths: Paths, sender: bool = False, **options: Any) -> None:
        self.sender = sender
        super().__init__(file_paths, **options)

    def options(self) -> dict[str, Any]:
        return {"sender": self.sender}
