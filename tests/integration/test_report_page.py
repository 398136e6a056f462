"""The report in a real browser: what a person would look at, with harmless and with hostile documents.

The screenshots of the documentation are made here: GRISTMILL_DOCS_IMAGES=1 pytest tests/integration/test_report_page.py
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from gristmill.backends.local import LocalExecutor
from gristmill.errors import GristmillError
from gristmill.ledger.ask.ledger import Ledger
from gristmill.pipeline import Pipeline
from gristmill.recipes.loader import find_recipe, load_recipe
from gristmill.report import write_comparison, write_report
from gristmill.stages.base import ProcessingStage
from gristmill.stages.text.filters import ScoreFilter
from gristmill.stages.text.filters.heuristic.string import NonAlphaNumericFilter, WordCountFilter
from gristmill.stages.text.io import JsonlReader, JsonlWriter, ParquetWriter, WarcReader
from gristmill.tasks import DocumentBatch
from tests.integration.browser import DESKTOP, PHONE, Browser, opened_browser
from tests.outputs import record_of

ALERT = "<script>document.title = 'taken over'</script>"
HOSTILE = {
    "tag": f"</script>{ALERT}<img src=x onerror=\"document.title='taken over'\"><svg onload=alert(1)>",
    "comment": "<!-- <!--data--> ]]> <!--script-->",
    "half": "half a character \ud83d and a null \x00 and \x1b[31mred",
    "turned": "\u202egnp.exe \u2066\u2067 مرحبا بالعالم שלום עולם \u200f",
    "quotes \"double\" 'single' & <b>bold</b>": "name with quotes",
    "marks": "{" * 30 + "`${document.title = 1}`" + "}" * 30,
    "long": "x" * 10_000_000,
    "zalgo": "Z͑ͫ̓ͪ̂ͫ̽͏̴̙̤̞͉͚̯̞̠͍A" * 50,
}

SHOWN = {
    "half": "half a character \ufffd and a null ␀ and ␛[31mred",
    "turned": "⟨202E⟩gnp.exe ⟨2066⟩⟨2067⟩ مرحبا بالعالم שלום עולם ⟨200F⟩",
}
"""What is seen of texts with characters that cannot be shown or must not be obeyed."""


class Fails(ProcessingStage[DocumentBatch, DocumentBatch]):
    """Raises on its first batch."""

    name = 'fails "here" <b>'

    def process(self, task: DocumentBatch) -> DocumentBatch:
        raise ValueError(ALERT)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with opened_browser() as opened:
        yield opened


def run_recipe(name: str, source: Path, output: Path, **options: Any) -> Path:
    recipe = load_recipe(find_recipe(name), variables={"input_path": str(source), "output_path": str(output)})
    recipe.pipeline().run(executor=LocalExecutor({"num_cpus": 2}), progress=False, **options)
    return output


@pytest.fixture(scope="module")
def english(tmp_path_factory: pytest.TempPathFactory, sample_path: Path) -> Path:
    """A real run of 30 stages over the shipped sample, with all scores."""
    return run_recipe("english", sample_path, tmp_path_factory.mktemp("english") / "clean", scores="all")


@pytest.fixture(scope="module")
def deduplicated(tmp_path_factory: pytest.TempPathFactory, shared_data: Path) -> Path:
    """A real run with two deduplications over texts that others have written."""
    output = tmp_path_factory.mktemp("web") / "unique"
    return run_recipe("web_dedup", shared_data / "texts" / "dj_demo.jsonl.gz", output)


def run_of(output: Path) -> dict[str, Any]:
    record: dict[str, Any] = json.loads((record_of(output) / "run.json").read_text())
    return record


def page_of(output: Path) -> Path:
    return Path(write_report(str(output)))


def as_number(text: str) -> int:
    return int(re.sub(r"[^\d]", "", text))


def is_clean(browser: Browser) -> None:
    """Neither errors nor requests, nothing to scroll sideways, and no title but our own."""
    assert browser.problems() == []
    assert browser.requests() == []
    assert not browser.is_wider_than_window()
    assert browser.run("return document.title").startswith(("Report: ", "Comparison of two runs"))


# --- a good run ---


@pytest.mark.parametrize("made", ["after the run", "by the command"])
def test_the_flow_has_the_numbers_of_the_record(browser: Browser, english: Path, made: str) -> None:
    browser.open(record_of(english) / "report.html" if made == "after the run" else page_of(english))
    run = run_of(english)
    assert as_number(browser.text("#flow-read")) == run["rows_read"]
    assert as_number(browser.text("#flow-kept")) == run["rows_written"]
    shown = browser.run(
        "return [...document.querySelectorAll('.flow .drop')].map(e => [e.querySelector('h3').innerText, "
        "e.querySelector('.number').innerText, e.querySelector('.reasons').innerText])"
    )
    dropping = [one for one in run["stages"] if one["dropped"]]
    assert [(name, as_number(number.partition("(")[0])) for name, number, _ in shown] == [
        (one["stage"], sum(one["dropped"].values())) for one in dropping
    ]
    for (_, _, reasons), one in zip(shown, dropping, strict=True):
        assert all(f"{reason} {number:,}" in reasons for reason, number in one["dropped"].items())
    assert len(browser.texts(".flow li.drop")) < 20 < len(run["stages"])  # what dropped nothing is folded
    is_clean(browser)


def test_a_slider_tells_what_another_threshold_would_keep(browser: Browser, english: Path) -> None:
    browser.open(page_of(english))
    slider = "input[data-stage=WordCountFilter][data-side=lower]"
    card = f"(document.querySelector('{slider}').closest('figure'))"
    before = browser.run(f"return {card}.querySelector('output').innerText")
    assert as_number(before) == run_of(english)["rows_written"]
    value, text = browser.run(
        f"const slider = document.querySelector('{slider}'); slider.focus(); slider.value = Number(slider.value) + 9;"
        f"slider.dispatchEvent(new Event('input')); const card = {card};"
        "return [card.querySelector('label').innerText, card.querySelector('output').innerText]"
    )
    threshold = float(value.partition(":")[2].replace(",", ""))
    kept = Ledger(str(english)).rethreshold({"WordCountFilter": {"min_words": threshold}}).kept()
    assert value.startswith("min_words: ")
    assert text == f"{kept[1]:,} documents kept instead of {kept[0]:,} (−{kept[0] - kept[1]:,})"
    assert browser.run(f"return document.querySelector('{slider}').getAttribute('aria-valuetext')") == f"{threshold:,g}"


def test_everything_is_reached_by_the_keyboard(browser: Browser, english: Path) -> None:
    browser.open(page_of(english))
    levels = browser.run("return [...document.querySelectorAll('h1,h2,h3,h4')].map(e => Number(e.tagName[1]))")
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(after - before <= 1 for before, after in pairwise(levels))
    unlabelled = "return [...document.querySelectorAll('input')].filter(e => !e.labels.length).length"
    assert browser.run(unlabelled) == 0
    charts = "return [...document.querySelectorAll('figure')].filter(e => !e.querySelector('table')).length"
    assert browser.run(charts) == 0
    assert browser.run("return [...document.querySelectorAll('nav a')].every(e => document.querySelector(e.hash))")


@pytest.mark.parametrize(("size", "dark"), [(DESKTOP, False), (PHONE, True)], ids=["desktop light", "phone dark"])
def test_axe_finds_nothing(
    browser: Browser, english: Path, deduplicated: Path, tmp_path: Path, size: tuple[int, int], dark: bool
) -> None:
    pages = [
        page_of(english),
        page_of(deduplicated),
        Path(write_comparison(str(english), str(deduplicated), to=tmp_path / "comparison.html")),
    ]
    for page in pages:
        browser.open(page, size=size, dark=dark)
        is_clean(browser)
        browser.run("document.querySelectorAll('details').forEach((one, at) => { one.open = at % 5 === 0 })")
        assert browser.violations() == []
        assert not browser.is_wider_than_window()


def test_duplicates_stand_side_by_side(browser: Browser, deduplicated: Path) -> None:
    browser.open(page_of(deduplicated))
    removed = sum(run_of(deduplicated)["stages"][1]["dropped"].values())
    assert removed > 0
    assert f"{removed:,} document" in browser.text("#duplicates")
    browser.run("document.querySelector('#duplicates details.group').open = true")
    texts = browser.texts("#duplicates details.group[open] .text")
    assert len(texts) == 2
    assert all(len(text) > 20 for text in texts)
    is_clean(browser)


def test_speed_and_memory_over_time(browser: Browser, english: Path, tmp_path: Path) -> None:
    place = record_of(english) / "run.json"
    record = place.read_bytes()
    seconds = [0.5 * step for step in range(20)]
    history = {
        "seconds": seconds,
        "rows_read": [90 * step for step in range(20)],
        "rows_written": [40 * step for step in range(20)],
        "memory_bytes": [10**8 + 10**7 * step for step in range(20)],
        "segments": [{"stages": ["jsonl_reader", "x"], "workers": [2] * 20, "busy": [1] * 20, "queued": [3] * 20}],
    }
    try:
        place.write_text(json.dumps(json.loads(record) | {"history": history}))
        page = write_report(str(english), to=tmp_path / "page.html")
    finally:
        place.write_bytes(record)
    browser.open(page)
    assert browser.texts("#speed figcaption") == ["Documents read per second", "Memory", "Workers: jsonl_reader …"]
    assert "highest 180" in browser.text("#speed figure")
    assert "290.0 MB" in browser.texts("#speed figure")[1]
    is_clean(browser)


def test_records_that_are_not_documents(browser: Browser, shared_data: Path, tmp_path: Path) -> None:
    output = tmp_path / "out"
    source = str(shared_data / "warc_real" / "dolma" / "sample-0001.warc.gz")
    stages = [WarcReader(source, fields=["url", "html"]), ParquetWriter(str(output))]
    Pipeline("pages", stages=stages).run(LocalExecutor({"num_cpus": 0}), progress=False)
    browser.open(page_of(output))
    assert browser.text("[data-skipped]").startswith("warc_reader skipped what is not a document: request ")
    is_clean(browser)


def test_without_history_the_page_says_so(browser: Browser, english: Path, tmp_path: Path) -> None:
    record = run_of(english)
    record.pop("history", None)
    place = record_of(english) / "run.json"
    kept = place.read_bytes()
    try:
        place.write_text(json.dumps(record))
        page = write_report(str(english), to=tmp_path / "page.html")
    finally:
        place.write_bytes(kept)
    browser.open(page)
    assert "Speed and memory over time were not recorded" in browser.text("#speed")


# --- runs that went wrong, and documents that mean harm ---


def test_a_failed_run_shows_its_error_and_what_there_is(browser: Browser, tmp_path: Path) -> None:
    source = tmp_path / "in.jsonl"
    source.write_text('{"id": "a", "text": "one"}\n' * 3)
    stages = [JsonlReader(str(source)), Fails(), JsonlWriter(str(tmp_path / "out"))]
    with pytest.raises(GristmillError):
        Pipeline("broken", stages=stages).run(executor=LocalExecutor({"num_cpus": 0}), progress=False)
    browser.open(record_of(tmp_path / "out") / "report.html")
    assert "The run failed" in browser.text("header")
    assert ALERT in browser.text("header pre")
    assert browser.violations() == []
    is_clean(browser)


def test_a_killed_run_shows_what_it_had_committed(browser: Browser, tmp_path: Path) -> None:
    for name, words in (("0", 60), ("1", 3)):
        (tmp_path / f"{name}.jsonl").write_text(json.dumps({"id": name, "text": "word " * words}) + "\n")
    script = """
import sys, time
from gristmill.backends.local import LocalExecutor
from gristmill.pipeline import Pipeline
from gristmill.stages.base import ProcessingStage
from gristmill.stages.text.io import JsonlReader, JsonlWriter
from gristmill.tasks import DocumentBatch

class Waits(ProcessingStage[DocumentBatch, DocumentBatch]):
    name = "waits"
    def process(self, task):
        if task.to_pyarrow().column("id").to_pylist() == ["1"]:
            time.sleep(600)
        return task

stages = [JsonlReader(sys.argv[1] + "/*.jsonl"), Waits(), JsonlWriter(sys.argv[1] + "/out")]
Pipeline("waiting", stages=stages).run(executor=LocalExecutor({"num_cpus": 0}), progress=False)
"""
    child = subprocess.Popen([sys.executable, "-c", script, str(tmp_path)])
    try:
        until = time.monotonic() + 120
        entries = record_of(tmp_path / "out") / "manifest"
        # An entry is announced as pending before it is committed, under the same name.
        while not any(b'"committed"' in entry.read_bytes() for entry in entries.glob("[!.]*.json")):
            assert time.monotonic() < until
            assert child.poll() is None
            time.sleep(0.05)
    finally:
        child.kill()
        child.wait()
    assert not (record_of(tmp_path / "out") / "report.html").exists()
    browser.open(page_of(tmp_path / "out"))
    assert "This run has not finished" in browser.text("header")
    assert "1 of 2 partitions, those committed so far" in browser.text("header")
    assert browser.text("#flow-read") == browser.text("#flow-kept") == "1"
    is_clean(browser)


@pytest.mark.parametrize("first", range(0, len(HOSTILE), 2))
def test_hostile_documents_are_inert(browser: Browser, tmp_path: Path, first: int) -> None:
    folder = tmp_path / 'in "quoted" <b>'
    folder.mkdir()
    chosen = dict(list(HOSTILE.items())[first : first + 2])
    lines = [json.dumps({"id": name, "text": text, "language": ALERT}) for name, text in chosen.items()]
    (folder / "it's <i>.jsonl").write_text("\n".join([*lines, "<script>no json", '{"text": "\\ud800']) + "\n")
    stages = [
        JsonlReader(str(folder)),
        ScoreFilter(NonAlphaNumericFilter(max_non_alpha_numeric_to_text_ratio=0.9)).with_(name=ALERT),
        ScoreFilter(WordCountFilter()),
        JsonlWriter(str(tmp_path / "out <u>")),
    ]
    pipeline = Pipeline(f"evil {ALERT}", stages=stages)
    pipeline.run(executor=LocalExecutor({"num_cpus": 0}), error_budget=None, progress=False)
    for page in (record_of(tmp_path / "out <u>") / "report.html", page_of(tmp_path / "out <u>")):
        assert page.stat().st_size < 300_000
        browser.open(page, size=PHONE)
        browser.run("document.querySelectorAll('details').forEach(one => { one.open = true })")
        shown = browser.texts("#dropped .text")
        assert browser.texts("#dropped strong") == list(chosen)
        for text, name in zip(shown, chosen, strict=True):
            assert text.startswith(SHOWN.get(name, chosen[name][:300]))
        assert ALERT in browser.text("#texts")
        assert {ALERT, "WordCountFilter"} <= set(browser.texts(".flow bdi"))
        kinds = "return [...new Set([...document.querySelectorAll('header *, main *')].map(e => e.localName))]"
        assert {"script", "img", "b", "u", "iframe", "object", "link"}.isdisjoint(browser.run(kinds))
        is_clean(browser)
    assert browser.violations() == []


def test_the_page_is_whole_on_paper(browser: Browser, english: Path) -> None:
    browser.open(page_of(english))
    browser.run("window.dispatchEvent(new Event('beforeprint'))")
    assert browser.run("return document.querySelectorAll('details:not([open])').length") == 0
    browser.run("window.dispatchEvent(new Event('afterprint'))")
    assert browser.run("return document.querySelectorAll('details[open]').length") == 0


# --- the pictures of the documentation ---


def test_pictures(browser: Browser, sample_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each page as the documentation shows it; the shipped sample, because its texts may be published."""
    with tempfile.TemporaryDirectory(prefix="gristmill-") as place:
        monkeypatch.chdir(place)
        take_pictures(browser, sample_path)
        monkeypatch.undo()


def take_pictures(browser: Browser, sample_path: Path) -> None:
    english = run_recipe("english", sample_path, Path("clean"), scores="all")
    page = page_of(english)
    browser.open(page, size=(900, 700))
    pictures = [browser.picture("report-flow", height=900)]
    top = "return Math.floor(document.querySelector(arguments[0]).getBoundingClientRect().top + scrollY) - 8"
    pictures.append(browser.picture("report-scores", top=browser.run(top, "#scores"), height=640))
    browser.run(
        "[...document.querySelectorAll('#dropped details.group')]"
        ".find(e => e.querySelector('h3').innerText === 'repeated_lines').open = true"
    )
    place = browser.run(top, "#dropped details[open]")
    pictures.append(browser.picture("report-dropped", top=place, height=420))
    browser.open(page, size=PHONE, dark=True)
    pictures.append(browser.picture("report-phone", top=browser.run(top, "#flow"), height=740))
    other = run_recipe("web", sample_path, Path("web"))
    browser.open(write_comparison(str(english), str(other), to="comparison.html"), size=(900, 700))
    pictures.append(browser.picture("report-comparison", height=760))
    assert all(data.startswith(b"\x89PNG") and 5_000 < len(data) < 200_000 for data in pictures)
