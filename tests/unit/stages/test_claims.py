"""What a stage class says about its own code holds for that code alone."""

from __future__ import annotations

import pkgutil
from importlib import import_module
from inspect import isabstract
from pathlib import Path
from typing import Any

import pyarrow.compute as pc

import gristmill.stages
from gristmill.ledger.ask.ledger import Ledger
from gristmill.stages.base import CompositeStage, FusedStage, ProcessingStage
from gristmill.stages.source_sink import ReaderStage, SinkStage, SourceStage
from gristmill.stages.text.modules import AddId
from gristmill.tasks import DocumentBatch
from tests.unit.pipeline.jobs import run_lines


class Louder(AddId):
    """Adds ids and, unlike the stage it is made from, changes texts."""

    def process(self, task: DocumentBatch) -> DocumentBatch:
        given = super().process(task)
        return given.with_column("text", pc.utf8_upper(given.text("text")))


class Renamed(AddId):
    """Only has another name."""

    name = "renamed"


def test_a_subclass_of_a_built_in_stage_is_compared_with_its_input(tmp_path: Path) -> None:
    assert AddId.notes_changes
    assert not Louder.notes_changes
    assert not Renamed.notes_changes
    run_lines(tmp_path, [{"id": "d1", "text": "quiet"}, {"id": "d2", "text": "LOUD"}], [Louder("number")])
    ledger = Ledger(str(tmp_path / "out"))
    assert [(one.stage, one.field) for one in ledger.why("d1").documents[0].changes] == [("add_id", "text")]
    assert ledger.why("d2").documents[0].changes == []


def test_built_in_stages_on_documents_note_their_changes() -> None:
    for module in pkgutil.walk_packages(gristmill.stages.__path__, "gristmill.stages."):
        import_module(module.name)
    others = (CompositeStage, FusedStage, ReaderStage, SinkStage, SourceStage)
    homes = ("gristmill.stages.text.", "gristmill.stages.deduplication.")
    found: set[type[ProcessingStage[Any, Any]]] = set()
    new = {ProcessingStage}
    while new:
        new = {inner for one in new for inner in one.__subclasses__()} - found
        found |= new
    built_in = [one for one in found if one.__module__.startswith(homes) and not issubclass(one, others)]
    assert len(built_in) > 30
    assert [one.__name__ for one in built_in if not one.notes_changes and not isabstract(one)] == []
