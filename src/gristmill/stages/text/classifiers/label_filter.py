"""Drops documents by the label that a classifier assigned, with the label as the reason."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from gristmill.ledger.record.trail import DROPPED, Decisions
from gristmill.stages.text.filters.score_filter import Filter
from gristmill.tasks.columns import one_chunk
from gristmill.tasks.document import DocumentBatch


class LabelFilter(Filter):
    """Keeps documents with certain labels; `gristmill why` shows the label of a dropped document.

    Args:
        keep: Whether to keep documents with a label; called once for each label of a task.
        label_field: Column that holds the labels.
        labels: The labels to keep, as requested by the user.
    """

    only_drops = True
    for_dropped = "pass"  # type: ignore[assignment]  # there is no score to note
    notes_changes = True
    fork_safe = True

    def __init__(self, keep: Callable[[Any], bool], label_field: str, labels: Sequence[Any]) -> None:
        super().__init__(keep, label_field)
        self.labels = list(labels)

    def process(self, task: DocumentBatch) -> DocumentBatch:
        """The documents whose label is kept."""
        (keep,), (field,) = self.filter_fn, self.filter_field
        labels = one_chunk(task.column(field))
        if task.columns.is_json(field):
            labels = pa.array([None if value is None else str(value) for value in task.columns.python_values(field)])
        encoded = pc.dictionary_encode(labels, null_encoding="encode")
        places = encoded.indices.to_numpy(zero_copy_only=False)
        dropped = {place: label for place, label in enumerate(encoded.dictionary.to_pylist()) if not keep(label)}
        decisions = [
            Decisions("", DROPPED, f"label {label!r}", task.rows[places == place]) for place, label in dropped.items()
        ]
        return task.drop_decided(np.isin(places, list(dropped)), decisions)
