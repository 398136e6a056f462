"""Listing inputs: the same files for every way of naming them, and errors that help when there are none."""

from __future__ import annotations

import os
import pickle
from pathlib import Path

import fsspec
import pytest

from gristmill.errors import InputError, InputNotFoundError, InputPermissionError, UsageError
from gristmill.storage.files import InputFile, LeftOut, list_files, survey

TREE = [
    "b.jsonl",
    "a.jsonl",
    "sub/c.jsonl.gz",
    "sub/deep/d.JSON",
    "sub/x.txt",
    "_gristmill/run.jsonl",
    ".hidden.jsonl",
    "sub/_skip/e.jsonl",
]


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    root = tmp_path / "corpus"
    for name in TREE:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(name.encode())
    return root


def names(files: list[InputFile]) -> list[str]:
    return [file.relative for file in files]


def test_a_folder_is_searched_recursively_and_sorted(tree):
    files = list_files(tree, extensions=[".jsonl", "json"])
    assert names(files) == ["a.jsonl", "b.jsonl", "sub/c.jsonl.gz", "sub/deep/d.JSON"]
    first = files[0]
    assert first == InputFile(str(tree / "a.jsonl"), "a.jsonl", 7, str((tree / "a.jsonl").stat().st_mtime_ns))


def test_a_trailing_slash_a_file_url_and_a_relative_path_change_nothing(tree, monkeypatch):
    expected = list_files(tree, extensions=".jsonl")
    assert list_files(f"{tree}/", extensions=".jsonl") == expected
    assert list_files(f"file://{tree}", extensions=".jsonl") == expected
    monkeypatch.chdir(tree.parent)
    assert list_files("corpus", extensions=".jsonl") == expected
    assert list_files("./corpus/../corpus", extensions=".jsonl") == expected


def test_a_named_file_is_taken_whatever_its_extension(tree):
    assert names(list_files(tree / "sub" / "x.txt", extensions=".jsonl")) == ["x.txt"]
    assert names(list_files(tree / ".hidden.jsonl", extensions=".jsonl")) == [".hidden.jsonl"]


def test_globs(tree):
    assert names(list_files(f"{tree}/*.jsonl", extensions=".jsonl")) == ["a.jsonl", "b.jsonl"]
    assert names(list_files(f"{tree}/**/*.jsonl*", extensions=".jsonl")) == ["a.jsonl", "b.jsonl", "sub/c.jsonl.gz"]
    assert names(list_files(f"{tree}/s*", extensions=".jsonl")) == ["sub/c.jsonl.gz"]
    assert names(list_files(f"{tree}/_grist*/*", extensions=".jsonl")) == ["_gristmill/run.jsonl"]


def test_a_file_whose_name_looks_like_a_glob_is_found(tmp_path):
    (tmp_path / "a[1].jsonl").write_bytes(b"")
    assert names(list_files(tmp_path / "a[1].jsonl", extensions=".jsonl")) == ["a[1].jsonl"]


def test_lists_are_relative_to_their_common_root_without_duplicates(tree):
    files = list_files(
        [tree / "sub" / "deep", tree / "b.jsonl", f"{tree}/*.jsonl", tree / "b.jsonl"], extensions=[".jsonl", ".json"]
    )
    assert names(files) == ["a.jsonl", "b.jsonl", "sub/deep/d.JSON"]
    assert names(list_files([tree / "b.jsonl"], extensions=".jsonl")) == ["b.jsonl"]
    other = tree.parent / "other"
    other.mkdir()
    (other / "b.jsonl").write_bytes(b"")
    assert names(list_files([tree / "b.jsonl", other], extensions=".jsonl")) == ["corpus/b.jsonl", "other/b.jsonl"]


def test_links_are_followed_and_loops_end(tree):
    (tree / "sub" / "back").symlink_to(tree)
    (tree / "link").symlink_to(tree / "sub" / "deep")
    found = names(list_files(tree, extensions=".json"))
    assert found == ["link/d.JSON", "sub/deep/d.JSON"]


@pytest.mark.parametrize(
    ("path", "parts"),
    [
        ("corpas", ["corpas", "Did you mean", "corpus"]),
        ("corpus/a.json", ["a.json", "a.jsonl"]),
        ("corpus/zzz/q.jsonl", ["zzz", "holds"]),
        ("corpus/*.parquet", ["pattern", "*.parquet"]),
        ("empty", ["empty", ".jsonl"]),
        ("texts", ["2 × .txt", "1 × .csv", "Read those with TextReader"]),
    ],
)
def test_nothing_found_says_what_is_there(tree, path, parts):
    (tree.parent / "empty").mkdir()
    for name in ("a.txt", "b.txt", "c.csv"):
        (tree.parent / "texts").mkdir(exist_ok=True)
        (tree.parent / "texts" / name).touch()
    with pytest.raises(InputNotFoundError) as caught:
        list_files(str(tree.parent / path), extensions=".jsonl")
    for part in parts:
        assert part in str(caught.value)
    assert isinstance(caught.value, FileNotFoundError)
    copy = pickle.loads(pickle.dumps(caught.value))
    assert str(copy) == str(caught.value)


@pytest.mark.parametrize(
    ("name", "wanted", "fix"),
    [
        ("a.parquet", [".jsonl", ".json", ".ndjson"], "1 × .parquet.* Read those with ParquetReader, or point"),
        ("a.JSONL.gz", [".parquet"], "1 × .jsonl.* Read those with JsonlReader, or point"),
        ("a.csv.zst", [".jsonl"], "1 × .csv.* Read those with CsvReader, or point"),
        ("a.rec.zst", [".jsonl"], r"file_extensions=\['.rec'\]"),
        ("_a.jsonl.gz", [".jsonl"], "1 × .jsonl .* Rename them"),
    ],
)
def test_files_of_another_format_are_left_to_its_reader(tmp_path, name, wanted, fix):
    (tmp_path / name).touch()
    with pytest.raises(InputNotFoundError, match=fix):
        list_files(tmp_path, extensions=wanted)


@pytest.mark.parametrize(
    ("name", "content", "fix"),
    [
        (
            "a.tab",
            b"id,text\n1,one\n2,two\n",
            r"a\.tab cannot be read as JSONL: it is CSV\. Rename it to end with \.csv",
        ),
        ("a.log", b'{"text": "one"}\n', r"Pass file_extensions=\['\.log'\] to JsonlReader, or"),
        ("a.pq", b"PAR1....PAR1", r"Pass file_extensions=\['\.pq'\] to ParquetReader, or"),
        ("a.dat", b"\x93\x01", r"If they hold records, pass file_extensions=\['\.dat'\], or"),
    ],
)
def test_the_advice_fits_what_the_files_hold(tmp_path, name, content, fix):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(InputNotFoundError, match=fix):
        list_files(tmp_path, extensions=".jsonl")


def test_one_missing_path_of_a_list_is_an_error(tree):
    with pytest.raises(InputNotFoundError, match=r"nope\.jsonl"):
        list_files([tree, tree / "nope.jsonl"], extensions=".jsonl")


def test_useless_arguments_are_refused(tree):
    for arguments in ({"file_paths": []}, {"file_paths": [""]}, {"file_paths": tree, "extensions": []}):
        with pytest.raises(UsageError):
            list_files(**{"extensions": ".jsonl", **arguments})
    with pytest.raises(UsageError, match="nosuchscheme"):
        list_files("nosuchscheme://x/y", extensions=".jsonl")


def test_pipes_and_dangling_links_are_said(tree):
    os.mkfifo(tree / "pipe.jsonl")
    with pytest.raises(InputError, match="not a regular file"):
        list_files(tree, extensions=".jsonl")
    (tree / "pipe.jsonl").unlink()
    (tree / "gone.jsonl").symlink_to(tree / "nowhere")
    with pytest.raises(InputNotFoundError, match="link to a file that does not exist"):
        list_files(tree, extensions=".jsonl")


def test_unreadable_files_are_said(tree, monkeypatch):
    # Root may read everything, so the answer of the system is played here.
    monkeypatch.setattr(os, "access", lambda path, mode: not str(path).endswith("a.jsonl"))
    with pytest.raises(InputPermissionError, match=r"a\.jsonl.*is not readable") as caught:
        list_files(tree, extensions=".jsonl")
    assert isinstance(caught.value, PermissionError)


def test_other_stores():
    fs = fsspec.filesystem("memory")
    for name in TREE:
        fs.pipe(f"/listing/{name}", name.encode())
    files = list_files("memory://listing", extensions=[".jsonl", ".json"])
    assert names(files) == ["a.jsonl", "b.jsonl", "sub/c.jsonl.gz", "sub/deep/d.JSON"]
    assert files[0].path == "memory:///listing/a.jsonl" or files[0].path == "memory://listing/a.jsonl"
    assert files[0].size == 7
    assert names(list_files("memory://listing/*.jsonl", extensions=".jsonl")) == ["a.jsonl", "b.jsonl"]
    assert names(list_files("memory://listing/sub/x.txt", extensions=".jsonl")) == ["x.txt"]
    with pytest.raises(InputNotFoundError, match="Did you mean"):
        list_files("memory://listing/c.jsonl", extensions=".jsonl")
    before = files[0].stamp
    fs.pipe("/listing/a.jsonl", b"changed")
    assert list_files("memory://listing", extensions=".jsonl")[0].stamp != before


def test_stores_can_be_mixed(tree):
    fsspec.filesystem("memory").pipe("/mixed/a.jsonl", b"1\n")
    files = list_files([tree / "a.jsonl", "memory://mixed"], extensions=".jsonl")
    assert len({file.relative for file in files}) == 2
    assert files[1].relative == "memory/mixed/a.jsonl"


def reasons(left_out: list[LeftOut]) -> dict[str, str]:
    return {item.relative: item.reason for item in left_out}


@pytest.fixture
def mixed(tree: Path) -> Path:
    for name in (
        "sub/t.parquet",
        "out.gristmill/ledger/a.parquet",
        "out.gristmill/run.json",
        "z.ndjson.xz",
        "y.json.zstd",
    ):
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        (tree / name).write_bytes(name.encode())
    (tree / "nothing.jsonl").touch()
    return tree


LEFT_OUT = {
    ".hidden.jsonl": "hidden",
    "_gristmill/": "record",
    "nothing.jsonl": "empty",
    "out.gristmill/": "record",
    "sub/_skip/": "hidden",
}


def test_every_file_is_taken_or_left_out_with_a_reason(mixed):
    found = survey(mixed)
    assert reasons(found.left_out) == LEFT_OUT
    by_format = {kind: names(files) for kind, files in found.formats().items()}
    jsonl = ["a.jsonl", "b.jsonl", "nothing.jsonl", "sub/c.jsonl.gz", "sub/deep/d.JSON", "y.json.zstd", "z.ndjson.xz"]
    assert by_format == {"jsonl": jsonl, "parquet": ["sub/t.parquet"], "text": ["sub/x.txt"]}
    everything = sum(len(files) for _, _, files in os.walk(mixed))
    assert sum(item.files for item in found.left_out) + len(found.files) - 1 == everything  # the empty one is in both
    only = survey(mixed, extensions=".jsonl")
    assert reasons(only.left_out)["sub/t.parquet"] == reasons(only.left_out)["sub/x.txt"] == "extension"
    assert only.files == list_files(mixed, extensions=".jsonl")


def test_other_stores_account_for_every_file_too(mixed):
    fs = fsspec.filesystem("memory")
    for folder, _, files in os.walk(mixed):
        for name in files:
            path = Path(folder, name)
            fs.pipe(f"/surveyed/{path.relative_to(mixed)}", path.read_bytes())
    for pattern in ("", "/sub/*"):
        here, there = survey(f"{mixed}{pattern}"), survey(f"memory://surveyed{pattern}")
        assert names(there.files) == names(here.files)
        assert [(item.relative, item.reason, item.files) for item in there.left_out] == [
            (item.relative, item.reason, item.files) for item in here.left_out
        ]


def test_a_pattern_accounts_for_what_it_matches(mixed):
    assert reasons(survey(f"{mixed}/sub/*").left_out) == {"_skip/": "hidden"}
    assert reasons(survey(f"{mixed}/*").left_out) == {
        name: reason
        for name, reason in LEFT_OUT.items()
        if name[0] != "."  # which '*' does not match
    }
    assert reasons(survey(f"{mixed}/**/*.txt", extensions=".txt").left_out) == {}
    assert names(survey(f"{mixed}/*.gristmill/*.json").files) == ["out.gristmill/run.json"]
    for pattern in ("o*", "o*/*"):
        with pytest.raises(InputNotFoundError):
            survey(f"{mixed}/{pattern}")


def test_a_file_that_one_path_names_and_another_skips_is_taken(mixed):
    found = survey([mixed, mixed / ".hidden.jsonl", mixed / "sub" / "x.txt"])
    assert {".hidden.jsonl", "sub/x.txt"} <= set(names(found.files))
    assert {".hidden.jsonl", "sub/x.txt"}.isdisjoint(reasons(found.left_out))
