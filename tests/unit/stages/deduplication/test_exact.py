"""Exact deduplication: what goes, for whom, and what the ledger says about it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gristmill.errors import InputChangedError, InputNotFoundError, MissingColumnError, ResumeError, UsageError
from gristmill.ledger.prove.verify import verify
from gristmill.stages.deduplication.exact.workflow import ExactDeduplicationWorkflow
from gristmill.tracking import change_detection as changes
from tests.unit.pipeline.jobs import here, read_lines, read_rows
from tests.unit.stages.deduplication.jobs import deduplicate, documents, kept_ids, survivor_of, write_files


def test_the_first_in_source_order_stays(tmp_path: Path) -> None:
    write_files(
        tmp_path,
        {"b.jsonl": documents(["two", "one", "three"], first=3), "a.jsonl": documents(["one", "two", "one"])},
    )
    result = deduplicate(tmp_path)
    assert kept_ids(tmp_path) == ["d0", "d1", "d5"]
    assert survivor_of(tmp_path, "d2") == ("d0", 1.0)
    assert survivor_of(tmp_path, "d3") == ("d1", 1.0)
    facts = result.metadata
    assert (facts["documents"], facts["num_removed"], facts["clusters"]) == (6, 3, 2)
    assert verify(str(tmp_path / "out")).problems == []


def test_the_example_of_the_documentation_runs(tmp_path: Path) -> None:
    folder = write_files(tmp_path, {"a.jsonl": documents(["one", "one"])})
    workflow = ExactDeduplicationWorkflow(
        input_path=f"{folder}/", output_path=f"{tmp_path}/out/", text_field="text", input_blocksize="1GB"
    )
    workflow.run(executor=here())
    assert list((tmp_path / "out" / "ExactDuplicateIds").glob("*.parquet"))
    assert not list((tmp_path / "out").glob("*.jsonl"))
    workflow.perform_removal = True
    workflow.run(executor=here())
    assert kept_ids(tmp_path) == ["d0"]


def test_documents_without_an_id_are_named_by_their_place(tmp_path: Path) -> None:
    write_files(tmp_path, {"a.jsonl": [{"text": "one"}, {"text": "two"}], "b.jsonl": [{"text": "two"}]})
    deduplicate(tmp_path)
    assert survivor_of(tmp_path, "b#0") == ("a#1", 1.0)


def test_empty_documents_stay_unless_they_are_to_be_merged(tmp_path: Path) -> None:
    write_files(tmp_path, {"a.jsonl": documents(["", None, "", "x", None, "x"])})
    result = deduplicate(tmp_path)
    assert kept_ids(tmp_path) == ["d0", "d1", "d2", "d3", "d4"]
    assert result.get_metadata("empty") == 4
    deduplicate(tmp_path, fresh=True, merge_empty=True)
    assert kept_ids(tmp_path) == ["d0", "d3"]


def test_what_stays_keeps_its_bytes(tmp_path: Path) -> None:
    lines = ['{"text": "a",  "n": 1.0, "big": 123456789012345678901234567890}', '{"n":null,"text":"\\u0062"}']
    write_files(tmp_path, {"a.jsonl": [*lines, '{"text": "b"}']})
    deduplicate(tmp_path)
    assert read_lines(tmp_path / "out") == lines


@pytest.mark.parametrize(
    ("options", "stays"),
    [
        ({"survivor": "best", "score_field": "q"}, "d2"),
        ({"survivor": "priority", "source_priority": ["*/z.jsonl", "b.jsonl"]}, "d3"),
        ({"survivor": "first"}, "d0"),
    ],
)
def test_the_rule_chooses_the_survivor(tmp_path: Path, options: dict[str, object], stays: str) -> None:
    rows = [{"id": f"d{n}", "text": "same", "q": q} for n, q in enumerate([1, None, 7, 3])]
    write_files(tmp_path, {"a.jsonl": rows[:3], "b.jsonl": rows[3:]})
    deduplicate(tmp_path, **options)
    assert kept_ids(tmp_path) == [stays]


@settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(texts=st.lists(st.sampled_from(["a", "b", "b ", "c", "", "日本"]), max_size=12), cut=st.integers(0, 12))
def test_the_survivors_are_those_of_a_plain_loop(
    tmp_path_factory: pytest.TempPathFactory, texts: list[str], cut: int
) -> None:
    folder = tmp_path_factory.mktemp("loop")
    rows = documents(texts)
    write_files(folder, {"a.jsonl": rows[:cut], "b.jsonl": rows[cut:]})
    deduplicate(folder)
    seen: set[str] = set()
    wanted = [row["id"] for row in rows if row["text"] == "" or not (row["text"] in seen or seen.add(row["text"]))]
    assert kept_ids(folder) == wanted


def test_parquet_goes_in_and_out(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    table = pa.table({"id": [1, 2, 3], "text": ["x", "y", "x"], "n": [1.5, None, 2.5]})
    pq.write_table(table, tmp_path / "in" / "a.parquet")
    deduplicate(tmp_path)
    found = pq.read_table(next((tmp_path / "out").glob("*.parquet")))
    assert found.to_pylist() == table.slice(0, 2).to_pylist()
    assert survivor_of(tmp_path, "3") == ("1", 1.0)
    deduplicate(tmp_path, fresh=True, output_filetype="jsonl")
    assert [row["id"] for row in read_rows(tmp_path / "out")] == [1, 2]


def test_running_again_changes_nothing(tmp_path: Path) -> None:
    write_files(tmp_path, {"a.jsonl": documents(["x", "y", "x"]), "b.jsonl": documents(["y"], first=3)})
    deduplicate(tmp_path)
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "out").glob("*.jsonl")}
    deduplicate(tmp_path)
    assert before == {path: path.stat().st_mtime_ns for path in (tmp_path / "out").glob("*.jsonl")}


def test_a_changed_input_is_an_error_until_one_starts_over(tmp_path: Path) -> None:
    folder = write_files(tmp_path, {"a.jsonl": documents(["x", "x"]), "b.jsonl": documents(["y"], first=2)})
    deduplicate(tmp_path)
    (folder / "b.jsonl").write_text(json.dumps({"id": "d9", "text": "x"}) + "\n")
    with pytest.raises(InputChangedError, match=r"b was changed.*--fresh"):
        deduplicate(tmp_path)
    (folder / "b.jsonl").unlink()
    with pytest.raises(InputChangedError, match="b is missing"):
        deduplicate(tmp_path)
    write_files(tmp_path, {"b.jsonl": documents(["x"], first=9), "c.jsonl": documents(["z"], first=10)})
    with pytest.raises(InputChangedError):
        deduplicate(tmp_path)
    deduplicate(tmp_path, fresh=True)
    assert kept_ids(tmp_path) == ["d0", "d10"]


def test_an_input_that_changes_between_the_steps_is_an_error(tmp_path: Path) -> None:
    folder = write_files(tmp_path, {"a.jsonl": documents(["x", "x"])})
    workflow = ExactDeduplicationWorkflow(
        input_path=str(folder), output_path=str(tmp_path / "out"), perform_removal=True
    )
    find = workflow._find

    def then_change(steps: object) -> object:
        found = find(steps)  # type: ignore[arg-type]
        write_files(tmp_path, {"a.jsonl": documents(["x", "y", "x"])})
        return found

    workflow._find = then_change  # type: ignore[assignment, method-assign]
    with pytest.raises(InputChangedError, match="a was changed"):
        workflow.run(executor=here())
    assert not list((tmp_path / "out").glob("*.jsonl"))


def test_another_rule_is_not_mixed_with_the_work_of_the_first(tmp_path: Path) -> None:
    write_files(tmp_path, {"a.jsonl": documents(["x", "x"])})
    deduplicate(tmp_path)
    with pytest.raises(ResumeError, match="merge_empty"):
        deduplicate(tmp_path, merge_empty=True)


def test_without_removal_the_ids_are_listed(tmp_path: Path) -> None:
    write_files(tmp_path, {"a.jsonl": documents(["x", "y", "x"])})
    result = deduplicate(tmp_path, perform_removal=False, id_field="id")
    assert result.get_metadata("num_duplicates") == 1
    assert result.get_metadata("num_removed") == 0
    assert not list((tmp_path / "out").glob("*.jsonl"))
    (listed,) = (tmp_path / "out" / "ExactDuplicateIds").glob("*.parquet")
    assert pq.read_table(listed).to_pylist() == [{"id": "d2", "survivor": "d0", "cluster": 0, "similarity": 1.0}]


def test_a_list_without_duplicates_is_verified(tmp_path: Path) -> None:
    write_files(tmp_path, {"a.jsonl": documents(["x", "y"])})
    deduplicate(tmp_path, perform_removal=False, id_field="id")
    assert not list((tmp_path / "out" / "ExactDuplicateIds").glob("*"))
    assert verify(str(tmp_path / "out")).problems == []
    # What the list consists of then is its record.
    shutil.rmtree(tmp_path / "out.gristmill" / "ExactDuplicateIds")
    assert "ExactDuplicateIds is missing" in verify(str(tmp_path / "out")).problems[0]


@pytest.mark.parametrize("perform_removal", [True, False])
def test_a_later_run_without_a_profile_removes_the_earlier_one(tmp_path: Path, perform_removal: bool) -> None:
    write_files(tmp_path, {"a.jsonl": documents(["x", "y", "x"])})
    options = {"perform_removal": perform_removal, "input_path": str(tmp_path / "in"), "id_field": "id"}
    workflow = ExactDeduplicationWorkflow(str(tmp_path / "out"), **options)
    workflow.run(here(), progress=False, profile=True)
    record = tmp_path / "out.gristmill"
    assert len(list(record.glob("profile.*"))) == 2
    workflow.run(here(), progress=False)
    assert not list(record.glob("profile.*"))
    assert verify(str(tmp_path / "out")).problems == []


def test_options_of_gpus_are_accepted_and_explained(tmp_path: Path) -> None:
    write_files(tmp_path, {"a.jsonl": documents(["x"])})
    result = deduplicate(tmp_path, rmm_pool_size="auto", total_nparts=4)
    (note,) = result.get_metadata("notes")
    assert "rmm_pool_size" in note
    assert "total_nparts" in note


def test_documents_are_not_decoded_to_see_whether_a_step_has_changed_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def compared(*values: object) -> None:
        raise AssertionError("values were compared")

    monkeypatch.setattr(changes, "differing_rows", compared)
    write_files(tmp_path, {"a.jsonl": documents(["x", "y", "x"])})
    deduplicate(tmp_path)
    assert kept_ids(tmp_path) == ["d0", "d1"]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"assign_id": True, "id_field": "id"}, "one of the two"),
        ({"assign_id": False}, "id_field"),
        ({"survivor": "best"}, "score_field"),
        ({"survivor": "priority"}, "source_priority"),
        ({"survivor": "latest"}, "first, longest, best, newest, priority"),
        ({"input_filetype": "json"}, "'jsonl'"),
    ],
)
def test_wrong_options_are_refused_at_once(options: dict[str, object], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        ExactDeduplicationWorkflow(input_path="in", output_path="out", **options)  # type: ignore[arg-type]


def test_a_missing_column_and_a_missing_input_are_named(tmp_path: Path) -> None:
    with pytest.raises(InputNotFoundError):
        deduplicate(tmp_path)
    write_files(tmp_path, {"a.jsonl": documents(["x"])})
    with pytest.raises(MissingColumnError, match="'body'"):
        deduplicate(tmp_path, text_field="body")
