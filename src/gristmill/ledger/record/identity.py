"""The id and URL of freshly read documents, as the trail carries them and as the index keeps them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from gristmill.errors import MissingColumnError
from gristmill.kernels.hashing import Hashes, hash_column
from gristmill.ledger.record.trail import Identity, Rows

if TYPE_CHECKING:
    from gristmill.tasks.document import DocumentBatch


def make_identity(batch: DocumentBatch, *, id_field: str | None, url_field: str | None) -> Identity:
    """The identity of every row of a batch as it was read; numbers count as their digits.

    Args:
        batch: Documents with their row numbers.
        id_field: The column with ids; None, or a column that is not there, means there are none.
        url_field: The same for URLs.
    """
    ids = _texts(batch, id_field)
    urls = _texts(batch, url_field)
    return Identity(
        rows=batch.rows,
        id_hashes=None if ids is None else hash_column(ids),
        url_hashes=None if urls is None else hash_column(urls),
        ids=ids,
    )


def _texts(batch: DocumentBatch, field: str | None) -> pa.Array | None:
    if field is None:
        return None
    try:
        texts = batch.text(field)
    except MissingColumnError:
        return None
    return None if texts.null_count == len(texts) else texts


def index_hashes(identities: Iterable[Identity], rows: int) -> tuple[Hashes | None, Hashes | None]:
    """The hashes of ids and of URLs by row number, 0 where there is none; None where no row has one."""
    found: list[Hashes | None] = [None, None]
    for identity in identities:
        for kind, hashes in enumerate((identity.id_hashes, identity.url_hashes)):
            if hashes is None or not hashes.any():
                continue
            target = found[kind]
            if target is None:
                target = found[kind] = np.zeros(rows, np.uint64)
            known = identity.rows >= 0
            target[identity.rows[known]] = hashes[known]
    return found[0], found[1]


class IdLookup:
    """Finds the ids of rows among the identities of a partition."""

    def __init__(self, identities: Iterable[Identity]) -> None:
        known = [identity for identity in identities if identity.ids is not None]
        self._ids: pa.ChunkedArray | None = None
        if known:
            rows = np.concatenate([identity.rows for identity in known])
            self._order = np.argsort(rows, kind="stable")
            self._rows = rows[self._order]
            arrays = [identity.ids.cast(pa.large_string()) for identity in known]
            self._ids = pa.chunked_array(arrays, pa.large_string())

    def take(self, rows: Rows) -> pa.Array:
        """The id of each row, null where it has none."""
        if self._ids is None or not len(self._rows):
            return pa.nulls(len(rows), pa.large_string())
        at = np.minimum(np.searchsorted(self._rows, rows), len(self._rows) - 1)
        missing: npt.NDArray[np.bool_] = (self._rows[at] != rows) | (rows < 0)
        taken = self._ids.take(pa.array(self._order[at], mask=missing))
        return pa.concat_arrays(taken.chunks) if taken.num_chunks != 1 else taken.chunk(0)
