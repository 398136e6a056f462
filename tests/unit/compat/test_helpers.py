"""Functions that exist only for old scripts."""

from __future__ import annotations

import json
import os
import socket
import tarfile
from pathlib import Path

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from gristmill.compat import cluster, files, grouping, split_large_files, text_functions
from gristmill.errors import UsageError, WorkerError


def test_files_below_a_folder(tmp_path: Path) -> None:
    for name, size in (("b.jsonl", 3), ("a.JSONL", 5), ("c.txt", 1), ("sub/d.jsonl", 2)):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"x" * size)
    here = str(tmp_path)
    assert files.get_all_file_paths_under(here) == [f"{here}/a.JSONL", f"{here}/b.jsonl", f"{here}/c.txt"]
    below = files.get_all_file_paths_under(here, recurse_subdirectories=True, keep_extensions="jsonl")
    assert below == [f"{here}/a.JSONL", f"{here}/b.jsonl", f"{here}/sub/d.jsonl"]
    assert files.get_all_file_paths_under(f"{here}/b.jsonl") == [f"{here}/b.jsonl"]
    sized = files.get_all_file_paths_and_size_under(here, keep_extensions=[".jsonl"])
    assert sized == [(f"{here}/b.jsonl", 3), (f"{here}/a.JSONL", 5)]
    assert files.filter_files_by_extension(["a.jsonl", "b.txt"], ["jsonl"]) == ["a.jsonl"]


def test_remote_paths_keep_their_protocol() -> None:
    fs = fsspec.filesystem("memory")
    fs.pipe_file("/box/a.jsonl", b"1")
    assert files.get_all_file_paths_under("memory://box") == ["memory:///box/a.jsonl"]
    assert files.is_remote_url("memory://box")
    assert not files.is_remote_url("box")
    path = files.FSPath(fs, "/box/a.jsonl")
    assert (path.get_bytes_cat_ranges(part_size=1), path.as_posix()) == (b"1", "memory:///box/a.jsonl")
    assert files.infer_protocol_from_paths(["a", "memory://b"]) == "memory"
    fs.rm("/box", recursive=True)


def test_folders_are_made_and_emptied(tmp_path: Path) -> None:
    folder = tmp_path / "out"
    files.create_or_overwrite_dir(str(folder))
    (folder / "old").touch()
    assert files.is_not_empty(str(folder))
    files.create_or_overwrite_dir(str(folder))
    assert not files.is_not_empty(str(folder))
    fs = files.get_fs(str(folder))
    with pytest.raises(FileExistsError):
        files.check_output_mode("error", fs, str(folder))
    with pytest.raises(UsageError, match="mutually exclusive"):
        files.delete_dir(str(folder), fs, {})
    with pytest.raises(NotImplementedError):
        files.check_output_mode("append", fs, str(folder))


def test_json_is_written_whole(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    files.write_json_file(str(path), {"b": 1}, files.get_fs(str(path)))
    assert files.read_json_file(str(path), files.get_fs(str(path))) == {"b": 1}
    assert not files.write_json_atomically_if_absent(path, {})
    assert os.listdir(tmp_path) == ["a.json"]


def test_an_archive_cannot_write_elsewhere(tmp_path: Path) -> None:
    (tmp_path / "x").write_text("x")
    with tarfile.open(tmp_path / "bad.tar", "w") as tar:
        tar.add(tmp_path / "x", "../outside")
    with tarfile.open(tmp_path / "bad.tar") as tar, pytest.raises(tarfile.OutsideDestinationError):
        files.tar_safe_extract(tar, str(tmp_path / "to"))


@pytest.mark.parametrize(
    ("call", "result"),
    [
        (lambda: files.get_deterministic_hash(["b", "a"], "s"), files.get_deterministic_hash(["a", "b"], "s")),
        (lambda: len(files.get_deterministic_hash([])), 12),
        (lambda: files.parse_bytes_string_to_int("1kiB"), 1024),
        (lambda: files.resolve_filename_column(True), "file_name"),
        (lambda: files.infer_dataset_name_from_path("/data/Web/x.jsonl"), "web"),
        (lambda: list(grouping.split_into_n_chunks(range(5), 3)), [[0, 1], [2, 3], [4]]),
        (lambda: list(grouping.split_into_n_chunks(range(2), 5)), [[0], [1]]),
        (lambda: list(grouping.split_by_chunk_size(range(3), 2, drop_incomplete_chunk=True)), [[0, 1]]),
        (lambda: list(grouping.pairwise([1, 2, 3])), [(1, 2), (2, 3)]),
        (lambda: text_functions.get_paragraphs("a\n\nb"), ["a", "b"]),
        (lambda: text_functions.get_words("Hi, you  all!"), (["hi", "you", "all"], [0, 3, 8])),
        (lambda: text_functions.is_paragraph_indices_in_top_or_bottom_only([0, 1], 5), True),
        (lambda: text_functions.is_paragraph_indices_in_top_or_bottom_only([1, 2], 5), False),
        (
            lambda: text_functions.get_comments_and_docstring('"""Doc."""\nx = 1  # why\n', clean_comments=True),
            ("Doc.", " why"),
        ),
        (lambda: cluster.merge_executor_configs({"a": {"b": 1}}, {"a": {"c": 2}}), {"a": {"b": 1, "c": 2}}),
        (lambda: cluster.RayStageSpecKeys("is_actor_stage") == "is_actor_stage", True),
    ],
)
def test_small_functions(call: object, result: object) -> None:
    assert call() == result  # type: ignore[operator]


def test_a_port_in_use_is_passed_over() -> None:
    with socket.socket() as taken:
        taken.bind(("localhost", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(WorkerError, match="in use"):
            cluster.get_free_port(port, get_next_free_port=False)
    assert not cluster.check_ray_responsive(timeout_s=0)


@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
def test_large_files_are_split_without_loss(tmp_path: Path, kind: str) -> None:
    rows = [{"n": n, "text": "x" * 300_000} for n in range(12)]
    source, out = tmp_path / f"big.{kind}", tmp_path / "out"
    if kind == "jsonl":
        source.write_text("".join(json.dumps(row) + "\n" for row in rows))
    else:
        pq.write_table(pa.Table.from_pylist(rows), source, row_group_size=8)
    split_large_files.main(
        ["--input-path", str(source), "--file-type", kind, "--output-path", str(out), "--target-size-mb", "1"]
    )
    names = sorted(os.listdir(out), key=lambda name: int(name.split("_")[1].split(".")[0]))
    assert len(names) >= 4
    found: list[int] = []
    for name in names:
        if kind == "jsonl":
            assert (out / name).stat().st_size <= 1 << 20
            found += [json.loads(line)["n"] for line in (out / name).read_text().splitlines()]
        else:
            found += pq.read_table(out / name)["n"].to_pylist()
    assert found == list(range(12))
