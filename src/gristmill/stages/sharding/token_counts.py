"""Token counts that documents carry in a column."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from gristmill.errors import UsageError
from gristmill.tasks.columns import one_chunk
from gristmill.tasks.document import DocumentBatch


def token_counts(batch: DocumentBatch, column: str) -> npt.NDArray[np.int64]:
    """The token count of every document.

    Raises:
        UsageError: A document has no count, or one that is not a non-negative whole number.
    """
    found = one_chunk(batch.column(column)) if batch.columns.has(column) else pa.nulls(batch.num_items)
    numeric = pa.types.is_integer(found.type) or pa.types.is_floating(found.type)
    values = found.cast(pa.float64()).to_numpy(zero_copy_only=False) if numeric else np.full(batch.num_items, np.nan)
    bad = np.flatnonzero(~(values >= 0) | (values != np.floor(values)) | np.isinf(values))
    if len(bad):
        row = int(bad[0])
        shown = found[row].as_py()
        raise UsageError(
            f"Column {column!r} must hold the number of tokens of every document, but row {int(batch.rows[row])} of "
            f"{batch.partition_id} has {shown!r}. Count the tokens first ('gristmill tokens count'), or set a "
            "tokenizer instead of a column.",
            column=column,
            row=int(batch.rows[row]),
        )
    return values.astype(np.int64)
