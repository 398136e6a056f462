"""Removal by a list of ids: those that documents have, and those that were assigned."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from gristmill.errors import InputChangedError, InputNotFoundError, UsageError
from gristmill.ledger.ask.ledger import Ledger
from gristmill.stages.deduplication import TextDuplicatesRemovalWorkflow
from tests.unit.pipeline.jobs import here, read_rows
from tests.unit.stages.deduplication.jobs import deduplicate, documents, write_files


def remove(folder: Path, ids: Path, **options: Any) -> Any:
    workflow = TextDuplicatesRemovalWorkflow(
        input_path=str(folder / "in"), ids_to_remove_path=str(ids), output_path=str(folder / "clean"), **options
    )
    return workflow.run(executor=here())


def test_assigned_ids_find_their_documents_again(tmp_path: Path) -> None:
    write_files(tmp_path, {"a.jsonl": documents(["x", "y", "x"]), "b.jsonl": documents(["y", "z"], first=3)})
    deduplicate(tmp_path, perform_removal=False)
    result = remove(tmp_path, tmp_path / "out" / "ExactDuplicateIds")
    assert [row["id"] for row in read_rows(tmp_path / "clean")] == ["d0", "d1", "d4"]
    assert all("_curator_dedup_id" not in row for row in read_rows(tmp_path / "clean"))
    assert result.get_metadata("num_duplicates_removed") == 2
    (document,) = Ledger(str(tmp_path / "clean")).why("d3").documents
    assert (document.decisions[0].outcome, document.decisions[0].survivor) == ("duplicate", "d1")


def test_assigned_ids_are_refused_for_other_documents(tmp_path: Path) -> None:
    write_files(tmp_path, {"a.jsonl": documents(["x", "y", "x"])})
    deduplicate(tmp_path, perform_removal=False)
    write_files(tmp_path, {"b.jsonl": documents(["z"])})
    with pytest.raises(InputChangedError):
        remove(tmp_path, tmp_path / "out" / "ExactDuplicateIds")


def test_own_ids_of_any_list(tmp_path: Path) -> None:
    write_files(tmp_path, {"a.jsonl": documents(["x", "y", "z", None])})
    (tmp_path / "list").mkdir()
    pq.write_table(pa.table({"gone": ["d1", "d9", "d3"]}), tmp_path / "list" / "part.0.parquet")
    remove(tmp_path, tmp_path / "list", id_field="id", duplicate_id_field="gone", drop_id_field=True)
    assert read_rows(tmp_path / "clean") == [{"text": "x"}, {"text": "z"}]


def test_a_list_of_assigned_ids_without_its_record(tmp_path: Path) -> None:
    write_files(tmp_path, {"a.jsonl": documents(["x"])})
    (tmp_path / "list").mkdir()
    pq.write_table(pa.table({"id": ["a:0"]}), tmp_path / "list" / "part.0.parquet")
    with pytest.raises(UsageError, match="id_generator_path"):
        remove(tmp_path, tmp_path / "list")


def test_documents_without_an_id_or_with_that_of_their_survivor_are_found_by_their_place(tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = [
        {"id": "a", "text": "x"},
        {"id": "a", "text": "x"},
        {"id": None, "text": "x"},
        {"text": "x"},
        {"id": "b", "text": "x"},
        {"id": "c", "text": "y"},
    ]
    write_files(tmp_path, {"a.jsonl": rows})
    deduplicate(tmp_path, perform_removal=False, id_field="id")
    listed = pq.read_table(next((tmp_path / "out" / "ExactDuplicateIds").glob("*.parquet"))).column("id").to_pylist()
    assert listed == ["a:1", "a:2", "a:3", "b"]
    result = remove(tmp_path, tmp_path / "out" / "ExactDuplicateIds", id_field="id")
    assert read_rows(tmp_path / "clean") == [{"id": "a", "text": "x"}, {"id": "c", "text": "y"}]
    assert result.get_metadata("notes") == []


def test_ids_that_stand_for_no_document_or_for_several_are_told(tmp_path: Path) -> None:
    write_files(tmp_path, {"a.jsonl": [{"id": "a", "text": str(number)} for number in range(3)]})
    for name, ids, words in (("more", ["a"], "2 more documents were removed"), ("less", ["z", "y"], "2 of the listed")):
        (tmp_path / name).mkdir()
        pq.write_table(pa.table({"id": ids}), tmp_path / name / "part.0.parquet")
        shutil.rmtree(tmp_path / "clean", ignore_errors=True)
        (note,) = remove(tmp_path, tmp_path / name, id_field="id").get_metadata("notes")
        assert words in note


def test_a_list_that_is_not_there_is_named(tmp_path: Path) -> None:
    write_files(tmp_path, {"a.jsonl": documents(["x"])})
    with pytest.raises(InputNotFoundError, match="nowhere"):
        remove(tmp_path, tmp_path / "nowhere")
