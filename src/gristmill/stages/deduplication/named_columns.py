"""Holds the columns that the options of a deduplication name against its input, before the first step."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gristmill.errors import MissingColumnError, did_you_mean
from gristmill.pipeline.planner import expand, wanted_columns
from gristmill.stages.deduplication.source import DocumentSource
from gristmill.stages.deduplication.survivor_rule import numbers_of

if TYPE_CHECKING:
    from gristmill.stages.deduplication.deduplication_workflow import DeduplicationWorkflow


def check_named_columns(workflow: DeduplicationWorkflow, source: DocumentSource) -> list[str]:
    """Refuse columns that are not there, and scores that are no numbers, as far as the first documents show.

    Returns:
        Notes about columns that were not seen and that a document need not have.

    Raises:
        MissingColumnError: No document has the column; of one to compare by, none of those that were looked at.
        UsageError: The scores are no numbers.
    """
    # A document without a text counts as empty, so that with a misspelt name a run would compare nothing, and say so
    # to nobody. This is why what is compared must be seen.
    score = workflow.rule.score_field
    compared = [name for name in wanted_columns(expand(workflow._first_stages())) if name != score]
    others = {"score_field": score, "id_field": workflow.id_field}
    if workflow.id_field == "id":
        del others["id_field"]  # taken where it is there
    found = source.look_for([*compared, *(name for name in others.values() if name is not None)])
    if found is None:
        return []
    available, looked_at = list(found.names), "" if found.complete else found.looked_at
    options = {name: option for option, name in workflow._named_columns.items()}
    for name in compared:
        if name not in available and name in options:
            raise missing_column(options[name], name, available, looked_at=looked_at)
    notes = []
    for option, column in others.items():
        if column is None or column in available:
            continue
        if found.complete:
            raise missing_column(option, column, available)
        notes.append(f"{option}={column!r}: none of the {looked_at} that were looked at has this column.")
    if score is not None:
        for batch in source.first_batches([score]):
            numbers_of(batch, score)
    return notes


def missing_column(
    option: str, column: str, available: list[str], *, looked_at: str = "", **facts: Any
) -> MissingColumnError:
    """The error for a column that an option names and that no document has, or none of those `looked_at`."""
    none = f"none of the {looked_at} that were looked at has such a" if looked_at else "the documents have no such"
    return MissingColumnError(
        f"{option}={column!r}: {none} column, only {', '.join(map(repr, available)) or 'none'}."
        f"{did_you_mean(column, available)} Name the right one with --{option.replace('_', '-')} ({option}).",
        column=column,
        available=available,
        **facts,
    )
