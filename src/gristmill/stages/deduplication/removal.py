"""Drops the documents that an earlier step found to be duplicates, each partition by its own list."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from gristmill.ledger.record.layout import step_folder
from gristmill.ledger.record.step_record import EarlierStep
from gristmill.ledger.record.trail import DUPLICATE, Rows
from gristmill.stages.base import ProcessingStage, Spec
from gristmill.stages.deduplication.sorted_runs import RunFiles, column, sorted_by_key
from gristmill.stages.deduplication.source import Keys, first_key, make_keys, partitions_of, rows_of
from gristmill.storage.arrow_functions import call_function
from gristmill.storage.files import StorageOptions
from gristmill.tasks.document import DocumentBatch

REMOVALS = pa.schema(
    [
        ("document", pa.uint64()),
        ("survivor", pa.uint64()),
        ("id", pa.large_string()),
        ("survivor_id", pa.large_string()),
        ("similarity", pa.float64()),
    ]
)
"""The rows of a removal list: the document, its survivor and their similarity. The survivor also names the cluster."""


class DuplicateRemoval(ProcessingStage[DocumentBatch, DocumentBatch]):
    """Drops the documents on the removal list of their partition; the ledger names the survivor of each.

    Args:
        removals: The sorted lists of the previous step.
        partition_ids: The ids of the partitions by number; survivors without an id are identified by them.
        reason: The reason in the ledger.
        step: The folder of the step whose files were compared; rows are identified as in the input of the whole run.
        storage_options: File system options of that folder.
        first_partition: The number of the first partition of these documents in the lists.
    """

    notes_changes = True
    role = "deduplication"
    name = "duplicate_removal"
    fork_safe = True

    def __init__(
        self,
        removals: RunFiles,
        partition_ids: Sequence[str],
        *,
        reason: str,
        step: str | None = None,
        storage_options: StorageOptions = None,
        first_partition: int = 0,
    ) -> None:
        self._removals = removals
        self._first_partition = first_partition
        self._step = None if step is None else step_folder(step, storage_options)
        self._numbers: dict[int, Rows] = {}
        self._partition_ids = tuple(partition_ids)
        self.removals = removals.digest
        self.reason = reason
        self._partition = -1
        self._list: pa.Table | None = None

    def inputs(self) -> Spec:
        return ["data"], []

    def outputs(self) -> Spec:
        return ["data"], []

    def process(self, task: DocumentBatch) -> DocumentBatch:
        gone = self._removals_of(task.partition + self._first_partition)
        if not gone.num_rows or not task.num_items:
            return task
        keys = column(gone, "document")
        mine = make_keys(task.partition + self._first_partition, task.rows)
        at = np.searchsorted(keys, mine)
        mask = keys[np.minimum(at, len(keys) - 1)] == mine
        found = at[mask]
        if not len(found):
            return task
        chosen = call_function("take", [gone, pa.array(found)])
        names = survivor_names(self._numbered(chosen), self._partition_ids)
        survivors = [""] * task.num_items
        similarity = np.full(task.num_items, np.nan)
        similarity[mask] = column(chosen, "similarity")
        clusters = np.zeros(task.num_items, np.int64)
        clusters[mask] = cluster_numbers(column(chosen, "survivor"))
        for row, name in zip(np.flatnonzero(mask).tolist(), names, strict=True):
            survivors[row] = name
        return task.drop(
            mask,
            reason=self.reason,
            outcome=DUPLICATE,
            survivors=survivors,
            similarity=similarity,
            clusters=clusters,
        )

    def _numbered(self, removals: pa.Table) -> pa.Table:
        """The removals, with survivors that have no id identified by their row in the input, not in a step's files."""
        if self._step is None or not removals.column("survivor_id").null_count:
            return removals
        keys = column(removals, "survivor").copy()
        partitions, rows = partitions_of(keys), rows_of(keys)
        for partition in np.unique(partitions[partitions >= self._first_partition]).tolist():
            if partition not in self._numbers:
                self._numbers[partition] = EarlierStep(self._step, self._partition_ids[partition]).rows()
            mine = partitions == partition
            keys[mine] = make_keys(partition, self._numbers[partition][rows[mine]])
        place = removals.schema.get_field_index("survivor")
        return removals.set_column(place, "survivor", pa.array(keys))

    def _removals_of(self, partition: int) -> pa.Table:
        if partition != self._partition or self._list is None:
            table = self._removals.read(first_key(partition), first_key(partition + 1))
            self._list = sorted_by_key(table) if table.num_rows else table
            self._partition = partition
        return self._list


def cluster_numbers(survivors: Keys) -> npt.NDArray[np.int64]:
    """A number for every cluster: the key of its survivor, which is the same in every run over the same files."""
    return survivors.astype(np.int64)


def survivor_names(removals: pa.Table, partition_ids: Sequence[str]) -> list[str]:
    """The survivors' names in the ledger: their id, otherwise PARTITION#ROW."""
    return document_names(column(removals, "survivor"), removals.column("survivor_id").to_pylist(), partition_ids)


def document_names(keys: Keys, ids: Sequence[str | None], partition_ids: Sequence[str]) -> list[str]:
    """The id of every document, or PARTITION#ROW if it has none."""
    places = zip(ids, partitions_of(keys).tolist(), rows_of(keys).tolist(), strict=True)
    return [f"{partition_ids[partition]}#{row}" if name is None else name for name, partition, row in places]
