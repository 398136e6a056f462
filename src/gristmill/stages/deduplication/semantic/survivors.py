"""The choice: which documents to remove at a given `eps`, and their survivors. Needs only the pairs."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from gristmill.stages.deduplication.key_ranges import RangeReader
from gristmill.stages.deduplication.removal import REMOVALS
from gristmill.stages.deduplication.semantic.chains import SLICE, chain_pairs
from gristmill.stages.deduplication.semantic.vectors import vectors_of
from gristmill.stages.deduplication.sorted_runs import RunFiles, column, open_run
from gristmill.stages.deduplication.source import Keys


class SemanticSurvivors(RangeReader):
    """Lists the documents to remove: those whose nearest preferred one has a cosine of at least 1 - `eps`.

    That one may itself be removed for a third; the survivor is the last one, and the similarity refers to it. No chain
    of pairs may lead from one range into another: see `find_ends`.

    Args:
        vectors: The vectors of all documents.
        eps: Maximum distance (1 - cosine) of duplicates.
    """

    name = "semantic_survivors"
    fork_safe = True

    def __init__(self, vectors: RunFiles, *, eps: float) -> None:
        super().__init__()
        self._vectors = vectors
        self.vectors = vectors.digest
        self.eps = eps

    def rows_from(self, low: int, high: int) -> Iterator[pa.Table]:
        table = self.runs.read(low, high)
        if not table.num_rows:
            return
        table = chain_pairs(table, eps=self.eps)
        for start in range(0, table.num_rows, SLICE):
            part = table.slice(start, SLICE)
            alike = column(part, "similarity").copy()
            indirect = np.flatnonzero(np.isnan(alike))
            if len(indirect):
                hashes, other_hashes = column(part, "hash")[indirect], column(part, "other_hash")[indirect]
                alike[indirect] = cosines(self._vectors, hashes, other_hashes)
            columns = [part.column(name) for name in ("document", "other", "id", "other_id")]
            yield pa.table([*columns, alike], schema=REMOVALS)


def cosines(runs: RunFiles, ones: Keys, others: Keys) -> npt.NDArray[np.float64]:
    """The cosines of pairs of vectors, each given by its hash."""
    result = np.empty(len(ones))
    for start in range(0, len(result), SLICE):
        part = slice(start, start + SLICE)
        first, second = _look_up(runs, ones[part]), _look_up(runs, others[part])
        product = np.einsum("ij,ij->i", first, second)
        lengths = np.einsum("ij,ij->i", first, first) * np.einsum("ij,ij->i", second, second)
        result[part] = product / np.sqrt(lengths)
    return result


def _look_up(runs: RunFiles, hashes: Keys) -> npt.NDArray[np.float64]:
    found: npt.NDArray[np.float64] = np.zeros((0, 0))
    for file in runs.files:
        table = open_run(file.path, storage_options=runs.storage_options)
        vectors, keys = vectors_of(table), column(table, "hash")
        if not len(found):
            found = np.zeros((len(hashes), vectors.shape[1]))
        # Equal hashes are equal vectors, so the first of them serves.
        places = np.searchsorted(keys, hashes, "left")
        here = np.flatnonzero(places < np.searchsorted(keys, hashes, "right"))
        found[here] = vectors[places[here]]
    return found
