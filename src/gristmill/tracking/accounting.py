"""Accounts for every row at the door of a stage: what went in, what came out, and what became of the rest.

Stages that use the batch's own methods keep origins by themselves. For frames and tables that user code returns,
rows are recognised by the labels of the pandas index that went out, else by content. What cannot be matched is counted
as dropped and created and marked `untracked`; nothing is ever matched by position.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from gristmill.errors import ConservationError, StageResultError
from gristmill.ledger.record.trail import DROPPED, UNTRACKED, Decisions, Rows, StageCount, Trail
from gristmill.stages.base import FusedStage, ProcessingStage
from gristmill.tasks.arrow_io import polars_memory, restore_json, shares_rows
from gristmill.tasks.base import Task
from gristmill.tasks.columns import Columns, Indices, TableColumns
from gristmill.tasks.document import DocumentBatch, Note
from gristmill.tracking.carrying import carries, load
from gristmill.tracking.change_detection import find_changes
from gristmill.tracking.matching import match_rows
from gristmill.tracking.rebuilding import rebuild

Stage = ProcessingStage[Any, Any]


@dataclass(slots=True)
class Entry:
    """A task at the moment it goes into a stage."""

    task: Task[Any]
    token: object
    columns: Columns | None
    rows: Rows | None
    items: int
    note: Note | None
    id_field: str | None = None

    @property
    def is_documents(self) -> bool:
        """Whether rows can be followed."""
        return self.columns is not None


def enter(task: Task[Any], *, all_scores: bool = False, id_field: str | None = None) -> Entry:
    """Remember what goes into a stage, and mark the task so that what is derived from it can be recognised."""
    if not isinstance(task, DocumentBatch):
        return Entry(task, object(), None, None, task.num_items, None)
    token = object()
    task._token = token
    task._positions = None
    task._note = Note(all_scores=all_scores)
    return Entry(task, token, task.columns, task.rows, task.num_items, task._note, id_field)


@dataclass(slots=True)
class Exit:
    """One task that came out, with the rows of the entry it continues (-1: a new row)."""

    task: Task[Any]
    positions: Indices | None


def leave(entry: Entry, given: Task[Any]) -> Exit:
    """Bring a task that came out of a stage into the runner's form and find where its rows come from."""
    if not isinstance(given, DocumentBatch):
        return Exit(given, None)
    if not entry.is_documents or entry.columns is None or entry.rows is None:
        return Exit(settled(given), None)
    if given._token is entry.token:
        live = given._given
        if live is None or given.columns is not entry.columns:
            positions = given._positions
            return Exit(given, np.arange(given.num_items) if positions is None else positions)
        return _from_frame(entry, given, live[0])
    if given._frame is not None:
        return _from_frame(entry, given, given._frame)
    table = restore_json(entry.columns, given.columns.table())
    positions = np.arange(entry.items) if _same_rows(entry, given, table) else match_rows(entry.columns, table)
    return Exit(_rebuilt(entry, given, rebuild(entry.columns, table, positions), positions), positions)


def _same_rows(entry: Entry, given: DocumentBatch, table: Any) -> bool:
    """Whether what came out still holds a column of what went in, so that the rows are certainly the same."""
    assert entry.columns is not None
    if given.num_items != entry.items:
        return False
    if given._polars is not None:
        shown = entry.task._shown if isinstance(entry.task, DocumentBatch) else None
        return shown is not None and shares_rows(polars_memory(shown), polars_memory(given._polars))
    shared = [name for name in table.column_names if entry.columns.has(name)]
    return shares_rows(entry.columns.table(shared), table)


def _from_frame(entry: Entry, given: DocumentBatch, frame: Any) -> Exit:
    from gristmill.tasks.pandas_io import positions_by_labels, to_table

    assert entry.columns is not None
    table = to_table(frame, entry.columns)
    positions = None
    went_out = entry.task._given if isinstance(entry.task, DocumentBatch) else None
    if went_out is not None:
        positions = positions_by_labels(frame, went_out[1], entry.items)
    if positions is None:
        positions = match_rows(entry.columns, table)
    return Exit(_rebuilt(entry, given, rebuild(entry.columns, table, positions), positions), positions)


def _rebuilt(entry: Entry, given: DocumentBatch, columns: Columns, positions: Indices) -> DocumentBatch:
    assert entry.rows is not None
    rows = np.full(len(positions), -1, np.int64)
    known = positions >= 0
    rows[known] = entry.rows[positions[known]]
    batch = DocumentBatch.from_columns(columns, rows=rows, dataset_name=given.dataset_name or entry.task.dataset_name)
    batch._metadata = given._metadata or dict(entry.task._metadata)
    batch._stage_perf = given._stage_perf or list(entry.task._stage_perf)
    batch._note = given._note
    return batch


def settled(batch: DocumentBatch) -> DocumentBatch:
    """A batch from a source: columns instead of a frame, row numbers where it has none."""
    if batch._frame is not None:
        from gristmill.tasks.pandas_io import to_table

        settled = DocumentBatch.from_columns(
            TableColumns(to_table(batch._frame)), rows=batch._rows, dataset_name=batch.dataset_name
        )
        settled._metadata, settled._stage_perf, settled._note = batch._metadata, batch._stage_perf, batch._note
        batch = settled
    if batch._rows is None:
        batch._rows = np.arange(batch.num_items)
    return batch


def account(stage: Stage, entry: Entry, exits: Sequence[Exit], trail: Trail) -> None:
    """Write the counts and decisions of one call for one task into `trail`.

    Raises:
        ConservationError: The stage's own records contradict the rows that are there.
    """
    out_items = sum(one.task.num_items for one in exits)
    notes = collected_notes(entry, exits)
    quarantined = [record for note in notes for record in note.quarantine]
    if not entry.is_documents or entry.rows is None or entry.note is None:
        _account_source(stage, entry, exits, trail, notes, out_items)
        return
    seen = np.zeros(entry.items, bool)
    untracked = rows_out = 0
    for one in exits:
        if one.positions is not None:
            known = one.positions[one.positions >= 0]
            seen[known] = True
            untracked += len(one.positions) - len(known)
            rows_out += len(one.positions)
    decisions = [decision for note in notes for decision in note.decisions]
    for decision in decisions:
        decision.stage = decision.stage or stage.name
    explained = sum(len(decision.rows) for decision in decisions) + len(quarantined)
    missing = entry.items - int(seen.sum())
    if explained > missing:
        raise ConservationError(
            f"Stage {stage.name!r} says that it dropped {explained} rows of {entry.task.task_id or 'a batch'}, but "
            f"only {missing} of {entry.items} are gone. Use the batch that drop() returns."
        )
    carriers = [one.task for one in exits if carries(one.task)]
    if carriers:
        left = _carry(entry, seen, decisions, quarantined, carriers)
        rows_out, missing = rows_out + left, missing - left
    elif explained < missing:
        decisions.append(_unexplained(stage, entry, seen, decisions, quarantined, untracked))
    created = rows_out - (entry.items - missing)
    _write(stage, entry, decisions, quarantined, rows_out, created, untracked, trail)
    _note_changes(stage, entry, exits, notes, trail)
    _write_rest(stage, notes, trail, entry, exits)


def _note_changes(stage: Stage, entry: Entry, exits: Sequence[Exit], notes: Sequence[Note], trail: Trail) -> None:
    """Add what the stage changed without saying so to the note of the entry."""
    assert entry.columns is not None
    assert entry.rows is not None
    assert entry.note is not None
    noted = frozenset(change.field for note in notes for change in note.changes)
    for one in exits:
        if one.positions is None or not isinstance(one.task, DocumentBatch):
            continue
        changes, touched = find_changes(stage, entry.columns, one.task.columns, one.positions, entry.rows, noted)
        entry.note.changes.extend(changes)
        if touched:
            members = stage.members if isinstance(stage, FusedStage) else [stage]
            trail.count(members[-1].name).touched += touched


def _carry(
    entry: Entry,
    seen: npt.NDArray[np.bool_],
    decisions: Sequence[Decisions],
    quarantined: Sequence[Any],
    carriers: Sequence[Task[Any]],
) -> int:
    """Let tasks of other kinds carry the documents that are gone without a word; gives their number."""
    assert entry.rows is not None
    assert entry.columns is not None
    gone = np.flatnonzero(~seen)
    told = _told(decisions, quarantined)
    left = gone[~np.isin(entry.rows[gone], told)] if len(told) else gone
    number = len(gone) - len(told)
    if len(left) != number:  # origins that repeat (pieces of one document): keep the number right
        left = gone[:number]
    load(carriers, entry.columns, entry.rows, left, id_field=entry.id_field)
    return number


def _told(decisions: Sequence[Decisions], quarantined: Sequence[Any]) -> Rows:
    """The rows for which something was decided."""
    told = [np.array([record.row for record in quarantined], np.int64), *(decision.rows for decision in decisions)]
    return np.concatenate(told)


def _unexplained(
    stage: Stage,
    entry: Entry,
    seen: npt.NDArray[np.bool_],
    decisions: Sequence[Decisions],
    quarantined: Sequence[Any],
    untracked: int,
) -> Decisions:
    """The rows that are gone without a word: dropped by the stage, or lost to sight where new rows turned up."""
    assert entry.rows is not None
    gone = entry.rows[~seen]
    told = _told(decisions, quarantined)
    number = int((~seen).sum()) - len(told)
    left = gone[~np.isin(gone, told)] if len(told) else gone
    if len(left) != number:  # origins that repeat (pieces of one document): keep the number right
        left = np.resize(left if len(left) else np.array([-1]), number)
    return Decisions(stage.name, DROPPED, UNTRACKED if untracked else stage.name, np.sort(left))


def _write(
    stage: Stage,
    entry: Entry,
    decisions: Sequence[Decisions],
    quarantined: Sequence[Any],
    rows_out: int,
    created: int,
    untracked: int,
    trail: Trail,
) -> None:
    members = stage.members if isinstance(stage, FusedStage) else [stage]
    names = [member.name for member in members]
    by_member: dict[str, list[Decisions]] = {name: [] for name in names}
    for decision in decisions:
        place = decision.stage if decision.stage in by_member else names[-1]
        decision.stage = place
        by_member[place].append(decision)
    aside: dict[str, list[str]] = {name: [] for name in names}
    for record in quarantined:
        aside[record.stage if record.stage in aside else names[-1]].append(record.cause)
    rows = entry.items
    for name in names:
        last = name == names[-1]
        counts = StageCount(rows_in=rows)
        for decision in by_member[name]:
            counts.dropped[decision.reason] = counts.dropped.get(decision.reason, 0) + len(decision.rows)
        for cause in aside[name]:
            counts.quarantined[cause] = counts.quarantined.get(cause, 0) + 1
        if last:
            counts.created, counts.untracked, counts.rows_out = created, untracked, rows_out
        else:
            counts.rows_out = rows - sum(counts.dropped.values()) - len(aside[name])
        if not counts.conserves():
            raise ConservationError(
                f"The rows of stage {name!r} do not add up: {counts.rows_in} in + {counts.created} created is not "
                f"{counts.rows_out} out + {sum(counts.dropped.values())} dropped + "
                f"{sum(counts.quarantined.values())} quarantined.",
                stage=name,
            )
        rows = counts.rows_out
        trail.count(name).add(counts)
    trail.decisions.extend(decisions)
    trail.quarantine.extend(quarantined)


def _account_source(
    stage: Stage, entry: Entry, exits: Sequence[Exit], trail: Trail, notes: Sequence[Note], out_items: int
) -> None:
    """Rows of a stage that does not get documents: whatever comes out was created there."""
    quarantined = [record for note in notes for record in note.quarantine]
    documents = any(isinstance(one.task, DocumentBatch) for one in exits)
    counts = StageCount()
    # Only documents are rows: files, and tasks of other kinds, are not.
    if documents or quarantined:
        counts.created, counts.rows_out = out_items + len(quarantined), out_items
    for record in quarantined:
        counts.quarantined[record.cause] = counts.quarantined.get(record.cause, 0) + 1
    trail.count(stage.name).add(counts)
    trail.quarantine.extend(quarantined)
    _write_rest(stage, notes, trail, entry, exits)


def _write_rest(stage: Stage, notes: Sequence[Note], trail: Trail, entry: Entry, exits: Sequence[Exit]) -> None:
    names = [member.name for member in stage.members] if isinstance(stage, FusedStage) else [stage.name]
    for note in notes:
        for change in note.changes:
            change.stage = change.stage or names[-1]
            trail.changes.append(change)
            trail.count(change.stage).changed += len(change.rows)
        for score in note.scores:
            score.stage = score.stage or names[-1]
            trail.scores.append(score)
    bytes_in = entry.columns.nbytes if entry.columns is not None else 0
    bytes_out = sum(one.task.columns.nbytes for one in exits if isinstance(one.task, DocumentBatch))
    trail.count(names[0]).bytes_in += bytes_in
    trail.count(names[-1]).bytes_out += bytes_out


def collected_notes(entry: Entry, exits: Sequence[Exit]) -> list[Note]:
    """Every note once: that of the entry, and those of batches that were made anew."""
    found: list[Note] = [entry.note] if entry.note is not None else []
    for one in exits:
        note = one.task._note if isinstance(one.task, DocumentBatch) else None
        if note is not None and all(note is not other for other in found):
            found.append(note)
    return found


def check_given(stage: Stage, given: Any, *, method: str = "process") -> list[Task[Any]]:
    """The tasks that a stage returned.

    Raises:
        StageResultError: It returned something else.
    """
    return list(given_tasks(stage, given, method=method))


def given_tasks(stage: Stage, given: Any, *, method: str = "process") -> Iterator[Task[Any]]:
    """As `check_given`, for a result that is taken up piece by piece."""
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


def _wrong_result(stage: Stage, found: Any, method: str, inside: str) -> StageResultError:
    allowed = "a task (a DocumentBatch, say), a list or an iterator of tasks, or None"
    returned = inside + _kind(found) + (" in it" if inside else "")
    hint = "Return the task itself, changed or not."
    if hasattr(found, "columns") or hasattr(found, "schema"):
        hint = "Wrap the data: return DocumentBatch(data=…)."
    return StageResultError(
        f"Stage {stage.name!r} returned {returned} from {method}(); allowed is {allowed}. {hint} The stage is at "
        "fault and not a document, so ignoring failures would not help. Committed output is intact: correct the stage "
        "and run the same command again to go on.",
        stage=stage.name,
        returned=returned,
        file=None,
        row=None,
    )


def _kind(found: Any) -> str:
    """The type of a value in words, with its module where the bare name may not say enough."""
    kind = type(found)
    package = kind.__module__.split(".")[0]
    name = kind.__qualname__ if package == "builtins" else f"{package}.{kind.__qualname__}"
    return f"{'an' if name[0] in 'aeiou' else 'a'} {name}"
