"""What notebooks show: small, escaped, and never a reason to fail."""

from __future__ import annotations

import html.parser
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from gristmill import notebook
from gristmill.ledger import Ledger
from gristmill.pipeline import Pipeline
from gristmill.stages.text.filters import ScoreFilter, WordCountFilter
from gristmill.stages.text.io import JsonlReader, JsonlWriter
from gristmill.tasks import DocumentBatch

HURT = "<script>alert(1)</script>\"'&\ud800"
TAGS = {"div", "p", "table", "thead", "tbody", "tr", "th", "td", "pre"}


class Seen(html.parser.HTMLParser):
    """The tags and the texts of some HTML."""

    def __init__(self, shown: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.texts: list[str] = []
        shown.encode()
        self.feed(shown)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert {name for name, _ in attrs} <= {"style", "dir"}
        self.tags.append(tag)

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


def seen(shown: Any) -> Seen:
    found = Seen(shown._repr_html_())
    assert set(found.tags) <= TAGS
    return found


def test_a_batch_shows_its_first_documents() -> None:
    table = pa.table({"id": [1234, *range(99)], HURT.replace("\ud800", ""): ["<b>x</b>"] * 99 + ["y" * 10_000]})
    found = seen(DocumentBatch(data=table))
    assert found.texts[0] == "DocumentBatch: 100 documents, 2 columns"
    assert found.texts[1:5] == ["id", HURT.replace("\ud800", ""), "1234", "<b>x</b>"]
    assert found.texts[-1] == "… and 90 more documents."
    assert found.tags.count("tr") == 11
    assert seen(DocumentBatch(data=table.slice(99))).texts[-1] == "y" * 200 + "…"
    assert seen(DocumentBatch(data=pa.table({"text": pa.array([], pa.string())}))).tags == ["div", "p"]


def test_a_pipeline_its_plan_its_run_and_its_ledger(tmp_path: Path) -> None:
    (tmp_path / "in.jsonl").write_text('{"id": "a<b", "text": "one"}\n{"id": "b", "text": "one two three"}\n')
    stages = [JsonlReader(str(tmp_path / "in.jsonl")), ScoreFilter(WordCountFilter(min_words=2))]
    pipeline = Pipeline(HURT, stages=[*stages, JsonlWriter(str(tmp_path / "out"))])
    assert seen(pipeline).texts[0] == f"Pipeline {HURT}".replace("\ud800", "?")
    assert "WordCountFilter" in seen(pipeline).texts
    for plan in (pipeline.explain(), pipeline.describe()):
        assert isinstance(plan, str)
        assert seen(plan).texts == [plan.replace("\ud800", "?")]
    result = pipeline.run(progress=False)
    for shown in (result, result.report):
        assert "2 documents read, 1 kept, 0 quarantined." in seen(shown).texts[0]
        assert seen(shown).texts[5:9] == ["WordCountFilter", "dropped", "too_few_words", "1"]
    assert seen(result).texts[-1] == "1 task in this list."
    ledger = Ledger(tmp_path / "out")
    assert seen(ledger).texts[5:] == ["WordCountFilter", "dropped", "too_few_words", "1"]
    assert seen(ledger.why("a<b")).texts == [str(ledger.why("a<b"))]
    assert seen(ledger.diff(ledger)).texts == [str(ledger.diff(ledger))]


@pytest.mark.parametrize(("value", "text"), [(None, ""), (1234567, "1,234,567"), (True, "True"), (0.5, "0.5")])
def test_cells(value: Any, text: str) -> None:
    assert notebook.escaped(value) == text


def test_progress_is_for_kernels_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that has only imported ipykernel gets lines."""
    import sys
    import types

    from gristmill.observe.display import LineDisplay, make_listener

    monkeypatch.setitem(sys.modules, "ipykernel", types.ModuleType("ipykernel"))
    monkeypatch.delitem(sys.modules, "IPython", raising=False)
    monkeypatch.setenv("TERM", "dumb")
    assert type(make_listener()) is LineDisplay
