"""The viewer as a person uses it, in a real browser: filter, search, open, why, label, export; hostile documents."""

from __future__ import annotations

import json
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner
from selenium.webdriver.common.keys import Keys

from gristmill.backends.local import LocalExecutor
from gristmill.cli.main import cli
from gristmill.ledger.ask.ledger import Ledger
from gristmill.ledger.record.layout import RunFolder
from gristmill.pipeline import Pipeline
from gristmill.stages.text.filters import NonAlphaNumericFilter, PunctuationFilter, ScoreFilter, WordCountFilter
from gristmill.stages.text.io import JsonlReader, JsonlWriter
from gristmill.stages.text.modifiers import Modify, UrlRemover
from gristmill.viewer.app import View
from gristmill.viewer.server import Server
from tests.integration.browser import PHONE, Browser, opened_browser
from tests.unit.viewer.runs import HOSTILE, LONG, make_run


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with opened_browser() as browser:
        yield browser


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A run with hostile documents, served."""
    with Server(View(RunFolder(make_run(tmp_path_factory.mktemp("hostile"))))) as server:
        server.start()
        yield server
        server.shutdown()


@pytest.fixture(scope="module")
def clean(sample_path: Path) -> Iterator[Path]:
    """The output of a run over the shipped sample, in a place whose name fits into a picture."""
    with tempfile.TemporaryDirectory(prefix="gristmill-") as place:
        root = Path(place)
        (root / "crawl").mkdir()
        shutil.copy(sample_path, root / "crawl" / "sample.jsonl.gz")
        stages = [
            JsonlReader(str(root / "crawl")),
            Modify(UrlRemover()),
            ScoreFilter(NonAlphaNumericFilter()),
            ScoreFilter(WordCountFilter(min_words=50)),
            ScoreFilter(PunctuationFilter()),
            JsonlWriter(str(root / "clean")),
        ]
        Pipeline("sample", stages=stages).run(LocalExecutor({"num_cpus": 0}), progress=False)
        yield root / "clean"


@pytest.fixture(scope="module")
def sample(clean: Path) -> Iterator[Server]:
    """That run, served."""
    with Server(View(RunFolder(clean))) as server:
        server.start()
        yield server
        server.shutdown()


def until(check: Callable[[], object], seconds: float = 30) -> None:
    """Wait until something is so."""
    last = time.monotonic() + seconds
    while not check():
        assert time.monotonic() < last, "waited in vain"
        time.sleep(0.05)


def settled(browser: Browser) -> None:
    """Wait for the answers that the page has asked for."""
    until(lambda: browser.run("return !document.querySelector('[aria-busy]')"))
    waiting = "return [...document.querySelectorAll('#hits .snippet')].some(one => one.textContent === '…')"
    until(lambda: not browser.run(waiting))
    until(lambda: "Searching" not in browser.text("#found"))


def opened(browser: Browser, server: Server, fragment: str = "", **look: object) -> None:
    browser.open("about:blank")
    browser.open(server.url + fragment, **look)  # type: ignore[arg-type]
    until(lambda: browser.run("return document.querySelectorAll('#hits li').length"))
    settled(browser)


def choose(browser: Browser, field: str, value: str) -> None:
    browser.run(
        "const field = document.getElementById(arguments[0]); field.value = arguments[1];"
        "field.dispatchEvent(new Event('change', {bubbles: true}))",
        field,
        value,
    )
    settled(browser)


def press(browser: Browser, keys: str) -> None:
    browser.driver.switch_to.active_element.send_keys(keys)
    time.sleep(0.1)
    settled(browser)


def names(browser: Browser) -> list[str]:
    return browser.texts("#hits .name")


def test_filters_search_and_why(browser: Browser, sample: Server) -> None:
    opened(browser, sample)
    documents = sample.view.ledger.documents().to_dicts()
    dropped = [one for one in documents if one["status"] == "dropped"]
    assert browser.text("#found") == f"{len(documents):,} documents match."
    assert browser.text("#totals") == (f"{len(documents) - len(dropped):,} kept {len(dropped):,} dropped 0 quarantined")
    assert "token" not in browser.driver.current_url
    dropped = [one for one in dropped if one["reason"] == "too_few_words"]
    choose(browser, "reason", json.dumps(["WordCountFilter", "too_few_words"], separators=(",", ":")))
    assert browser.text("#found") == f"{len(dropped):,} documents match."
    assert names(browser) == [one["id"] for one in dropped[:50]]
    browser.run("document.getElementById('next-page').click()")
    until(lambda: names(browser) == [one["id"] for one in dropped[50:100]])
    browser.run("document.getElementById('previous-page').click()")
    until(lambda: names(browser) == [one["id"] for one in dropped[:50]])
    # by score, counted while the list is there
    browser.run("document.getElementById('more').open = true")
    choose(browser, "score_max", "10")
    short = [one for one in dropped if one["score"] <= 10]
    until(lambda: browser.text("#found") == f"{len(short):,} documents match.")
    # the document with its why
    browser.run("document.querySelectorAll('button.hit')[1].click()")
    until(lambda: browser.texts("#document h2") == [short[1]["id"]])
    assert browser.texts("#document .why li") == Ledger(sample.view.folder).why(short[1]["id"]).documents[0].lines()
    # by text, with the words marked
    browser.run("document.getElementById('clear').click()")
    settled(browser)
    press(browser, "/")
    press(browser, "Shakespeare" + Keys.ENTER)
    until(lambda: browser.texts("#hits .snippet mark"))
    assert {mark.lower() for mark in browser.texts("#hits .snippet mark")} == {"shakespeare"}
    # by id
    choose(browser, "kind", "name")
    browser.run("document.getElementById('words').value = arguments[0]", dropped[3]["id"])
    browser.run("document.getElementById('filters').requestSubmit()")
    until(lambda: browser.texts("#document h2") == [dropped[3]["id"]])
    browser.run("document.getElementById('words').value = 'nobody'")
    browser.run("document.getElementById('filters').requestSubmit()")
    until(lambda: browser.text("#found").startswith("Not found: no input document has the id or URL 'nobody'."))
    # a reload finds the same place again, by the address
    opened(browser, sample, f"#status=dropped&document=sample~gz%23{dropped[5]['row']}")
    until(lambda: browser.texts("#document h2") == [dropped[5]["id"]])
    assert browser.problems() == []
    assert all(name.startswith(f"http://127.0.0.1:{sample.server_port}/") for name in browser.requests())


def test_difference_of_a_changed_document(browser: Browser, hostile: Server) -> None:
    opened(browser, hostile, "#status=changed")
    assert names(browser) == ["linked"]
    until(lambda: browser.text("#found") == "1 document matches.")
    browser.run("document.querySelector('button.hit').click()")
    until(lambda: browser.texts("#document .views button") == ["As read", "As written", "Difference"])
    assert "https://spam.example/x" in browser.text("#document pre.text")
    browser.run("document.querySelectorAll('#document .views button')[1].click()")
    until(lambda: browser.texts("#document pre.text") and "spam" not in browser.text("#document pre.text"))
    browser.run("document.querySelectorAll('#document .views button')[2].click()")
    until(lambda: browser.texts("#document .diff del mark") == ["https://spam.example/x"])
    assert browser.problems() == []


def test_labels_by_keyboard_and_their_export(browser: Browser, sample: Server, tmp_path: Path) -> None:
    opened(browser, sample, "#status=kept")
    browser.driver.execute_cdp_cmd(
        "Browser.setDownloadBehavior", {"behavior": "allow", "downloadPath": str(tmp_path), "eventsEnabled": False}
    )
    for keys in "jrjrjwjrr":  # the last one takes its label away again
        press(browser, keys)
    until(lambda: sample.view.labels.counts() == {"keep": 2, "drop": 1})
    until(lambda: browser.texts("#hits .mark")[:4] == ["✓ right", "✓ right", "✗ wrong", ""])
    press(browser, "k")
    assert browser.texts("#document button[aria-pressed=true]") == ["✗ Wrong"]
    choose(browser, "status", "dropped")
    for keys in "jr" * 5:
        press(browser, keys)
    until(lambda: browser.text("#labels") == "8 labelled")
    browser.run("document.getElementById('export').click()")
    labels = tmp_path / "labels.jsonl"
    until(labels.exists)
    until(lambda: "8 documents exported to labels.jsonl." in browser.texts("#notes p"))
    records = [json.loads(line) for line in labels.read_text(encoding="utf-8").splitlines()]
    assert sorted(one["label"] for one in records) == ["drop"] * 6 + ["keep"] * 2
    assert all(one["text"] for one in records)
    model = tmp_path / "model"
    command = ["classifier", "train", str(labels), "--kind", "linear", "--out", str(model), "--held-out", "0.4"]
    trained = CliRunner().invoke(cli, command)
    assert trained.exit_code == 0, trained.output
    assert (model / "evaluation.json").exists()
    # they are still there for the next viewer of this output
    assert View(RunFolder(sample.view.folder.path)).labels.counts() == {"keep": 2, "drop": 6}
    assert browser.problems() == []


def test_hostile_documents_are_inert(browser: Browser, hostile: Server) -> None:
    opened(browser, hostile)
    assert {"script", "bidi", "broken", "<b>bold</b>", "long"} <= set(names(browser))
    for row, (name, text) in enumerate(HOSTILE.items()):
        browser.run("document.querySelector(`[data-ref='b#${arguments[0]}']`).click()", row)
        until(lambda name=name: browser.texts("#document h2") == [name])
        # As JSON: the driver itself stumbles over a lone surrogate.
        shown = browser.run("return JSON.stringify(document.querySelector('#document pre.text').textContent)")
        assert json.loads(shown) == text
    browser.run("document.querySelector(\"[data-ref='b#6']\").click()")
    until(lambda: any("<i>cut" in one for one in browser.texts("#document pre.text")))
    assert browser.run("return [...document.querySelectorAll('main img, main script, main b, main i')].length") == 0
    assert browser.run("return window.hurt === undefined")
    # ten megabytes in one line
    browser.run("document.querySelector(\"[data-ref='b#5']\").click()")
    until(lambda: browser.texts("#document .more") == [f"20,000 of {len(LONG):,} characters. Show more"])
    browser.run("document.querySelector('#document .more button').click()")
    until(lambda: browser.texts("#document .more") == [f"220,000 of {len(LONG):,} characters. Show more"])
    assert browser.run("return document.querySelector('#document pre.text').textContent.length") == 220_000
    assert not browser.is_wider_than_window()
    assert browser.problems() == []


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("size", [(1280, 800), PHONE], ids=["desktop", "phone"])
def test_everyone_can_use_it(browser: Browser, hostile: Server, size: tuple[int, int], dark: bool) -> None:
    opened(browser, hostile, size=size, dark=dark)
    browser.run("document.getElementById('more').open = true")
    assert browser.violations() == []
    assert not browser.is_wider_than_window()
    for ref in ("a#8", "b#4", "b#6"):
        browser.run("document.querySelector(`[data-ref='${arguments[0]}']`).click()", ref)
        until(lambda ref=ref: browser.texts("#document .head .path") == [ref])
        for number in range(len(browser.texts("#document .views button"))):
            browser.run("document.querySelectorAll('#document .views button')[arguments[0]].click()", number)
            until(lambda: not {"Reading…", "Comparing…"} & set(browser.texts("#document .empty")))
        assert browser.violations() == []
        assert not browser.is_wider_than_window()
        if size == PHONE:
            assert browser.run("return document.querySelector('.list').offsetHeight") == 0
            browser.run("document.querySelector('.back button').click()")
            assert browser.run("return document.activeElement.dataset.ref") == ref
    assert browser.problems() == []


def test_the_picture_in_the_documentation(browser: Browser, clean: Path, tmp_path: Path) -> None:
    with Server(View(RunFolder(clean), labels=str(tmp_path / "labels.jsonl"))) as server:
        server.start()
        opened(browser, server, "#status=dropped", size=(1180, 680))
        for keys in "jrjjwj":
            press(browser, keys)
        until(lambda: browser.texts("#hits .mark.wrong"))
        settled(browser)
        picture = browser.picture("view", height=680)
        server.shutdown()
    assert picture.startswith(b"\x89PNG")
    assert len(picture) < 200_000
