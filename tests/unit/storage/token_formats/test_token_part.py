"""Token files of a partition: every token is there once, at the place that the list of places says."""

from __future__ import annotations

import itertools
import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from gristmill.errors import UsageError
from gristmill.storage.atomic import WrittenFile
from gristmill.storage.token_formats import packing
from gristmill.storage.token_formats.megatron import index_bytes
from gristmill.storage.token_formats.packing import PACKS
from gristmill.storage.token_formats.part import EXTENSIONS, ROW, TokenFormat, TokenLayout, TokenPart
from gristmill.storage.token_formats.places import facts_of
from gristmill.storage.token_formats.reading import ShardTokens
from gristmill.storage.token_formats.streams import litdata_index

PAD = 999


def payload(documents: list[list[int]], first: int, dtype: str = "uint16") -> pa.Table:
    offsets = np.cumsum([0, *map(len, documents)])
    values = np.array([token for document in documents for token in document], dtype)
    lists = pa.LargeListArray.from_arrays(pa.array(offsets, pa.int64()), pa.array(values))
    return pa.table({"input_ids": lists, ROW: np.arange(first, first + len(documents))})


def write(folder: Path, documents: list[list[int]], cuts: list[int], layout: TokenLayout) -> list[WrittenFile]:
    """The files of documents that come in batches which end at `cuts`."""
    part = TokenPart(str(folder / f"part{EXTENSIONS[layout.format]}"), layout)
    ends = sorted({*cuts, len(documents)})
    for begin, end in zip([0, *ends[:-1]], ends, strict=True):
        part.append(payload(documents[begin:end], begin, layout.dtype))
    return part.close()


def tokens_by_place(files: list[WrittenFile]) -> dict[int, list[int]]:
    """The tokens of every document, collected from the places that the list says."""
    table = pq.read_table(files[-1].path)
    facts = facts_of(table.schema)
    folder = Path(files[0].path).parent
    shards = [ShardTokens(str(folder / f"part{shard['files'][0]}")) for shard in facts["shards"]]
    assert [shard.tokens for shard in shards] == [shard["tokens"] for shard in facts["shards"]]
    found: dict[int, list[int]] = {}
    for row in table.select(["row", "start", "shard", "offset", "tokens"]).to_pylist():
        own = found.setdefault(row["row"], [])
        assert len(own) == row["start"]
        own += shards[row["shard"]].read(row["offset"], row["tokens"]).tolist()
    return found


def layouts() -> Any:
    formats = st.sampled_from(sorted(set(EXTENSIONS) - {"litdata"}))  # its shards need the index of the whole output
    packs = st.sampled_from([None, *PACKS])
    return st.builds(
        lambda kind, pack, length, shard: TokenLayout(
            kind,
            "uint16",
            pack,
            None if pack is None else length,
            PAD,
            None if shard is None else max(shard, length),
        ),
        formats,
        packs,
        st.integers(1, 9),
        st.none() | st.integers(1, 30),
    )


documents_of = st.lists(st.lists(st.integers(0, 998), max_size=25), min_size=1, max_size=25)


@settings(max_examples=150)
@example([[], [0, 0]], TokenLayout("arrow", "uint16", None, None, PAD, 1), [])
@given(documents_of, layouts(), st.lists(st.integers(1, 24), max_size=4))
def test_every_token_is_where_the_list_says(documents: list[list[int]], layout: TokenLayout, cuts: list[int]) -> None:
    cuts = [cut for cut in cuts if cut < len(documents)]
    with tempfile.TemporaryDirectory() as one, tempfile.TemporaryDirectory() as other:
        files = write(Path(one), documents, [], layout)
        assert tokens_by_place(files) == dict(enumerate(documents))
        assert sum(file.rows for file in files[:-1]) == len(documents)
        facts = facts_of(pq.read_schema(files[-1].path))
        total = sum(map(len, documents))
        assert facts["tokens"] == total + facts["padding"]
        assert sum(shard["tokens"] for shard in facts["shards"]) == facts["tokens"]
        if layout.pack is None:
            assert facts["padding"] == 0
        if layout.shard_tokens is not None:
            longest = max(map(len, documents)) if layout.pack is None else 0
            assert all(shard["tokens"] <= max(layout.shard_tokens, longest) for shard in facts["shards"])
        # However batches come, the files are the same.
        again = write(Path(other), documents, cuts, layout)
        assert [(Path(file.path).name, file.hash, file.rows) for file in files] == [
            (Path(file.path).name, file.hash, file.rows) for file in again
        ]


@given(documents_of, st.integers(1, 9), st.sampled_from(PACKS))
def test_packing_does_what_it_says(documents: list[list[int]], length: int, pack: Any) -> None:
    with tempfile.TemporaryDirectory() as folder:
        files = write(Path(folder), documents, [], TokenLayout("numpy", "uint16", pack, length, PAD))
        rows = np.load(files[0].path)
        bounds = np.load(files[1].path)
        stream = [token for document in documents for token in document]
        assert rows.shape == (rows.size // length, length)
        if pack == "concatenate":
            assert rows.ravel().tolist() == stream + [PAD] * (-len(stream) % length)
            return
        owner = np.full(rows.size, -1)
        table = pq.read_table(files[-1].path)
        for row, offset, tokens in zip(
            *(table.column(name).to_numpy() for name in ("row", "offset", "tokens")), strict=True
        ):
            owner[offset : offset + tokens] = row
        assert (rows.ravel()[owner < 0] == PAD).all()
        cut = [len({*owner[owner >= 0].tolist()} & {number}) for number in range(len(documents))]
        assert cut == [int(bool(document)) for document in documents]
        if pack == "documents":
            assert all(len(set(row.tolist()) - {-1}) <= 1 for row in owner.reshape(-1, length))
        else:  # only what is longer than a sequence is cut
            for number, document in enumerate(documents):
                if 0 < len(document) <= length:
                    assert len(set(np.flatnonzero(owner == number) // length)) == 1
        assert (bounds[:, 1] > bounds[:, 0]).all()
        assert int((bounds[:, 1] - bounds[:, 0]).sum()) == len(stream)


def test_best_fit_packs_window_by_window(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packing, "WINDOW_TOKENS", 64)
    monkeypatch.setattr(packing, "_WINDOW_SEQUENCES", 1)
    numbers = np.random.default_rng(3)
    documents = [numbers.integers(0, 900, size).tolist() for size in [200, 0, *numbers.integers(0, 20, 200)]]
    layout = TokenLayout("numpy", "uint16", "best_fit", 16, PAD)
    files = write(tmp_path / "one", documents, [], layout)
    again = write(tmp_path / "other", documents, [1, 2, 50, 51, 120], layout)
    assert tokens_by_place(files) == dict(enumerate(documents))
    assert [file.hash for file in files] == [file.hash for file in again]
    # Each window leaves some sequences that are not full.
    assert 0 < facts_of(pq.read_schema(files[-1].path))["padding"] < sum(map(len, documents)) * 0.2


def test_numpy_bounds_are_those_of_documents(tmp_path: Path) -> None:
    documents = [[1, 2, 3], [], [4]]
    tokens, bounds, _ = write(tmp_path, documents, [2], TokenLayout("numpy", "uint16"))
    mapped, limits = np.load(tokens.path, mmap_mode="r"), np.load(bounds.path, mmap_mode="r")
    assert [mapped[a:b].tolist() for a, b in itertools.pairwise(limits)] == documents


def test_a_document_longer_than_a_shard_is_not_cut(tmp_path: Path) -> None:
    documents = [[1] * 5, [2] * 50, [3] * 5, [4] * 4]
    files = write(tmp_path, documents, [], TokenLayout("megatron", "uint16", shard_tokens=10))
    assert [(Path(file.path).name, file.size) for file in files if file.path.endswith(".bin")] == [
        ("part.bin", 10),
        ("part~1.bin", 100),
        ("part~2.bin", 18),
    ]
    assert tokens_by_place(files) == dict(enumerate(documents))


def test_litdata_chunks_are_read_back(tmp_path: Path) -> None:
    documents = [[1, 2], [3], [], [4, 5, 6]]
    files = write(tmp_path, documents, [], TokenLayout("litdata", "int32", shard_tokens=3))
    facts = facts_of(pq.read_schema(files[-1].path))
    shards = [
        {"file": Path(file.path).name, "bytes": file.size, **one}
        for file, one in zip(files, facts["shards"], strict=False)
    ]
    (tmp_path / "index.json").write_bytes(litdata_index(shards, "int32"))
    assert tokens_by_place(files) == dict(enumerate(documents))
    assert [chunk["dim"] for chunk in json.loads((tmp_path / "index.json").read_text())["chunks"]] == [3, 3]


def test_megatron_refuses_documents_that_its_index_cannot_hold() -> None:
    with pytest.raises(UsageError, match=r"2,147,483,648 tokens.*DocumentSplitter"):
        index_bytes([5, 2**31], "uint16")


@pytest.mark.parametrize("kind", sorted(EXTENSIONS))
def test_no_documents_make_an_empty_shard(tmp_path: Path, kind: TokenFormat) -> None:
    part = TokenPart(str(tmp_path / f"part{EXTENSIONS[kind]}"), TokenLayout(kind, "int32"))
    files = part.close()
    assert [file.rows for file in files] == [0] * len(files)
    assert pq.read_table(files[-1].path).num_rows == 0
