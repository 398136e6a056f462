"""The documentation as a site, in a real browser: complete, readable at 1,400 px, in light and dark; its pictures.

The picture of the terminal is made here: GRISTMILL_DOCS_IMAGES=1 pytest tests/integration/test_docs_site.py
"""

from __future__ import annotations

import os
import pty
import re
import subprocess
import sys
from collections.abc import Iterator
from html import unescape
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console
from rich.text import Text

from tests.docs.pages import ROOT
from tests.integration.browser import IMAGES, IMAGES_VARIABLE, Browser, opened_browser
from tools import docs_api

WIDE = (1400, 900)
COLUMNS = 104
PICTURE = IMAGES / "terminal.svg"
# As rich draws it, but without fonts from elsewhere.
SVG = """\
<svg class="rich-terminal" width="{width}" height="{height}" viewBox="0 0 {width} {height}" xmlns="http://www.w3.org/2000/svg">
<style>
.{unique_id}-matrix {{ font-family: ui-monospace, Menlo, Consolas, "DejaVu Sans Mono", monospace;
  font-size: {char_height}px; line-height: {line_height}px; }}
.{unique_id}-title {{ font-size: 18px; font-family: sans-serif; }}
{styles}
</style>
<defs><clipPath id="{unique_id}-clip-terminal">
<rect x="0" y="0" width="{terminal_width}" height="{terminal_height}" /></clipPath>{lines}</defs>
{chrome}
<g transform="translate({terminal_x}, {terminal_y})" clip-path="url(#{unique_id}-clip-terminal)">
{backgrounds}
<g class="{unique_id}-matrix">{matrix}</g>
</g>
</svg>
"""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built without a warning."""
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "WARNING" not in done.stderr
    return folder


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with opened_browser() as opened:
        yield opened


def test_every_public_name_is_on_a_page(site: Path) -> None:
    ids = {name for page in (site / "reference" / "api").glob("*.html") for name in _ids(page)}
    assert [path for path in set(docs_api.shown_names().values()) if path not in ids] == []


def _ids(page: Path) -> list[str]:
    return re.findall(r'id="(gristmill[\w.]*)"', page.read_text(encoding="utf-8"))


def test_no_code_is_cut_and_nothing_is_fetched(site: Path, browser: Browser) -> None:
    cut = []
    for page in sorted(site.rglob("*.html")):
        browser.open(page, size=WIDE)
        wide = browser.run(
            "return [...document.querySelectorAll('.md-content pre > code')]"
            ".filter(e => e.scrollWidth > e.clientWidth + 1).map(e => e.innerText.slice(0, 60))"
        )
        cut += [f"{page.relative_to(site)}: {text}" for text in wide]
        assert not browser.is_wider_than_window(), page
        assert [one for one in browser.requests() if not one.startswith("file:")] == []
    assert cut == []


def test_dark_mode_follows_the_system(site: Path, browser: Browser) -> None:
    found = []
    for dark in (False, True):
        browser.open(site / "index.html", size=WIDE, dark=dark)
        found.append(browser.run("return document.body.getAttribute('data-md-color-scheme')"))
    assert found == ["default", "slate"]


def test_copy_buttons_copy_neither_prompts_nor_output(site: Path, browser: Browser) -> None:
    browser.open(site / "how-to" / "monitor.html", size=WIDE)
    browser.run('document.addEventListener("copy", () => { window.copied = document.activeElement.value })')
    button = browser.run(
        "return [...document.querySelectorAll('pre')].find(e => e.innerText.includes('$ gristmill'))"
        ".querySelector('button[data-clipboard-target]')"
    )
    button.click()  # as a person does: a script may not copy
    copied = browser.run("return window.copied")
    assert copied == "gristmill run english crawl/ clean/ --metrics-port 0"


def in_a_terminal(*command: str, folder: Path) -> str:
    """What a command prints to a terminal of `COLUMNS` columns: its answer, without the progress on stderr."""
    driver, terminal = pty.openpty()
    environment = {**os.environ, "COLUMNS": str(COLUMNS), "TERM": "xterm-256color"}
    with subprocess.Popen(command, cwd=folder, env=environment, stdout=terminal, stderr=subprocess.DEVNULL) as process:
        os.close(terminal)
        parts = []
        while True:
            try:
                part = os.read(driver, 1 << 16)
            except OSError:  # the other end is closed
                break
            if not part:
                break
            parts.append(part)
        assert process.wait() == 0
    os.close(driver)
    return b"".join(parts).decode().replace("\r\n", "\n")


def drawn(text: str) -> str:
    """Text with terminal colours as a picture."""
    console = Console(record=True, width=COLUMNS, file=StringIO(), force_terminal=True)
    console.print(Text.from_ansi(text), soft_wrap=False)
    return console.export_svg(title="gristmill demo", code_format=SVG, unique_id="gristmill")


def words_of(picture: str) -> list[str]:
    """The words in a picture, without times, which differ from run to run."""
    text = unescape(re.sub(r"<[^>]+>", " ", picture.partition("</defs>")[2])).replace("\xa0", " ")
    return [word for word in text.split() if not re.fullmatch(r"[\d.,]+|(?:s|min),?", word) or "," in word]


def test_the_picture_of_the_terminal(tmp_path: Path, browser: Browser) -> None:
    shown = in_a_terminal(sys.executable, "-m", "gristmill", "demo", "out", folder=tmp_path)
    table = shown[: shown.index("\n", shown.index("documents in"))]
    picture = drawn(f"$ gristmill demo out\n{table}")
    if os.environ.get(IMAGES_VARIABLE) == "1":
        PICTURE.write_text(picture, encoding="utf-8")
    committed = PICTURE.read_text(encoding="utf-8")
    assert words_of(committed) == words_of(picture)
    assert "http" not in committed.replace("http://www.w3.org", "")
    assert len(committed) < 60_000
    page = tmp_path / "page.html"
    page.write_text(f'<img src="{PICTURE.as_uri()}" width="900">', encoding="utf-8")
    browser.open(page, size=WIDE)
    assert browser.run("return document.images[0].naturalWidth") > 500
