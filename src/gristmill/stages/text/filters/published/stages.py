"""The published sets as single stages: `GopherQuality`, `GopherRepetition`, `C4Quality`, `FineWebQuality`.

Each takes the parameters of its set and the column to work on. Adjacent sets on one column are fused into one pass; the
rules of each are counted under its own stage.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, TypeVar, get_type_hints

import numpy as np
import pyarrow as pa

from gristmill.errors import require_module
from gristmill.kernels import text_clean
from gristmill.ledger.record.trail import DROPPED, Decisions
from gristmill.stages.base import FusedStage, ProcessingStage, Spec
from gristmill.stages.text.filters.cascade import CascadeStep, FusedFilters, apply_cascade, shares_pass
from gristmill.stages.text.filters.published.c4 import REASONS, C4QualityFilter
from gristmill.stages.text.filters.published.fineweb import FineWebQualityFilter
from gristmill.stages.text.filters.published.gopher import GopherQualityFilter, GopherRepetitionFilter
from gristmill.stages.text.filters.published.rules import FilterSet
from gristmill.stages.text.filters.statistics import LIBRARIES, SPACY
from gristmill.tasks.document import DocumentBatch
from gristmill.tracking.change_detection import differing_rows

S = TypeVar("S", bound=type[Any])


def _takes_parameters_of(filters: type[Any]) -> Callable[[S], S]:
    """Copy the signature of a set to its stage, so that help, recipes and editors show the parameters."""

    def decorate(stage: S) -> S:
        made = inspect.signature(filters.__init__)
        own = inspect.Parameter("text_field", inspect.Parameter.POSITIONAL_OR_KEYWORD, default="text", annotation=str)
        parameters = list(made.parameters.values())
        inherited = stage.__init__

        def init(self: Any, text_field: str = "text", **options: Any) -> None:
            inherited(self, text_field, **options)

        init.__signature__ = made.replace(parameters=[parameters[0], own, *parameters[1:]])  # type: ignore[attr-defined]
        init.__annotations__ = {"text_field": str, **get_type_hints(filters.__init__)}
        stage.__init__ = init
        stage.__doc__ = (stage.__doc__ or "") + inspect.cleandoc(filters.__doc__ or "").split("\n", 1)[-1]
        return stage

    return decorate


class PublishedSet(ProcessingStage[DocumentBatch, DocumentBatch]):
    """Drops documents by a set of rules, each with its own reason."""

    for_dropped = "score"
    notes_changes = True
    fork_safe = True
    text_parameter = "text_field"

    makes: ClassVar[Callable[..., FilterSet]]

    def __init__(self, text_field: str = "text", **options: Any) -> None:
        self.text_field = text_field
        self.options = options
        self.filters = type(self).makes(**options)

    def inputs(self) -> Spec:
        return ["data"], [self.text_field]

    def outputs(self) -> Spec:
        return ["data"], [self.text_field]

    def check_environment(self) -> None:
        for rule in self.filters.rules:
            rule.check_environment()

    def warm_up(self) -> None:
        self.filters.cascade.warm_up()

    def process(self, task: DocumentBatch) -> DocumentBatch:
        return apply_cascade(task, task.text(self.text_field), self.steps())

    def steps(self) -> list[CascadeStep]:
        """The rules as steps of a cascade."""
        return [CascadeStep(rule, self.name) for rule in self.filters.rules]

    def fuse(self, following: Sequence[ProcessingStage[Any, Any]]) -> FusedStage | None:
        members: list[PublishedSet] = []
        for stage in (self, *following):
            if not isinstance(stage, PublishedSet) or not shares_pass(self, stage, self.text_field, stage.text_field):
                break
            members.append(stage)
        if len(members) < 2:
            return None
        steps = [step for member in members for step in member.steps()]
        return FusedFilters(members, steps, self.text_field, name="_and_".join(member.name for member in members))


@_takes_parameters_of(GopherQualityFilter)
class GopherQuality(PublishedSet):
    """Gopher's quality rules as one stage (Rae et al. 2021, arXiv:2112.11446, appendix A.1)."""

    notes_changes = True
    name = "GopherQuality"
    fork_safe = True
    makes = GopherQualityFilter


@_takes_parameters_of(GopherRepetitionFilter)
class GopherRepetition(PublishedSet):
    """Gopher's repetition rules as one stage (Rae et al. 2021, arXiv:2112.11446, appendix A.1)."""

    notes_changes = True
    name = "GopherRepetition"
    fork_safe = True
    makes = GopherRepetitionFilter


@_takes_parameters_of(FineWebQualityFilter)
class FineWebQuality(PublishedSet):
    """FineWeb's quality rules as one stage (Penedo et al. 2024, arXiv:2406.17557)."""

    notes_changes = True
    name = "FineWebQuality"
    fork_safe = True
    makes = FineWebQualityFilter


@_takes_parameters_of(C4QualityFilter)
class C4Quality(ProcessingStage[DocumentBatch, DocumentBatch]):
    """C4's cleaning as one stage: removes lines from texts, then drops texts (Raffel et al. 2020)."""

    for_dropped = "run"
    notes_changes = True

    name = "C4Quality"
    fork_safe = True
    text_parameter = "text_field"

    def __init__(self, text_field: str = "text", **options: Any) -> None:
        self.text_field = text_field
        self.options = options
        self.filters = C4QualityFilter(**options)

    def inputs(self) -> Spec:
        return ["data"], [self.text_field]

    def outputs(self) -> Spec:
        return ["data"], [self.text_field]

    def check_environment(self) -> None:
        if self.filters.word_splitter == SPACY:
            require_module(*LIBRARIES[SPACY])

    def warm_up(self) -> None:
        self.filters.clean(pa.array(["A line that stays."], pa.large_string()))

    def process(self, task: DocumentBatch) -> DocumentBatch:
        before = task.text(self.text_field)
        cleaned = self.filters.clean(before)
        self._log_metrics({f"lines_{reason}": count for reason, count in cleaned.removed_lines.items()})
        decisions = []
        for outcome, reason in REASONS.items():
            rows = np.flatnonzero(cleaned.outcome == outcome)
            if len(rows):
                counted = outcome == text_clean.TOO_FEW_SENTENCES
                decisions.append(
                    Decisions(
                        "",
                        DROPPED,
                        reason,
                        task.rows[rows],
                        cleaned.sentences[rows].astype(np.float64) if counted else None,
                        float(self.filters.min_num_sentences or 0) if counted else None,
                    )
                )
        kept = task.drop_decided(~cleaned.kept, decisions)
        survivors = np.flatnonzero(cleaned.kept)
        texts, earlier = cleaned.texts.take(survivors), before.take(survivors)
        changed = differing_rows(texts, earlier)
        if not changed.any():
            return kept
        # A null text that passes (all rules may be off) stays null.
        made = kept.with_text(self.text_field, texts, changed=changed & earlier.is_valid().to_numpy(False))
        lengths = [np.asarray(_lengths(array), np.int64) for array in (texts, earlier)]
        made.note_change(self.text_field, changed, lengths[0] - lengths[1])
        return made


def _lengths(texts: Any) -> Any:
    import pyarrow.compute as pc

    return pc.fill_null(pc.utf8_length(texts), 0).to_numpy(zero_copy_only=False)
