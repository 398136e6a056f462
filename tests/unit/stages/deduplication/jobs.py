"""Small deduplications for the tests: documents in, a workflow in this process, documents and ledger out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from gristmill.ledger.ask.ledger import Ledger
from gristmill.stages.deduplication import ExactDeduplicationWorkflow, FuzzyDeduplicationWorkflow
from tests.unit.pipeline.jobs import here, read_rows, write_lines

KINDS = {"exact": ExactDeduplicationWorkflow, "fuzzy": FuzzyDeduplicationWorkflow}


def write_files(folder: Path, files: Mapping[str, Iterable[str | dict[str, Any]]]) -> Path:
    """JSONL files below `folder`/in."""
    for name, lines in files.items():
        write_lines(folder / "in" / name, lines)
    return folder / "in"


def documents(texts: Iterable[str | None], *, first: int = 0) -> list[dict[str, Any]]:
    """Documents with running ids."""
    return [{"id": f"d{number}", "text": text} for number, text in enumerate(texts, first)]


def deduplicate(folder: Path, kind: str = "exact", *, fresh: bool = False, **options: Any) -> Any:
    """Run a workflow from `folder`/in to `folder`/out."""
    options = {"perform_removal": True, **options}
    workflow = KINDS[kind](input_path=str(folder / "in"), output_path=str(folder / "out"), **options)
    return workflow.run(executor=here(), fresh=fresh)


def kept_ids(folder: Path) -> list[str]:
    """The ids of the documents in `folder`/out."""
    return [row["id"] for row in read_rows(folder / "out")]


def survivor_of(folder: Path, document: str) -> tuple[str | None, float | None]:
    """For whom a document was removed, and how alike they are."""
    (found,) = Ledger(str(folder / "out")).why(document).documents
    decision = found.decisions[-1]
    assert decision.outcome == "duplicate"
    return decision.survivor, decision.similarity
