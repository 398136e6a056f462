"""Reads mail and the posts of StackExchange."""

from __future__ import annotations

from typing import Any, ClassVar

from gristmill.stages.text.io.reader.partitioning import Paths
from gristmill.stages.text.io.reader.rows import RowReader
from gristmill.storage.formats import Format


class StackExchangeReader(RowReader):
    """Reads `Posts.xml` of StackExchange dumps, compressed or not: a document per post, its HTML as text.

    Columns are `id`, `kind` (`question`, `answer` …), `parent_id` (the question of an answer), `accepted_answer_id`,
    `title`, `tags`, `score`, `date`, `license`, `text` and `file_name`. The archives that StackExchange offers are 7z,
    which is not read: unpack them first (`7z x`).

    Args:
        file_paths: A file, a folder, a glob, a URL, or a list of these.
        **options: Those of `RowReader`.

    Example:
        >>> pipeline.add_stage(StackExchangeReader("cooking.stackexchange.com/Posts.xml"))
    """

    name = "stackexchange_reader"
    format: ClassVar[Format] = "stackexchange"

    def __init__(self, file_paths: Paths, **options: Any) -> None:
        super().__init__(file_paths, **options)


class MailReader(RowReader):
    """Reads mail: mbox files (`.mbox`) and files of one message (`.eml`), compressed or not.

    Columns are `id`, `message_id`, `subject`, `date` (ISO 8601), `text` and `file_name`. The text is that of all parts
    that are plain text, decoded by their charset; HTML becomes text where there is no other. Attachments are left out.

    Args:
        file_paths: A file, a folder, a glob, a URL, or a list of these. Files of a maildir, which have no ending, are
            given as a list: `MailReader(sorted(Path("Maildir/cur").iterdir()))`.
        sender: Add the column `from`.
        **options: Those of `RowReader`.

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
