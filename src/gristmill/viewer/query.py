"""Queries: conditions on documents, as sent by the page."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from gristmill.errors import UsageError, did_you_mean
from gristmill.ledger.ask.why import KEPT
from gristmill.ledger.record.trail import DROPPED, DUPLICATE, QUARANTINED
from gristmill.viewer.catalog import Catalog, PartitionFacts

CHANGED = "changed"
STATUSES = ("", KEPT, CHANGED, DROPPED, DUPLICATE, QUARANTINED)
"""`changed` are kept documents whose text a stage changed; `dropped` are all that were dropped, duplicates too."""
LABELS = ("", "any", "none", "right", "wrong")
MAX_TEXT_CHARS = 1000


@dataclass(frozen=True, slots=True)
class Query:
    """Conditions that a document must meet, all of them; empty values and None are ignored.

    Attributes:
        status: One of `STATUSES`.
        stage: The stage that decided on it.
        reason: The reason of that decision.
        score_name: `stage:score` of a score recorded for every document; without it the bounds apply to the deciding
            score.
        score_min: Its minimum.
        score_max: Its maximum.
        source: A part of the name of its source file.
        text: Text that it contains, ignoring case.
        label: Whether it was labelled, and how.
    """

    status: str = ""
    stage: str = ""
    reason: str = ""
    score_name: str = ""
    score_min: float | None = None
    score_max: float | None = None
    source: str = ""
    text: str = ""
    label: str = ""

    @classmethod
    def parse(cls, given: Mapping[str, str], known_scores: list[str]) -> Query:
        """The query in a request of the page.

        Raises:
            UsageError: A value is not one of the page's choices, or not a number.
        """
        names = ("status", "stage", "reason", "source", "label", "score_name")
        values: dict[str, Any] = {name: given.get(name, "") for name in names}
        values["text"] = given.get("text", "")[:MAX_TEXT_CHARS]
        for name, known in (("status", STATUSES), ("label", LABELS), ("score_name", ("", *known_scores))):
            if values[name] not in known:
                raise UsageError(f"{name}={values[name]!r} is unknown.{did_you_mean(values[name], known)}")
        return replace(
            cls(**values),
            score_min=_bound("score_min", given.get("score_min", "")),
            score_max=_bound("score_max", given.get("score_max", "")),
        )

    @property
    def has_bounds(self) -> bool:
        """Whether there is a condition on a score."""
        return self.score_min is not None or self.score_max is not None

    @property
    def wants_kept(self) -> bool:
        """Whether kept documents can match."""
        decided = self.stage or self.reason or (self.has_bounds and not self.score_name)
        return self.status in ("", KEPT, CHANGED) and not decided

    @property
    def wants_decided(self) -> bool:
        """Whether documents that were not kept can match."""
        return self.status not in (KEPT, CHANGED)

    def may_match(self, facts: PartitionFacts) -> bool:
        """Whether a partition can hold a document that matches, by its counts alone."""
        if self.source and not any(self.source in source for source in facts.sources):
            return False
        if self.status == CHANGED:
            return facts.has_changes
        if self.wants_kept:
            return True
        return any(self._counts(ending) for ending in facts.endings)

    def _counts(self, ending: tuple[str, str, str]) -> bool:
        stage, outcome, reason = ending
        outcomes = {DROPPED: DROPPED, DUPLICATE: DROPPED, QUARANTINED: QUARANTINED}
        return (
            self.stage in ("", stage)
            and self.reason in ("", reason)
            and outcomes.get(self.status, outcome) == outcome
            and self.wants_decided
        )

    def known_count(self, catalog: Catalog) -> int | None:
        """Number of matching documents, if the counts of the run determine it."""
        if catalog.splits or self.text or self.label or self.source or self.has_bounds:
            return None
        if self.status in (CHANGED, DUPLICATE):
            return None
        gone = sum(number for ending, number in catalog.endings.items() if self._counts(ending))
        return gone + (catalog.kept if self.wants_kept else 0)


def _bound(name: str, text: str) -> float | None:
    if not text.strip():
        return None
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if math.isnan(value):
        raise UsageError(f"{name}={text!r} is not a number.")
    return value
