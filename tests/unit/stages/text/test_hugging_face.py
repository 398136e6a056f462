"""Hugging Face data sets, made by `datasets` itself: saved to disk, as folders with a card, and from a hub."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from fsspec.implementations.dirfs import DirFileSystem

from gristmill.errors import InputError, InputNotFoundError, UsageError
from gristmill.ledger.prove.verify import verify
from gristmill.pipeline import Pipeline
from gristmill.stages.text.io import DocumentReader, HuggingFaceReader, JsonlWriter
from tests.unit.pipeline.jobs import here, read_rows

datasets = pytest.importorskip("datasets")


def rows(count: int, name: str) -> list[dict[str, Any]]:
    return [{"id": f"{name}-{n}", "text": f"text {n}", "score": n / 2} for n in range(count)]


def read(folder: Path, reader: Any) -> list[dict[str, Any]]:
    out = folder / f"out{len(list(folder.glob('out*')))}"
    Pipeline("job", stages=[reader, JsonlWriter(str(out))]).run(executor=here())
    assert verify(str(out)).ok
    return read_rows(out)


def test_a_data_set_that_was_saved_to_disk(tmp_path: Path) -> None:
    saved = tmp_path / "saved"
    made = datasets.Dataset.from_list(rows(30, "a"))
    made.save_to_disk(str(saved), num_shards=3)
    assert len(list(saved.glob("*.arrow"))) == 3
    assert read(tmp_path, HuggingFaceReader(saved)) == rows(30, "a")
    assert read(tmp_path, HuggingFaceReader(saved, columns=["text"], max_documents=2)) == [
        {"text": "text 0"},
        {"text": "text 1"},
    ]
    assert read(tmp_path, DocumentReader(saved)) == rows(30, "a")
    shuffled = made.shuffle(seed=1).select(range(10))
    shuffled.save_to_disk(str(tmp_path / "shuffled"))
    assert read(tmp_path, HuggingFaceReader(tmp_path / "shuffled")) == shuffled.to_list()


def test_splits_of_a_saved_data_set(tmp_path: Path) -> None:
    saved = tmp_path / "saved"
    some = {"train": datasets.Dataset.from_list(rows(5, "train")), "test": datasets.Dataset.from_list(rows(2, "test"))}
    datasets.DatasetDict(some).save_to_disk(str(saved))
    assert read(tmp_path, HuggingFaceReader(saved, split="test")) == rows(2, "test")
    assert len(read(tmp_path, HuggingFaceReader(saved))) == len(read(tmp_path, DocumentReader(saved))) == 7
    with pytest.raises(UsageError, match=r"no split 'trian'; its splits are 'train', 'test'\. Did you mean 'train'\?"):
        read(tmp_path, HuggingFaceReader(saved, split="trian"))


def test_a_state_that_names_files_elsewhere_is_refused(tmp_path: Path) -> None:
    saved = tmp_path / "saved"
    datasets.Dataset.from_list(rows(3, "a")).save_to_disk(str(saved))
    state = json.loads((saved / "state.json").read_text())
    state["_data_files"] = [{"filename": "../../etc/passwd"}]
    (saved / "state.json").write_text(json.dumps(state))
    with pytest.raises(InputError, match="refers to data files outside its folder"):
        read(tmp_path, HuggingFaceReader(saved))


def parquet_folder(folder: Path, card: str | None) -> Path:
    (folder / "data").mkdir(parents=True)
    for split, count in (("train", 4), ("test", 2)):
        pq.write_table(pa.Table.from_pylist(rows(count, split)), folder / "data" / f"{split}-00000-of-00001.parquet")
    if card is not None:
        (folder / "README.md").write_text(card)
    return folder


def test_folders_with_and_without_a_card(tmp_path: Path) -> None:
    plain = parquet_folder(tmp_path / "plain", None)
    assert len(read(tmp_path, HuggingFaceReader(plain))) == 6
    assert read(tmp_path, HuggingFaceReader(plain, split="test")) == rows(2, "test")
    with pytest.raises(UsageError, match="no split 'dev'"):
        read(tmp_path, HuggingFaceReader(plain, split="dev"))
    card = (
        "---\nconfigs:\n- config_name: en\n  data_files:\n  - split: whole\n    path: data/tr*\n"
        "- config_name: de\n  data_files: data/te*\n---\n# Data\n"
    )
    told = parquet_folder(tmp_path / "told", card)
    assert read(tmp_path, HuggingFaceReader(told, "en", split="whole")) == rows(4, "train")
    assert read(tmp_path, HuggingFaceReader(told, "de")) == rows(2, "test")
    for wrong in (None, "fr"):
        with pytest.raises(InputError, match="has the configurations 'en', 'de'"):
            read(tmp_path, HuggingFaceReader(told, wrong))
    # The library itself reads it so.
    theirs = datasets.load_dataset(str(told), "en", split="whole", cache_dir=str(tmp_path / "cache"))
    assert theirs.to_list() == rows(4, "train")


class Hub(DirFileSystem):
    """A hub that lies in a folder."""

    protocol = "hf"


def test_a_data_set_of_the_hub_is_read_by_its_parquet_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hub = parquet_folder(tmp_path / "hub" / "datasets" / "org" / "set@~parquet" / "default" / "x", None).parent
    for split in ("train", "test"):
        (hub / "x" / "data" / f"{split}-00000-of-00001.parquet").rename(
            (hub / split).mkdir() or hub / split / "0000.parquet"
        )
    monkeypatch.setitem(sys.modules["fsspec.registry"]._registry, "hf", Hub)
    given = {"path": str(tmp_path / "hub"), "fs": fsspec.filesystem("file")}
    assert read(tmp_path, HuggingFaceReader("org/set", split="test", storage_options=given)) == rows(2, "test")
    assert len(read(tmp_path, HuggingFaceReader("hf://datasets/org/set", storage_options=given))) == 6
    with pytest.raises(InputNotFoundError, match="names such as 'allenai/c4'"):
        read(tmp_path, HuggingFaceReader("no/such/folder"))
