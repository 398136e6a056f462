"""Profiles of real runs: the shares are right, add up to the workers' time, and open in a real browser."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cloudpickle
import pytest

from gristmill.backends.local import LocalExecutor
from gristmill.ledger.prove.verify import verify
from gristmill.observe.profile.kinds import KINDS, Frame
from gristmill.observe.profile.profile import DRIVER, Profile, StageTime, add_up
from gristmill.pipeline import Pipeline
from gristmill.report.profile_page import make_profile_page
from gristmill.stages.base import ProcessingStage
from gristmill.stages.text.filters import ScoreFilter
from gristmill.stages.text.filters.heuristic.repetition import RepeatingTopNGramsFilter
from gristmill.stages.text.io import JsonlReader, JsonlWriter
from gristmill.tasks import DocumentBatch
from tests.integration.browser import PHONE, Browser, opened_browser
from tests.outputs import record_of

# Workers cannot import this file; its stages are sent by value.
cloudpickle.register_pickle_by_value(sys.modules[__name__])

PER_BATCH_S = 0.12
PER_THREAD_S = 0.5
BATCHES = 6


def burn(seconds: float) -> int:
    """Work in Python for so much processor time of this thread."""
    until, found = time.thread_time() + seconds, 0
    while time.thread_time() < until:
        found += sum(number * number for number in range(300))
    return found


class Burns(ProcessingStage[DocumentBatch, DocumentBatch]):
    name = "burns"

    def process(self, task: DocumentBatch) -> DocumentBatch:
        burn(PER_BATCH_S)
        return task


class Sleeps(ProcessingStage[DocumentBatch, DocumentBatch]):
    name = "sleeps"

    def process(self, task: DocumentBatch) -> DocumentBatch:
        time.sleep(PER_BATCH_S)
        return task


class HasThreads(ProcessingStage[DocumentBatch, DocumentBatch]):
    """Has threads that live much longer than it is between two looks: what they do after the last is not seen."""

    name = "has_threads"

    def process(self, task: DocumentBatch) -> DocumentBatch:
        threads = [threading.Thread(target=burn, args=(PER_THREAD_S,)) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return task


class DiesOnce(ProcessingStage[DocumentBatch, DocumentBatch]):
    """Burns, and on the first document of all ends its worker as the kernel would."""

    name = "dies_once"

    def __init__(self, mark: str) -> None:
        self.mark = mark

    def process(self, task: DocumentBatch) -> DocumentBatch:
        burn(1.5)
        if not os.path.exists(self.mark):
            Path(self.mark).touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return task


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Files of long texts, one for each partition."""
    folder = tmp_path_factory.mktemp("in")
    text = " ".join(f"word{number * number % 211}x{number % 17}" for number in range(60_000))
    for number in range(BATCHES):
        rows = [json.dumps({"id": f"{number}-{row}", "text": text}) for row in range(12)]
        (folder / f"{number}.jsonl").write_text("\n".join(rows) + "\n")
    return folder


def run(source: Path, output: Path, *stages: Any, cpus: int = 2, **options: Any) -> Any:
    pipeline = Pipeline("try", stages=[JsonlReader(str(source)), *stages, JsonlWriter(str(output))])
    return pipeline.run(LocalExecutor({"num_cpus": cpus}), progress=False, profile=True, **options)


def row(profile: Profile, stage: str) -> StageTime:
    return next(one for one in profile.stages if one.stage == stage)


def part(profile: Profile, stage: str, *kinds: str) -> float:
    """The share of a stage's time in these kinds."""
    found = row(profile, stage)
    return sum(found.kinds[kind] for kind in kinds) / found.seconds


@pytest.mark.parametrize("cpus", [0, 2])
def test_shares_are_right_and_add_up(source: Path, tmp_path: Path, cpus: int) -> None:
    ngrams = ScoreFilter(RepeatingTopNGramsFilter(n=4), text_field="text")
    begun = time.perf_counter()
    result = run(source, tmp_path / "out", Burns(), ngrams, Sleeps(), cpus=cpus)
    took = time.perf_counter() - begun
    profile = result.profile
    kernels = next(one.stage for one in profile.stages if "NGrams" in one.stage)

    # The runner measures the calls of stages in its own way.
    busy = {stage.name: stage.busy_s for stage in result.report.stages}
    for stage in ("burns", "sleeps", kernels):
        # On a busy machine, time in want of a processor may be counted for the neighbouring stage.
        wanted = 0.0 if stage == "sleeps" else max(0.0, busy[stage] - row(profile, stage).processor_s)
        assert row(profile, stage).seconds == pytest.approx(busy[stage], rel=0.15, abs=0.2 + wanted), stage
    assert row(profile, "sleeps").seconds >= 0.9 * BATCHES * PER_BATCH_S
    # Of the time slept, not of the stage's: on a busy machine a worker also waits for a processor after it woke up.
    assert row(profile, "sleeps").kinds["waiting"] >= 0.9 * BATCHES * PER_BATCH_S
    assert row(profile, "sleeps").processor_s < 0.3 * row(profile, "sleeps").seconds
    assert part(profile, "burns", "user") > 0.9
    # Other threads of the process count too, so on a busy machine it may be more, but not more than the stage took.
    burned = BATCHES * PER_BATCH_S
    assert 0.85 * burned <= row(profile, "burns").processor_s <= 0.05 + 1.15 * max(burned, busy["burns"])
    assert part(profile, kernels, "kernels", "starting") > 0.8
    assert row(profile, "jsonl_reader").kinds["user"] == 0
    assert row(profile, "jsonl_writer").kinds["writing"] > 0

    workers = [one for one in profile.processes if one.name != DRIVER]
    assert len(workers) == cpus
    by_process = sum(one.seconds for one in profile.processes)
    assert sum(one.seconds for one in profile.stages) == pytest.approx(by_process)
    if workers:
        assert profile.seconds == pytest.approx(sum(one.seconds for one in workers))
        assert row(profile, DRIVER).kinds["waiting"] > 0.3 * row(profile, DRIVER).seconds
    driver = profile.processes[0]
    assert driver.name == DRIVER
    assert driver.pid == os.getpid()
    assert driver.seconds == pytest.approx(took, abs=0.5)

    record = record_of(tmp_path / "out")
    other_tools = json.loads((record / "profile.json").read_text())
    assert sum(sum(one["weights"]) for one in other_tools["profiles"]) == pytest.approx(by_process, abs=0.01)
    names = {frame["name"] for frame in other_tools["shared"]["frames"]}
    assert {"burns", "Burns.process", "burn", "time.sleep"} <= names
    assert '"profile":"profile.html"' in (record / "report.html").read_text()
    verify(tmp_path / "out").raise_for_problems()


def test_a_killed_worker_leaves_what_it_did(tmp_path: Path) -> None:
    (tmp_path / "one.jsonl").write_text('{"id": "1", "text": "one batch"}\n')
    result = run(tmp_path / "one.jsonl", tmp_path / "out", DiesOnce(str(tmp_path / "mark")), cpus=1)
    first, second = (one for one in result.profile.processes if one.name != DRIVER)
    # Samples are left every second: of 1.5 s of work at least the first part is there.
    assert first.kinds["user"] > 0.2
    assert second.kinds["user"] > 1.2
    assert row(result.profile, "dies_once").seconds == pytest.approx(
        first.kinds["user"] + second.kinds["user"], abs=0.3
    )
    verify(tmp_path / "out").raise_for_problems()


def test_threads_of_a_stage_count_beside_it(source: Path, tmp_path: Path) -> None:
    profile = run(source, tmp_path / "out", HasThreads(), cpus=1).profile
    assert part(profile, "has_threads", "waiting") > 0.8
    assert row(profile, "has_threads").other_threads_s == pytest.approx(2 * BATCHES * PER_THREAD_S, rel=0.25)


class FailsLate(Burns):
    name = "fails"

    def process(self, task: DocumentBatch) -> DocumentBatch:
        burn(PER_BATCH_S)
        raise ValueError("no")


def test_failed_and_repeated_runs(source: Path, tmp_path: Path) -> None:
    output = tmp_path / "out"
    with pytest.raises(Exception, match="no"):
        run(source, output, FailsLate(), cpus=1)
    failed = json.loads((record_of(output) / "profile.json").read_text())
    assert "fails" in [stage["stage"] for stage in failed["gristmill"]["stages"]]
    run(source, output, Burns(), cpus=1, fresh=True)
    replaced = json.loads((record_of(output) / "profile.json").read_text())
    assert "fails" not in [stage["stage"] for stage in replaced["gristmill"]["stages"]]
    # Run again, nothing is left to do, with and without a profile.
    Pipeline("try", stages=[JsonlReader(str(source)), Burns(), JsonlWriter(str(output))]).run(progress=False)
    again = run(source, output, Burns(), cpus=1)
    assert again.report.partitions_done_before == BATCHES
    assert row(again.profile, DRIVER).seconds > 0
    verify(output).raise_for_problems()


# --- the page ---

ODD = "o <b>dd & \"quoted\" 'é' \u202e.d"


@pytest.fixture(scope="module")
def odd(tmp_path_factory: pytest.TempPathFactory, source: Path) -> Path:
    """The page of a run whose stage has an odd name and comes from an odd file."""
    folder = tmp_path_factory.mktemp("odd") / ODD
    file = folder / "not utf-8: \udcff" / "my <img src=x> stage.py"
    file.parent.mkdir(parents=True)
    file.write_text(
        "import time\n"
        "from gristmill.stages.base import ProcessingStage\n"
        "class Odd(ProcessingStage):\n"
        "    name = '</script><script>document.title=1</script>'\n"
        "    def process(self, task):\n"
        "        until = time.thread_time() + 0.1\n"
        "        while time.thread_time() < until:\n"
        "            sum(range(1000))\n"
        "        return task\n"
    )
    spec = importlib.util.spec_from_file_location("odd_stage", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["odd_stage"] = module
    spec.loader.exec_module(module)
    cloudpickle.register_pickle_by_value(module)
    run(source, folder / "out", module.Odd(), cpus=1)
    return record_of(folder / "out") / "profile.html"


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with opened_browser() as opened:
        yield opened


def is_clean(browser: Browser) -> None:
    assert browser.problems() == []
    assert browser.requests() == []
    assert not browser.is_wider_than_window()
    assert browser.run("return document.title").startswith("Profile: ")


def test_odd_names_are_text_in_the_page(browser: Browser, odd: Path) -> None:
    browser.open(odd)
    is_clean(browser)
    assert "</script><script>document.title=1</script>" in browser.texts("tbody th")
    boxes = browser.run("return [...document.querySelectorAll('[role=treeitem]')].map(e => e.title)")
    shown = next(title for title in boxes if title.startswith("Odd.process"))
    assert "o <b>dd & \"quoted\" 'é' ⟨202E⟩.d/not utf-8: \\udcff/my <img src=x> stage.py:5)" in shown
    assert "your Python" in shown


def made_up(tmp_path: Path) -> Path:
    """A profile with known numbers: 6 s of the workers, 3 s of them in one kernel of the second stage."""
    package = f"{os.path.dirname(sys.modules['gristmill'].__file__ or '')}/"
    frames = [
        Frame(f"{package}execution/stage_call.py", "call"),
        Frame(f"{package}storage/jsonl_blocks.py", "read_blocks"),
        Frame(f"{package}stages/text/filters/cascade.py", "FusedFilters.process"),
        Frame(f"{package}kernels/ngrams.py", "_ngrams"),
        Frame("/me/mine.py", "Mine.process"),
        Frame(f"{package}backends/local/worker.py", "_in_turn"),
        Frame("<wait>", "groups.get"),
    ]
    stacks = [[0, [1, 0], 1.0], [1, [3, 2, 0], 3.0], [1, [2, 0], 0.5], [2, [4, 0], 1.0], [-1, [6, 5], 0.5]]
    raw = {
        "process": "worker 1", "pid": 12, "seconds": 6.0, "samples": 1200, "has_processor_time": True, "frames": frames,
        "stages": ["jsonl_reader", "filters", "mine", "jsonl_writer"],
        "stacks": [[place, 0, numbers, seconds, seconds, 1] for place, numbers, seconds in stacks],
    }  # fmt: skip
    driver = {**raw, "process": DRIVER, "stages": [], "stacks": [[-1, 0, [5], 7.0, 0.1, 1]]}
    page = tmp_path / "profile.html"
    page.write_bytes(make_profile_page(add_up("known", [driver, raw])))
    return page


def test_the_flame_graph_zooms_searches_and_follows_the_keyboard(browser: Browser, tmp_path: Path) -> None:
    browser.open(made_up(tmp_path))
    is_clean(browser)
    assert browser.violations() == []
    rows = browser.run(
        "return [...document.querySelectorAll('table')][0].innerText.split('\\n').map(line => line.split('\\t'))"
    )
    filters = next(line for line in rows if line[0] == "filters")
    assert "3.00" in filters
    assert "58.3 %" in filters

    def box(name: str) -> dict[str, Any]:
        found: dict[str, Any] = browser.run(
            "const e = [...document.querySelectorAll('[role=treeitem]')].find(e => e.title.startsWith(arguments[0]));"
            "return e && {label: e.getAttribute('aria-label'), left: parseFloat(e.style.left), hit: e.className,"
            "width: parseFloat(e.style.width), level: e.getAttribute('aria-level')}",
            name,
        )
        return found

    assert box("_ngrams")["width"] == pytest.approx(50)
    assert box("_ngrams")["level"] == "4"
    assert (
        box("_ngrams")["label"] == "_ngrams (gristmill/kernels/ngrams.py): 3.00 s, 50.0 % of the total, mostly kernels"
    )
    assert [box(name)["left"] for name in ("jsonl_reader", "filters", "mine")] == pytest.approx(
        [0, 100 / 6, 75], abs=0.01
    )

    browser.run("document.querySelector('#search').value = 'NGRAMS';"
                "document.querySelector('#search').dispatchEvent(new Event('input'))")  # fmt: skip
    assert "hit" in box("_ngrams")["hit"]
    assert "50.0 % of the total (3.00 s)" in browser.text(".tools")

    def press(*keys: str) -> str:
        for key in keys:
            browser.run(
                "document.activeElement.dispatchEvent("
                "new KeyboardEvent('keydown', {key: arguments[0], bubbles: true}))",
                key,
            )
        return str(browser.run("return document.activeElement.title"))

    browser.run("document.querySelector('[role=treeitem][tabindex=\"0\"]').focus()")
    assert press("ArrowDown").startswith("jsonl_reader: 1.00 s")
    assert press("ArrowRight").startswith("filters: 3.50 s")
    assert press("ArrowDown").startswith("FusedFilters.process")
    press("Enter")
    assert box("_ngrams")["width"] == pytest.approx(100 * 3 / 3.5, abs=0.01)
    assert box("jsonl_reader") is None
    assert "85.7 % of FusedFilters.process" in box("_ngrams")["label"]
    assert browser.violations() == []
    assert press("Escape").startswith("filters")
    assert press("Home").startswith("all: 6.00 s")
    browser.run("[...document.querySelectorAll('[role=treeitem]')].find(e => e.title.startsWith('mine')).click()")
    assert box("Mine.process")["width"] == pytest.approx(100)

    browser.run("const s = document.querySelector('#graph'); s.value = '1'; s.dispatchEvent(new Event('change'))")
    assert box("driver")["label"].startswith("driver: 7.00 s")
    for options in ({"dark": True}, {"size": PHONE}):
        browser.look(**options)  # type: ignore[arg-type]
        is_clean(browser)
        assert browser.violations() == []


def test_a_real_page_is_fit_to_be_seen(browser: Browser, tmp_path: Path, shared_data: Path) -> None:
    from gristmill.recipes.loader import find_recipe, load_recipe

    variables = {
        "input_path": str(shared_data / "texts"),
        "output_path": str(tmp_path / "o"),
    }
    pipeline = load_recipe(find_recipe("web"), variables=variables).pipeline()
    profile = pipeline.run(LocalExecutor({"num_cpus": 2}), progress=False, profile=True).profile
    assert profile is not None
    browser.open(record_of(tmp_path / "o") / "profile.html")
    is_clean(browser)
    assert browser.violations() == []
    assert {kind for one in profile.stages for kind, seconds in one.kinds.items() if seconds} <= set(KINDS)
    browser.picture("profile", height=900)
    browser.open(record_of(tmp_path / "o") / "report.html")
    assert browser.run("return document.querySelector('a[href=\"profile.html\"]').innerText") == "Profile"
