"""The URLs of a download, each of which is a partition of the run."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from urllib.parse import urlsplit

from gristmill.errors import InputNotFoundError, UsageError
from gristmill.stages.resources import Resources
from gristmill.stages.source_sink import SourceColumns, SourceStage
from gristmill.storage.files import InputFile
from gristmill.storage.partitions import Partition, make_partitions
from gristmill.storage.row_formats.downloaded_rows import READING


class URLGenerator(ABC):
    """Lists the files to download. Subclass it and implement `generate_urls`.

    Called once per run, in the driver, when the run is planned; constructors only store their arguments.

    Example:
        >>> class TwoFiles(URLGenerator):
        ...     def generate_urls(self):
        ...         return [f"https://example.org/part-{number}.jsonl.gz" for number in range(2)]
    """

    @abstractmethod
    def generate_urls(self) -> list[str]:
        """The URLs, in an order that does not change between runs."""


class URLGenerationStage(SourceStage):
    """The source of a pipeline that downloads: every URL is a partition, committed and resumed separately.

    Args:
        url_generator: Lists the URLs.
        limit: Download only the first `limit` of them.

    Attributes:
        record_columns: The columns that documents will have, if a composite knows them; checked when planning.
    """

    name = "url_generation"
    resources = Resources(cpus=0.5)
    record_columns: tuple[str, ...] | None = None

    def __init__(self, url_generator: URLGenerator, limit: int | None = None) -> None:
        if limit is not None and (isinstance(limit, bool) or not isinstance(limit, int) or limit < 1):
            raise UsageError(
                f"URLGenerationStage(limit={limit!r}): must be a whole number of URLs, at least 1.", value=limit
            )
        self.url_generator = url_generator
        self.limit = limit

    def num_workers(self) -> int | None:
        return 1

    def urls(self) -> list[str]:
        """The URLs to download, each once, in the order of the generator.

        Raises:
            InputNotFoundError: There are none.
        """
        generator = type(self.url_generator).__name__
        found = self.url_generator.generate_urls()
        if isinstance(found, str) or not all(isinstance(url, str) for url in found):
            raise UsageError(f"{generator}.generate_urls() must return a list of URLs as strings.")
        urls = list(dict.fromkeys(found))[: self.limit]
        if not urls:
            raise InputNotFoundError(f"{generator} found no URL to download. Check its parameters.")
        return urls

    def partitions(self) -> list[Partition]:
        urls = self.urls()
        hosts = {urlsplit(url).netloc for url in urls}
        files = [InputFile(url, _relative(url, with_host=len(hosts) > 1), -1, "") for url in urls]
        return make_partitions(files, format="jsonl", files_per_partition=1, reading=READING)

    def columns(self, partitions: Sequence[Partition], wanted: Sequence[str]) -> SourceColumns | None:
        if self.record_columns is None:
            return None
        return SourceColumns(self.record_columns, complete=True, looked_at="the columns that the download declares")


def _relative(url: str, *, with_host: bool) -> str:
    """The name of the file in the run: its path on the server, which is the same on all mirrors."""
    parts = urlsplit(url)
    path = parts.path.lstrip("/") + (f"?{parts.query}" if parts.query else "")
    return f"{parts.netloc}/{path}" if with_host or not path else path
