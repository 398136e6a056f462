"""Finds items by meaning: documents whose embedding is close to that of a benchmark item.

Every document is compared with every item. Products of integer vectors are exact (see `semantic.vectors`), and one
product with a million items costs about as much as embedding the document.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from gristmill.errors import require_module
from gristmill.ledger.record.tables import make_identity
from gristmill.stages.base import ProcessingStage, Spec
from gristmill.stages.deduplication.decontamination.benchmarks import Item
from gristmill.stages.deduplication.decontamination.index import (
    SEARCHED,
    TOO_SHORT,
    BenchmarkReader,
    ItemList,
    list_items,
    one_row,
)
from gristmill.stages.deduplication.decontamination.search import PAIRS, PASSAGE_BYTES
from gristmill.stages.deduplication.key_ranges import RangeReader
from gristmill.stages.deduplication.semantic.vectors import embedding_matrix, vector_array, vectors_of, whole_vectors
from gristmill.stages.deduplication.sorted_runs import RunFiles, column, open_run
from gristmill.stages.deduplication.source import DocumentStage, texts_of
from gristmill.storage.files import InputFile
from gristmill.tasks.columns import TableColumns
from gristmill.tasks.document import DocumentBatch

DEFAULT_EPS = 0.15
"""Paraphrased questions are 0.03 to 0.15 apart with the default model, unrelated texts more than 0.6."""
DEFAULT_MODEL = "sentence-transformers/all-MiniLM-L6-v2"
MOST_NEAR = 100
"""Maximum number of items per document, nearest first."""
ITEMS_PER_RANGE = 4096
EMBEDDING_FIELD = "_embedding"
NO_ITEM_NEAR = "no_benchmark_item_near"
_TEXT = "text"
_BLOCK = 4096
_ROWS = 1024

Integers = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]


class BenchmarkItems(BenchmarkReader):
    """Reads all benchmarks and lists the texts of their items to embed: each text, and all texts of an item together.

    Args:
        benchmarks: The files of each benchmark.
        fields: The fields of each benchmark that are compared.
        min_words: Texts with fewer words are not compared.
        storage_options: File system options for URLs.
    """

    name = "benchmark_items"

    def __init__(
        self,
        benchmarks: Mapping[str, Sequence[InputFile]],
        fields: Mapping[str, Sequence[str]],
        min_words: int,
        *,
        storage_options: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(benchmarks, fields, storage_options=storage_options)
        self.min_words = min_words

    def table_of(self, items: Iterator[Item], benchmarks: Sequence[str]) -> pa.Table:
        from gristmill.kernels.ngram_search import index_words
        from gristmill.kernels.shingles import word_tables
        from gristmill.kernels.text_column import text_column

        single, counts, listed = list_items(items, benchmarks)
        texts: list[str | None] = []
        owners: list[int] = []
        for item, (start, end) in enumerate(pairwise(counts)):
            mine = single[start:end]
            together = ["\n".join(text for text in mine if text)] if len(mine) > 1 else []
            texts += [*mine, *together]
            owners += [item] * (len(mine) + len(together))
        data, offsets, _ = text_column(texts)
        words = np.diff(index_words(data, offsets, *word_tables())[1])
        long_enough = words >= self.min_words
        owner = np.array(owners, np.int64)[long_enough]
        status = np.full(len(counts) - 1, TOO_SHORT, np.uint8)
        status[owner] = SEARCHED
        embedded = pa.array(texts, pa.large_string()).filter(pa.array(long_enough))
        return one_row({"embedded": embedded, "owner": owner, "status": status, **listed})


class ItemTexts(RangeReader):
    """Reads the texts to embed of a range of items."""

    name = "item_texts"

    def rows_from(self, low: int, high: int) -> Iterator[pa.Table]:
        items = ItemList(self.runs)
        owner = items.array("owner")
        start, end = np.searchsorted(owner, low), np.searchsorted(owner, min(high, len(items.array("status"))))
        for at in range(int(start), int(end), _ROWS):
            chosen = slice(at, min(at + _ROWS, int(end)))
            yield pa.table({"item": owner[chosen].astype(np.uint64), _TEXT: items.texts("embedded")[chosen]})


def item_cuts(items: ItemList) -> list[int]:
    """Where the ranges of items begin that are embedded at once."""
    return [*range(0, max(1, len(items.array("status"))), ITEMS_PER_RANGE), 1 << 64]


class ItemVectors(ProcessingStage[DocumentBatch, DocumentBatch]):
    """Turns embedded texts of items into integer vectors, keyed by the number of the item."""

    notes_changes = True
    name = "item_vectors"
    fork_safe = True

    def inputs(self) -> Spec:
        return ["data"], ["item", EMBEDDING_FIELD]

    def outputs(self) -> Spec:
        return ["data"], ["item", "vector"]

    def process(self, task: DocumentBatch) -> DocumentBatch:
        vectors, rows = document_vectors(task)
        missing = np.ones(task.num_items, bool)
        missing[rows] = False
        task = task.drop(missing, reason="no_embedding")
        if not task.num_items:
            return task
        table = pa.table({"item": task.column("item"), "vector": vector_array(vectors)})
        return task.with_columns(TableColumns(table))


class SimilarItems(DocumentStage):
    """Finds the items close to each document; keeps the documents that are close to any.

    Args:
        vectors: The vectors of the items, from `ItemVectors`.
        text_field: Column that holds the text.
        eps: Maximum distance (1 - cosine) between an item and a document.
        id_field: Column that holds document ids.
    """

    notes_changes = True
    name = "similar_items"
    fork_safe = True

    def __init__(self, vectors: RunFiles, text_field: str, *, eps: float, id_field: str | None) -> None:
        self._vectors = vectors
        self.vectors = vectors.digest
        self.text_field = text_field
        self.eps = eps
        self.id_field = id_field

    def inputs(self) -> Spec:
        return ["data"], [self.text_field, EMBEDDING_FIELD]

    def outputs(self) -> Spec:
        return ["data"], ["document", "id", "items", "cosines", "text"]

    def process(self, task: DocumentBatch) -> DocumentBatch:
        matrix, owners = document_vectors(task)
        rows, items, cosines = nearest_items(matrix, self._blocks(), least=1.0 - self.eps)
        rows = owners[rows]
        counts = np.bincount(rows, minlength=task.num_items)
        task = task.drop(counts == 0, reason=NO_ITEM_NEAR)
        if not task.num_items:
            return task
        bounds = pa.array(np.concatenate([[0], np.cumsum(counts[counts > 0])]))
        ids = make_identity(task, id_field=self.id_field, url_field=None).ids
        table = pa.table(
            {
                "document": self.keys_of(task),
                "id": pa.nulls(task.num_items, pa.large_string()) if ids is None else ids,
                "items": pa.LargeListArray.from_arrays(bounds, pa.array(items.astype(np.uint32))),
                "cosines": pa.LargeListArray.from_arrays(bounds, pa.array(cosines)),
                "text": pc.utf8_slice_codeunits(texts_of(task, self.text_field), 0, PASSAGE_BYTES),
            }
        )
        return task.with_columns(TableColumns(table))

    def _blocks(self) -> Iterator[tuple[npt.NDArray[np.int16], Integers]]:
        for file in self._vectors.files:
            table = open_run(file.path, storage_options=self._vectors.storage_options)
            for start in range(0, table.num_rows, _BLOCK):
                block = table.slice(start, _BLOCK)
                yield vectors_of(block), column(block, "item").astype(np.int64)


class SimilarPairs(RangeReader):
    """Lists a row for each document and item that are close to each other."""

    name = "similar_pairs"

    def rows_from(self, low: int, high: int) -> Iterator[pa.Table]:
        table = self.runs.read(low, high).combine_chunks()
        if not table.num_rows:
            return
        counts = pc.list_value_length(table.column("items")).to_numpy()
        owner = pa.array(np.repeat(np.arange(table.num_rows), counts))
        spans = pa.LargeListArray.from_arrays(np.zeros(len(owner) + 1, np.int64), pa.array([], pa.int64()))
        yield pa.table(
            [
                table.column("document").take(owner),
                pc.list_flatten(table.column("items")),
                pc.list_flatten(table.column("cosines")),
                table.column("id").take(owner),
                spans,
                table.column("text").take(owner),
            ],
            schema=PAIRS,
        )


def document_vectors(task: DocumentBatch) -> tuple[npt.NDArray[np.int16], Integers]:
    """The embeddings of a batch as integer vectors, and the rows that have one."""
    matrix, rows = embedding_matrix(task.column(EMBEDDING_FIELD))
    vectors, usable = whole_vectors(matrix)
    return np.ascontiguousarray(vectors[usable]), rows[usable]


def nearest_items(
    vectors: npt.NDArray[np.int16], blocks: Iterator[tuple[npt.NDArray[np.int16], Integers]], *, least: float
) -> tuple[Integers, Integers, Floats]:
    """The pairs of vectors and items whose cosine is at least `least`, in order, the best text of each item.

    Only the `MOST_NEAR` nearest items of each vector are kept, so that memory stays bounded if many are similar.

    Args:
        vectors: The vectors of the documents.
        blocks: Vectors of items and the numbers of the items; an item may have several vectors.
        least: Minimum cosine.
    """
    mine = vectors.astype(np.float32)
    squares = np.einsum("ij,ij->i", mine, mine).astype(np.float64)
    best = (np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0))
    for block, numbers in blocks:
        if not len(mine):
            break
        theirs = block.astype(np.float32)
        item_squares = np.einsum("ij,ij->i", theirs, theirs).astype(np.float64)
        # A bound for all pairs of the block; the few above it are computed in double precision.
        bound = np.float32(least * np.sqrt(squares.min() * item_squares.min()) * 0.999999)
        found = [best]
        for start in range(0, len(mine), _ROWS):
            scores = mine[start : start + _ROWS] @ theirs.T
            rows, places = np.nonzero(scores >= bound)
            cosines = scores[rows, places] / np.sqrt(squares[start + rows] * item_squares[places])
            near = cosines >= least
            found.append((start + rows[near], numbers[places[near]], cosines[near]))
        best = _nearest_of_each(*(np.concatenate(part) for part in zip(*found, strict=True)))
    rows, items, cosines = best
    order = np.lexsort((items, rows))
    return rows[order], items[order], cosines[order]


def _nearest_of_each(rows: Integers, items: Integers, cosines: Floats) -> tuple[Integers, Integers, Floats]:
    """The best pair of each row and item, and of these the nearest few of each row."""
    order = np.lexsort((-cosines, items, rows))
    first = np.ones(len(order), bool)
    first[1:] = (np.diff(rows[order]) != 0) | (np.diff(items[order]) != 0)
    order = order[first]
    order = order[np.lexsort((items[order], -cosines[order], rows[order]))]
    ranked = rows[order]
    rank = np.arange(len(order)) - np.searchsorted(ranked, ranked)
    order = order[rank < MOST_NEAR]
    return rows[order], items[order], cosines[order]


def embedder(model: str, text_field: str) -> ProcessingStage[Any, Any]:
    """The stage that embeds texts.

    Raises:
        UsageError: A library that it needs is not installed.
    """
    for module in ("torch", "transformers"):
        instead = "Or use --match fuzzy, which needs no model."
        require_module(module, "Finding items by meaning", extra="semantic", instead=instead)
    from gristmill.stages.text.embedders import EmbeddingCreatorStage

    return EmbeddingCreatorStage(model_identifier=model, text_field=text_field, embedding_field=EMBEDDING_FIELD)
