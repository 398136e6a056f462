"""No built-in filter or modifier is slow on a text made to be so: four times the length, at most six times the time."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

from gristmill.recipes.names import FILTER, MODIFIER
from gristmill.recipes.registry import all_registered, registered
from gristmill.stages.text.filters import ScoreFilter
from gristmill.stages.text.filters.heuristic.code import COMMENTS
from gristmill.stages.text.modifiers import Modify
from gristmill.tasks import DocumentBatch
from tests.hostile.attempt import FULL
from tests.hostile.patterns import PATTERNS
from tools.make_stage_reference import NEED_FILES, NEEDED

Record = Callable[[str, object], None]
SIZE = 4096
GROWTH = 6.0 if FULL else 12.0
"""The square of the length would be sixteen times the time; a machine that does other work gets some room."""
LITTLE_S = 0.01
"""What takes less than this at four times the size is not compared: the clock is too coarse for it."""
ORDINARY = 1.0
"""Seconds per megabyte; what is slower says so in its docs."""
BUSY = 2.0
"""How much slower a machine is that does other work."""
ARGUMENTS: dict[str, dict[str, Any]] = {
    **NEEDED,
    "FastTextLabelModifier": {"label": "x"},
    "LineRemover": {"patterns": ["a"]},
}
NAMES = [entry.name for entry in all_registered() if entry.kind in (FILTER, MODIFIER) and entry.name not in NEED_FILES]
CASES = [name for name in NAMES if name != "GeneralCommentToCodeFilter"]
CASES += [f"GeneralCommentToCodeFilter {language}" for language in COMMENTS]


def stated(case: str) -> float | None:
    """The seconds per megabyte at worst, as the docs of a filter or modifier state them; None where they do not."""
    found = re.search(
        r"At worst (\S+) s per MB", " ".join((registered(case.partition(" ")[0]).load().__doc__ or "").split())
    )
    return None if found is None else float(found[1])


def made(case: str) -> ScoreFilter | Modify:
    name, _, language = case.partition(" ")
    one = registered(name).load()(**({"language": language} if language else ARGUMENTS.get(name, {})))
    stage: ScoreFilter | Modify = ScoreFilter(one) if registered(name).kind == FILTER else Modify(one)
    stage.setup()
    return stage


def seconds(stage: ScoreFilter | Modify, text: str, rounds: int = 3) -> float:
    best = float("inf")
    for _ in range(rounds):
        batch = DocumentBatch(data=pa.table({"text": pa.array([text], pa.large_string())}))
        began = time.process_time()
        stage.process(batch)
        best = min(best, time.process_time() - began)
    return best


@pytest.mark.parametrize("case", CASES)
def test_time_grows_with_the_length_and_not_with_its_square(case: str, record_property: Record) -> None:
    """110 patterns at n and 4 n, for each filter and modifier: at most 6 times as slow, at the documented pace."""
    stage = made(case)
    seconds(stage, "Some words to warm up with.")
    slow, slowest, allowed = {}, 0.0, BUSY * (stated(case) or ORDINARY)
    tried = list(PATTERNS.items())[:: 1 if FULL else 15]
    record_property("tried", 2 * len(tried))
    for name, make in tried:
        long = seconds(stage, make(4 * SIZE))
        if long < LITTLE_S:
            continue
        short = seconds(stage, make(SIZE), rounds=5)
        if long > GROWTH * short:
            long = seconds(stage, make(4 * SIZE), rounds=10)
        pace = long / (4 * SIZE / 1e6)
        slowest = max(slowest, pace)
        if long > GROWTH * short or (FULL and pace > allowed):
            slow[name] = f"{short * 1e3:.1f} ms, then {long * 1e3:.1f} ms: {pace:.1f} s/MB"
    assert not slow
    if FULL and stated(case) is not None and ("/" not in case or case.endswith("python")):
        assert slowest > ORDINARY / BUSY, f"the docs of {case} state a pace that it does not need: {slowest:.2f} s/MB"


@pytest.mark.parametrize("case", ["GeneralCommentToCodeFilter text/x-python", "HTMLBoilerplateFilter"])
@pytest.mark.parametrize("name", ["escaped quotes", "comment open", "tag open", "tag with quote", "tags in tags"])
def test_patterns_that_were_quadratic_once(case: str, name: str) -> None:
    """64 KB of unclosed quotes, comments and tags: under 2 s."""
    stage = made(case)
    seconds(stage, "x")
    assert seconds(stage, PATTERNS[name](64 * 1024)) < 2.0


def test_every_filter_and_modifier_is_tried() -> None:
    """A registered filter or modifier that is not tested with the patterns: this test fails, so that none is missed."""
    kinds = {entry.name for entry in all_registered() if entry.kind in (FILTER, MODIFIER)}
    assert kinds - set(NEED_FILES) == {case.partition(" ")[0] for case in CASES}
    assert len(PATTERNS) >= 80
    assert {name for name in kinds if stated(name)} >= {"PythonCommentToCodeFilter", "UnicodeReformatter"}
