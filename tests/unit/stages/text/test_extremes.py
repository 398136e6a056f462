"""Everything registered for text: a decision for every shape of text, and time that grows with its length alone."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from gristmill.recipes.names import FILTER, MODIFIER
from gristmill.recipes.registry import all_registered, registered
from gristmill.stages.text.filters import ScoreFilter
from gristmill.stages.text.modifiers import Modify
from gristmill.tasks import DocumentBatch
from tests.pace import assert_grows_with_length
from tools.make_stage_reference import NEED_FILES, NEEDED

ARGUMENTS: dict[str, dict[str, Any]] = {
    **NEEDED,
    "LineRemover": {"patterns": ["x"]},
    "FastTextLabelModifier": {"label": "__label__hq"},
    "Slicer": {"left": "x", "right": "y"},
}
PUBLISHED = ("C4Quality", "FineWebQuality", "GopherQuality", "GopherRepetition")
NAMES = [
    *(e.name for e in all_registered() if e.kind in (FILTER, MODIFIER) and e.name not in NEED_FILES),
    *PUBLISHED,
]
SHAPES = {
    "one word": "a",
    "one line": "some words of different lengths ",
    "one word again and again": "word ",
    "lines of one character": "x\n",
    "only newlines": "\n",
    "emoji": "\U0001f600",
    "combining marks": "e\u0301",
    "punctuation": ".?! ",
    "addresses": "http://",
    "open brackets": "([{<",
    "markup": "<p>a</p>\n",
    "comments": "# a\n/* b\n",
    "quotes": "\"'",
    "replacement characters": "\ufffd",
}
SHORT, LONG = 40_000, 160_000


def make(name: str) -> Any:
    entry = registered(name)
    made = entry.load()(**ARGUMENTS.get(name, {}))
    return {FILTER: ScoreFilter, MODIFIER: Modify}.get(entry.kind, lambda stage: stage)(made)


def run(stage: Any, text: str) -> tuple[DocumentBatch, DocumentBatch]:
    batch = DocumentBatch(data=pa.table({"text": pa.array([text], pa.large_string())}))
    return batch, stage.process(batch)


@pytest.fixture(scope="module", params=NAMES)
def stage(request: pytest.FixtureRequest) -> Any:
    made = make(request.param)
    run(made, "The first call may have to compile. " * 20)
    return made


@pytest.mark.parametrize("shape", SHAPES)
def test_time_grows_with_the_length_alone(stage: Any, shape: str) -> None:
    unit = SHAPES[shape]
    short, long = (unit * (size // len(unit.encode())) for size in (SHORT, LONG))
    assert_grows_with_length(lambda text: run(stage, text), short, long)


@pytest.mark.parametrize("shape", SHAPES)
def test_every_shape_gets_a_decision(stage: Any, shape: str) -> None:
    for times in (1, 60, 5_000):
        batch, left = run(stage, SHAPES[shape] * times)
        dropped = [decision for decision in batch._tracking.trail.decisions if len(decision.rows)]
        assert left.num_items + sum(len(decision.rows) for decision in dropped) == 1
        assert all(decision.reason for decision in dropped)


def test_a_line_of_fifty_megabytes_passes_the_whole_cascade() -> None:
    from gristmill.stages.text.filters.cascade import FilterCascade
    from gristmill.stages.text.filters.rule import ColumnFilter

    made = [registered(name).load()(**ARGUMENTS.get(name, {})) for name in NAMES if registered(name).kind == FILTER]
    slow = {"FastTextLangId", "HTMLBoilerplateFilter", "PythonCommentToCodeFilter"}
    cascade = FilterCascade([one for one in made if isinstance(one, ColumnFilter) and type(one).__name__ not in slow])
    unit = "Some words of different lengths, and no end of the line; "
    text = pa.array([unit * (50_000_000 // len(unit))], pa.large_string())
    result = cascade.evaluate(text, every_score=True)
    assert not result.kept[0]
    assert cascade.reason(result, 0)
