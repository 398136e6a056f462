"""Batches put together and taken apart: results of a call for several tasks, and pieces of one task."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from gristmill.tasks.base import Task
from gristmill.tasks.columns import Columns, Indices, RecordColumns, TableColumns, records_of_lines
from gristmill.tasks.document import DocumentBatch
from gristmill.tracking.accounting import Entry, leave
from gristmill.tracking.matching import match_rows
from gristmill.tracking.rebuilding import rebuild

Output = tuple[Task[Any], Indices | None]


def attribute(entries: Sequence[Entry], given: Sequence[Task[Any]]) -> list[list[Output]]:
    """For each task that went into a call, the tasks (or parts of them) that continue it.

    A result that mixes rows of several tasks is taken apart, because a batch never crosses partitions.
    """
    found: list[list[Output]] = [[] for _ in entries]
    for number, task in enumerate(given):
        place = _direct(entries, task)
        if place is None and (len(entries) == 1 or not isinstance(task, DocumentBatch)):
            place = min(number, len(entries) - 1)
        if place is not None:
            one = leave(entries[place], task)
            found[place].append((one.task, one.positions))
            continue
        assert isinstance(task, DocumentBatch)
        _distribute(entries, task, found)
    return found


def _direct(entries: Sequence[Entry], task: Task[Any]) -> int | None:
    """The entry that `task` certainly continues."""
    for place, entry in enumerate(entries):
        if task is entry.task or (isinstance(task, DocumentBatch) and task._token is entry.token):
            return place
        if isinstance(task, DocumentBatch) and task._frame is not None and isinstance(entry.task, DocumentBatch):
            went_out = entry.task._given
            if went_out is not None and task._frame.index.name == went_out[1]:
                return place
    return None


def _distribute(entries: Sequence[Entry], task: DocumentBatch, found: list[list[Output]]) -> None:
    """Split `task` by the tasks its rows come from; rows that match none stay where most of the others belong.

    All tasks are searched at once, so that a row goes where it is found whole even if another task has one like it.
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
        if not len(mine) or entry.columns is None or entry.rows is None:
            continue
        part = table.take(pa.array(mine))
        positions = matched[mine]
        positions = np.where(positions >= 0, positions - (ends[nth] - entry.items), -1)
        rows = np.where(positions >= 0, entry.rows[np.maximum(positions, 0)], -1)
        batch = DocumentBatch.from_columns(rebuild(entry.columns, part, positions), rows=rows)
        batch.dataset_name, batch._metadata = task.dataset_name, dict(entry.task._metadata)
        batch._stage_perf = list(entry.task._stage_perf)
        found[place].append((batch, positions))


def _home(entries: Sequence[Entry], table: pa.Table, found: Sequence[Sequence[Output]]) -> int:
    """The task with which a result has most rows in common; among equals the first that has no result yet."""
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
    """The pieces of one task joined to one batch; other kinds of tasks stay as they are."""
    batches = [task for task in tasks if isinstance(task, DocumentBatch)]
    if len(tasks) <= 1 or len(batches) != len(tasks):
        return list(tasks)
    filled = [batch for batch in batches if batch.num_items] or batches[:1]
    joined = DocumentBatch.from_columns(
        concat_columns([batch.columns for batch in filled]),
        rows=np.concatenate([batch.rows for batch in filled]),
        dataset_name=filled[0].dataset_name,
    )
    joined._metadata, joined._stage_perf = filled[0]._metadata, filled[0]._stage_perf
    return [joined]


def join_outputs(pieces: Sequence[Sequence[Task[Any]]]) -> list[Task[Any]]:
    """What a stage gave for the pieces of one task, as it would have given it for the whole.

    A stage that gives several tasks for each piece keeps them apart: the first ones are joined, the second ones, …
    """
    filled = [list(piece) for piece in pieces if piece]
    sizes = {len(piece) for piece in filled}
    if len(sizes) != 1:
        return concat_batches([task for piece in filled for task in piece])
    return [task for place in range(sizes.pop()) for task in concat_batches([piece[place] for piece in filled])]
