"""The id and URL of freshly read documents, as the trail carries them and as the index keeps them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import numpy as np
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
    texts: list[pa.Array | None] = []
    for field in (id_field, url_field):
        try:
            found = None if field is None else batch.text(field)
        except MissingColumnError:
            found = None
        texts.append(None if found is None or found.null_count == len(found) else found)
    ids, urls = texts
    return Identity(
        rows=batch.rows,
        id_hashes=None if ids is None else hash_column(ids),
        url_hashes=None if urls is None else hash_column(urls),
        ids=ids,
    )


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


def ids_of_rows(identities: Iterable[Identity], rows: Rows) -> pa.Array:
    """The id of each row among the identities of a partition, null where it has none."""
    known = [identity for identity in identities if identity.ids is not None and len(identity.rows)]
    if not known:
        return pa.nulls(len(rows), pa.large_string())
    there = np.concatenate([identity.rows for identity in known])
    order = np.argsort(there, kind="stable")
    there = there[order]
    ids = pa.chunked_array([identity.ids.cast(pa.large_string()) for identity in known], pa.large_string())
    at = np.minimum(np.searchsorted(there, rows), len(there) - 1)
    taken = ids.take(pa.array(order[at], mask=(there[at] != rows) | (rows < 0)))
    return pa.concat_arrays(taken.chunks) if taken.num_chunks != 1 else taken.chunk(0)
