"""A commit is all or nothing, refuses rows that do not add up, and leaves equal files for equal work."""

from __future__ import annotations

import copy
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gristmill.errors import ConservationError, OutputError
from gristmill.kernels.hashing import hash_column
from gristmill.ledger.record.commit import commit_partition, remove_partition
from gristmill.ledger.record.layout import RunFolder
from gristmill.ledger.record.manifest import Manifest
from gristmill.ledger.record.plan_record import plan_digest, write_plan
from gristmill.ledger.record.trail import Decisions, Identity, StageCount, Trail
from tests.unit.ledger.making import PLAN, STAGES, commit, make_file, make_partition, make_run, make_trail


class Crash(BaseException):
    """Stands for the end of the process."""


def test_an_entry_says_what_was_committed(tmp_path: Path) -> None:
    entry = commit(RunFolder(tmp_path), make_partition())
    again = Manifest(str(tmp_path)).load()
    assert list(again) == ["part-0"]
    assert again["part-0"].to_bytes() == entry.to_bytes()
    assert (entry.rows_read, entry.rows_written, entry.rows_dropped, entry.quarantined) == (12, 7, 4, 1)
    assert sorted(entry.records) == ["changes", "ids", "ledger", "quarantine", "urls"]
    assert entry.records["ids"].size == entry.records["urls"].size == 12 * 8
    assert [file.path for file in entry.files] == ["part-0.jsonl"]
    assert list(entry.stages) == list(STAGES)


def test_the_same_work_gives_the_same_files_here_and_on_another_store(tmp_path: Path) -> None:
    folders = [make_run(tmp_path / "a"), make_run(tmp_path / "b"), make_run(f"memory://{tmp_path.name}/c")]
    contents = [{name: folder.read(folder.join(name)) for name in folder.walk()} for folder in folders]
    assert len(contents[0]) == 15
    assert contents[0] == contents[1] == contents[2]


def test_entries_compare_without_stamps(tmp_path: Path) -> None:
    one = commit(RunFolder(tmp_path / "a"), make_partition(stamp="1"))
    two = commit(RunFolder(tmp_path / "b"), make_partition(stamp="2"))
    assert one != two
    assert one.comparable() == two.comparable()


def _less(trail: Trail) -> None:
    trail.counts["words"].rows_out -= 1


def _gap(trail: Trail) -> None:
    trail.counts["dedup"] = StageCount(rows_in=7, rows_out=7)
    trail.decisions.pop()


def _reported(trail: Trail) -> None:
    trail.output_rows += 1


def _undecided(trail: Trail) -> None:
    trail.decisions[0] = Decisions("words", "dropped", "too_few_words", np.array([1, 2]))


def _other_reason(trail: Trail) -> None:
    trail.decisions[0].reason = "other"


def _unknown(trail: Trail) -> None:
    trail.counts["elsewhere"] = StageCount(rows_in=1, rows_out=1)


def _unheld(trail: Trail) -> None:
    trail.quarantine.clear()


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (_less, r"'words' do not add up: 11 in \+ 0 created is not 7 out \+ 3 dropped \+ 0 quarantined"),
        (_gap, "8 rows came out of stage 'words', but 7 went into the next one, 'dedup'"),
        (_reported, "7 rows came out of the last stage 'write', but the writer reported 8"),
        (_undecided, "'words' counts 3 rows dropped for 'too_few_words', but the ledger has 2"),
        (_other_reason, "'words' counts 0 rows dropped for 'other', but the ledger has 3"),
        (_unknown, "rows of stages that are not in the plan: elsewhere"),
        (_unheld, "'read' counts 1 rows quarantined for 'malformed_json', but the ledger has 0"),
    ],
)
def test_rows_that_do_not_add_up_are_refused(tmp_path: Path, spoil: Callable[[Trail], None], message: str) -> None:
    folder = RunFolder(tmp_path)
    trail = make_trail()
    staged = make_file(folder, make_partition(), trail.output_rows)
    before = folder.walk()
    spoil(trail)
    with pytest.raises(ConservationError, match=message) as caught:
        commit_partition(
            folder, make_partition(), staged_files=[staged], trail=trail, plan_digest="p", stage_order=STAGES
        )
    assert caught.value.facts["partition"] == "part-0"
    assert folder.walk() == before


def test_files_with_other_rows_than_counted_are_refused(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    staged = make_file(folder, make_partition(), 6)
    with pytest.raises(ConservationError, match="but the files hold 6"):
        commit_partition(
            folder, make_partition(), staged_files=[staged], trail=make_trail(), plan_digest="p", stage_order=STAGES
        )


def test_an_empty_partition_commits_without_files(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    commit_partition(folder, make_partition(), staged_files=[], trail=Trail(), plan_digest="p", stage_order=STAGES)
    assert list(folder.walk()) == ["_gristmill/manifest/part-0.json"]


def _operations(folder: RunFolder) -> list[str]:
    return [name for name in ("write", "move", "remove") if callable(getattr(folder, name))]


def _crash_after(folder: RunFolder, steps: int) -> Callable[[], int]:
    """Let `steps` file operations happen, then end; returns a function that says how many happened."""
    done = 0
    for name in _operations(folder):
        original = getattr(folder, name)

        def step(*args: Any, _original: Any = original, **options: Any) -> Any:
            nonlocal done
            if done >= steps:
                raise Crash
            done += 1
            return _original(*args, **options)

        setattr(folder, name, step)
    return lambda: done


def test_a_crash_between_any_two_steps_leaves_no_output_and_the_next_run_completes(tmp_path: Path) -> None:
    whole = make_run(tmp_path / "whole", 1)
    expected = {name: whole.read(whole.join(name)) for name in whole.walk()}
    crashes = 0
    for steps in range(100):
        path = tmp_path / f"crash-{steps}"
        folder = RunFolder(path)
        write_plan(folder, PLAN)
        # An earlier input gave more: what the new commit does not replace must go as well.
        old = make_trail(20, prefix="old")
        commit(folder, make_partition(stamp="0"), old)
        before = Manifest(folder).load()["part-0"]
        crashing = RunFolder(path)
        trail = make_trail(prefix="part-0")
        staged = make_file(folder, make_partition(), trail.output_rows)
        _crash_after(crashing, steps)
        arguments: dict[str, Any] = {"trail": trail, "plan_digest": plan_digest(PLAN), "stage_order": STAGES}
        try:
            commit_partition(crashing, make_partition(), staged_files=[staged], **arguments)
        except Crash:
            crashes += 1
            entries = Manifest(folder).load()
            if steps == 0:
                assert entries == {"part-0": before}
            else:
                assert entries == {}
            commit(folder, make_partition())
            folder.remove_tree(folder.record_path("staging"))
            assert {name: folder.read(folder.join(name)) for name in folder.walk()} == expected
        else:
            break
    assert crashes > 8


def test_records_that_are_no_longer_needed_go(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    commit(folder, make_partition(stamp="0"))
    bare = Trail(
        counts={
            stage: StageCount(rows_in=2 * bool(n), rows_out=2, created=2 * (not n)) for n, stage in enumerate(STAGES)
        },
        output_rows=2,
    )
    entry = commit(folder, make_partition(stamp="1"), bare)
    folder.remove_tree(folder.record_path("staging"))
    assert list(folder.walk()) == ["_gristmill/manifest/part-0.json", "part-0.jsonl"]
    assert entry.records == {}


def test_removing_a_partition_leaves_the_others(tmp_path: Path) -> None:
    folder = make_run(tmp_path, 2)
    assert remove_partition(folder, "part-0")
    assert not remove_partition(folder, "part-0")
    assert list(Manifest(folder).load()) == ["part-1"]
    assert not [name for name in folder.walk() if "part-0" in name]


def test_a_removal_that_is_cut_off_does_not_count_as_output(tmp_path: Path) -> None:
    for steps in range(1, 20):
        folder = make_run(tmp_path / str(steps), 1)
        crashing = RunFolder(folder.path)
        _crash_after(crashing, steps)
        try:
            remove_partition(crashing, "part-0")
        except Crash:
            assert Manifest(folder).load() == {}
            assert remove_partition(folder, "part-0")
        assert list(folder.walk()) == ["_gristmill/plan.json"]


def test_two_writers_of_one_partition_leave_one_sound_output(tmp_path: Path) -> None:
    folder = make_run(tmp_path, 1)
    expected = {name: folder.read(folder.join(name)) for name in folder.walk()}
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda _: commit(RunFolder(tmp_path), make_partition()), range(40)))
    folder.remove_tree(folder.record_path("staging"))
    assert {name: folder.read(folder.join(name)) for name in folder.walk()} == expected


def test_a_row_without_a_number_is_not_indexed(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    trail = make_trail()
    commit(folder, make_partition("a"), trail)
    trail.identities.append(Identity(np.array([-1]), hash_column(["stray"]), None, None))
    commit(folder, make_partition("b"), trail)
    assert folder.read(folder.record_path("ids", "a")) == folder.read(folder.record_path("ids", "b"))


def test_a_staged_file_that_is_gone_is_an_error_and_no_commit(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    staged = make_file(folder, make_partition(), 7)
    Path(staged.path).unlink()
    with pytest.raises(OutputError, match="is gone"):
        commit_partition(
            folder, make_partition(), staged_files=[staged], trail=make_trail(), plan_digest="p", stage_order=STAGES
        )
    assert Manifest(folder).load() == {}


def test_foreign_and_half_written_files_in_the_manifest_are_named(tmp_path: Path) -> None:
    folder = make_run(tmp_path, 2)
    entry = folder.read(folder.record_path("manifest", "part-0"))
    for name, data in (("half", entry[:100]), ("note", b"[]"), ("copy", entry), ("bytes", b"\xff\x00")):
        folder.write(folder.record_path("manifest", name), data)
    folder.write(folder.record_path("manifest", "part-1"), entry.replace(b'"rows_written": 7', b'"rows_written": 8'))
    manifest = Manifest(folder)
    assert list(manifest.load()) == ["part-0"]
    assert len(manifest.problems) == 5
    assert "does not match its checksum" in next(text for text in manifest.problems if "part-1" in text)
    assert all("is not a usable manifest entry" in text for text in manifest.problems)


def test_paths_that_are_not_utf8_survive(tmp_path: Path) -> None:
    partition = make_partition()
    odd = copy.copy(partition.ranges[0])
    object.__setattr__(odd, "path", "/data/\udcff.jsonl")
    object.__setattr__(partition, "ranges", (odd,))
    entry = commit(RunFolder(tmp_path), partition)
    assert Manifest(str(tmp_path)).load()["part-0"].source == entry.source
