"""The first step: the band hashes of every document, sorted by hash."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from gristmill.kernels.minhash import band_hashes, hash_factors, listed_shingles
from gristmill.kernels.shingles import CHARACTERS, WORDS, Hashes, Shingles, word_tables
from gristmill.kernels.text_column import Bytes, Integers, text_column
from gristmill.ledger.record.tables import make_identity
from gristmill.stages.base import Spec
from gristmill.stages.deduplication.fuzzy.banding import Banding
from gristmill.stages.deduplication.sorted_runs import RUN_BYTES, SortedPart, SortedRunWriter, StorageOptions, open_run
from gristmill.stages.deduplication.source import DocumentStage, texts_of
from gristmill.stages.source_sink import PartFile
from gristmill.storage.atomic import WrittenFile
from gristmill.tasks.columns import TableColumns
from gristmill.tasks.document import DocumentBatch

if TYPE_CHECKING:
    import torch

    from gristmill.backends.base import WorkerMetadata

EMPTY = "empty"
BANDS_ENDING, SHINGLES_ENDING = ".bands.arrow", ".shingles.arrow"
"""Suffixes of the files of `IndexWriter`."""
_LEAST_ROOM = 1 << 12
_KEPT = ("rank", "id", "shingles")
_INDEX_RUN_BYTES = 16 << 20
"""Shingles take two thirds of the space of the text; smaller files reuse memory, which costs less than new pages."""
# Documents without a shingle that are to be merged all the same share this content.
_EMPTY_CONTENT = np.uint64(0)


class MinHashes(DocumentStage):
    """Turns documents into band hashes; on a GPU if requested and CUDA is available, with the same result.

    Args:
        text_field: Column that holds the text.
        banding: The bands.
        word_ngrams: Number of words per shingle.
        char_ngrams: Number of characters per shingle, instead of words.
        seed: Seed of the hash functions.
        merge_empty: Whether empty texts count as duplicates of each other.
        keep_shingles: For an index: also keep the shingles, the id and the rank of every document.
        id_field: Column that holds document ids, for `keep_shingles`.
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
        keep_shingles: bool = False,
        id_field: str | None = None,
    ) -> None:
        self.text_field = text_field
        self.banding = banding
        self.word_ngrams = word_ngrams
        self.char_ngrams = char_ngrams
        self.seed = seed
        self.merge_empty = merge_empty
        self.keep_shingles = keep_shingles
        self.id_field = id_field
        self._device: torch.device | None = None

    def setup(self, worker_metadata: WorkerMetadata | None = None) -> None:
        if self.resources.gpus:
            from gristmill.stages.text.models.devices import choose_device

            device = choose_device(worker_metadata)
            self._device = device if device.type == "cuda" else None

    def inputs(self) -> Spec:
        return ["data"], [self.text_field]

    def outputs(self) -> Spec:
        return ["data"], ["document", "content", "bands", *(_KEPT if self.keep_shingles else ())]

    def process(self, task: DocumentBatch) -> DocumentBatch:
        data, offsets, _ = text_column(texts_of(task, self.text_field))
        hashes, contents, counts, shingles = self._hashes(data, offsets)
        empty = counts == 0
        contents[empty] = _EMPTY_CONTENT
        columns = {
            "document": self.keys_of(task),
            "content": contents,
            "bands": pa.FixedSizeListArray.from_arrays(pa.array(hashes.reshape(-1)), self.banding.bands),
        }
        if self.keep_shingles:
            bounds = pa.array(np.concatenate([[0], np.cumsum(counts)]))
            ids = make_identity(task, id_field=self.id_field, url_field=None).ids
            columns["rank"] = np.zeros(task.num_items)
            columns["id"] = pa.nulls(task.num_items, pa.large_string()) if ids is None else ids
            columns["shingles"] = pa.LargeListArray.from_arrays(bounds, pa.array(shingles))
        result = task.with_columns(TableColumns(pa.table(columns)))
        return result if self.merge_empty else result.drop(empty, reason=EMPTY)

    def _hashes(self, data: Bytes, offsets: Integers) -> tuple[Hashes, Hashes, Integers, Shingles]:
        """The band hashes and content hashes of all documents, their numbers of shingles, and the shingles."""
        size = self.char_ngrams or self.word_ngrams
        unit = WORDS if self.char_ngrams is None else CHARACTERS
        bands = (self.banding.bands, self.banding.rows)
        functions = hash_factors(self.banding.hashes, self.seed)
        if self._device is None:
            # Room for a shingle in three bytes; pages that are not written to take no memory. An array made here has
            # huge pages where the system offers them, an array of a kernel does not.
            room = (int(offsets[-1] - offsets[0]) // 3 + _LEAST_ROOM) if self.keep_shingles else 0
            kept = np.empty(room, np.uint32)
            return band_hashes(data, offsets, *word_tables(), size, unit, *functions, *bands, kept)
        from gristmill.stages.deduplication.fuzzy.torch_signatures import torch_band_hashes

        shingles, bounds, contents = listed_shingles(data, offsets, *word_tables(), size, unit)
        hashes = torch_band_hashes(shingles, bounds, *functions, *bands, device=self._device)
        return hashes, contents, np.diff(bounds), shingles


class BandWriter(SortedRunWriter):
    """Writes one row per band of each document, sorted by the band's hash."""

    name = "sorted_bands"
    fork_safe = True

    def encode(self, batch: DocumentBatch) -> pa.Table:
        return _rows_of_bands(batch.to_pyarrow())


def _rows_of_bands(table: pa.Table) -> pa.Table:
    """A row for each band of each document."""
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


class IndexWriter(SortedRunWriter):
    """Writes the bands, and the shingles of every document to separate files, sorted by document."""

    name = "sorted_bands_and_shingles"
    fork_safe = True

    def __init__(self, path: str, *, storage_options: StorageOptions = None, run_bytes: int = RUN_BYTES) -> None:
        super().__init__(path, storage_options=storage_options, run_bytes=min(run_bytes, _INDEX_RUN_BYTES))

    def open_part(self, path: str) -> PartFile:
        stem = path.removesuffix(self.extension)
        parts = (self._part(f"{stem}{ending}", ending) for ending in (BANDS_ENDING, SHINGLES_ENDING))
        return _IndexPart(*parts)

    def concatenate(self, pieces: Sequence[WrittenFile], path: str) -> list[WrittenFile]:
        stem = path.removesuffix(self.extension)
        done = []
        for ending in (BANDS_ENDING, SHINGLES_ENDING):
            part = self._part(f"{stem}{ending}", ending)
            for piece in pieces:
                if piece.path.endswith(ending):
                    part.append(open_run(piece.path, storage_options=self.storage_options), rows=piece.rows)
            done += part.close()
        return done


class _IndexPart:
    """The two kinds of files of a partition while they are gathered."""

    def __init__(self, bands: SortedPart, shingles: SortedPart) -> None:
        self._bands, self._shingles = bands, shingles

    def append(self, payload: pa.Table, /, *, rows: int | None = None) -> None:
        self._bands.append(_rows_of_bands(payload), rows=rows)
        self._shingles.append(payload.select(["document", *_KEPT]), rows=0)  # each document counts once

    def close(self) -> list[WrittenFile]:
        return [*self._bands.close(), *self._shingles.close()]

    def abort(self) -> None:
        self._bands.abort()
        self._shingles.abort()
