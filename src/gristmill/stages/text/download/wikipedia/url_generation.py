"""Lists the files of Wikipedia's dumps."""

from __future__ import annotations

import json
import re
from typing import Any
from urllib.parse import quote, urljoin

from gristmill.errors import DownloadMissingError, InputError, InputNotFoundError, UsageError
from gristmill.stages.text.download.base.url_generation import URLGenerator
from gristmill.storage.http_files import HttpFiles

_JOB = "articlesmultistreamdump"


class WikipediaUrlGenerator(URLGenerator):
    """The multistream files with all articles of one dump of a Wikipedia.

    Args:
        language: Language code, as in the address of the Wikipedia.
        dump_date: Date of the dump, such as `20240801`; None for the latest complete one.
        wikidumps_index_prefix: Base URL of the dumps: Wikimedia's server or a mirror.
    """

    def __init__(
        self,
        language: str = "en",
        dump_date: str | None = None,
        wikidumps_index_prefix: str = "https://dumps.wikimedia.org",
    ) -> None:
        if not re.fullmatch(r"[a-z][a-z0-9-]*", language):
            raise UsageError(f"language={language!r}: must be the code of a Wikipedia, such as 'en' or 'zh-yue'.")
        if dump_date is not None and not re.fullmatch(r"\d{8}", dump_date):
            raise UsageError(f"dump_date={dump_date!r}: must be year, month and day, such as '20240801'.")
        self.language = language
        self.dump_date = dump_date
        self.wikidumps_index_prefix = wikidumps_index_prefix.rstrip("/")
        self.http = HttpFiles()

    @property
    def _folder(self) -> str:
        return f"{self.wikidumps_index_prefix}/{self.language.replace('-', '_')}wiki"

    def generate_urls(self) -> list[str]:
        """The URLs of the files, in the order of their pages.

        Raises:
            InputNotFoundError: There is no such dump, or it is not complete.
            InputError: The server's response is not the status of a dump.
        """
        if self.dump_date is not None:
            return self._files(self.dump_date)
        dates = self.dates()
        for date in dates:
            try:
                return self._files(date)
            except InputNotFoundError:  # still being written
                continue
        raise InputNotFoundError(f"None of the dumps at {self._folder}/ is complete: {', '.join(dates)}.")

    def dates(self) -> list[str]:
        """The dates of the dumps that the server has, the latest first.

        Raises:
            InputNotFoundError: There is no Wikipedia in this language, or it has no dumps.
        """
        try:
            page = self.http.read(f"{self._folder}/").decode("utf-8", "replace")
        except DownloadMissingError as error:
            raise InputNotFoundError(
                f"There are no dumps at {self._folder}/: check the language, {self.language!r}."
            ) from error
        found = sorted(set(re.findall(r'href="(\d{8})/"', page)), reverse=True)
        if not found:
            raise InputNotFoundError(f"{self._folder}/ lists no dumps.")
        return found

    def _files(self, date: str) -> list[str]:
        url = f"{self._folder}/{date}/dumpstatus.json"
        try:
            status: Any = json.loads(self.http.read(url))
            job = status["jobs"][_JOB]
            files = job.get("files", {})
        except DownloadMissingError as error:
            listed = ", ".join(self.dates()[:5])
            raise InputNotFoundError(f"There is no dump of {date} at {self._folder}/. It has {listed}.") from error
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise InputError(f"{url} does not hold the status of the articles' dump: {error!r}.", path=url) from error
        if job.get("status") != "done":
            raise InputNotFoundError(f"The dump of {date} at {self._folder}/ is not complete ({job.get('status')}).")
        pages = [name for name in files if ".xml" in name and "index" not in name]
        return [self._url(date, files[name], name) for name in sorted(pages, key=_first_page)]

    def _url(self, date: str, file: dict[str, Any], name: str) -> str:
        place = str(file.get("url") or f"{self._folder}/{date}/{quote(name)}")
        return urljoin(f"{self.wikidumps_index_prefix}/", place.lstrip("/"))


def _first_page(name: str) -> tuple[int, str]:
    """Sort key: the number of the first page, `…xml-p41243p151573.bz2`, not the text."""
    found = re.search(r"-p(\d+)p\d+", name)
    return int(found[1]) if found else -1, name
