"""Small tokenizers, and readers of token files that were written from the documented layouts alone."""

from __future__ import annotations

import itertools
import json
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

TEXTS = [
    "The mill grinds grain into flour, and every grain is accounted for.",
    "Documents become tokens; tokens become sequences.",
    "Zwölf Boxkämpfer jagen Viktor quer über den großen Sylter Deich.",
]
END = "<|endoftext|>"
MEGATRON_TYPES = {1: np.uint8, 2: np.int8, 3: np.int16, 4: np.int32, 5: np.int64, 8: np.uint16}


def make_tokenizer(folder: Path, *, end: str | None = END, settings: dict[str, Any] | None = None) -> Path:
    """A folder with a byte-level BPE tokenizer of about 300 tokens."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    special = ["<pad>", *([] if end is None else [end])]
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=300, special_tokens=special, initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(TEXTS, trainer)
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    if settings is not None:
        (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return folder


def make_large_tokenizer(folder: Path, size: int) -> Path:
    """A folder with a tokenizer that knows `size` words, the last of them `</s>`."""
    words = {f"w{number}": number for number in range(size - 1)} | {"</s>": size - 1}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="w0"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder


def encoded(folder: Path, texts: Sequence[str | None], *, end: bool = True) -> list[list[int]]:
    """What the package tokenizers makes of texts, one by one."""
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tail = [tokenizer.token_to_id(END)] if end else []
    return [tokenizer.encode(text or "", add_special_tokens=False).ids + tail for text in texts]


def read_megatron(prefix: Path) -> list[list[int]]:
    """The documents of Megatron's `.bin` and `.idx`."""
    index = Path(f"{prefix}.idx").read_bytes()
    assert index[:9] == b"MMIDIDX\x00\x00"
    version, code, sequences, bounds = struct.unpack_from("<QBQQ", index, 9)
    assert version == 1
    at = 9 + 25
    lengths = np.frombuffer(index, "<i4", sequences, at)
    pointers = np.frombuffer(index, "<i8", sequences, at + lengths.nbytes)
    documents = np.frombuffer(index, "<i8", bounds, at + lengths.nbytes + pointers.nbytes)
    assert len(index) == at + lengths.nbytes + pointers.nbytes + documents.nbytes
    assert documents.tolist() == list(range(sequences + 1))
    data = Path(f"{prefix}.bin").read_bytes()
    kind = MEGATRON_TYPES[code]
    found = [
        np.frombuffer(data, kind, length, pointer).tolist() for length, pointer in zip(lengths, pointers, strict=True)
    ]
    assert len(data) == int(lengths.sum()) * np.dtype(kind).itemsize
    return found


def read_mds(folder: Path) -> list[list[int]]:
    """The samples of an MDS data set, by its `index.json`."""
    found = []
    for shard in json.loads((folder / "index.json").read_text())["shards"]:
        data = (folder / shard["raw_data"]["basename"]).read_bytes()
        assert len(data) == shard["raw_data"]["bytes"]
        (count,) = struct.unpack_from("<I", data)
        assert count == shard["samples"]
        offsets = struct.unpack_from(f"<{count + 1}I", data, 4)
        config = json.loads(data[4 * (count + 2) : offsets[0]])
        assert all(config[key] == shard[key] for key in config)
        assert config["column_names"] == ["tokens"]
        _, kind, *shape = config["column_encodings"][0].split(":")
        for begin, end in itertools.pairwise(offsets):
            if shape:
                assert config["column_sizes"] == [end - begin]
                values = data[begin:end]
            else:
                (size,) = struct.unpack_from("<I", data, begin)
                assert begin + 4 + size == end
                width = 1 << (data[begin + 4] & 3)
                assert data[begin + 4] >> 2 == 1  # one axis
                values = data[begin + 5 + width : end]
                assert int.from_bytes(data[begin + 5 : begin + 5 + width], "little") * np.dtype(kind).itemsize == len(
                    values
                )
            found.append(np.frombuffer(values, kind).tolist())
        assert offsets[-1] == len(data)
    return found


def read_litdata(folder: Path) -> list[list[int]]:
    """The items of a LitData data set, by its `index.json`."""
    index = json.loads((folder / "index.json").read_text())
    assert index["config"]["item_loader"] == "TokensLoader"
    (stated,) = index["config"]["data_format"]
    kind = {"no_header_tensor:20": "<u2", "no_header_tensor:16": "<i4"}[stated]
    found = []
    for chunk in index["chunks"]:
        data = (folder / chunk["filename"]).read_bytes()
        (count,) = struct.unpack_from("<I", data)
        assert count == chunk["chunk_size"]
        offsets = struct.unpack_from(f"<{count + 1}I", data, 4)
        assert offsets[0] == 4 * (count + 2)
        assert offsets[-1] == len(data)
        items = [np.frombuffer(data[begin:end], kind).tolist() for begin, end in itertools.pairwise(offsets)]
        assert sum(map(len, items)) == chunk["dim"]
        found += items
    return found
