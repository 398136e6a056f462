"""Lists the files of Common Crawl's snapshots."""

from __future__ import annotations

import gzip
import io
import json
import re
import zlib
from abc import abstractmethod
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from gristmill.errors import DownloadMissingError, InputError, InputNotFoundError, UsageError
from gristmill.stages.text.download.base.url_generation import URLGenerator
from gristmill.storage.http_files import HttpFiles

DATA_PREFIX = "https://data.commoncrawl.org"
INDEX_PREFIX = "https://index.commoncrawl.org"
_FIRST_MAIN, _FIRST_NEWS = 2013, (2016, 8)
_MAX_LIST_BYTES = 256 << 20


class BaseCommonCrawlUrlGenerator(URLGenerator):
    """Base class of the generators for the crawls.

    Args:
        start_snapshot_str: The first snapshot.
        end_snapshot_str: The last snapshot, inclusive.
        data_prefix: Base URL of the files: Common Crawl's server or a mirror.
        limit: Maximum number of URLs, starting with the first snapshot.
    """

    def __init__(
        self, start_snapshot_str: str, end_snapshot_str: str, data_prefix: str = DATA_PREFIX, limit: int | None = None
    ) -> None:
        self.start_snapshot_str = start_snapshot_str
        self.end_snapshot_str = end_snapshot_str
        self.data_prefix = data_prefix.rstrip("/")
        self.limit = limit
        self.http = HttpFiles()
        self._start, self._end = self._parse(start_snapshot_str), self._parse(end_snapshot_str)
        if self._start > self._end:
            raise UsageError(
                f"The first snapshot, {start_snapshot_str}, is later than the last one, {end_snapshot_str}. Swap them."
            )

    @abstractmethod
    def _parse(self, snapshot: str) -> tuple[int, int]:
        """Year and week or month of a snapshot.

        Raises:
            UsageError: It has the wrong form.
        """

    @abstractmethod
    def generate_path_urls(self) -> list[str]:
        """The URLs of the lists of files, one for each snapshot, the oldest first."""

    def generate_data_urls(self, path_urls: str | Sequence[str] | None = None) -> list[str]:
        """The URLs of the files in some lists; by default the lists of `generate_path_urls`."""
        lists = self.generate_path_urls() if path_urls is None else path_urls
        found: list[str] = []
        for url in [lists] if isinstance(lists, str) else lists:
            try:
                names = _unpacked(self.http.read(url, max_bytes=_MAX_LIST_BYTES)).decode().split()
            except (OSError, EOFError, zlib.error, UnicodeDecodeError) as error:
                if isinstance(error, DownloadMissingError):
                    raise InputNotFoundError(self._no_list(url), path=url) from error
                if isinstance(error, gzip.BadGzipFile | EOFError | zlib.error | UnicodeDecodeError):
                    raise InputError(
                        f"{url} is not a list of files compressed with gzip: {error}.", path=url
                    ) from error
                raise
            found += [f"{self.data_prefix}/{name.lstrip('/')}" for name in names]
            if self.limit is not None and len(found) >= self.limit:
                break
        return found[: self.limit]

    def generate_urls(self) -> list[str]:
        """The URLs of all files of the snapshots."""
        return self.generate_data_urls()

    def _no_list(self, url: str) -> str:
        return f"There is no list of files at {url}: the snapshot does not exist, or is not published yet."


class MainCommonCrawlUrlGenerator(BaseCommonCrawlUrlGenerator):
    """The files of the main crawl, whose snapshots are named by year and week: `2024-10`.

    Args:
        start_snapshot_str: The first snapshot.
        end_snapshot_str: The last snapshot, inclusive.
        data_prefix: Base URL of the files: Common Crawl's server or a mirror.
        limit: Maximum number of URLs, starting with the first snapshot.
        index_prefix: Base URL of the list of snapshots (`collinfo.json`).
    """

    def __init__(
        self,
        start_snapshot_str: str,
        end_snapshot_str: str,
        data_prefix: str = DATA_PREFIX,
        limit: int | None = None,
        index_prefix: str = INDEX_PREFIX,
    ) -> None:
        super().__init__(start_snapshot_str, end_snapshot_str, data_prefix, limit)
        self.index_prefix = index_prefix.rstrip("/")

    def _parse(self, snapshot: str) -> tuple[int, int]:
        year, week = _numbers(snapshot, "year and week, such as 2024-10")
        if not 1 <= week <= 53:
            raise UsageError(
                f"There is no week {week} in the snapshot {snapshot!r}; weeks are 01 to 53.", value=snapshot
            )
        if year < _FIRST_MAIN:
            raise UsageError(f"{snapshot!r}: snapshots by year and week begin with {_FIRST_MAIN}-20.", value=snapshot)
        return year, week

    def snapshots(self) -> list[tuple[int, int]]:
        """All snapshots that Common Crawl lists, the oldest first.

        Raises:
            InputError: The list is invalid.
        """
        url = f"{self.index_prefix}/collinfo.json"
        try:
            listed: Any = json.loads(self.http.read(url))
            names = [str(entry["id"]) for entry in listed]
        except (ValueError, TypeError, KeyError) as error:
            raise InputError(f"{url} is not Common Crawl's list of snapshots: {error!r}.", path=url) from error
        found = [re.fullmatch(r"CC-MAIN-(\d{4})-(\d\d)", name) for name in names]
        return sorted({(int(match[1]), int(match[2])) for match in found if match})

    def generate_path_urls(self) -> list[str]:
        known = self.snapshots()
        for snapshot, given in ((self._start, self.start_snapshot_str), (self._end, self.end_snapshot_str)):
            if snapshot not in known:
                near = sorted(known, key=lambda one: abs((one[0] - snapshot[0]) * 53 + one[1] - snapshot[1]))[:4]
                raise UsageError(
                    f"Common Crawl has no snapshot {given!r}. The nearest are {', '.join(map(_name, sorted(near)))}.",
                    value=given,
                )
        chosen = [snapshot for snapshot in known if self._start <= snapshot <= self._end]
        return [f"{self.data_prefix}/crawl-data/CC-MAIN-{_name(snapshot)}/warc.paths.gz" for snapshot in chosen]


class NewsCommonCrawlUrlGenerator(BaseCommonCrawlUrlGenerator):
    """The files of the news crawl, by year and month: `2024-03`. For the parameters, see the base class."""

    def _parse(self, snapshot: str) -> tuple[int, int]:
        year, month = _numbers(snapshot, "year and month, such as 2024-03")
        if not 1 <= month <= 12:
            raise UsageError(
                f"There is no month {month} in the snapshot {snapshot!r}; snapshots of the news crawl are months, 01 "
                "to 12.",
                value=snapshot,
            )
        today = datetime.now(UTC)
        if not _FIRST_NEWS <= (year, month) <= (today.year, today.month):
            raise UsageError(
                f"There is no news crawl of {snapshot!r}: it begins with {_name(_FIRST_NEWS)} and ends with the "
                f"current month, {_name((today.year, today.month))}.",
                value=snapshot,
            )
        return year, month

    def generate_path_urls(self) -> list[str]:
        (year, month), found = self._start, []
        while (year, month) <= self._end:
            found.append(f"{self.data_prefix}/crawl-data/CC-NEWS/{year}/{month:02d}/warc.paths.gz")
            year, month = (year, month + 1) if month < 12 else (year + 1, 1)
        return found


def _unpacked(data: bytes) -> bytes:
    """The content of a small gzip file; one that is far too large is treated as damaged."""
    with gzip.open(io.BytesIO(data)) as file:
        content = file.read(_MAX_LIST_BYTES + 1)
    if len(content) > _MAX_LIST_BYTES:
        raise zlib.error(f"it holds more than {_MAX_LIST_BYTES >> 20} MiB")
    return content


def _numbers(snapshot: str, form: str) -> tuple[int, int]:
    found = re.fullmatch(r"(\d{4})-(\d\d)", snapshot) if isinstance(snapshot, str) else None
    if found is None:
        hint = ""
        if isinstance(snapshot, str) and snapshot.startswith("CC-"):
            hint = " Omit 'CC-MAIN-' or 'CC-NEWS-'."
        raise UsageError(f"{snapshot!r} is not a snapshot: write {form}.{hint}", value=snapshot)
    return int(found[1]), int(found[2])


def _name(snapshot: tuple[int, int]) -> str:
    return f"{snapshot[0]}-{snapshot[1]:02d}"
