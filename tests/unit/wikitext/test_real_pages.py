"""Pages of Wikipedia become the text that was checked by hand, and closer to it than by the usual library."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import mwparserfromhell
import pytest

from gristmill.storage.mediawiki_dump import Page, read_pages
from gristmill.wikitext import to_text

DATA = Path(__file__).parents[2] / "data" / "wikipedia"
MARKUP = re.compile(r"\{\{|\}\}|\[\[|\]\]|''|^[|!]|\{\||<ref|<br|&nbsp;|\bthumb\b|\bCategory:", re.MULTILINE)


def word_f1(found: str, wanted: str) -> float:
    here, there = (Counter(re.findall(r"\w+", text)) for text in (found, wanted))
    return 2 * (here & there).total() / (here.total() + there.total())


@pytest.fixture(scope="module")
def pages() -> dict[str, Page]:
    found = [page for page in read_pages(str(DATA / "enwiki-pages.xml")) if isinstance(page, Page)]
    return {page.title: page for page in found}


@pytest.mark.parametrize("path", sorted((DATA / "visible").iterdir()), ids=lambda path: path.stem)
def test_the_text_that_a_reader_sees(path: Path, pages: dict[str, Page]) -> None:
    visible, wikitext = path.read_text(), pages[path.stem.replace("_", " ")].wikitext
    ours, theirs = to_text(wikitext), mwparserfromhell.parse(wikitext).strip_code()
    assert word_f1(ours, visible) >= 0.97
    assert word_f1(ours, visible) >= word_f1(theirs, visible)
    assert not MARKUP.findall(re.sub(r"\$[^$]*\$", "", ours))
