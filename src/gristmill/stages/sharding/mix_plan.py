"""Computes the amount to take of every source, from sizes and requests. Pure arithmetic; nothing is read here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from gristmill.errors import PlanningError
from gristmill.figures import format_size, plural
from gristmill.figures import share as as_share
from gristmill.stages.sharding.mixture import MixSource, Mixture


@dataclass(frozen=True)
class TierSize:
    """The size of a tier of a source.

    Attributes:
        documents: Number of documents.
        amount: Amount in the unit of the mixture.
    """

    documents: int = 0
    amount: int = 0


@dataclass
class SourcePlan:
    """The planned amount of a source.

    Attributes:
        name: The source.
        available: Amount available in the unit of the mixture, including excluded tiers.
        asked: Amount requested by its weight, epochs or budget.
        epochs: Average number of times each document is taken, for every tier.
        documents: Number of documents in the result, once known exactly.
        amount: Amount in the result, once known exactly.
        bytes: Number of bytes in the result.
        tokens: Number of tokens in the result, if counted.
        cuts: For every tier, the number of times each document is taken, and the key below which it is taken once more.
    """

    name: str
    available: int
    asked: float
    epochs: list[float]
    documents: int = 0
    amount: int = 0
    bytes: int = 0
    tokens: int = 0
    cuts: list[tuple[int, int]] = field(default_factory=list)

    @property
    def mean_epochs(self) -> float:
        """The amount in the result, relative to the available amount."""
        return self.amount / self.available if self.available else 0.0


@dataclass
class MixPlan:
    """The planned result of a mixture.

    Attributes:
        unit: The unit of amounts.
        sources: The planned amount of each source.
        notes: Noteworthy facts: repetitions, shortfalls, approximations.
    """

    unit: str
    sources: list[SourcePlan]
    notes: list[str] = field(default_factory=list)

    @property
    def total(self) -> int:
        """The total amount."""
        return sum(source.amount for source in self.sources)

    def facts(self) -> dict[str, Any]:
        """The plan as plain values."""
        whole = sum(source.asked for source in self.sources)
        return {
            "unit": self.unit,
            "total": self.total,
            "notes": list(self.notes),
            "sources": [
                {
                    "name": source.name,
                    "available": source.available,
                    "asked": round(source.asked),
                    "asked_share": source.asked / whole if whole else 0.0,
                    "amount": source.amount,
                    "share": source.amount / self.total if self.total else 0.0,
                    "documents": source.documents,
                    "bytes": source.bytes,
                    "tokens": source.tokens,
                    "epochs": source.mean_epochs,
                    "tier_epochs": source.epochs,
                }
                for source in self.sources
            ],
        }

    def __str__(self) -> str:
        head = ("source", "available", "asked", "takes", "share", "epochs", "documents")
        rows = [head, *map(self._row, self.facts()["sources"])]
        widths = [max(len(row[place]) for row in rows) for place in range(len(head))]
        lines = [f"Unit: {self.unit}"]
        for name, *numbers in rows:
            cells = [number.rjust(width) for number, width in zip(numbers, widths[1:], strict=True)]
            lines.append("  ".join([name.ljust(widths[0]), *cells]))
        documents = sum(source.documents for source in self.sources)
        lines.append(f"Total: {self._shown(self.total)} in {plural(documents, 'document')}")
        return "\n".join([*lines, *self.notes])

    def _row(self, one: Mapping[str, Any]) -> tuple[str, ...]:
        shares = as_share(one["asked_share"]), as_share(one["share"])
        available, amount = self._shown(one["available"]), self._shown(one["amount"])
        return one["name"], available, shares[0], amount, shares[1], f"{one['epochs']:.3g}", f"{one['documents']:,}"

    def _shown(self, amount: int) -> str:
        return format_size(amount) if self.unit == "bytes" else f"{amount:,} {self.unit}"


def allocate(mixture: Mixture, sizes: Mapping[str, Sequence[TierSize]]) -> MixPlan:
    """The number of epochs of every tier of every source that yields the mixture.

    Args:
        mixture: The requested mixture.
        sizes: Size of each tier of each source; a source without tiers has one.

    Raises:
        PlanningError: A source is empty, or the budget is used up by fixed amounts.
    """
    notes: list[str] = []
    base: dict[str, float] = {}
    for name, source in mixture.sources.items():
        rates = _rates(source)
        base[name] = sum(rate * tier.amount for rate, tier in zip(rates, sizes[name], strict=True))
        if not base[name] and source.weight != 0:
            there = sum(tier.documents for tier in sizes[name])
            why = "has no documents" if not there else f"has no {mixture.unit} in tiers with a rate above 0"
            raise PlanningError(
                f"The source {name!r} {why}, so nothing of it can be taken. Remove it, or correct its path "
                f"({source.path}), tiers or cap.",
                source=name,
            )
    asked = _amounts(mixture, base, notes)
    plans = []
    for name, source in mixture.sources.items():
        rates = _rates(source)
        factor = asked[name] / base[name] if base[name] else 0.0
        limit = mixture.limit(source)
        top = factor * max(rates)
        if limit is not None and top > limit * (1 + 1e-12):
            got = asked[name] * limit / top
            notes.append(
                f"Shortfall: {name} is too small for the request: max_epochs={limit:g} yields {got:,.0f} of "
                f"{asked[name]:,.0f} {mixture.unit}. The shares of the others grow accordingly."
            )
            factor *= limit / top
        elif top > 1 + 1e-12 and source.epochs is None:
            notes.append(
                f"Repeats: {name} is too small for the request, so documents are taken up to {top:.3g} times on "
                "average. Set max_epochs to limit this."
            )
        if source.weight == 0:
            notes.append(f"{name} has weight 0: nothing of it is taken.")
        available = sum(tier.amount for tier in sizes[name])
        plans.append(SourcePlan(name, available, asked[name], [factor * rate for rate in rates]))
    return MixPlan(mixture.unit, plans, notes)


def _rates(source: MixSource) -> list[float]:
    return [tier.rate for tier in source.tiers] or [1.0]


def _amounts(mixture: Mixture, base: Mapping[str, float], notes: list[str]) -> dict[str, float]:
    """The amount requested of every source."""
    asked: dict[str, float] = {}
    weights: dict[str, float] = {}
    for name, source in mixture.sources.items():
        if source.epochs is not None:
            asked[name] = source.epochs * base[name]
        elif source.amount is not None:
            asked[name] = float(source.amount)
        else:
            weights[name] = (
                base[name] ** (1 / mixture.temperature) if mixture.temperature else float(source.weight or 0)
            )
    if not weights:
        return asked
    fixed, whole = sum(asked.values()), sum(weights.values())
    if mixture.total is not None:
        rest = mixture.total - fixed
        if rest <= 0:
            raise PlanningError(
                f"The budget of {mixture.total:,} {mixture.unit} is used up by the sources with their own epochs or "
                f"budget ({fixed:,.0f}); nothing is left for {', '.join(weights)}. Raise it, or lower theirs."
            )
    else:
        rest = min(
            (mixture.limit(mixture.sources[name]) or 1.0) * base[name] * whole / weight
            for name, weight in weights.items()
            if weight > 0
        )
        notes.append(
            f"No budget is set: the sources with weights get {rest:,.0f} {mixture.unit} together, the maximum without "
            "exceeding one epoch (or max_epochs) of any."
        )
    return {**asked, **{name: rest * weight / whole for name, weight in weights.items()}}
