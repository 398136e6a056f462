"""Finds the benchmark n-grams in each document, and the items that it is contaminated with."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from gristmill.ledger.record.tables import make_identity
from gristmill.stages.base import Spec
from gristmill.stages.deduplication.decontamination.index import GramIndex
from gristmill.stages.deduplication.decontamination.summary import first_of_each
from gristmill.stages.deduplication.key_ranges import RangeReader
from gristmill.stages.deduplication.sorted_runs import RunFiles, column, open_run
from gristmill.stages.deduplication.source import DocumentStage, make_keys, texts_of
from gristmill.tasks.columns import TableColumns
from gristmill.tasks.document import DocumentBatch

CLEAN = "no_benchmark_ngram"
PASSAGE_BYTES = 600
"""Maximum length of a passage that is kept for display."""

PAIRS = pa.schema(
    [
        ("document", pa.uint64()),
        ("item", pa.uint32()),
        ("share", pa.float64()),
        ("id", pa.large_string()),
        ("spans", pa.large_list(pa.int64())),
        ("passage", pa.large_string()),
    ]
)
"""A document and an item that it contains: the share of the item's searched words, the passages as alternating start
and end bytes, and the longest of them for the documents of an item that a report can show, otherwise "".
"""


class GramHits(DocumentStage):
    """Finds benchmark n-grams in documents; keeps the documents that contain any, with their texts.

    Args:
        index: The output of the step that built the index.
        text_field: Column that holds the text.
        id_field: Column that holds document ids.
        table: The index itself, for a forecast, which runs no steps.
    """

    notes_changes = True
    name = "gram_hits"
    fork_safe = True
    text_parameter = "text_field"

    def __init__(
        self, index: RunFiles, text_field: str, *, id_field: str | None, table: pa.Table | None = None
    ) -> None:
        self._runs = index
        self.index = index.digest
        self.text_field = text_field
        self.id_field = id_field
        self._index = None if table is None else GramIndex(table)

    def inputs(self) -> Spec:
        return ["data"], [self.text_field]

    def outputs(self) -> Spec:
        return ["data"], ["document", "id", "hits", "firsts", "lasts", "text"]

    def process(self, task: DocumentBatch) -> DocumentBatch:
        from gristmill.kernels.ngram_search import search_grams
        from gristmill.kernels.shingles import word_tables
        from gristmill.kernels.text_column import text_column

        if self._index is None:
            self._index = GramIndex(self._runs)
        index = self._index
        data, offsets, _ = text_column(texts_of(task, self.text_field))
        rows, hits, firsts, lasts = search_grams(
            data,
            offsets,
            *word_tables(),
            index.array("sizes"),
            index.array("grams"),
            index.array("gram_sizes"),
            index.array("gram_places"),
            index.array("directory"),
            index.directory_bits,
            index.array("filter"),
            index.array("filter_bits"),
            index.array("plain"),
        )
        counts = np.bincount(rows, minlength=task.num_items)
        task = task.drop(counts == 0, reason=CLEAN)
        if not task.num_items:
            return task
        bounds = pa.array(np.concatenate([[0], np.cumsum(counts[counts > 0])]))
        ids = make_identity(task, id_field=self.id_field, url_field=None).ids
        table = pa.table(
            {
                "document": make_keys(task.partition, task.rows),
                "id": pa.nulls(task.num_items, pa.large_string()) if ids is None else ids,
                "hits": pa.LargeListArray.from_arrays(bounds, pa.array(hits)),
                "firsts": pa.LargeListArray.from_arrays(bounds, pa.array(firsts)),
                "lasts": pa.LargeListArray.from_arrays(bounds, pa.array(lasts)),
                "text": texts_of(task, self.text_field),
            }
        )
        return task.with_columns(TableColumns(table))


class CommonGrams(RangeReader):
    """Lists the n-grams that occur in more than `max_documents` documents.

    Args:
        max_documents: Maximum number of documents for an n-gram to count.
    """

    name = "common_grams"
    fork_safe = True

    def __init__(self, max_documents: int) -> None:
        super().__init__()
        self.max_documents = max_documents

    def rows_from(self, low: int, high: int) -> Iterator[pa.Table]:
        counts = np.zeros(0, np.int64)
        for file in self.runs.files:
            table = open_run(file.path, storage_options=self.runs.storage_options)
            if not table.num_rows:
                continue
            hits, bounds = _lists(table, "hits")
            documents = np.repeat(np.arange(table.num_rows), np.diff(bounds))
            width = int(hits.max()) + 1 if len(hits) else 1
            once = np.unique(documents * width + hits) % width
            found = np.bincount(once)
            size = max(len(found), len(counts))
            counts = np.pad(counts, (0, size - len(counts))) + np.pad(found, (0, size - len(found)))
        yield pa.table({"gram": np.flatnonzero(counts > self.max_documents).astype(np.uint64)})


class ContaminatedItems(RangeReader):
    """Lists the pairs of documents and items where a document has at least `min_share` of the words.

    Args:
        index: The output of the step that built the index.
        min_share: Minimum share of an item's searched words; 0 for any n-gram.
        common: The n-grams that do not count, from `CommonGrams`.
    """

    name = "contaminated_items"
    fork_safe = True

    def __init__(self, index: RunFiles, *, min_share: float, common: RunFiles | None) -> None:
        super().__init__()
        self._index_runs, self._common = index, common
        self.index = index.digest
        self.common = None if common is None else common.digest
        self.min_share = min_share

    def rows_from(self, low: int, high: int) -> Iterator[pa.Table]:
        from gristmill.kernels.ngram_search import score_items
        from gristmill.kernels.passage_cut import excerpts
        from gristmill.kernels.text_column import text_column

        table = self.runs.read(low, high).combine_chunks()
        if not table.num_rows:
            return
        hits, bounds = _lists(table, "hits")
        firsts, lasts = _lists(table, "firsts")[0], _lists(table, "lasts")[0]
        if self._common is not None:
            common = np.concatenate([np.empty(0, np.uint64), *self._common.parts("gram")]).astype(np.int64)
            counted = ~np.isin(hits, common)
            bounds = np.concatenate([[0], np.cumsum(counted)])[bounds]
            hits, firsts, lasts = hits[counted], firsts[counted], lasts[counted]
        index = GramIndex(self._index_runs)
        texts, items, shares, span_bounds, starts, ends = score_items(
            _read_only(bounds),
            _read_only(hits),
            _read_only(firsts),
            _read_only(lasts),
            index.array("gram_sizes"),
            index.array("posting_bounds"),
            index.array("postings"),
            index.array("item_bounds"),
            index.array("searched"),
            float(self.min_share),
        )
        if not len(texts):
            return
        longest = _longest_of_each(ends - starts, span_bounds)
        data, offsets, _ = text_column(table.column("text"))
        begins, stops = offsets[texts] + starts[longest], offsets[texts] + starts[longest]
        shown = first_of_each(items)
        stops[shown] = offsets[texts[shown]] + ends[longest[shown]]
        passage, passage_bounds = excerpts(data, begins, stops, PASSAGE_BYTES)
        spans = np.stack([starts, ends], 1).reshape(-1)
        taken = pa.array(texts)
        yield pa.table(
            [
                table.column("document").take(taken),
                pa.array(items.astype(np.uint32)),
                pa.array(shares),
                table.column("id").take(taken),
                pa.LargeListArray.from_arrays(pa.array(2 * span_bounds), pa.array(spans)),
                pa.LargeStringArray.from_buffers(len(texts), pa.py_buffer(passage_bounds), pa.py_buffer(passage)),
            ],
            schema=PAIRS,
        )


def _lists(table: pa.Table, name: str) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """The concatenated values of a column of lists, and where each list begins."""
    lists = table.column(name).combine_chunks()
    if isinstance(lists, pa.ChunkedArray):
        lists = pa.concat_arrays(lists.chunks)
    offsets = lists.offsets.to_numpy()
    return lists.values.to_numpy()[offsets[0] : offsets[-1]], offsets - offsets[0]


def _read_only(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    values = np.ascontiguousarray(values).view()
    values.flags.writeable = False
    return values


def _longest_of_each(lengths: npt.NDArray[np.int64], bounds: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """The position of the first longest passage of each pair; every pair has one."""
    most = np.repeat(np.maximum.reduceat(lengths, bounds[:-1]), np.diff(bounds))
    places = np.flatnonzero(lengths == most)
    return places[np.searchsorted(places, bounds[:-1])]


def pairs_of(runs: RunFiles, low: int, high: int) -> pa.Table:
    """The pairs of documents `low` to `high`, sorted by document and item, without ids and shown passages."""
    table = runs.read(low, high)
    if not table.num_rows:
        return table
    table = table.select(["document", "item", "share", "spans"]).combine_chunks()
    documents, items = column(table, "document"), column(table, "item")
    later = (documents[1:] > documents[:-1]) | ((documents[1:] == documents[:-1]) & (items[1:] >= items[:-1]))
    if later.all():
        return table
    return table.take(pa.array(np.lexsort((items, documents)))).combine_chunks()
