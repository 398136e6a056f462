"""Shared tables are mapped, counted, released; what dead owners left is removed and nothing else."""

from __future__ import annotations

import errno
import os
import resource
import stat
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from gristmill.backends.local import shared_files
from gristmill.backends.local.shared_files import SharedFolder, SharedSegment, sweep
from gristmill.errors import OutputError, UsageError
from gristmill.observe.memory import process_start_time

TABLE = pa.table({"text": ["one", None, "three"] * 1000, "n": pa.array(range(3000), pa.int32())})
UID = os.getuid()


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[SharedFolder]:
    with SharedFolder.create("run-1", base=tmp_path) as made:
        yield made


def test_a_table_comes_back_without_copies(folder: SharedFolder) -> None:
    segment = folder.write_table(TABLE, "t1")
    allocated = pa.total_allocated_bytes()
    table = folder.read_table(segment)
    assert pa.total_allocated_bytes() - allocated < 4096
    assert table == TABLE
    assert segment.nbytes == os.path.getsize(segment.path)


def test_a_mapping_outlives_the_file(folder: SharedFolder) -> None:
    segment = folder.write_table(TABLE, "t1")
    table = folder.read_table(segment)
    folder.release(segment)
    assert not os.path.exists(segment.path)
    assert table == TABLE
    folder.release(segment)


@pytest.mark.parametrize(
    "table",
    [
        TABLE.slice(5, 7),
        TABLE.slice(0, 0),
        pa.table({}),
        pa.concat_tables([TABLE, TABLE]),
        pa.Table.from_batches(
            [
                pa.record_batch({"d": pa.array(["a", "b"]).dictionary_encode()}),
                pa.record_batch({"d": pa.array(["z", "a"]).dictionary_encode()}),
            ]
        ),
        TABLE.replace_schema_metadata({"origin": "x"}),
    ],
    ids=["slice", "no rows", "no columns", "chunks", "dictionaries", "metadata"],
)
def test_every_shape_of_table(folder: SharedFolder, table: pa.Table) -> None:
    read = folder.read_table(folder.write_table(table, "t"))
    assert read.equals(table, check_metadata=True)


def test_a_slice_is_written_without_the_rest(folder: SharedFolder) -> None:
    assert folder.write_table(TABLE.slice(0, 10), "s").nbytes < 2000


def test_bytes_are_counted(folder: SharedFolder) -> None:
    first, second = folder.write_table(TABLE, "a"), folder.write_table(TABLE, "b")
    assert folder.nbytes == first.nbytes + second.nbytes
    folder.release(first)
    assert folder.nbytes == second.nbytes
    worker = SharedFolder.attach(folder.paths)
    third = worker.write_table(TABLE, "c")
    assert (worker.nbytes, folder.nbytes) == (0, second.nbytes), "a worker would count for as long as it lives"
    folder.adopt(third)
    assert (worker.nbytes, folder.nbytes) == (0, second.nbytes + third.nbytes)
    worker.close()
    assert os.path.exists(third.path), "only the creator removes the folder"


def test_what_a_dead_worker_had_not_announced_is_discarded(folder: SharedFolder) -> None:
    worker = SharedFolder.attach(folder.paths)
    worker.write_table(TABLE, "w3-1")
    worker.write_table(TABLE, "w3-2")
    kept = worker.write_table(TABLE, "w31-1")
    assert folder.discard("w3-") == 2
    assert os.path.exists(kept.path)
    with pytest.raises(UsageError, match="empty prefix"):
        folder.discard("")


def test_names_are_private_and_fixed(tmp_path: Path, folder: SharedFolder) -> None:
    (path,) = folder.paths
    assert path == str(tmp_path / f"gristmill-{UID}" / f"run-1-{os.getpid()}-{process_start_time(os.getpid())}")
    segment = folder.write_table(TABLE, "a")
    assert [stat.S_IMODE(os.stat(p).st_mode) for p in (path, os.path.dirname(path))] == [0o700, 0o700]
    assert stat.S_IMODE(os.stat(segment.path).st_mode) == 0o600
    with pytest.raises(UsageError, match="already a segment"):
        folder.write_table(TABLE, "a")
    for name in ("../x", "", ".owner", "a/b"):
        with pytest.raises(UsageError, match="Invalid segment name"):
            folder.write_table(TABLE, name)
    with pytest.raises(UsageError, match="run id"):
        SharedFolder.create("../x", base=tmp_path)
    with pytest.raises(UsageError, match="already has"):
        SharedFolder.create("run-1", base=tmp_path)


def test_closing_leaves_nothing(tmp_path: Path) -> None:
    folder = SharedFolder.create("r", base=tmp_path)
    folder.write_table(TABLE, "a")
    folder.close()
    folder.close()
    assert list(tmp_path.iterdir()) == []


def test_a_link_in_place_of_our_folder_is_not_followed(tmp_path: Path) -> None:
    target = tmp_path / "elsewhere"
    target.mkdir()
    base = tmp_path / "base"
    base.mkdir()
    (base / f"gristmill-{UID}").symlink_to(target)
    with pytest.raises(OutputError, match="taken by something else"):
        SharedFolder.create("r", base=base)
    dead = target / "r-999999999-1"
    dead.mkdir()
    assert sweep(bases=[base]) == []
    assert dead.exists()


def test_sweep_removes_only_what_dead_owners_left(tmp_path: Path, folder: SharedFolder) -> None:
    ours = tmp_path / f"gristmill-{UID}"
    me, start = os.getpid(), process_start_time(os.getpid())
    gone = ours / "run-with-dashes-4194999-77"
    reborn = ours / f"r-{me}-{(start or 0) + 1}"
    locked = ours / "other-container-4194998-5"
    for path in (gone, reborn, locked):
        path.mkdir()
        (path / "segment").write_bytes(b"x")
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "precious").write_text("x")
    (gone / "link").symlink_to(outside)
    (ours / "r-4194997-5").symlink_to(outside)
    (ours / "notes").mkdir()
    (ours / "r-4194996-5").write_text("a file")
    import fcntl

    with open(locked / ".owner", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert set(sweep(bases=[tmp_path])) == {gone, reborn}
    assert sorted(path.name for path in ours.iterdir()) == sorted(
        ["notes", "other-container-4194998-5", "r-4194996-5", "r-4194997-5", Path(folder.paths[0]).name]
    )
    assert (outside / "precious").exists()
    assert sweep(bases=[tmp_path]) == [locked], "its owner let go"


def test_a_small_memory_is_not_used(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    memory, temp = tmp_path / "shm", tmp_path / "tmp"
    memory.mkdir()
    temp.mkdir()
    monkeypatch.setattr(shared_files, "_MEMORY_BASE", memory)
    monkeypatch.setattr("tempfile.tempdir", str(temp))
    with SharedFolder.create("r") as roomy:
        assert roomy.paths[0].startswith(str(memory))
    with SharedFolder.create("r", worthwhile_bytes=1 << 62) as cramped:
        assert cramped.paths[0].startswith(str(temp))
    assert list(memory.iterdir()) == list(temp.iterdir()) == []


def test_memory_that_fills_up_gives_way_to_the_temporary_folder(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    memory, temp = tmp_path / "shm", tmp_path / "tmp"
    memory.mkdir()
    temp.mkdir()
    monkeypatch.setattr(shared_files, "_MEMORY_BASE", memory)
    monkeypatch.setattr("tempfile.tempdir", str(temp))
    real = shared_files._write_table

    def write(table: pa.Table, path: str) -> int:
        if path.startswith(str(memory)):
            real(table.slice(0, 1), path)
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(table, path)

    monkeypatch.setattr(shared_files, "_write_table", write)
    with SharedFolder.create("r", worthwhile_bytes=0) as folder:
        segment = folder.write_table(TABLE, "a")
        assert segment.path.startswith(str(temp))
        assert folder.read_table(segment) == TABLE
        assert os.listdir(folder.paths[0]) == [".owner"], "the half-written file is gone"
    assert list(memory.iterdir()) == list(temp.iterdir()) == []


def test_no_room_anywhere_is_said_clearly(folder: SharedFolder) -> None:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1024, before[1]))
    try:
        with pytest.raises(OutputError, match=r"no room for .* bytes") as caught:
            folder.write_table(TABLE, "a")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert caught.value.facts["nbytes"] == TABLE.nbytes
    assert os.listdir(folder.paths[0]) == [".owner"]
    assert folder.nbytes == 0


def test_no_place_at_all_is_said_clearly(tmp_path: Path) -> None:
    with pytest.raises(OutputError, match="TMPDIR"):
        SharedFolder.create("r", base=tmp_path / "missing")


def test_a_segment_is_small_to_send() -> None:
    import pickle

    segment = SharedSegment("/dev/shm/x", 1 << 30)
    assert pickle.loads(pickle.dumps(segment)) == segment
