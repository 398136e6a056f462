"""Reading shards of any format: tokens by their position in the shard."""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from gristmill.errors import InputError, InputNotFoundError
from gristmill.storage.parquet_blocks import open_parquet
from gristmill.storage.token_formats.megatron import DTYPE_CODES, INDEX_HEADER
from gristmill.storage.token_formats.part import TokenFormat
from gristmill.storage.token_formats.streams import INDEX_NAME, LITDATA_CODES
from gristmill.storage.token_formats.tables import INPUT_IDS

Tokens = npt.NDArray[Any]
Integers = npt.NDArray[np.int64]
_Opened = tuple[TokenFormat, str, Integers, Callable[[int, int], Tokens]]


class ShardTokens:
    """The tokens of a shard.

    Args:
        path: The shard: `.bin` or `.idx`, `.npy`, `.parquet`, `.arrow` or `.mds`.

    Attributes:
        path: The file with the tokens.
        format: Format of the shard.
        dtype: Type of a token.
        lengths: Lengths of the sequences; a plain NumPy array of tokens is one sequence.

    Raises:
        InputNotFoundError: There is no such file, or its index is missing.
        InputError: It is not a shard of tokens, or damaged.
    """

    def __init__(self, path: str) -> None:
        self.path = path.removesuffix(".idx") + ".bin" if path.endswith(".idx") else path
        if not os.path.isfile(self.path):
            raise InputNotFoundError(f"There is no shard {self.path}.", path=self.path)
        try:
            self.format, self.dtype, self.lengths, self._read = self._open()
        except (ValueError, KeyError, IndexError, struct.error, EOFError, OSError, pa.ArrowException) as error:
            if isinstance(error, InputNotFoundError | InputError):
                raise
            raise InputError(f"{self.path} cannot be read as a shard of tokens: {error}.", path=self.path) from error

    @property
    def tokens(self) -> int:
        """The number of tokens, padding included."""
        return int(self.lengths.sum())

    def read(self, offset: int, count: int) -> Tokens:
        """The tokens from a position; fewer if the shard ends before."""
        return self._read(offset, max(0, min(count, self.tokens - offset)))

    def _open(self) -> _Opened:
        if self.path.endswith(".npy"):
            return self._numpy()
        if self.path.endswith((".parquet", ".arrow")):
            return self._table()
        if self.path.endswith(".mds"):
            return self._mds()
        if os.path.isfile(self.path.removesuffix(".bin") + ".idx"):
            return self._megatron()
        return self._litdata()

    def _megatron(self) -> _Opened:
        with open(self.path.removesuffix(".bin") + ".idx", "rb") as file:
            if file.read(len(INDEX_HEADER)) != INDEX_HEADER:
                raise ValueError("its .idx does not have Megatron's header")
            _, code, count, _ = struct.unpack("<QBQQ", file.read(25))
            lengths = np.frombuffer(file.read(4 * count), "<i4").astype(np.int64)
        dtype = {code: name for name, code in DTYPE_CODES.items()}[code]
        if len(lengths) != count or int(lengths.sum()) * np.dtype(dtype).itemsize != os.path.getsize(self.path):
            raise ValueError("its .idx is for other tokens")
        return "megatron", dtype, lengths, lambda offset, count: _slice(self.path, dtype, 0, offset, count)

    def _numpy(self) -> _Opened:
        array = np.load(self.path, mmap_mode="r", allow_pickle=False)
        lengths = np.array([array.size]) if array.ndim == 1 else np.full(len(array), array.shape[1])
        flat = array.reshape(-1)
        return (
            "numpy",
            array.dtype.name,
            lengths.astype(np.int64),
            lambda offset, n: np.array(flat[offset : offset + n]),
        )

    def _table(self) -> _Opened:
        if self.path.endswith(".parquet"):
            with open_parquet(self.path) as opened:
                column = opened.read([INPUT_IDS]).column(INPUT_IDS)
        else:
            with pa.memory_map(self.path) as source:
                column = pa.ipc.open_file(source).read_all().column(INPUT_IDS)
        lists = pa.concat_arrays(column.chunks) if column.num_chunks else pa.array([], column.type)
        lengths = np.diff(lists.offsets.to_numpy()).astype(np.int64)
        values = lists.flatten().to_numpy()
        kind: TokenFormat = "parquet" if self.path.endswith(".parquet") else "arrow"
        return kind, values.dtype.name, lengths, lambda offset, count: values[offset : offset + count]

    def _mds(self) -> _Opened:
        data = np.memmap(self.path, np.uint8, "r")
        count = int(data[:4].view("<u4")[0])
        offsets = data[4 : 8 + 4 * count].view("<u4").astype(np.int64)
        config = json.loads(bytes(data[8 + 4 * count : int(offsets[0])]))
        (encoding,) = config["column_encodings"]
        dtype = np.dtype(encoding.split(":")[1])
        starts = offsets[:-1].copy()
        if config["column_sizes"] == [None]:
            starts += 5 + (1 << (data[starts + 4] & 3).astype(np.int64))  # the size, the kind of shape, the shape
        lengths = (offsets[1:] - starts) // dtype.itemsize
        ends = np.cumsum(lengths)

        def read(offset: int, wanted: int) -> Tokens:
            found = [np.zeros(0, dtype)]
            place = int(np.searchsorted(ends, offset, side="right"))
            while wanted > 0 and place < count:
                skipped = offset - int(ends[place] - lengths[place])
                taken = min(wanted, int(lengths[place]) - skipped)
                begin = int(starts[place]) + skipped * dtype.itemsize
                found.append(np.frombuffer(bytes(data[begin : begin + taken * dtype.itemsize]), dtype))
                offset, wanted, place = offset + taken, wanted - taken, place + 1
            return np.concatenate(found)

        return "mds", dtype.name, lengths, read

    def _litdata(self) -> _Opened:
        index = os.path.join(os.path.dirname(self.path), INDEX_NAME)
        if not os.path.isfile(index):
            raise InputNotFoundError(
                f"{self.path} has neither an .idx (Megatron) nor an {INDEX_NAME} (LitData) beside it, so the type of "
                "its tokens is unknown.",
                path=self.path,
            )
        with open(index, encoding="utf-8") as file:
            (stated,) = json.load(file)["config"]["data_format"]
        dtype = {code: name for name, code in LITDATA_CODES.items()}[int(stated.split(":")[1])]
        data = np.memmap(self.path, np.uint8, "r")
        count = int(data[:4].view("<u4")[0])
        offsets = data[4 : 8 + 4 * count].view("<u4").astype(np.int64)
        lengths = np.diff(offsets) // np.dtype(dtype).itemsize
        begin = int(offsets[0])
        return "litdata", dtype, lengths, lambda offset, n: _slice(self.path, dtype, begin, offset, n)


def _slice(path: str, dtype: str, begin: int, offset: int, count: int) -> Tokens:
    kind = np.dtype(dtype)
    return np.fromfile(path, kind, count, offset=begin + offset * kind.itemsize)
