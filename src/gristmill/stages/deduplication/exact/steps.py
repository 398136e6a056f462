"""The two steps that find identical texts: a 128-bit hash of every document, and groups of equal hashes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from gristmill.ledger.record.tables import make_identity
from gristmill.stages.base import Spec
from gristmill.stages.deduplication.key_ranges import RangeReader
from gristmill.stages.deduplication.removal import REMOVALS
from gristmill.stages.deduplication.sorted_runs import column
from gristmill.stages.deduplication.source import DocumentStage, texts_of
from gristmill.stages.deduplication.survivor_rule import SurvivorRule
from gristmill.storage.arrow_functions import call_function
from gristmill.tasks.columns import TableColumns
from gristmill.tasks.document import DocumentBatch

EMPTY = "empty"
Key = Literal["text", "url", "title"]


class ContentHashes(DocumentStage):
    """Turns documents into hashes of their texts, with what is needed to identify them and to choose a survivor.

    Args:
        text_field: Column that holds the text.
        id_field: Column that holds document ids; survivors are identified by them.
        rule: Which document of a group to keep.
        merge_empty: Whether empty and missing texts count as duplicates of each other.
        key: "text", or "url" or "title" to compare these instead, normalised.
        key_field: Column to compare.
    """

    notes_changes = True
    name = "content_hashes"
    fork_safe = True
    text_parameter = "text_field"

    def __init__(
        self,
        text_field: str,
        *,
        id_field: str | None,
        rule: SurvivorRule,
        merge_empty: bool = False,
        key: Key = "text",
        key_field: str | None = None,
    ) -> None:
        self.text_field = text_field
        self.id_field = id_field
        self.rule = rule
        self.merge_empty = merge_empty
        self.key = key
        self.key_field = key_field or text_field

    def inputs(self) -> Spec:
        text = [self.text_field] if self.rule.survivor == "longest" else []
        return ["data"], list(dict.fromkeys([self.key_field, *text, *self.rule.columns]))

    def outputs(self) -> Spec:
        return ["data"], ["hash", "hash_2", "document", "rank", "id"]

    def process(self, task: DocumentBatch) -> DocumentBatch:
        # The driver has the stage too, and need not load kernels.
        from gristmill.kernels.hashing import content_hashes
        from gristmill.kernels.text_column import text_column

        compared = self._compared(task)
        data, offsets, valid = text_column(compared)
        if not self.merge_empty:
            empty = (np.diff(offsets) == 0) | ~valid
            if empty.any():
                task = task.drop(empty, reason=EMPTY)
                if not task.num_items:
                    return task
                data, offsets, valid = text_column(self._compared(task))
        text = texts_of(task, self.text_field)
        hashes = content_hashes(data, offsets)
        ids = make_identity(task, id_field=self.id_field, url_field=None).ids
        table = pa.table(
            {
                "hash": hashes[:, 0],
                "hash_2": hashes[:, 1],
                "document": self.keys_of(task),
                "rank": self.rule.ranks(task, text),
                "id": pa.nulls(task.num_items, pa.large_string()) if ids is None else ids,
            }
        )
        return task.with_columns(TableColumns(table))

    def _compared(self, batch: DocumentBatch) -> pa.Array:
        """The compared value of every document: its text, or its normalised URL or title."""
        given = texts_of(batch, self.key_field)
        if self.key == "text":
            return given
        from gristmill.stages.deduplication.exact.normal_keys import normal_titles, normal_urls

        return normal_urls(given) if self.key == "url" else normal_titles(given)


class EqualHashes(RangeReader):
    """Lists the documents to remove of a range of hashes: every document of a group except the survivor."""

    name = "equal_hashes"
    fork_safe = True

    def rows_from(self, low: int, high: int) -> Iterator[pa.Table]:
        table = self.runs.read(low, high)
        if table.num_rows > 1:
            yield removals_of_equals(table)


def removals_of_equals(table: pa.Table) -> pa.Table:
    """The removal list of a table of hashes, sorted by document."""
    removed, kept_by = equal_rows(table)
    document, ids = column(table, "document"), table.column("id")
    columns = [
        pa.array(document[removed]),
        pa.array(document[kept_by]),
        call_function("take", [ids, pa.array(removed)]),
        call_function("take", [ids, pa.array(kept_by)]),
        pa.array(np.ones(len(removed))),
    ]
    return pa.table(columns, schema=REMOVALS)


def equal_rows(table: pa.Table) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """The rows of a table of hashes to remove because another row has the same hash, each with its survivor's row."""
    first, second = column(table, "hash"), column(table, "hash_2")
    order = np.argsort(first, kind="stable")
    equal = first[order][1:] == first[order][:-1]
    # Nearly all hashes are unique; only those with an equal first half are compared further.
    shared = np.zeros(len(order), bool)
    shared[1:] |= equal
    shared[:-1] |= equal
    rows = order[shared]
    first, second = first[rows], second[rows]
    rank, document = column(table, "rank")[rows], column(table, "document")[rows]
    within = np.lexsort((document, rank, second, first))
    head = _heads(first[within], second[within])
    gone = np.flatnonzero(head != np.arange(len(within)))
    return rows[within[gone]], rows[within[head[gone]]]


def _heads(first: npt.NDArray[np.uint64], second: npt.NDArray[np.uint64]) -> npt.NDArray[np.int64]:
    """For each position, the position at which its group of equal neighbours begins."""
    begins = np.ones(len(first), bool)
    begins[1:] = (first[1:] != first[:-1]) | (second[1:] != second[:-1])
    return np.maximum.accumulate(np.where(begins, np.arange(len(first)), 0))
