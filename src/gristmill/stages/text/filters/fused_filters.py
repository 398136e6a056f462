"""The pass that adjacent score filters become: one evaluation of a cascade, each drop under the name of its stage."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from gristmill.ledger.record.trail import DROPPED, Decisions
from gristmill.stages.base import FusedStage, Spec
from gristmill.stages.text.filters.cascade import FilterCascade
from gristmill.stages.text.filters.rule import ColumnFilter
from gristmill.tasks.document import DocumentBatch

if TYPE_CHECKING:
    from gristmill.stages.text.filters.score_filter import ScoreFilter


class FusedFilters(FusedStage):
    """Adjacent score filters on one column as a single pass; every document meets them in order.

    Args:
        members: The filters, each a `ScoreFilter` with one built-in filter.
    """

    for_dropped = "score"

    def __init__(self, members: Sequence[ScoreFilter]) -> None:
        self.members: Sequence[ScoreFilter] = list(members)
        first = members[0]
        self.name = f"{len(members)}_filters"
        self.resources = first.resources
        self.batch_size = first.batch_size
        self.runtime_env = first.runtime_env
        self._requested_workers = first.requested_workers()
        self.text_field = first.text_field[0]

    def inputs(self) -> Spec:
        return ["data"], [self.text_field]

    def outputs(self) -> Spec:
        return ["data"], [field for member in self.members for field in member.outputs()[1]]

    def warm_up(self) -> None:
        FilterCascade([member.filter_obj[0] for member in self.members]).warm_up()

    def process(self, task: DocumentBatch) -> DocumentBatch:
        filters = [member.filter_obj[0] for member in self.members]
        return run_cascade(
            task,
            self.text_field,
            filters,
            [member.invert[0] for member in self.members],
            [member.score_field[0] for member in self.members],
            stages=[member.name for member in self.members],
            prefixes=[""] * len(filters),
        )


def run_cascade(
    batch: DocumentBatch,
    text_field: str,
    filters: Sequence[ColumnFilter],
    invert: Sequence[bool],
    score_fields: Sequence[str | None],
    *,
    stages: Sequence[str],
    prefixes: Sequence[str],
) -> DocumentBatch:
    """Drop what the filters drop, each under the name of its stage, and keep the scores that are asked for."""
    cascade = FilterCascade(filters, invert=invert)
    wanted = [position for position, field in enumerate(score_fields) if field is not None]
    everything = batch.wants_all_scores
    result = cascade.evaluate(batch.text(text_field), keep_scores=wanted, every_score=everything)
    if everything:
        for position, scores in result.scores.items():
            batch.note_scores(filters[position].name, scores, stage=stages[position])
    decisions: list[Decisions] = []
    for position, one in enumerate(filters):
        if not result.dropped[position]:
            continue
        rows = np.flatnonzero(result.failed_at == position)
        scores, bounds = result.score[rows], result.threshold[rows]
        reasons = np.array([one.reason(score) for score in scores])
        for reason in dict.fromkeys(reasons.tolist()):
            mine = reasons == reason
            bound = float(bounds[mine][0])
            decisions.append(
                Decisions(
                    stages[position],
                    DROPPED,
                    prefixes[position] + reason,
                    batch.rows[rows[mine]],
                    scores[mine],
                    None if np.isnan(bound) else bound,
                )
            )
    kept = batch.drop_decided(~result.kept, decisions)
    survivors = np.arange(batch.num_items) if batch.keeps_dropped else np.flatnonzero(result.kept)
    for position in wanted:
        field = score_fields[position]
        assert field is not None
        stored = filters[position].stored_scores(result.scores[position])
        kept = kept.with_column(field, stored.take(pa.array(survivors)))
    return kept
