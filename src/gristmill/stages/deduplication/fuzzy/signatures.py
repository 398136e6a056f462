"""The first step: the band hashes of every document, sorted by hash."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from gristmill.kernels.minhash import band_hashes, hash_factors
from gristmill.kernels.shingles import CHARACTERS, WORDS, word_tables
from gristmill.kernels.text_column import text_column
from gristmill.stages.base import ProcessingStage, Spec
from gristmill.stages.deduplication.document_keys import make_keys
from gristmill.stages.deduplication.fuzzy.banding import Banding
from gristmill.stages.deduplication.sorted_runs import SortedRunWriter
from gristmill.tasks.columns import TableColumns
from gristmill.tasks.document import DocumentBatch

EMPTY = "empty"
# Documents without a shingle that are to be merged all the same share this content.
_EMPTY_CONTENT = np.uint64(0)


class MinHashes(ProcessingStage[DocumentBatch, DocumentBatch]):
    """Turns documents into band hashes.

    Args:
        text_field: The column with the text.
        banding: The bands.
        word_ngrams: How many words make a shingle.
        char_ngrams: How many characters make a shingle, instead of words.
        seed: Chooses the hash functions.
        merge_empty: Whether empty texts count as duplicates of each other.
    """

    name = "minhashes"

    def __init__(
        self,
        text_field: str,
        *,
        banding: Banding,
        word_ngrams: int = 5,
        char_ngrams: int | None = None,
        seed: int = 42,
        merge_empty: bool = False,
    ) -> None:
        self.text_field = text_field
        self.banding = banding
        self.word_ngrams = word_ngrams
        self.char_ngrams = char_ngrams
        self.seed = seed
        self.merge_empty = merge_empty

    def inputs(self) -> Spec:
        return ["data"], [self.text_field]

    def outputs(self) -> Spec:
        return ["data"], ["document", "content", "bands"]

    def process(self, task: DocumentBatch) -> DocumentBatch:
        data, offsets, _ = text_column(task.text(self.text_field))
        banding = self.banding
        hashes, contents, counts = band_hashes(
            data,
            offsets,
            *word_tables(),
            self.char_ngrams or self.word_ngrams,
            WORDS if self.char_ngrams is None else CHARACTERS,
            *hash_factors(banding.hashes, self.seed),
            banding.bands,
            banding.rows,
        )
        empty = counts == 0
        contents[empty] = _EMPTY_CONTENT
        assert task._lineage is not None
        table = pa.table(
            {
                "document": make_keys(task._lineage.partition, task.rows),
                "content": contents,
                "bands": pa.FixedSizeListArray.from_arrays(pa.array(hashes.reshape(-1)), banding.bands),
            }
        )
        result = task._derived(TableColumns(table))
        return result if self.merge_empty else result.drop(empty, reason=EMPTY)


class BandWriter(SortedRunWriter):
    """Writes one row per band of each document, sorted by the band's hash."""

    name = "sorted_bands"

    def encode(self, batch: DocumentBatch) -> pa.Table:
        table = batch.to_pyarrow()
        bands = table.column("bands").combine_chunks()
        if isinstance(bands, pa.ChunkedArray):
            bands = pa.concat_arrays(bands.chunks)
        width = bands.type.list_size
        return pa.table(
            {
                "hash": bands.flatten(),
                "content": np.repeat(table.column("content").to_numpy(), width),
                "document": np.repeat(table.column("document").to_numpy(), width),
            }
        )
