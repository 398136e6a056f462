"""The first step: the band hashes of every document, sorted by hash."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from gristmill.kernels.minhash import band_hashes, hash_factors, listed_shingles
from gristmill.kernels.shingles import CHARACTERS, WORDS, Hashes, word_tables
from gristmill.kernels.text_column import Bytes, Integers, text_column
from gristmill.stages.base import Spec
from gristmill.stages.deduplication.fuzzy.banding import Banding
from gristmill.stages.deduplication.sorted_runs import SortedRunWriter
from gristmill.stages.deduplication.source import DocumentStage, texts_of
from gristmill.tasks.columns import TableColumns
from gristmill.tasks.document import DocumentBatch

if TYPE_CHECKING:
    import torch

    from gristmill.backends.base import WorkerMetadata

EMPTY = "empty"
# Documents without a shingle that are to be merged all the same share this content.
_EMPTY_CONTENT = np.uint64(0)


class MinHashes(DocumentStage):
    """Turns documents into band hashes; on a GPU where `resources` ask for one and CUDA is there, with the same result.

    Args:
        text_field: The column with the text.
        banding: The bands.
        word_ngrams: How many words make a shingle.
        char_ngrams: How many characters make a shingle, instead of words.
        seed: Chooses the hash functions.
        merge_empty: Whether empty texts count as duplicates of each other.
    """

    notes_changes = True
    name = "minhashes"
    fork_safe = True
    text_parameter = "text_field"

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
        self._device: torch.device | None = None

    def setup(self, worker_metadata: WorkerMetadata | None = None) -> None:
        if self.resources.gpus:
            from gristmill.stages.text.models.devices import choose_device

            device = choose_device(worker_metadata)
            self._device = device if device.type == "cuda" else None

    def inputs(self) -> Spec:
        return ["data"], [self.text_field]

    def outputs(self) -> Spec:
        return ["data"], ["document", "content", "bands"]

    def process(self, task: DocumentBatch) -> DocumentBatch:
        data, offsets, _ = text_column(texts_of(task, self.text_field))
        banding = self.banding
        hashes, contents, empty = self._hashes(data, offsets)
        contents[empty] = _EMPTY_CONTENT
        table = pa.table(
            {
                "document": self.keys_of(task),
                "content": contents,
                "bands": pa.FixedSizeListArray.from_arrays(pa.array(hashes.reshape(-1)), banding.bands),
            }
        )
        result = task.with_columns(TableColumns(table))
        return result if self.merge_empty else result.drop(empty, reason=EMPTY)

    def _hashes(self, data: Bytes, offsets: Integers) -> tuple[Hashes, Hashes, npt.NDArray[np.bool_]]:
        """The band hashes of all documents, hashes of their whole contents, and which have no shingle."""
        size = self.char_ngrams or self.word_ngrams
        unit = WORDS if self.char_ngrams is None else CHARACTERS
        bands = (self.banding.bands, self.banding.rows)
        functions = hash_factors(self.banding.hashes, self.seed)
        if self._device is None:
            hashes, contents, counts = band_hashes(data, offsets, *word_tables(), size, unit, *functions, *bands)
            return hashes, contents, counts == 0
        from gristmill.stages.deduplication.fuzzy.torch_signatures import torch_band_hashes

        shingles, bounds, contents = listed_shingles(data, offsets, *word_tables(), size, unit)
        hashes = torch_band_hashes(shingles, bounds, *functions, *bands, device=self._device)
        return hashes, contents, np.diff(bounds) == 0


class BandWriter(SortedRunWriter):
    """Writes one row per band of each document, sorted by the band's hash."""

    name = "sorted_bands"
    fork_safe = True

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
