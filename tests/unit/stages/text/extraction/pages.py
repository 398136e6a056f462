"""Real pages with their texts as people marked them, for tests."""

from __future__ import annotations

import gzip
import json
import re
import warnings
from collections import Counter
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from gristmill.stages.text.download.common_crawl.warc_iterator import CommonCrawlWarcIterator


class Page(NamedTuple):
    """A page as it was served, and what is known about it."""

    url: str
    html: bytes
    gold: dict[str, Any]

    @property
    def text(self) -> str:
        """Its text as marked by people; empty where only segments are marked."""
        return str(self.gold.get("main_content") or self.gold.get("articleBody") or "")


@cache
def pages(folder: Path, name: str, most: int | None = None) -> list[Page]:
    """The first pages of a set."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the package warns about itself
        from fastwarc.warc import ArchiveIterator

    with gzip.open(folder / "extraction" / f"{name}.gold.jsonl.gz") as file:
        gold = {one["record_id"]: one for one in map(json.loads, file)}
    found = []
    with (folder / "extraction" / f"{name}.warc.gz").open("rb") as file:
        for record in islice(ArchiveIterator(file), most):
            one = gold[record.headers["WARC-Record-ID"]]
            found.append(Page(one["url"], record.reader.read(), one))
    return found


def archived_pages(archive: Path, most: int) -> list[bytes]:
    """The first pages of a web archive, as a reader of archives returns them."""
    found = CommonCrawlWarcIterator().iterate(str(archive))
    return [page["content"] for page in islice(found, most)]


_WORD = re.compile(r"\w+")


def word_f1(found: str | None, expected: str) -> float:
    """The harmonic mean of precision and recall over words, each counted as often as it stands there."""
    ours, theirs = (Counter(_WORD.findall((text or "").lower())) for text in (found, expected))
    common = (ours & theirs).total()
    return 2 * common / (ours.total() + theirs.total()) if common else float(not ours and not theirs)
