"""The choice: which documents go at a given `eps`, and for whom. Needs nothing but the pairs."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from gristmill.kernels.vector_search import chain_ends
from gristmill.stages.deduplication.document_keys import Keys
from gristmill.stages.deduplication.key_ranges import RangeReader
from gristmill.stages.deduplication.removal import REMOVALS
from gristmill.stages.deduplication.semantic.vectors import vectors_of
from gristmill.stages.deduplication.sorted_runs import RunFiles, column, open_run

Integers = npt.NDArray[np.int64]
_SLICE = 1 << 14


class SemanticSurvivors(RangeReader):
    """Gives the removal list: the documents whose nearest preferred one has a cosine of at least 1 - `eps`.

    That one may itself go for a third; the survivor is the one at the end, and the similarity is that with it.

    Args:
        vectors: The vectors of all documents.
        eps: How far apart duplicates may be, as 1 - cosine.
    """

    name = "semantic_survivors"

    def __init__(self, vectors: RunFiles, *, eps: float) -> None:
        super().__init__()
        self._vectors = vectors
        self.vectors = vectors.digest
        self.eps = eps

    def rows_from(self, low: int, high: int) -> Iterator[pa.Table]:
        table = self.runs.read(low, high)
        if not table.num_rows:
            return
        near = np.flatnonzero(column(table, "similarity") >= 1.0 - self.eps)
        documents, others = column(table, "document")[near], column(table, "other")[near]
        order = np.argsort(documents, kind="stable")
        near, documents, others = near[order], documents[order], others[order]
        ends = chain_ends(_parents(documents, others))
        survivors = others[ends]
        alike = column(table, "similarity")[near]
        indirect = np.flatnonzero(ends != np.arange(len(ends)))
        hashes, other_hashes = column(table, "hash")[near], column(table, "other_hash")[near][ends]
        if len(indirect):
            alike[indirect] = cosines(self._vectors, hashes[indirect], other_hashes[indirect])
        for start in range(0, len(near), _SLICE):
            part = slice(start, start + _SLICE)
            yield pa.table(
                [
                    documents[part],
                    survivors[part],
                    table.column("id").take(pa.array(near[part])),
                    table.column("other_id").take(pa.array(near[ends[part]])),
                    alike[part],
                ],
                schema=REMOVALS,
            )


def _parents(documents: Keys, others: Keys) -> Integers:
    """For each document the place of the one it goes for, among the sorted documents; its own where that one stays."""
    if not len(documents):
        return np.empty(0, np.int64)
    places = np.minimum(np.searchsorted(documents, others), len(documents) - 1).astype(np.int64)
    return np.where(documents[places] == others, places, np.arange(len(documents)))


def cosines(runs: RunFiles, ones: Keys, others: Keys) -> npt.NDArray[np.float64]:
    """The cosines of pairs of vectors, each given by its hash."""
    result = np.empty(len(ones))
    for start in range(0, len(result), _SLICE):
        part = slice(start, start + _SLICE)
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
