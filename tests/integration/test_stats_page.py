"""The page of `gristmill stats` in a real browser: hostile input is inert, and everybody can read it."""

from __future__ import annotations

import contextlib
import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from gristmill.cli.main import cli
from tests.integration.browser import DESKTOP, PHONE, Browser, opened_browser

HOSTILE = [
    "<script>document.title = 'taken'</script><img src=x onerror=\"document.title='taken'\">",
    "\u202eright to left\u202c \ud83d\ude00 \x00\x1b[31m",
    "x" * 10_000_000,
    "",
]


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with opened_browser() as opened:
        yield opened


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory, sample_path: Path) -> dict[str, Path]:
    """The page of real documents, and that of hostile ones."""
    folder = tmp_path_factory.mktemp("stats")
    (folder / "crawl").mkdir()
    shutil.copy(sample_path, folder / "crawl")
    hostile = folder / "<img src=x onerror=alert(1)>.jsonl"
    hostile.write_text("".join(json.dumps({"text": text}) + "\n" for text in HOSTILE))
    with contextlib.chdir(folder):
        for name, source in (("real", "crawl"), ("hostile", hostile.name)):
            result = CliRunner().invoke(cli, ["stats", source, "--html", f"{name}.html", "--workers", "0", "-q"])
            assert result.exit_code == 0, result.output
    return {name: folder / f"{name}.html" for name in ("real", "hostile")}


@pytest.mark.parametrize(("size", "dark"), [(DESKTOP, False), (PHONE, True)])
@pytest.mark.parametrize("name", ["real", "hostile"])
def test_everybody_can_read_the_page(
    browser: Browser, pages: dict[str, Path], name: str, size: tuple[int, int], dark: bool
) -> None:
    browser.open(pages[name], size=size, dark=dark)
    assert browser.violations() == []
    assert browser.problems() == []
    assert browser.requests() == []
    assert not browser.is_wider_than_window()


def test_the_page_says_what_the_command_says(browser: Browser, pages: dict[str, Path]) -> None:
    browser.open(pages["real"])
    figures = browser.texts("dl div")
    assert any(text.startswith("documents") and text.endswith("1,724") for text in figures), figures
    assert "WordCountFilter" in browser.texts("figure h3")
    assert len(browser.picture("stats", height=900)) > 10_000


def test_documents_and_names_are_only_text(browser: Browser, pages: dict[str, Path]) -> None:
    browser.open(pages["hostile"])
    assert browser.run("return document.title") == "Statistics of <img src=x onerror=alert(1)>.jsonl"
    assert browser.run("return document.querySelectorAll('script, img, iframe').length") == 0
