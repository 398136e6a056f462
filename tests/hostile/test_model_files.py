"""Model files that lie about their own sizes: refused with the file's name, never a crash and never all the memory."""

from __future__ import annotations

import io
import json
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from gristmill.kernels.text_column import text_column
from gristmill.stages.text.classifiers.linear import LinearModel
from gristmill.stages.text.filters import fasttext_model
from gristmill.stages.text.models.loading import load_tensors
from gristmill.stages.text.models.sources import weight_files
from tests.hostile.attempt import FULL, Outcome, attempt
from tests.unit.stages.text.filters.test_fasttext import write_model

TEXTS = ["the good word of 漢字 été", "", "x" * 3000, "</s> __label__hq a", "bad bad bad " * 50]
GIB = 1 << 30


@pytest.fixture(scope="module", autouse=True)
def _compiled(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Kernels are compiled before the memory of a child is limited."""
    use_fasttext(Path(write_model(tmp_path_factory.mktemp("m") / "warm.bin", word_ngrams=2)))
    linear(tmp_path_factory.mktemp("l")).probabilities(TEXTS)


def use_fasttext(path: Path) -> int:
    model = fasttext_model.load(path)
    column = text_column(TEXTS)
    alive = np.ones(len(TEXTS), bool)
    found = model.predict(column, starts=column.offsets[:-1], ends=column.offsets[1:], alive=alive)
    return len(found.labels)


def linear(folder: Path, **changes: Any) -> LinearModel:
    values = {"buckets": np.array([3, 9, 700]), "weights": np.ones((3, 2)), "rarity": np.ones(3), "bias": np.zeros(2)}
    facts = {"format": 2, "labels": ["a", "b"], "bits": 10}
    arrays = {key: changes.get(key, value) for key, value in values.items()}
    facts |= {key: value for key, value in changes.items() if key not in values}
    np.savez_compressed(folder / "linear.npz", **{k: np.asarray(v) for k, v in arrays.items()})
    (folder / "linear.json").write_text(json.dumps(facts))
    return LinearModel.load(folder)


def held(outcome: Outcome) -> bool:
    return outcome.kind in ("done", "refused")


# Where the numbers of a fastText file stand: 8 bytes of magic and version, 12 settings, a float, then the sizes.
SETTINGS = [
    "dim",
    "ws",
    "epoch",
    "minCount",
    "neg",
    "wordNgrams",
    "loss",
    "model",
    "bucket",
    "minn",
    "maxn",
    "lrUpdate",
]
FIELDS = {name: (8 + 4 * at, "<i") for at, name in enumerate(SETTINGS)}
FIELDS |= {"entries": (64, "<i"), "words": (68, "<i"), "labels": (72, "<i"), "tokens": (76, "<q"), "pruned": (84, "<q")}
VALUES = [-1, 0, 1, 2, 3, 5, 17, 255, 500, 10**6, 2**31 - 1, -(2**31)]


@pytest.mark.parametrize("shape", [{}, {"loss": 1, "word_ngrams": 3}], ids=["softmax", "tree"])
def test_no_number_of_a_fasttext_file_is_trusted(
    tmp_path: Path, shape: dict[str, Any], record_property: Callable[[str, object], None]
) -> None:
    """Every number in the header of a fastText model replaced: rejected by name, or used within its bounds."""
    good = Path(write_model(tmp_path / "good.bin", bucket=50, **shape)).read_bytes()
    matrices = [good.index(struct.pack("<qq", 59, 8)), good.rindex(struct.pack("<qq", 3, 8))]
    fields = {**FIELDS, **{f"{side} of matrix {n}": (at + 8 * k, "<q")
              for n, at in enumerate(matrices) for k, side in enumerate(("rows", "columns"))}}  # fmt: skip
    lies, refused, tried = tmp_path / "lies.bin", 0, 0
    for field, (at, layout) in fields.items():
        for value in [*VALUES, 2**40, 2**62] if layout == "<q" else VALUES:
            lies.write_bytes(good[:at] + struct.pack(layout, value) + good[at + struct.calcsize(layout) :])
            outcome = attempt(lambda: use_fasttext(lies), memory=2 * GIB)
            tried += 1
            assert held(outcome), (field, value, outcome)
            if outcome.kind == "refused":
                assert "lies.bin" in outcome.detail
                refused += 1
    assert refused > 60
    record_property("tried", tried)


def test_no_byte_of_a_quantised_model_is_trusted(
    tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    """The shipped language model with bytes overwritten: rejected by name, or used within its bounds."""
    good = fasttext_model.default_model_path().read_bytes()
    rng = np.random.default_rng(0)
    lies = tmp_path / "lies.ftz"
    # The sizes stand in the first bytes, before and after the dictionary, and between the matrices.
    after = good.index(b"__label__")
    places = np.concatenate([rng.integers(8, 92, 20), rng.integers(0, len(good), 40), np.arange(after, after + 5)])
    tail = good[-50_000:]
    for at in [*places.tolist(), *(len(good) - 50_000 + tail.index(struct.pack("<i", 16)) + k for k in range(8))]:
        for change in (b"\xff\xff\xff\x7f", b"\x00\x00\x00\x80", b"\x00\x00\x00\x00")[: 3 if FULL else 1]:
            lies.write_bytes(good[:at] + change + good[at + 4 :])
            outcome = attempt(lambda: use_fasttext(lies), memory=12 * GIB)
            assert held(outcome), (at, change, outcome)
            record_property("tried", 1)


def test_a_fasttext_file_may_end_anywhere(tmp_path: Path, record_property: Callable[[str, object], None]) -> None:
    """A fastText model truncated at every length: rejected by name."""
    good = Path(write_model(tmp_path / "good.bin", bucket=5)).read_bytes()
    short = tmp_path / "short.bin"
    for end in range(0, len(good) - 1, 1 if FULL else 7):
        short.write_bytes(good[:end])
        outcome = attempt(lambda: use_fasttext(short))
        assert outcome.kind == "refused", (end, outcome)
        record_property("tried", 1)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"bits": 64}, "bits"),
        ({"bits": -1}, "bits"),
        ({"bits": 1e9}, "bits"),
        ({"bits": True}, "bits"),
        ({"labels": []}, "labels"),
        ({"labels": "ab"}, "labels"),
        ({"labels": [1, 2]}, "labels"),
        ({"labels": ["a", "b", "c"]}, "labels"),
        ({"format": 1}, "format"),
        ({"buckets": np.array([3, 9, 5000])}, "buckets"),
        ({"buckets": np.array([-3, 9, 700])}, "buckets"),
        ({"buckets": np.array([9, 9, 9])}, "buckets"),
        ({"buckets": np.array([3.5, 9, 10])}, "arrays"),
        ({"buckets": np.array([2**63], np.uint64)}, "shapes"),
        ({"buckets": np.array([[3], [4], [5]])}, "shapes"),
        ({"weights": np.ones((2, 3))}, "shapes"),
        ({"weights": np.ones((3, 2), "S8")}, "arrays"),
        ({"rarity": np.ones(2)}, "shapes"),
        ({"bias": np.array(1.0)}, "shapes"),
    ],
    ids=repr,
)
def test_linear_classifiers_that_contradict_themselves_are_refused(
    tmp_path: Path, changes: dict[str, Any], says: str
) -> None:
    """A linear classifier whose parts contradict each other: rejected, naming the file and the field."""
    outcome = attempt(lambda: linear(tmp_path, **changes).probabilities(TEXTS).shape, memory=2 * GIB)
    assert outcome.kind == "refused", outcome
    assert str(tmp_path) in outcome.detail
    assert says in outcome.detail


def test_a_header_that_asks_for_terabytes_is_refused(tmp_path: Path) -> None:
    """A linear classifier of one kilobyte that claims 8 TiB of weights: rejected before any of it is allocated."""
    linear(tmp_path)
    with zipfile.ZipFile(tmp_path / "linear.npz") as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, {"descr": "<f8", "fortran_order": False, "shape": (2**40, 1)})
    members["weights.npy"] = header.getvalue()
    with zipfile.ZipFile(tmp_path / "linear.npz", "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    outcome = attempt(lambda: LinearModel.load(tmp_path), memory=2 * GIB)
    assert outcome.kind == "refused", outcome
    assert "weights claims 8,796,093,022,208 bytes" in outcome.detail


@pytest.mark.parametrize("name", ["linear.npz", "linear.json"])
def test_no_byte_of_a_linear_classifier_is_trusted(
    tmp_path: Path, name: str, record_property: Callable[[str, object], None]
) -> None:
    """A linear classifier with random bytes replaced: rejected by name, or used within its bounds."""
    linear(tmp_path)
    good = (tmp_path / name).read_bytes()
    rng = np.random.default_rng(1)
    for _ in range(400 if FULL else 40):
        at = int(rng.integers(0, len(good)))
        (tmp_path / name).write_bytes(good[:at] + rng.bytes(int(rng.integers(0, 5))) + good[at + 1 :])
        outcome = attempt(lambda: LinearModel.load(tmp_path).probabilities(TEXTS).shape, memory=2 * GIB)
        assert held(outcome), (at, outcome)
        record_property("tried", 1)
    (tmp_path / name).write_bytes(b"[" * 100_000)
    assert attempt(lambda: LinearModel.load(tmp_path)).kind == "refused"


# --- safetensors ---


def safetensors(header: Any, data: bytes = b"\0" * 16, *, length: int | None = None) -> bytes:
    """A file with this header (bytes as they are, all else as JSON) and this length of it."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + data


def tensor(shape: Any = (4,), offsets: Any = (0, 16), dtype: Any = "F32") -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": offsets}


LIES: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "header"),
    "short": (b"\x08\0\0", "header"),
    "header beyond the file": (safetensors({"a": tensor()}, length=10**6), "header"),
    "header of 2**64 - 1": (safetensors({"a": tensor()}, length=2**64 - 1), "header"),
    "header cut": (safetensors({"a": tensor()}, length=5), "header"),
    "no JSON": (safetensors(b"\xff" * 40), "header"),
    "deep JSON": (safetensors(b"[" * 200_000), "header"),
    "deep tensor": (safetensors(b'{"a":' * 100_000), "header"),
    "a list": (safetensors([1, 2]), "header"),
    "a number for a tensor": (safetensors({"a": 7}), "'a'"),
    "data beyond the file": (safetensors({"a": tensor((2**30,), (0, 2**32))}), "data_offsets"),
    "data of 2**60 bytes": (safetensors({"a": tensor((2**58,), (0, 2**60))}), "data_offsets"),
    "data before the file": (safetensors({"a": tensor(offsets=(-16, 0))}), "data_offsets"),
    "data backwards": (safetensors({"a": tensor(offsets=(16, 0))}), "data_offsets"),
    "overlap": (safetensors({"a": tensor(), "b": tensor((2,), (8, 16))}), "data_offsets"),
    "the same data twice": (safetensors({"a": tensor(), "b": tensor()}), "data_offsets"),
    "gap": (safetensors({"a": tensor((2,), (8, 16))}), "data_offsets"),
    "data behind": (safetensors({"a": tensor()}, b"\0" * 99), "data_offsets"),
    "three offsets": (safetensors({"a": tensor(offsets=(0, 8, 16))}), "data_offsets"),
    "offsets as text": (safetensors({"a": tensor(offsets=("0", "16"))}), "data_offsets"),
    "no offsets": (safetensors({"a": {"dtype": "F32", "shape": [4]}}), "data_offsets"),
    "shape of 2**60": (safetensors({"a": tensor((2**60,))}), "shape"),
    "shape that wraps around": (safetensors({"a": tensor((2**32, 2**32, 4))}), "shape"),
    "shape beyond 64 bits": (safetensors({"a": tensor((2**70,))}), "shape"),
    "negative shape": (safetensors({"a": tensor((-4,))}), "shape"),
    "two negative sides": (safetensors({"a": tensor((-2, -2))}), "shape"),
    "true as a side": (safetensors({"a": tensor((True, 4))}), "shape"),
    "a fraction as a side": (safetensors({"a": tensor((4.0,))}), "shape"),
    "no shape": (safetensors({"a": tensor(None)}), "shape"),
    "other dtype": (safetensors({"a": tensor(dtype="F64")}), "dtype"),
    "unknown dtype": (safetensors({"a": tensor(dtype="PICKLE")}), "dtype"),
    "a number as dtype": (safetensors({"a": tensor(dtype=4)}), "dtype"),
}


@pytest.mark.parametrize("lie", LIES)
def test_safetensors_that_contradict_themselves_are_refused(tmp_path: Path, lie: str, record_property: Any) -> None:
    """A safetensors header with false lengths, offsets, shapes or types: rejected with file and field."""
    content, says = LIES[lie]
    (tmp_path / "model.safetensors").write_bytes(content)
    for load in (weight_files, load_tensors):
        outcome = attempt(lambda: load(tmp_path), memory=2 * GIB)  # noqa: B023
        assert outcome.kind == "refused", outcome
        assert "ModelLoadError" in outcome.detail
        assert str(tmp_path / "model.safetensors") in outcome.detail
        assert says in outcome.detail
    record_property("tried", 2)


def test_no_byte_of_a_safetensors_header_is_trusted(tmp_path: Path, record_property: Any) -> None:
    """A safetensors header with bytes overwritten: rejected, or loaded as it says; no crash."""
    save_file({"a": torch.ones(3, 4), "b": torch.zeros(2, dtype=torch.int8)}, tmp_path / "model.safetensors")
    path = tmp_path / "model.safetensors"
    good = path.read_bytes()
    assert set(load_tensors(tmp_path)) == {"a", "b"}
    rng = np.random.default_rng(2)
    rounds = 400 if FULL else 30
    for _ in range(rounds):
        at = int(rng.integers(0, len(good) - 40))
        path.write_bytes(good[:at] + rng.bytes(int(rng.integers(0, 4))) + good[at + 1 :])
        outcome = attempt(lambda: len(load_tensors(tmp_path)), memory=2 * GIB)
        assert held(outcome), (at, outcome)
    record_property("tried", rounds)
