"""Accounts for every row of a stage: what went in, what came out, and what happened to the rest.

Stages that use the batch's own methods keep origins automatically. For frames and tables that user code returns, rows
are matched by the labels of the original pandas index, otherwise by content. Unmatched rows are counted as dropped and
created, and marked `untracked`; nothing is ever matched by position. Documents that become a task of another kind (such
as files) end there, as `converted`; documents made from such a task are created.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any

import numpy as np
import numpy.typing as npt

from gristmill.errors import ConservationError, StageResultError
from gristmill.ledger.record.trail import CONVERTED, DROPPED, UNTRACKED, Decisions, Rows, StageCount, Trail
from gristmill.stages.base import ProcessingStage, member_names
from gristmill.tasks.arrow_io import polars_memory, restore_json, shares_rows
from gristmill.tasks.base import FailedTask, NoneTask, Task
from gristmill.tasks.columns import Columns, Indices, TableColumns
from gristmill.tasks.document import DocumentBatch
from gristmill.tracking.change_detection import find_changes, rebuild
from gristmill.tracking.matching import match_rows

Stage = ProcessingStage[Any, Any]


@dataclass(slots=True)
class Entry:
    """A task as it enters a stage; `trail` collects the records about the call.

    `columns` and `rows` are None for a task that holds no documents.
    """

    task: Task[Any]
    items: int
    trail: Trail = field(default_factory=Trail)
    columns: Columns | None = None
    rows: Rows | None = None


@dataclass(slots=True)
class Exit:
    """One output task, with the input row that each of its rows continues (-1 for a new row)."""

    task: Task[Any]
    positions: Indices | None


def enter(task: Task[Any], *, all_scores: bool = False, keeps_dropped: bool = False) -> Entry:
    """Record the input of a stage, and mark the task so that anything derived from it can be recognised."""
    if not isinstance(task, DocumentBatch):
        return Entry(task, task.num_items)
    task._tracking = task._tracking.entering(all_scores=all_scores, keeps_dropped=keeps_dropped)
    return Entry(task, task.num_items, task._tracking.trail, task.columns, task.rows)


def leave(entry: Entry, given: Task[Any]) -> Exit:
    """Convert an output task to the runner's form, and find the origins of its rows."""
    if not isinstance(given, DocumentBatch):
        return Exit(given, None)
    if entry.columns is None:
        return Exit(settled(given), None)
    if continues(entry, given):
        shown = given._tracking.frame_shown
        if shown is not None and given.columns is entry.columns:
            return _from_frame(entry, given, shown[0])
        positions = given._tracking.positions
        return Exit(given, np.arange(given.num_items) if positions is None else positions)
    if given._frame is not None:
        return _from_frame(entry, given, given._frame)
    table = restore_json(entry.columns, given.columns.table())
    positions = np.arange(entry.items) if _same_rows(entry, given, table) else match_rows(entry.columns, table)
    return Exit(rebuilt(entry, given, table, positions), positions)


def continues(entry: Entry, given: DocumentBatch) -> bool:
    """Whether a batch was derived from the input by its own methods."""
    return given._tracking.in_call and given._tracking.trail is entry.trail


def shows(entry: Entry, given: DocumentBatch) -> bool:
    """Whether a batch holds a pandas frame with the labels of the frame that user code received."""
    shown = entry.task._tracking.frame_shown if isinstance(entry.task, DocumentBatch) else None
    return shown is not None and given._frame is not None and given._frame.index.name == shown[1]


def _same_rows(entry: Entry, given: DocumentBatch, table: Any) -> bool:
    """Whether the output shares the memory of a column with the input, so that the rows are certainly the same."""
    assert entry.columns is not None
    if given.num_items != entry.items:
        return False
    if given._polars is not None:
        shown = entry.task._tracking.polars_shown if isinstance(entry.task, DocumentBatch) else None
        return shown is not None and shares_rows(polars_memory(shown), polars_memory(given._polars))
    shared = [name for name in table.column_names if entry.columns.has(name)]
    return shares_rows(entry.columns.table(shared), table)


def _from_frame(entry: Entry, given: DocumentBatch, frame: Any) -> Exit:
    from gristmill.tasks.pandas_io import positions_by_labels, to_table

    assert entry.columns is not None
    table = to_table(frame, entry.columns)
    positions = None
    shown = entry.task._tracking.frame_shown if isinstance(entry.task, DocumentBatch) else None
    if shown is not None:
        positions = positions_by_labels(frame, shown[1], entry.items)
    if positions is None:
        positions = match_rows(entry.columns, table)
    return Exit(rebuilt(entry, given, table, positions), positions)


def rebuilt(entry: Entry, given: DocumentBatch, table: Any, positions: Indices) -> DocumentBatch:
    """The output, with the records and row numbers of the input where they are the same."""
    assert entry.rows is not None
    assert entry.columns is not None
    rows = np.full(len(positions), -1, np.int64)
    known = positions >= 0
    rows[known] = entry.rows[positions[known]]
    batch = given.with_columns(rebuild(entry.columns, table, positions))
    batch._tracking.rows = rows
    batch.dataset_name = given.dataset_name or entry.task.dataset_name
    batch._metadata = given._metadata or dict(entry.task._metadata)
    batch._stage_perf = given._stage_perf or list(entry.task._stage_perf)
    return batch


def settled(batch: DocumentBatch, first: int = 0) -> DocumentBatch:
    """A batch from a source, with columns instead of a frame, and rows numbered from `first` if it has no numbers."""
    if batch._frame is not None:
        from gristmill.tasks.pandas_io import to_table

        batch = batch.with_columns(TableColumns(to_table(batch._frame)))
    if batch._tracking.rows is None:
        batch._tracking.rows = np.arange(first, first + batch.num_items)
    return batch


def created_again(batch: DocumentBatch) -> None:
    """Remove the row numbers of documents created after documents were converted: they would not be unique."""
    batch._tracking.rows = np.full(batch.num_items, -1, np.int64)


def collect(entry: Entry, exits: Sequence[Exit]) -> Trail:
    """The trail of the entry, with the records of newly created batches."""
    seen = {id(entry.trail)}
    for one in exits:
        if isinstance(one.task, DocumentBatch) and id(one.task._tracking.trail) not in seen:
            trail = one.task._tracking.trail
            seen.add(id(trail))
            entry.trail.decisions.extend(trail.decisions)
            entry.trail.changes.extend(trail.changes)
            entry.trail.cuts.extend(trail.cuts)
            entry.trail.scores.extend(trail.scores)
            entry.trail.quarantine.extend(trail.quarantine)
            for stage, count in trail.counts.items():
                entry.trail.counts[stage].add(StageCount(skipped=count.skipped))
    return entry.trail


def account(stage: Stage, entry: Entry, exits: Sequence[Exit]) -> Trail:
    """The counts and records of one call for one task.

    Raises:
        ConservationError: The stage's own records contradict the actual rows.
    """
    trail = collect(entry, exits)
    names = member_names(stage)
    if entry.columns is None:
        _count_source(stage, exits, trail)
    else:
        _count_documents(stage, names, entry, exits, trail)
        assert entry.rows is not None
        noted = set(map(attrgetter("field"), trail.changes))
        for one in exits:
            if one.positions is not None and isinstance(one.task, DocumentBatch):
                after = one.task.columns
                changes, touched = find_changes(stage, entry.columns, after, one.positions, entry.rows, noted)
                trail.changes.extend(changes)
                trail.counts[names[-1]].touched += touched
    for change in trail.changes:
        change.stage = change.stage or names[-1]
        trail.counts[change.stage].changed += len(change.rows)
    for cut in trail.cuts:
        cut.stage = cut.stage or names[-1]
    for score in trail.scores:
        score.stage = score.stage or names[-1]
    trail.counts[names[0]].bytes_in += 0 if entry.columns is None else entry.columns.nbytes
    for one in exits:
        if isinstance(one.task, DocumentBatch):
            trail.counts[names[-1]].bytes_out += one.task.columns.nbytes
    return trail


def _count_source(stage: Stage, exits: Sequence[Exit], trail: Trail) -> None:
    """The counts of a stage whose input is not documents: all output rows were created."""
    counts = trail.counts[stage.name]
    for one in exits:
        if isinstance(one.task, DocumentBatch):  # only documents are rows: files, and tasks of other kinds, are not
            counts.rows_out += one.task.num_items
    counts.created += counts.rows_out + len(trail.quarantine)
    for record in trail.quarantine:
        counts.quarantined[record.cause] = counts.quarantined.get(record.cause, 0) + 1
    for decision in trail.decisions:  # from a reader that extracts while reading
        decision.stage = stage.name
        counts.created += len(decision.rows)
        counts.dropped[decision.reason] = counts.dropped.get(decision.reason, 0) + len(decision.rows)


def _count_documents(stage: Stage, names: Sequence[str], entry: Entry, exits: Sequence[Exit], trail: Trail) -> None:
    seen = np.zeros(entry.items, bool)
    untracked = rows_out = 0
    for one in exits:
        if one.positions is not None:
            known = one.positions[one.positions >= 0]
            seen[known] = True
            untracked += len(one.positions) - len(known)
            rows_out += len(one.positions)
    explained = len(trail.quarantine)
    for decision in trail.decisions:
        explained += len(decision.rows)
    missing = entry.items - int(seen.sum())
    if explained > missing:
        raise ConservationError(
            f"Stage {stage.name!r} reports that it dropped {explained} rows of {entry.task.task_id or 'a batch'}, but "
            f"only {missing} of {entry.items} are gone. Use the batch that drop() returns."
        )
    if explained < missing:
        other_kind = any(not isinstance(one.task, DocumentBatch | NoneTask | FailedTask) for one in exits)
        reason = CONVERTED if other_kind else UNTRACKED if untracked else stage.name
        trail.decisions.append(_unexplained(names[-1], reason, entry, seen, trail))
    created = rows_out - (entry.items - missing)
    _count_members(names, entry.items, rows_out, created, untracked, trail)


def _unexplained(stage: str, reason: str, entry: Entry, seen: npt.NDArray[np.bool_], trail: Trail) -> Decisions:
    """The rows that are missing without a recorded reason."""
    assert entry.rows is not None
    gone = entry.rows[~seen]
    quarantined = np.array([record.row for record in trail.quarantine], np.int64)
    told = np.concatenate([quarantined, *(decision.rows for decision in trail.decisions)])
    number = len(gone) - len(told)
    left = gone[~np.isin(gone, told)] if len(told) else gone
    if len(left) != number:  # origins that repeat (pieces of one document): keep the number right
        left = np.resize(left if len(left) else np.array([-1]), number)
    return Decisions(stage, DROPPED, reason, np.sort(left))


def _count_members(
    names: Sequence[str], rows_in: int, rows_out: int, created: int, untracked: int, trail: Trail
) -> None:
    """The counts of each member of a fused stage: its decisions, and the rows passed to the next one."""
    for decision in trail.decisions:
        decision.stage = decision.stage if decision.stage in names else names[-1]
        dropped = trail.counts[decision.stage].dropped
        dropped[decision.reason] = dropped.get(decision.reason, 0) + len(decision.rows)
    for record in trail.quarantine:
        quarantined = trail.counts[record.stage if record.stage in names else names[-1]].quarantined
        quarantined[record.cause] = quarantined.get(record.cause, 0) + 1
    rows = rows_in
    for name in names:
        count = trail.counts[name]
        count.rows_in = rows
        rows -= sum(count.dropped.values()) + sum(count.quarantined.values())
        count.rows_out = rows
        if name == names[-1]:
            count.created, count.untracked, count.rows_out = created, untracked, rows_out
        if not count.conserves():
            raise ConservationError(
                f"The rows of stage {name!r} do not add up: {count.rows_in} in + {count.created} created is not "
                f"{count.rows_out} out + {sum(count.dropped.values())} dropped + "
                f"{sum(count.quarantined.values())} quarantined.",
                stage=name,
            )


def check_given(stage: Stage, given: Any, *, method: str = "process") -> list[Task[Any]]:
    """The tasks that a stage returned.

    Raises:
        StageResultError: It returned something else.
    """
    return list(given_tasks(stage, given, method=method))


def given_tasks(stage: Stage, given: Any, *, method: str = "process") -> Iterator[Task[Any]]:
    """Like `check_given`, for a result that is consumed lazily."""
    if given is None:
        return
    if isinstance(given, Task):
        yield given
        return
    if not isinstance(given, list | tuple | Iterator):
        raise _wrong_result(stage, given, method, "")
    for task in given:
        if task is None:
            continue
        if not isinstance(task, Task):
            raise _wrong_result(stage, task, method, f"{_kind(given)} with ")
        yield task
        del task  # the next one may need its memory


def _wrong_result(stage: Stage, found: Any, method: str, inside: str) -> StageResultError:
    allowed = "a task (such as a DocumentBatch), a list or an iterator of tasks, or None"
    returned = inside + _kind(found) + (" in it" if inside else "")
    hint = "Return the task itself, changed or not."
    if hasattr(found, "columns") or hasattr(found, "schema"):
        hint = "Wrap the data: return DocumentBatch(data=…)."
    return StageResultError(
        f"Stage {stage.name!r} returned {returned} from {method}(); it must return {allowed}. {hint} This is a bug "
        "in the stage; --ignore-failures does not apply. Committed output is intact: correct the stage and run the "
        "same command again to resume.",
        stage=stage.name,
        returned=returned,
        file=None,
        row=None,
    )


def _kind(found: Any) -> str:
    """The type of a value in words, with its module if the name alone is ambiguous."""
    kind = type(found)
    package = kind.__module__.split(".")[0]
    name = kind.__qualname__ if package == "builtins" else f"{package}.{kind.__qualname__}"
    return f"{'an' if name[0] in 'aeiou' else 'a'} {name}"
