"""Atomic files: whole or not there, temporaries told apart, a full disk said."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path

import fsspec
import pytest

from gristmill.errors import OutputError, UsageError
from gristmill.storage import atomic
from gristmill.storage.atomic import (
    AtomicFile,
    sweep_temporaries,
    temporary_path,
    write_bytes_atomic,
    write_json_atomic,
)


def test_a_file_appears_at_the_end_and_replaces_the_old(tmp_path):
    path = tmp_path / "new" / "a.txt"
    write_bytes_atomic(path, b"old")
    with AtomicFile(path, fsync=True) as file:
        file.write(b"new ")
        file.write(memoryview(b"text"))
        assert path.read_bytes() == b"old"
    assert path.read_bytes() == b"new text"
    assert [entry.name for entry in path.parent.iterdir()] == ["a.txt"]


def test_an_error_leaves_nothing_behind(tmp_path):
    path = tmp_path / "a.txt"
    path.write_bytes(b"old")
    with pytest.raises(TypeError), AtomicFile(path) as file:
        file.write([b"half" for _ in range(file.write(b"half"))])
    assert path.read_bytes() == b"old"
    assert [entry.name for entry in tmp_path.iterdir()] == ["a.txt"]


def test_json_is_stable(tmp_path):
    write_json_atomic(tmp_path / "a.json", {"b": 1, "a": ["é", None]})
    write_json_atomic(tmp_path / "b.json", {"a": ["é", None], "b": 1})
    text = (tmp_path / "a.json").read_text()
    assert text == (tmp_path / "b.json").read_text()
    assert text.endswith("}\n")
    assert json.loads(text) == {"a": ["é", None], "b": 1}


def test_other_stores_get_the_whole_file_at_once():
    fs = fsspec.filesystem("memory")
    with AtomicFile("memory://atomic/a.txt") as file:
        file.write(b"hello")
        assert not fs.exists("/atomic/a.txt")
    assert fs.cat("/atomic/a.txt") == b"hello"
    with pytest.raises(TypeError), AtomicFile("memory://atomic/a.txt") as file:
        file.write([b"half" for _ in range(file.write(b"half"))])
    assert fs.cat("/atomic/a.txt") == b"hello"


@pytest.mark.parametrize(("code", "words"), [(errno.ENOSPC, "disk is full"), (errno.EDQUOT, "quota is used up")])
def test_a_full_disk_is_said_with_the_space_left(tmp_path, monkeypatch, code, words):
    path = tmp_path / "a.txt"
    file = AtomicFile(path)

    class Full:
        def write(self, data):
            raise OSError(code, "No space left on device")

        def close(self):
            pass

    file._file.close()
    monkeypatch.setattr(file, "_file", Full())
    with pytest.raises(OutputError, match=rf"{words}.*are free there") as caught, file:
        file.write(b"x")
    assert caught.value.errno == code
    assert caught.value.free_bytes > 0
    assert str(path) in str(caught.value)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_the_system_says_a_full_disk_the_same_way():
    with (
        pytest.raises(OutputError, match="disk is full"),
        atomic.output_errors("/dev/full"),
        open("/dev/full", "wb", buffering=0) as full,
    ):
        full.write(b"x")


def test_a_path_below_a_file_is_an_output_error(tmp_path):
    (tmp_path / "a").write_bytes(b"")
    with pytest.raises(OutputError, match="Could not write"):
        AtomicFile(tmp_path / "a" / "b.txt")


def test_temporary_names_are_short_safe_and_never_the_same(tmp_path):
    names = {temporary_path(str(tmp_path / ("é" * 200)), token="run1") for _ in range(10)}
    assert len(names) == 10
    for name in names:
        base = os.path.basename(name)
        assert base.startswith(".tmp-run1-")
        assert len(base.encode()) < 255
        Path(name).write_bytes(b"")
    with pytest.raises(UsageError):
        temporary_path("a", token="not-safe")


def test_only_leftovers_are_swept(tmp_path):
    dead = 4_194_305  # above the largest process id that Linux gives
    mine = Path(temporary_path(str(tmp_path / "mine"), token="live"))
    done = Path(temporary_path(str(tmp_path / "done"), token="done"))
    (tmp_path / "sub").mkdir()
    left = Path(temporary_path(str(tmp_path / "sub" / "left"), token="old").replace(f"-{os.getpid()}-", f"-{dead}-"))
    parent = Path(
        temporary_path(str(tmp_path / "parent"), token="old").replace(f"-{os.getpid()}-", f"-{os.getppid()}-")
    )
    other_host = Path(str(left).replace(atomic._HOST, "00000000"))
    normal = tmp_path / ".tmp-file"
    for path in (mine, done, left, parent, other_host, normal):
        path.write_bytes(b"")
    assert sweep_temporaries(tmp_path, token="done") == sorted([str(done), str(left)])
    assert sweep_temporaries(tmp_path, dead_pids=[os.getppid()]) == [str(parent)]
    assert mine.exists()
    assert other_host.exists()
    assert normal.exists()
