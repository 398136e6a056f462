"""NumPy: `.npy` holds the tokens, `.bounds.npy` the starts and ends of documents; both can be memory-mapped."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from gristmill.storage.atomic import AtomicFile, WrittenFile
from gristmill.storage.files import StorageOptions
from gristmill.storage.token_formats.shard import Integers, Spool, Tokens


class NumpyShard:
    """An array of tokens with the bounds of documents.

    Without packing, the tokens are one row of numbers, and document `i` is `tokens[bounds[i]:bounds[i + 1]]`. With
    packing there is one row per sequence, and the bounds have a pair of positions in `tokens.ravel()` for each run of
    a document.

    Args:
        path: Path of the `.npy`.
        dtype: Type of a token.
        sequence_length: Length of a sequence, with packing.
        storage_options: File system options for URLs.
    """

    def __init__(
        self, path: str, dtype: npt.DTypeLike, *, sequence_length: int | None, storage_options: StorageOptions = None
    ) -> None:
        self._bounds_path = path.removesuffix(".npy") + ".bounds.npy"
        self._dtype = np.dtype(dtype).newbyteorder("<")
        self._sequence_length = sequence_length
        self._storage_options = storage_options
        self._spool = Spool(path)

    def append(self, ids: Tokens, lengths: Integers, extra: pa.Table | None) -> None:
        """Add sequences."""
        self._spool.write(np.ascontiguousarray(ids, self._dtype))

    def close(self, rows: int, bounds: tuple[Integers, Integers]) -> list[WrittenFile]:
        """Finish both files."""
        count = self._spool.size // self._dtype.itemsize
        starts, ends = bounds
        if self._sequence_length is None:
            shape: tuple[int, ...] = (count,)
            limits = np.concatenate([[0], ends]).astype("<i8")
        else:
            shape = (count // self._sequence_length, self._sequence_length)
            limits = np.stack([starts, ends], axis=1).astype("<i8")[ends > starts]
        with AtomicFile(self._bounds_path, storage_options=self._storage_options) as file:
            file.write(npy_header(limits.dtype, limits.shape))
            file.write(limits.tobytes())
        header = npy_header(self._dtype, shape)
        tokens = self._spool.publish(header, rows=rows, storage_options=self._storage_options)
        return [tokens, file.publish()]

    def abort(self) -> None:
        """Discard the tokens."""
        self._spool.discard()


def npy_header(dtype: np.dtype[Any], shape: tuple[int, ...]) -> bytes:
    """The start of an `.npy` file."""
    target = io.BytesIO()
    facts = {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(target, facts)
    return target.getvalue()
