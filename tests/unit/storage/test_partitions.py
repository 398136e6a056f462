"""Partitions: names from paths alone, cuts that tile the files, the same for any listing order."""

from __future__ import annotations

import json
import random
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gristmill.errors import UsageError
from gristmill.storage.files import InputFile
from gristmill.storage.partitions import MAX_ID_CHARS, Partition, make_partitions, partition_stem

MB = 10**6


def file(relative: str, size: int = 10) -> InputFile:
    return InputFile(f"/in/{relative}", relative, size, "1")


def test_neither_size_means_one_per_file_and_large_files_split():
    files = [
        file("small.jsonl"),
        file("sub/large.jsonl", 300 * MB),
        file("large.jsonl.gz", 300 * MB),
        file("empty.jsonl", 0),
    ]
    partitions = make_partitions(files, format="jsonl")
    assert [(part.id, part.ranges[0].start, part.ranges[0].end, part.ranges[0].whole) for part in partitions] == [
        ("empty", 0, 0, True),
        ("large~gz", 0, 300 * MB, True),
        ("small", 0, 10, True),
        ("sub__large.b0000", 0, 128 * MB, False),
        ("sub__large.b0001", 128 * MB, 256 * MB, False),
        ("sub__large.b0002", 256 * MB, 300 * MB, False),
    ]
    assert [part.index for part in partitions] == list(range(6))


@pytest.mark.parametrize(("root", "asked"), [("/in", [32 * MB]), ("s3://in", [])])
def test_web_archives_are_split_finer_unless_each_cut_is_a_request(root, asked):
    sizes = []

    def find_cuts(file, block_bytes):
        sizes.append(block_bytes)
        return [0, 30 * MB, file.size]

    files = [InputFile(f"{root}/a.warc.gz", "a.warc.gz", 60 * MB, "1")]
    partitions = make_partitions(files, format="warc", find_cuts=find_cuts, reading="{}")
    assert sizes == asked
    assert len(partitions) == 1 + len(asked)


def test_files_per_partition_groups_in_path_order():
    partitions = make_partitions([file(f"{n}.jsonl", 10**12) for n in range(5)], format="jsonl", files_per_partition=2)
    assert [[part.relative for part in partition.ranges] for partition in partitions] == [
        ["0.jsonl", "1.jsonl"],
        ["2.jsonl", "3.jsonl"],
        ["4.jsonl"],
    ]
    assert re.fullmatch(r"0\.n2-[0-9a-f]{10}", partitions[0].id)
    assert partitions[2].id == "4"
    assert partitions[0].source_files == ["/in/0.jsonl", "/in/1.jsonl"]


def test_blocksize_packs_and_splits():
    files = [
        file("a.jsonl", 40),
        file("b.jsonl", 50),
        file("c.jsonl", 20),
        file("d.jsonl", 250),
        file("e.jsonl.zst", 500),
        file("f.jsonl", 1),
    ]
    partitions = make_partitions(files, format="jsonl", blocksize=100)
    shape = [[(part.relative, part.start, part.end) for part in partition.ranges] for partition in partitions]
    assert shape == [
        [("a.jsonl", 0, 40), ("b.jsonl", 0, 50)],
        [("c.jsonl", 0, 20)],
        [("d.jsonl", 0, 100)],
        [("d.jsonl", 100, 200)],
        [("d.jsonl", 200, 250)],
        [("e.jsonl.zst", 0, 500)],
        [("f.jsonl", 0, 1)],
    ]


@settings(max_examples=100, deadline=None)
@given(sizes=st.lists(st.integers(0, 300), min_size=1, max_size=12), blocksize=st.integers(1, 400), seed=st.integers())
def test_cuts_tile_the_files_for_any_listing_order(sizes, blocksize, seed):
    files = [file(f"sub{n % 3}/f{n}.jsonl", size) for n, size in enumerate(sizes)]
    partitions = make_partitions(files, format="jsonl", blocksize=blocksize)
    shuffled = list(files)
    random.Random(seed).shuffle(shuffled)
    assert make_partitions(shuffled, format="jsonl", blocksize=blocksize) == partitions
    covered: dict[str, int] = {}
    for partition in partitions:
        assert sum(part.end - part.start for part in partition.ranges) <= blocksize
        for part in partition.ranges:
            assert covered.get(part.relative, 0) == part.start
            covered[part.relative] = part.end
    assert covered == {item.relative: item.size for item in files}
    assert make_partitions(files, format="jsonl", blocksize=blocksize, limit=3) == partitions[:3]


paths = st.lists(
    st.text(
        st.sampled_from("ab_.~-é B0n/") | st.characters(codec="utf-8", exclude_characters="/\0"),
        min_size=1,
        max_size=12,
    ),
    min_size=1,
    max_size=3,
).map("/".join)
endings = st.sampled_from(
    ["", ".jsonl", ".json", ".jsonl.gz", ".gz", ".b0001.jsonl", "~gz.jsonl", ".JSONL", ".parquet"]
)


@settings(max_examples=300, deadline=None)
@given(relatives=st.lists(st.tuples(paths, endings).map("".join), unique=True, max_size=20))
def test_names_are_safe_and_unique(relatives):
    stems = [partition_stem(relative, format="jsonl") for relative in relatives]
    assert len(set(stems)) == len(stems)
    for stem in stems:
        assert re.fullmatch(r"[A-Za-z0-9+,=~._-]+", stem)
        assert stem[0] not in "._-~"
        assert len(stem) < MAX_ID_CHARS - 20


@pytest.mark.parametrize(
    ("relative", "stem"),
    [
        ("corpus-00000.jsonl", "corpus-00000"),
        ("sub/corpus-00000.jsonl", "sub__corpus-00000"),
        ("a/b.c/d.jsonl.zst", "a__b.c__d~zst"),
        ("x.json", "x~json"),
    ],
)
def test_usual_names_are_readable(relative, stem):
    assert partition_stem(relative, format="jsonl") == stem


@pytest.mark.parametrize(
    "relative",
    ["a__b.jsonl", "a.b0001.jsonl", "_a.jsonl", "with space.jsonl", "é.jsonl", "x" * 250 + ".jsonl", "README"],
)
def test_doubtful_names_carry_a_hash(relative):
    assert re.search(r"~[0-9a-f]{12}$", partition_stem(relative, format="jsonl"))


def test_json_round_trip_and_fingerprint():
    (partition,) = make_partitions([file("a.jsonl", 5), file("b.jsonl", 5)], format="jsonl", blocksize=100)
    assert Partition.from_dict(json.loads(json.dumps(partition.to_dict()))) == partition
    moved = [InputFile(f"/elsewhere/{name}.jsonl", f"{name}.jsonl", 5, "1") for name in "ab"]
    assert make_partitions(moved, format="jsonl", blocksize=100)[0].fingerprint() == partition.fingerprint()
    for change in (InputFile("/in/b.jsonl", "b.jsonl", 6, "1"), InputFile("/in/b.jsonl", "b.jsonl", 5, "2")):
        (changed,) = make_partitions([file("a.jsonl", 5), change], format="jsonl", blocksize=100)
        assert changed.id == partition.id
        assert changed.fingerprint() != partition.fingerprint()


@pytest.mark.parametrize(
    "options",
    [
        {"files_per_partition": 1, "blocksize": "1MB"},
        {"files_per_partition": 0},
        {"files_per_partition": 1.5},
        {"blocksize": 0},
        {"blocksize": "lots"},
        {"limit": -1},
        {"format": "xls"},
    ],
)
def test_useless_options_are_refused(options):
    with pytest.raises(UsageError):
        make_partitions([file("a.jsonl")], **{"format": "jsonl", **options})


def test_limit_zero_means_none():
    assert make_partitions([file("a.jsonl")], format="jsonl", limit=0) == []
