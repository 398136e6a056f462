"""What input files are called: the endings of the readable formats and of the compressions that may follow them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

Format = Literal["jsonl", "parquet"]
Codec = Literal["none", "gz", "zst", "bz2", "xz"]

EXTENSIONS: Mapping[Format, tuple[str, ...]] = {"jsonl": (".jsonl", ".json", ".ndjson"), "parquet": (".parquet",)}
READERS: Mapping[Format, str] = {"jsonl": "JsonlReader", "parquet": "ParquetReader"}
FORMAT_NAMES: Mapping[Format, str] = {"jsonl": "JSONL", "parquet": "Parquet"}
CODECS: Mapping[str, Codec] = {
    ".gz": "gz", ".zst": "zst", ".zstd": "zst", ".bz2": "bz2", ".xz": "xz", ".lzma": "xz",
}  # fmt: skip
"""The compression that a suffix stands for."""
COMPRESSED_SUFFIXES = tuple(CODECS)


def codec_of(path: str) -> Codec:
    """The compression that the suffix of `path` stands for."""
    path = path.lower()
    for suffix, codec in CODECS.items():
        if path.endswith(suffix):
            return codec
    return "none"


def has_extension(name: str, extensions: Sequence[str]) -> bool:
    """Whether `name` ends with one of `extensions`, a compressed suffix after it allowed."""
    name = name.lower()
    for suffix in COMPRESSED_SUFFIXES:
        if name.endswith(suffix) and not name.endswith(tuple(extensions)):
            name = name[: -len(suffix)]
            break
    return name.endswith(tuple(extensions))


def format_of(name: str) -> Format | None:
    """The format that a file's name stands for; None where no reader takes such names."""
    return next((kind for kind, endings in EXTENSIONS.items() if has_extension(name, endings)), None)
