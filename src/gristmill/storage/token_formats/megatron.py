"""Megatron's indexed data set: `.bin` holds the tokens, `.idx` the length and the byte offset of every sequence.

Layout of the index, little endian: `MMIDIDX`, two zero bytes, version (uint64, 1), code of the token type (uint8),
number of sequences and of document bounds (uint64), then the lengths (int32), the byte offsets (int64) and the bounds
(int64). Every sequence is a separate document.
"""

from __future__ import annotations

import struct

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from gristmill.errors import UsageError
from gristmill.storage.atomic import AtomicFile, WrittenFile
from gristmill.storage.files import StorageOptions
from gristmill.storage.token_formats.shard import Integers, Tokens

INDEX_HEADER = b"MMIDIDX\x00\x00"
DTYPE_CODES = {"uint8": 1, "int8": 2, "int16": 3, "int32": 4, "int64": 5, "uint16": 8}
_VERSION = 1
_LONGEST = 2**31 - 1


def index_bytes(lengths: npt.ArrayLike, dtype: npt.DTypeLike) -> bytes:
    """The `.idx` file for sequences of these lengths.

    Raises:
        UsageError: A sequence is too long for the format.

    Example:
        >>> len(index_bytes([3, 2], "uint16"))
        82
    """
    sizes = np.asarray(lengths, np.int64)
    if len(sizes) and int(sizes.max()) > _LONGEST:
        raise UsageError(
            f"A document has {int(sizes.max()):,} tokens; Megatron's index holds at most {_LONGEST:,} per document. "
            "Split such documents first (DocumentSplitter), or pack to a sequence_length."
        )
    kind = np.dtype(dtype)
    pointers = (np.cumsum(sizes) - sizes) * kind.itemsize
    bounds = np.arange(len(sizes) + 1, dtype="<i8")
    head = INDEX_HEADER + struct.pack("<QBQQ", _VERSION, DTYPE_CODES[kind.name], len(sizes), len(bounds))
    return b"".join([head, sizes.astype("<i4").tobytes(), pointers.astype("<i8").tobytes(), bounds.tobytes()])


class MegatronShard:
    """A `.bin` and an `.idx` under construction.

    Args:
        path: Path of the `.bin`.
        dtype: Type of a token.
        storage_options: File system options for URLs.
    """

    def __init__(self, path: str, dtype: npt.DTypeLike, *, storage_options: StorageOptions = None) -> None:
        self._index_path = path.removesuffix(".bin") + ".idx"
        self._dtype = np.dtype(dtype)
        self._storage_options = storage_options
        self._lengths: list[Integers] = []
        self._file = AtomicFile(path, storage_options=storage_options)

    def append(self, ids: Tokens, lengths: Integers, extra: pa.Table | None) -> None:
        """Add sequences."""
        self._file.write(np.ascontiguousarray(ids, self._dtype))
        self._lengths.append(lengths)

    def close(self, rows: int, bounds: tuple[Integers, Integers]) -> list[WrittenFile]:
        """Finish both files."""
        lengths = np.concatenate(self._lengths) if self._lengths else np.zeros(0, np.int64)
        with AtomicFile(self._index_path, storage_options=self._storage_options) as index:
            index.write(index_bytes(lengths, self._dtype))
        return [self._file.publish(rows=rows), index.publish()]

    def abort(self) -> None:
        """Discard the tokens."""
        self._file.discard()
