"""Checks tables from outside: every text must be UTF-8 and within its buffer; finds the rows that violate this.

Arrow does not check the bytes of string columns. Kernels, encoders and other tools' readers may crash on invalid ones.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from gristmill.errors import InvalidTextError

Mask = npt.NDArray[np.bool_]
TextErrors = Literal["quarantine", "replace"]
"""How a reader handles text that is not UTF-8: quarantine the document, or replace the invalid bytes with U+FFFD."""


def find_invalid_text(table: pa.Table) -> tuple[Mask, str] | None:
    """The rows of a table with text that is not UTF-8, and the first such column; None if all texts are valid."""
    found: tuple[Mask, str] | None = None
    for name, column in zip(table.column_names, table.columns, strict=True):
        invalid = _invalid_rows(column)
        if invalid is not None:
            found = (invalid, name) if found is None else (found[0] | invalid, found[1])
    return found


def require_valid_text(table: pa.Table) -> pa.Table:
    """`table` without view types, after checking that all its texts are UTF-8.

    Raises:
        InvalidTextError: One is not.
    """
    if "_view" in str(table.schema.types):
        from gristmill.storage.schemas import plain_table

        table = plain_table(table)
    found = find_invalid_text(table)
    if found is None:
        return table
    rows, name = np.flatnonzero(found[0]), found[1]
    more = f" and {len(rows) - 1} more" if len(rows) > 1 else ""
    raise InvalidTextError(
        f"Column {name!r} holds bytes that are not UTF-8, in row {rows[0]}{more} of {table.num_rows}. Decode them "
        "with their actual encoding, or with errors='replace', before they become a text column.",
        column=name,
        row=int(rows[0]),
    )


def _invalid_rows(column: pa.ChunkedArray) -> Mask | None:
    masks = [_invalid_in_chunk(chunk) for chunk in column.chunks if not pa.types.is_primitive(column.type)]
    return np.concatenate(masks) if any(mask.any() for mask in masks) else None


def _invalid_in_chunk(chunk: pa.Array) -> Mask:
    if len(chunk) and (pa.types.is_string(chunk.type) or pa.types.is_large_string(chunk.type)):
        from gristmill.kernels.utf8 import invalid_rows

        _, offsets, data = chunk.buffers()
        width = np.int32 if pa.types.is_string(chunk.type) else np.int64
        bounds = np.frombuffer(offsets, width)[chunk.offset : chunk.offset + len(chunk) + 1].astype(np.int64)
        if len(bounds) <= len(chunk):
            return np.ones(len(chunk), np.bool_)
        content = np.frombuffer(data or b"", np.uint8)
        bounds.flags.writeable = content.flags.writeable = False  # one layout means one compilation
        invalid: Mask = invalid_rows(content, bounds)
        return invalid & chunk.is_valid().to_numpy(zero_copy_only=False) if chunk.null_count else invalid
    if _is_valid(chunk):
        return np.zeros(len(chunk), np.bool_)
    if not _is_valid(chunk, full=False):
        return np.ones(len(chunk), np.bool_)
    if pa.types.is_dictionary(chunk.type):
        return _invalid_in_chunk(chunk.dictionary_decode())
    # Not by slices: one of a list, say, still has all values of the list below it.
    invalid = np.array([not _is_valid(chunk.take(pa.array([row]))) for row in range(len(chunk))], np.bool_)
    # Offsets that run backwards can be wrong as a whole and right row by row.
    return invalid if invalid.any() else np.ones(len(chunk), np.bool_)


def _is_valid(array: pa.Array, *, full: bool = True) -> bool:
    try:
        array.validate(full=full)
    except pa.ArrowInvalid:
        return False
    return True
