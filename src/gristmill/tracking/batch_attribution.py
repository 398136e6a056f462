"""Joins and splits batches: results of a call for several tasks, and pieces of one task."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from gristmill.tasks.base import Task
from gristmill.tasks.columns import Columns, RecordColumns, TableColumns, records_of_lines
from gristmill.tasks.document import DocumentBatch
from gristmill.tracking.accounting import Entry, Exit, continues, leave, rebuilt, shows
from gristmill.tracking.matching import match_rows
from gristmill.tracking.origins import RowTracking


def attribute(entries: Sequence[Entry], given: Sequence[Task[Any]]) -> list[list[Exit]]:
    """For each input task of a call, the tasks (or parts of them) that continue it.

    A result that mixes rows of several tasks is split, because a batch never spans partitions.
    """
    found: list[list[Exit]] = [[] for _ in entries]
    for number, task in enumerate(given):
        place = _direct(entries, task)
        if place is None and (len(entries) == 1 or not isinstance(task, DocumentBatch)):
            place = min(number, len(entries) - 1)
        if place is not None:
            found[place].append(leave(entries[place], task))
            continue
        assert isinstance(task, DocumentBatch)
        _distribute(entries, task, found)
    return found


def _direct(entries: Sequence[Entry], task: Task[Any]) -> int | None:
    """The entry that `task` certainly continues."""
    for place, entry in enumerate(entries):
        if task is entry.task:
            return place
        if isinstance(task, DocumentBatch) and (continues(entry, task) or shows(entry, task)):
            return place
    return None


def _distribute(entries: Sequence[Entry], task: DocumentBatch, found: list[list[Exit]]) -> None:
    """Split `task` by the origins of its rows; unmatched rows go where most of the others belong.

    All tasks are searched at once, so that a row goes where it matches completely even if another task has a similar
    one.
    """
    table = task.columns.table()
    home = _home(entries, table, found)
    order = [home, *(place for place in range(len(entries)) if place != home)]
    order = [place for place in order if entries[place].columns is not None]
    parts = [entries[place].columns for place in order]
    everything = TableColumns(
        pa.concat_tables([part.table() for part in parts if part is not None], promote_options="permissive")
    )
    ends = np.cumsum([entries[place].items for place in order])
    matched = match_rows(everything, table)
    which = np.searchsorted(ends, matched, side="right")
    for nth, place in enumerate(order):
        entry = entries[place]
        mine = np.flatnonzero((matched >= 0) & (which == nth) | (matched < 0) & (nth == 0))
        if not len(mine):
            continue
        positions = matched[mine]
        positions = np.where(positions >= 0, positions - (ends[nth] - entry.items), -1)
        # It is unknown which part of the result a record refers to, so its records are not distributed.
        part = DocumentBatch(task.dataset_name, table.take(pa.array(mine)))
        found[place].append(Exit(rebuilt(entry, part, part.columns.table(), positions), positions))


def _home(entries: Sequence[Entry], table: pa.Table, found: Sequence[Sequence[Exit]]) -> int:
    """The task that shares most rows with a result; among equals, the first that has no result yet."""
    common = [0 if entry.columns is None else int((match_rows(entry.columns, table) >= 0).sum()) for entry in entries]
    return min(range(len(entries)), key=lambda place: (-common[place], len(found[place]), place))


def concat_columns(parts: Sequence[Columns]) -> Columns:
    """The rows of all parts, in order."""
    if len(parts) == 1:
        return parts[0]
    if any(isinstance(part, RecordColumns) for part in parts):
        names = list(dict.fromkeys(name for part in parts for name in part.names))
        records = records_of_lines(np.concatenate([part.encode_jsonl() for part in parts]))
        return RecordColumns(records, names=tuple(names))
    return TableColumns(pa.concat_tables([part.table() for part in parts], promote_options="permissive"))


def concat_batches(tasks: Sequence[Task[Any]]) -> list[Task[Any]]:
    """The pieces of one task joined into one batch; other kinds of tasks are unchanged."""
    batches = [task for task in tasks if isinstance(task, DocumentBatch)]
    if len(tasks) <= 1 or len(batches) != len(tasks):
        return list(tasks)
    filled = [batch for batch in batches if batch.num_items] or batches[:1]
    joined = filled[0].with_columns(concat_columns([batch.columns for batch in filled]))
    joined._tracking = RowTracking(np.concatenate([batch.rows for batch in filled]))
    return [joined]


def join_outputs(pieces: Sequence[Sequence[Task[Any]]]) -> list[Task[Any]]:
    """The results for the pieces of one task, joined as if the stage had processed the whole.

    If a stage yields several tasks per piece, they stay separate: the first ones are joined, then the second ones, …
    """
    filled = [list(piece) for piece in pieces if piece]
    sizes = {len(piece) for piece in filled}
    if len(sizes) != 1:
        return concat_batches([task for piece in filled for task in piece])
    return [task for place in range(sizes.pop()) for task in concat_batches([piece[place] for piece in filled])]
