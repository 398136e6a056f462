"""The stage that assigns every document an id derived from its origin."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from gristmill.errors import PlanningError, UsageError
from gristmill.stages.base import ProcessingStage, Spec
from gristmill.tasks.document import DocumentBatch


class AddId(ProcessingStage[DocumentBatch, DocumentBatch]):
    """Adds a column of ids: the id of the task, and the number of the row within its partition.

    The same input gets the same ids on every executor and for any number of workers. Rows with the same origin, such as
    the segments of a split document, get a third number; rows created by a stage get `new` and their position.

    Args:
        id_field: Column for the ids.
        id_prefix: Prefix of every id, followed by an underscore.
        overwrite: Replace an existing column of that name; otherwise it is an error.
        start_index: The number of the first row.

    Raises:
        UsageError: (a ValueError) The column exists and `overwrite` is False, or an argument is invalid.

    Example:
        >>> batch = DocumentBatch(data=pa.table({"text": ["a", "b"]}), task_id="7")
        >>> AddId("id", id_prefix="web").process(batch).to_pyarrow()["id"].to_pylist()
        ['web_7_0', 'web_7_1']
    """

    for_dropped = "pass"
    never_drops = True
    notes_changes = True

    name = "add_id"
    fork_safe = True
    fills_text = False

    def __init__(
        self, id_field: str, id_prefix: str | None = None, overwrite: bool = False, *, start_index: int = 0
    ) -> None:
        if not isinstance(id_field, str) or not id_field:
            raise UsageError(f"AddId(id_field={id_field!r}): must be a column name.")
        if isinstance(start_index, bool) or not isinstance(start_index, int) or start_index < 0:
            raise UsageError(f"AddId(start_index={start_index!r}): must be a whole number, at least 0.")
        self.id_field = id_field
        self.id_prefix = id_prefix
        self.overwrite = overwrite
        self.start_index = start_index

    def inputs(self) -> Spec:
        """No columns."""
        return ["data"], []

    def outputs(self) -> Spec:
        """The column of ids."""
        return ["data"], [self.id_field]

    def check_columns(self, columns: Collection[str]) -> None:
        """Raise if the ids would overwrite one of these columns.

        Raises:
            PlanningError: (a ValueError) The column exists and `overwrite` is False.
        """
        if self.id_field in columns and not self.overwrite:
            raise PlanningError(
                f"Stage {self.name!r} would write ids to column {self.id_field!r}, which already exists. Use another "
                "id_field, or overwrite=True to replace it.",
                stage=self.name,
                column=self.id_field,
            )

    def process(self, batch: DocumentBatch) -> DocumentBatch:
        """The batch with the column of ids."""
        self.check_columns(batch.get_columns())
        head = f"{self.id_prefix}_{batch.task_id}_" if self.id_prefix else f"{batch.task_id}_"
        places = np.arange(batch.num_items)
        rows = batch.rows
        unknown = rows < 0
        if unknown.all():
            rows, unknown = places, np.zeros(len(places), bool)
        numbers = np.where(unknown, places, rows + self.start_index)
        heads = np.where(unknown, head + "new", head) if unknown.any() else np.full(len(places), head)
        parts = [pa.array(heads.tolist(), pa.large_string()), pa.array(numbers).cast(pa.large_string())]
        repeats = _repeats(np.where(unknown, -1 - places, rows))
        if repeats.any():
            parts.append(pa.array([f"_{number}" if number else "" for number in repeats.tolist()], pa.large_string()))
        ids = pc.binary_join_element_wise(*parts, pa.scalar("", pa.large_string()))
        return batch.with_column(self.id_field, ids)


def _repeats(rows: np.ndarray) -> np.ndarray:
    """For each row, the number of equal rows before it."""
    order = np.argsort(rows, kind="stable")
    ordered = rows[order]
    first = np.flatnonzero(np.diff(ordered, prepend=ordered[:1] - 1)) if len(rows) else np.zeros(0, np.int64)
    sizes = np.diff(first, append=len(rows))
    repeats = np.empty(len(rows), np.int64)
    repeats[order] = np.arange(len(rows)) - np.repeat(first, sizes)
    return repeats
