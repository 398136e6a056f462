"""The proof of a deduplication: its record, its list and every step of it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from gristmill.errors import InputNotFoundError
from gristmill.ledger.prove.verify import verify
from gristmill.ledger.record.layout import RunFolder
from gristmill.ledger.record.run_record import checksum
from gristmill.storage.atomic import json_bytes
from tests.outputs import copy_output, files_of, record_of
from tests.unit.stages.deduplication.jobs import deduplicate, documents, write_files

FILE = "deduplication.json"
TEXTS = [f"{'the same many words of one long document ' * 3}{end}" for end in ("a", "a", "b", "c")]


@pytest.fixture(scope="module")
def outputs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    found = {}
    for kind, removal in (("fuzzy", True), ("exact", False)):
        folder = tmp_path_factory.mktemp(kind)
        write_files(folder, {"a.jsonl": documents(TEXTS), "b.jsonl": documents([*TEXTS, "other"], first=9)})
        deduplicate(folder, kind, perform_removal=removal)
        found[kind] = folder / "out"
    return found


def _copy(outputs: dict[str, Path], kind: str, tmp_path: Path) -> Path:
    return copy_output(outputs[kind], tmp_path / "out")


@pytest.mark.parametrize(("kind", "steps"), [("fuzzy", 5), ("exact", 2)])
def test_the_steps_of_a_workflow_are_proved(outputs: dict[str, Path], kind: str, steps: int) -> None:
    report = verify(outputs[kind])
    assert report.ok, str(report)
    assert report.steps == steps
    assert f"{steps} steps of the workflow" in str(report)


@pytest.mark.parametrize("kind", ["fuzzy", "exact"])
def test_a_changed_byte_in_any_file_is_found(outputs: dict[str, Path], kind: str) -> None:
    output = outputs[kind]
    files = [path for path in files_of(output).values() if path.stat().st_size]
    assert any("steps" in path.parts for path in files)
    for path in files:
        was = path.read_bytes()
        at = len(was) // 2
        path.write_bytes(was[:at] + bytes([was[at] ^ 1]) + was[at + 1 :])
        try:
            assert verify(output).problems, path
        finally:
            path.write_bytes(was)
    assert verify(output).ok


def test_an_edited_record_is_found_even_with_a_new_seal(outputs: dict[str, Path], tmp_path: Path) -> None:
    output = _copy(outputs, "fuzzy", tmp_path)
    record = json.loads((record_of(output) / FILE).read_text())
    record["num_removed"] += 1
    (record_of(output) / FILE).write_bytes(json_bytes(record))
    assert any("does not match its checksum" in problem for problem in verify(output).problems)
    record["seal"] = checksum(record)
    (record_of(output) / FILE).write_bytes(json_bytes(record))
    claimed = record["num_removed"]
    told = f"out.gristmill/{FILE} says {claimed} documents removed, the manifest has {claimed - 1}."
    assert verify(output).problems == [told]


def test_what_is_missing_or_foreign_is_named(outputs: dict[str, Path], tmp_path: Path) -> None:
    output = _copy(outputs, "fuzzy", tmp_path)
    (record_of(output) / "steps/notes.txt").write_text("mine")
    next((record_of(output) / "steps/pairs").glob("*.arrow")).unlink()
    (record_of(output) / FILE).unlink()
    told = str(verify(output))
    assert "the workflow did not finish" in told
    assert "steps/notes.txt does not belong" in told
    assert "steps/pairs: " in told
    assert "is missing" in told


def test_a_step_of_another_run_is_found(outputs: dict[str, Path], tmp_path: Path) -> None:
    output = _copy(outputs, "fuzzy", tmp_path)
    write_files(tmp_path / "other", {"a.jsonl": documents(["x", "x", *TEXTS])})
    deduplicate(tmp_path / "other", "fuzzy")
    shutil.rmtree(record_of(output) / "steps/clusters")
    shutil.copytree(tmp_path / "other/out.gristmill/steps/clusters", record_of(output) / "steps/clusters")
    assert any("is not the step that this output was made" in problem for problem in verify(output).problems)


def test_deleted_steps_are_no_fault(outputs: dict[str, Path], tmp_path: Path) -> None:
    output = _copy(outputs, "fuzzy", tmp_path)
    shutil.rmtree(record_of(output) / "steps/shingles")
    assert verify(output).ok
    shutil.rmtree(record_of(output) / "steps")
    assert verify(output).ok


def test_a_list_without_its_files_is_no_proof(outputs: dict[str, Path], tmp_path: Path) -> None:
    output = _copy(outputs, "exact", tmp_path)
    (output / "exact_id_generator.json").write_text("{}")
    (output / "notes.txt").write_text("mine")
    shutil.rmtree(output / "ExactDuplicateIds")
    told = str(verify(output))
    assert "ExactDuplicateIds: range-00000.parquet of partition range-00000 is missing" in told
    assert "exact_id_generator.json was changed" in told
    assert "notes.txt does not belong" in told


def test_a_list_is_not_taken_for_the_documents(outputs: dict[str, Path]) -> None:
    with pytest.raises(InputNotFoundError, match="holds a list of duplicates, not documents"):
        RunFolder(outputs["exact"]).require_run()


def test_steps_in_another_folder_are_proved_too(tmp_path: Path) -> None:
    write_files(tmp_path, {"a.jsonl": documents(["a", "a", "b"])})
    deduplicate(tmp_path, "exact", cache_path=str(tmp_path / "cache"))
    assert verify(tmp_path / "out").steps == 2
    run = next((tmp_path / "cache" / "groups").glob("*.arrow"))
    run.write_bytes(run.read_bytes()[:-1])
    assert any(problem.startswith("steps/groups: ") for problem in verify(tmp_path / "out").problems)


def test_a_list_and_then_a_removal_in_one_output_are_one_proof(tmp_path: Path) -> None:
    write_files(tmp_path, {"a.jsonl": documents(["a", "a", "b"])})
    deduplicate(tmp_path, "exact", perform_removal=False)
    deduplicate(tmp_path, "exact")
    assert verify(tmp_path / "out").ok, str(verify(tmp_path / "out"))
