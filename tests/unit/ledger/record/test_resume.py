"""What a second run does again, what it keeps, and what it refuses."""

from __future__ import annotations

from pathlib import Path

import pytest

from gristmill.errors import ResumeError
from gristmill.ledger.record.layout import RunFolder
from gristmill.ledger.record.manifest import Manifest
from gristmill.ledger.record.plan_record import plan_digest
from gristmill.ledger.record.resume import decide
from gristmill.storage.partitions import FileRange, Partition
from tests.unit.ledger.making import PLAN, commit, make_partition, make_run

DIGEST = plan_digest(PLAN)


def test_finished_partitions_are_skipped_and_new_ones_done(tmp_path: Path) -> None:
    manifest = Manifest(make_run(tmp_path, 2))
    result = decide(manifest, [make_partition(f"part-{n}", n) for n in range(3)], DIGEST)
    assert (result.done, result.new, result.changed, result.damaged) == ({"part-0", "part-1"}, ["part-2"], [], [])


@pytest.mark.parametrize(
    ("partition", "reason"),
    [
        (make_partition("part-1", 1, stamp="2"), "part-1.jsonl was modified since"),
        (make_partition("part-1", 1, size=101), "part-1.jsonl had 100 bytes and now has 101"),
        (
            Partition(1, "part-1", (FileRange("/data/part-1.jsonl", "part-1.jsonl", 100, "1", 0, 50, False),)),
            "part-1.jsonl is split at other positions",
        ),
    ],
)
def test_a_changed_input_is_done_again(tmp_path: Path, partition: Partition, reason: str) -> None:
    result = decide(Manifest(make_run(tmp_path, 2)), [make_partition(), partition], DIGEST)
    assert (result.done, result.changed) == ({"part-0"}, ["part-1"])
    assert result.reasons == {"part-1": reason}


def test_a_moved_input_root_is_not_a_change(tmp_path: Path) -> None:
    moved = Partition(0, "part-0", (FileRange("/elsewhere/part-0.jsonl", "part-0.jsonl", 100, "1", 0, 100, True),))
    assert decide(Manifest(make_run(tmp_path, 1)), [moved], DIGEST).done == {"part-0"}


def test_missing_or_cut_outputs_are_done_again(tmp_path: Path) -> None:
    folder = make_run(tmp_path, 3)
    (tmp_path / "part-0.jsonl").unlink()
    Path(folder.record_path("ids", "part-1")).write_bytes(b"")
    result = decide(Manifest(folder), [make_partition(f"part-{n}", n) for n in range(3)], DIGEST)
    assert (result.done, result.damaged) == ({"part-2"}, ["part-0", "part-1"])
    assert result.reasons["part-0"] == "part-0.jsonl is missing from the output"


def test_vanished_inputs_are_an_error_that_says_what_to_do(tmp_path: Path) -> None:
    folder = make_run(tmp_path, 3)
    before = folder.walk()
    with pytest.raises(ResumeError, match="no longer exist") as caught:
        decide(Manifest(folder), [make_partition()], DIGEST)
    assert caught.value.facts["partitions"] == ["part-1", "part-2"]
    for word in ("part-1, part-2", "14 rows", "--fresh", "another folder"):
        assert word in str(caught.value)
    assert folder.walk() == before


def test_a_smaller_selection_is_told_from_vanished_files(tmp_path: Path) -> None:
    source = tmp_path / "in.jsonl"
    source.write_text("{}")
    folder = RunFolder(tmp_path / "out")
    blocks = [
        Partition(n, f"in.b{n}", (FileRange(str(source), "in.jsonl", 100, "1", n, n + 1, False),)) for n in (0, 1)
    ]
    for block in blocks:
        commit(folder, block)
    with pytest.raises(ResumeError, match=r"still exist, so this run selects less .* limit"):
        decide(Manifest(folder), blocks[:1], DIGEST)


def test_vanished_partitions_can_be_removed(tmp_path: Path) -> None:
    folder = make_run(tmp_path, 3)
    left = [make_partition("part-1", 0), make_partition("part-2", 1)]
    result = decide(Manifest(folder), left, DIGEST, remove_vanished=True)
    assert (result.vanished, result.done) == (["part-0"], {"part-1", "part-2"})
    assert not [name for name in folder.walk() if "part-0" in name]
    assert [entry.index for entry in Manifest(folder).ordered()] == [0, 1]


def test_leftovers_of_a_commit_whose_input_is_gone_are_removed(tmp_path: Path) -> None:
    folder = make_run(tmp_path, 2)
    entry = Manifest(folder).load()["part-1"]
    object.__setattr__(entry, "state", "pending")
    Manifest(folder).add(entry)
    result = decide(Manifest(folder), [make_partition()], DIGEST)
    assert result.done == {"part-0"}
    assert not [name for name in folder.walk() if "part-1" in name]


def test_a_partition_whose_commit_did_not_finish_is_done_again(tmp_path: Path) -> None:
    folder = make_run(tmp_path, 1)
    entry = Manifest(folder).load()["part-0"]
    object.__setattr__(entry, "state", "pending")
    Manifest(folder).add(entry)
    assert decide(Manifest(folder), [make_partition()], DIGEST).new == ["part-0"]


def test_another_plan_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ResumeError, match=r"2 of 2 finished partitions .* another plan"):
        decide(Manifest(make_run(tmp_path, 2)), [make_partition()], "other")
