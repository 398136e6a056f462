"""A column of texts as the three arrays that kernels read: bytes, offsets, and which rows are valid."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from gristmill.errors import InvalidTextError, UsageError
from gristmill.kernels.utf8 import invalid_rows

Bytes = npt.NDArray[np.uint8]
Integers = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]


class TextColumn(NamedTuple):
    """The UTF-8 bytes of a column: row `i` is `data[offsets[i]:offsets[i + 1]]`, and empty where it is null."""

    data: Bytes
    offsets: Integers
    valid: Mask

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def text(self, row: int) -> str:
        """The text of one row, as `str`."""
        return self.data[self.offsets[row] : self.offsets[row + 1]].tobytes().decode("utf-8", "replace")

    @property
    def lengths(self) -> Integers:
        """The size of every row in bytes."""
        return np.diff(self.offsets)


class WordSpans(NamedTuple):
    """Words that a splitter found: word `w` is `data[starts[w]:ends[w]]`.

    Document `i` has the words `bounds[i]` to `bounds[i + 1]`. All index arrays are read-only, so that kernels need one
    compilation.
    """

    data: Bytes
    starts: Integers
    ends: Integers
    bounds: Integers


def word_spans(data: Bytes, starts: Integers, ends: Integers, bounds: Integers) -> WordSpans:
    """Spans in the layout that kernels are compiled for."""
    arrays = [np.ascontiguousarray(array, dtype=np.int64).view() for array in (starts, ends, bounds)]
    for array in arrays:
        array.flags.writeable = False
    return WordSpans(data, *arrays)


def text_column(column: pa.Array | pa.ChunkedArray | list[str | None]) -> TextColumn:
    """The arrays behind a string column of any Arrow layout, copying only what cannot be read in place.

    Args:
        column: Strings with or without nulls; a list of texts is accepted too. A column of type null is all missing.

    Raises:
        UsageError: The column does not hold text.
        InvalidTextError: Its bytes are not UTF-8.
    """
    if isinstance(column, list):
        return _from_texts(column)
    if not pa.types.is_large_string(column.type):
        column = _as_large_string(column)  # first: together the chunks may have more bytes than 32 bits can count
    if isinstance(column, pa.ChunkedArray):
        column = column.combine_chunks() if column.num_chunks != 1 else column.chunk(0)
        if isinstance(column, pa.ChunkedArray):
            column = pa.concat_arrays(column.chunks)
    if column.null_count:
        valid = np.asarray(column.is_valid().to_numpy(zero_copy_only=False), dtype=np.bool_)
    else:
        valid = np.ones(len(column), dtype=np.bool_)
    data, offsets = _buffers(column)
    invalid = invalid_rows(data, offsets)
    if column.null_count and bool(np.any(np.diff(offsets)[~valid])) and not invalid[valid].any():
        data, offsets = _buffers(column.fill_null(""))  # only now: Arrow reads wherever offsets point
        invalid = invalid_rows(data, offsets)
    if invalid.any():
        row = int(np.argmax(invalid))
        raise InvalidTextError(
            f"Row {row} of a text column of {len(column)} holds bytes that are not UTF-8. Decode them with their "
            "actual encoding, or with errors='replace', before they become a text column.",
            row=row,
        )
    return TextColumn(data, offsets, valid)


def _from_texts(texts: list[str | None]) -> TextColumn:
    # Not with pyarrow, whose conversion of lists imports pandas if it is installed.
    encoded = [b"" if text is None else text.encode("utf-8", "replace") for text in texts]
    offsets = np.zeros(len(encoded) + 1, dtype=np.int64)
    np.cumsum([len(text) for text in encoded], out=offsets[1:])
    offsets.flags.writeable = False
    valid = np.array([text is not None for text in texts], dtype=np.bool_)
    return TextColumn(np.frombuffer(b"".join(encoded), dtype=np.uint8), offsets, valid)


def _as_large_string(column: pa.Array | pa.ChunkedArray) -> pa.Array | pa.ChunkedArray:
    kind = column.type
    textual = pa.types.is_string(kind) or pa.types.is_null(kind) or pa.types.is_dictionary(kind)
    if not (textual or pa.types.is_string_view(kind)):
        raise UsageError(
            f"Expected a text column, but this one holds {kind}. Name the column with the text (text_field=...).",
            found=str(kind),
        )
    return column.cast(pa.large_string())


def _buffers(column: pa.Array) -> tuple[Bytes, Integers]:
    _, offset_buffer, data_buffer = column.buffers()
    if offset_buffer is None or len(column) == 0:
        offsets = np.zeros(len(column) + 1, dtype=np.int64)
    else:
        offsets = np.frombuffer(offset_buffer, dtype=np.int64)[column.offset : column.offset + len(column) + 1]
    if data_buffer is None:
        data = np.zeros(0, dtype=np.uint8)
    else:
        data = np.frombuffer(data_buffer, dtype=np.uint8)
    # Kernels are compiled for read-only input; one layout means one compilation.
    data.flags.writeable = False
    offsets.flags.writeable = False
    return data, offsets
