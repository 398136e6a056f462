"""Shards for streaming loaders: MosaicML's MDS and LitData's chunks, both with an `index.json` for the whole output.

Both begin with the number of samples and their offsets (uint32), so a shard is smaller than 4 GB. In an MDS shard, the
configuration follows as JSON; a sample of variable size starts with its size (uint32), then the shape of the array,
then its values. A chunk of LitData holds bare tokens. The layouts are those of mosaicml-streaming 0.13 and litdata 0.2.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from gristmill.errors import UsageError
from gristmill.storage.atomic import WrittenFile
from gristmill.storage.files import StorageOptions
from gristmill.storage.token_formats.shard import Integers, Spool, Tokens

INDEX_NAME = "index.json"
MDS_COLUMN = "tokens"
_LARGEST = 2**32 - 1
LITDATA_CODES = {"uint16": 20, "int32": 16, "int64": 18}
"""LitData's numbers for PyTorch's types."""
_LITDATA_LEAF = json.dumps([1, {"type": None, "context": None, "children_spec": []}])
"""A sample that is one tensor, as LitData describes it."""
LITDATA_DTYPES = tuple(LITDATA_CODES)


class StreamShard:
    """A shard of samples under construction; sequences without tokens are not samples.

    Args:
        path: Path of the file, which ends with `.mds` or `.bin`.
        dtype: Type of a token.
        sequence_length: Length of a sequence, with packing.
        storage_options: File system options for URLs.
    """

    def __init__(
        self, path: str, dtype: npt.DTypeLike, *, sequence_length: int | None, storage_options: StorageOptions = None
    ) -> None:
        self._path = path
        self._dtype = np.dtype(dtype).newbyteorder("<")
        self._storage_options = storage_options
        self._sizes: list[Integers] = []
        self._spool = Spool(path)
        mds = path.endswith(".mds")
        self._config = json.dumps(mds_config(self._dtype, sequence_length), sort_keys=True).encode() if mds else b""
        self._with_shape = mds and sequence_length is None

    def append(self, ids: Tokens, lengths: Integers, extra: pa.Table | None) -> None:
        """Add sequences."""
        tokens, lengths = np.ascontiguousarray(ids, self._dtype), lengths[lengths > 0]
        sizes = lengths * self._dtype.itemsize
        if self._with_shape:
            data = tokens.tobytes()
            ends = np.cumsum(sizes)
            parts: list[Any] = []
            heads = np.empty(len(lengths), np.int64)
            for place, (length, size, end) in enumerate(
                zip(lengths.tolist(), sizes.tolist(), ends.tolist(), strict=True)
            ):
                head = _shape(length)
                parts += (np.uint32(len(head) + size).tobytes(), head, data[end - size : end])
                heads[place] = 4 + len(head)
            self._spool.write(b"".join(parts))
            sizes = sizes + heads
        else:
            self._spool.write(tokens)
        self._sizes.append(sizes)

    def close(self, rows: int, bounds: tuple[Integers, Integers]) -> list[WrittenFile]:
        """Finish the file."""
        sizes = np.concatenate([np.zeros(0, np.int64), *self._sizes])
        begin = 4 * (len(sizes) + 2) + len(self._config)
        if begin + self._spool.size > _LARGEST:
            raise UsageError(
                f"{self._path} would have {begin + self._spool.size:,} bytes; the format holds less than 4 GB per "
                "shard. Set a smaller shard_tokens, or split very long documents first.",
                path=self._path,
            )
        offsets = (begin + np.concatenate([[0], np.cumsum(sizes)])).astype("<u4")
        header = np.uint32(len(sizes)).tobytes() + offsets.tobytes() + self._config
        return [self._spool.publish(header, rows=rows, storage_options=self._storage_options)]

    def abort(self) -> None:
        """Discard the samples."""
        self._spool.discard()


def _shape(length: int) -> bytes:
    """The shape of a one-dimensional array in MDS: number of axes and integer width in one byte, then the length."""
    for code, width in enumerate((1, 2, 4)):
        if length < 1 << 8 * width:
            return bytes([1 << 2 | code]) + length.to_bytes(width, "little")
    return bytes([1 << 2 | 3]) + length.to_bytes(8, "little")


def mds_config(dtype: npt.DTypeLike, sequence_length: int | None) -> dict[str, Any]:
    """The description of samples in an MDS shard: one array of tokens, of fixed length if sequences are packed."""
    kind = np.dtype(dtype)
    encoding = f"ndarray:{kind.name}" + ("" if sequence_length is None else f":{sequence_length}")
    return {
        "column_encodings": [encoding],
        "column_names": [MDS_COLUMN],
        "column_sizes": [None if sequence_length is None else sequence_length * kind.itemsize],
        "compression": None,
        "format": "mds",
        "hashes": [],
        "size_limit": None,
        "version": 2,
    }


def mds_index(shards: Sequence[Mapping[str, Any]], dtype: str, sequence_length: int | None) -> bytes:
    """The `index.json` of MDS shards, with the `file`, `bytes` and `samples` of each."""
    entries = []
    for shard in shards:
        data = {"basename": shard["file"], "bytes": shard["bytes"], "hashes": {}}
        config = mds_config(dtype, sequence_length)
        entries.append({**config, "samples": shard["samples"], "raw_data": data, "zip_data": None})
    return json.dumps({"shards": entries, "version": 2}, sort_keys=True).encode()


def litdata_index(shards: Sequence[Mapping[str, Any]], dtype: str) -> bytes:
    """The `index.json` of LitData chunks for its `TokensLoader`; each has `file`, `bytes`, `samples` and `tokens`."""
    chunks = [
        {
            "chunk_bytes": shard["bytes"],
            "chunk_size": shard["samples"],
            "dim": shard["tokens"],
            "filename": shard["file"],
        }
        for shard in shards
    ]
    config = {
        "chunk_bytes": max((shard["bytes"] for shard in shards), default=0),
        "chunk_size": None,
        "compression": None,
        "data_format": [f"no_header_tensor:{LITDATA_CODES[dtype]}"],
        "data_spec": _LITDATA_LEAF,
        "encryption": None,
        "item_loader": "TokensLoader",
    }
    return json.dumps({"chunks": chunks, "config": config}, sort_keys=True).encode()
