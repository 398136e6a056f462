"""Names never leave the folder, and file operations work on local disks and other stores alike."""

from __future__ import annotations

import os
from pathlib import Path

import psutil
import pytest

from gristmill.errors import InputNotFoundError, UsageError, VerificationError
from gristmill.ledger.record.layout import RunFolder


@pytest.mark.parametrize("name", ["", "..", ".hidden", "a/b", "a\\b", "a\0b", "a\nb", "_gristmill", "x" * 231])
def test_a_partition_id_never_leaves_the_folder(tmp_path: Path, name: str) -> None:
    folder = RunFolder(tmp_path)
    for kind in ("manifest", "ledger", "ids", "quarantine"):
        with pytest.raises(UsageError, match="cannot name a file"):
            folder.record_path(kind, name)


@pytest.mark.parametrize("name", ["../x", "/etc/passwd", "a//b", "a/../../x", "", ".", "a\\..\\b"])
def test_a_path_from_a_record_never_leaves_the_folder(tmp_path: Path, name: str) -> None:
    with pytest.raises(VerificationError, match="leads out"):
        RunFolder(tmp_path).join(name)


def test_an_extension_is_no_way_out_either(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="begin with a dot"):
        RunFolder(tmp_path).data_path("part", "/../x")


@pytest.fixture(params=["local", "memory"])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> RunFolder:
    return RunFolder(tmp_path / "out" if request.param == "local" else f"memory://{tmp_path.name}-{os.getpid()}")


def test_file_operations(folder: RunFolder) -> None:
    assert folder.walk() == {}
    one, two = folder.join("one"), folder.join("sub/two")
    folder.write(one, b"first")
    assert (folder.exists(one), folder.exists(two), folder.read(one)) == (True, False, b"first")
    folder.write(two, b"old")
    folder.move(one, two)
    assert folder.walk() == {"sub/two": 5}
    assert folder.walk(folder.join("sub")) == {"two": 5}
    got = folder.read_many([two, one])
    assert got[two] == b"first"
    assert isinstance(got[one], FileNotFoundError)
    assert (folder.remove(two), folder.remove(two)) == (True, False)
    assert folder.walk() == {}


def test_a_folder_without_a_run_is_named(folder: RunFolder) -> None:
    if "://" not in folder.path:
        with pytest.raises(InputNotFoundError, match="There is no "):
            folder.require_run()
        os.makedirs(folder.path)
    with pytest.raises(InputNotFoundError, match="not the output of a run"):
        folder.require_run()


def test_only_staging_of_ended_processes_is_swept(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    mine = folder.new_staging()
    host, pid, start, _ = os.path.basename(mine).split("-")
    staging = folder.record_path("staging")
    free = next(number for number in range(2**22, 2**21, -1) if not psutil.pid_exists(number))
    dead = f"{staging}/{host}-{free}-{start}-aa"
    reused = f"{staging}/{host}-{pid}-{int(start) - 5000}-bb"
    elsewhere = f"{staging}/{'0' * 8}-{free}-{start}-cc"
    for path in (mine, dead, reused, elsewhere):
        folder.write(f"{path}/piece", b"x")
    assert folder.sweep() == sorted(map(os.path.basename, (dead, reused)))
    assert sorted(os.listdir(folder.record_path("staging"))) == sorted(map(os.path.basename, (mine, elsewhere)))
