"""The definition of a mixture: sources and their amounts, quality tiers and caps."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from itertools import pairwise
from typing import Any, Literal, get_args

from gristmill.errors import UsageError, did_you_mean
from gristmill.figures import parse_size, printable

Unit = Literal["tokens", "bytes", "documents"]
UNITS: tuple[str, ...] = get_args(Unit)
MAX_SOURCES = 256
MAX_TIERS = 1 << 10


@dataclass(frozen=True)
class Tier:
    """Documents with at least this quality, and how often each is taken.

    Attributes:
        min: Minimum value of the tier's column; None matches all other documents, including those without a value.
        rate: Number of times each document is taken per epoch of the source; 0 excludes the tier.
    """

    min: float | None = None
    rate: float = 1.0


@dataclass(frozen=True)
class Cap:
    """Maximum amount of a source per value of a column, such as a domain.

    Attributes:
        field: The column; documents without a value are not capped.
        amount: Maximum amount per value, in the unit of the mixture.
    """

    field: str
    amount: int


@dataclass(frozen=True)
class MixSource:
    """One source of a mixture. Set exactly one of weight, epochs and budget.

    Attributes:
        path: A file, folder, glob or URL, or a list of these.
        weight: Share relative to the other weights.
        epochs: Number of passes over the source; 0.5 takes half of it.
        budget: Amount to take, in the unit of the mixture.
        max_epochs: Maximum number of epochs, if a weight or budget requests more; the shortfall is reported.
        tier_field: Column that decides the tier.
        tiers: The tiers, best first; empty if there are none.
        cap: Maximum amount per value of a column.
        filetype: "jsonl" or "parquet"; detected from the file names by default.
        license: Licence of the source, if documents do not name their own.
    """

    path: str | Sequence[str]
    weight: float | None = None
    epochs: float | None = None
    budget: int | str | None = None
    max_epochs: float | None = None
    tier_field: str | None = None
    tiers: tuple[Tier, ...] = ()
    cap: Cap | None = None
    filetype: str | None = None
    license: str | None = None

    @property
    def amount(self) -> int | None:
        """The budget as a number."""
        return None if self.budget is None else parse_amount(self.budget, "budget")


@dataclass(frozen=True)
class Mixture:
    """Sources and the amount to take of each.

    Attributes:
        sources: The sources by name.
        unit: The unit of weights and budgets.
        budget: Amount of the whole mixture; None takes as much as possible without repeating a source with a weight.
        temperature: Weights are the sizes of the sources to the power of 1/temperature: 1 is proportional to size,
            larger values are closer to equal shares. For sources without their own weight, epochs or budget.
        max_epochs: Maximum number of epochs of any source that does not set its own.
        on_id_overlap: What to do if sources share ids: "error", or "keep" both documents.
    """

    sources: Mapping[str, MixSource]
    unit: Unit = "bytes"
    budget: int | str | None = None
    temperature: float | None = None
    max_epochs: float | None = None
    on_id_overlap: Literal["error", "keep"] = "error"
    total: int | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        problems = _problems(self)
        if problems:
            raise UsageError("The mixture is invalid: " + " ".join(problems), problems=problems)
        if self.budget is not None:
            object.__setattr__(self, "total", parse_amount(self.budget, "budget"))

    def limit(self, source: MixSource) -> float | None:
        """The maximum number of epochs of a source."""
        return self.max_epochs if source.max_epochs is None else source.max_epochs


def parse_amount(value: int | str, name: str) -> int:
    """A number of tokens, bytes or documents: 5000000, "5M" or "1.5B" (10**9), "2GB".

    Raises:
        UsageError: It is not a number of at least 1.
    """
    text = str(value).strip()
    if text[-1:].upper() == "B" and text[:-1].strip().replace(".", "", 1).isdigit():
        text = f"{text[:-1].strip()}G"
    number = parse_size(value if isinstance(value, int) else text, name=name)
    if number < 1:
        raise UsageError(f"{name}={value!r}: must be a number of at least 1, such as 5000000 or '5M'.")
    return number


def _problems(mixture: Mixture) -> list[str]:
    problems: list[str] = []
    if not mixture.sources:
        return ["there are no sources."]
    if len(mixture.sources) > MAX_SOURCES:
        problems.append(f"there are {len(mixture.sources)} sources; at most {MAX_SOURCES} are possible.")
    if mixture.unit not in UNITS:
        problems.append(
            f"unit is {mixture.unit!r}; must be one of {', '.join(UNITS)}.{did_you_mean(mixture.unit, UNITS)}"
        )
    if mixture.on_id_overlap not in ("error", "keep"):
        problems.append(f"on_id_overlap is {mixture.on_id_overlap!r}; must be 'error' or 'keep'.")
    problems += _number("temperature", mixture.temperature, zero=False)
    problems += _number("max_epochs", mixture.max_epochs, zero=False)
    problems += _amount("budget", mixture.budget)
    weights = []
    for name, source in mixture.sources.items():
        who = f"source {printable(repr(name))}"
        problems += [f"{who}: {problem}" for problem in _source_problems(source, mixture)]
        weights.append(source.weight)
    given = [weight for weight in weights if isinstance(weight, int | float) and not isinstance(weight, bool)]
    if given and not sum(weight for weight in given if math.isfinite(weight)) > 0:
        problems.append("the weights sum to 0: set at least one weight above 0.")
    fixed = all(source.epochs is not None or source.budget is not None for source in mixture.sources.values())
    if mixture.budget is not None and fixed:
        problems.append("budget is set, but every source has its own epochs or budget. Omit it, or set a weight.")
    return problems


def _source_problems(source: MixSource, mixture: Mixture) -> list[str]:
    problems = []
    given = [name for name in ("weight", "epochs", "budget") if getattr(source, name) is not None]
    if len(given) > 1:
        problems.append(f"{' and '.join(given)} are set; only one of them may set the amount.")
    if not given and mixture.temperature is None:
        problems.append("set weight, epochs or budget (or temperature for the whole mixture).")
    if source.weight is not None and mixture.temperature is not None:
        problems.append("weight and temperature are set; temperature computes weights from sizes.")
    if not source.path:
        problems.append("path is missing.")
    problems += _number("weight", source.weight) + _number("epochs", source.epochs, zero=False)
    problems += _number("max_epochs", source.max_epochs, zero=False) + _amount("budget", source.budget)
    if bool(source.tiers) != (source.tier_field is not None):
        problems.append("tiers need both a field and levels.")
    for place, tier in enumerate(source.tiers):
        problems += _number(f"the rate of tier {place + 1}", tier.rate)
        if tier.min is not None and (not _is_number(tier.min) or not math.isfinite(tier.min)):
            problems.append(f"the min of tier {place + 1} is {tier.min!r}; must be a number.")
    mins = [tier.min for tier in source.tiers]
    ordered = [-math.inf if low is None else low for low in mins if low is None or _is_number(low)]
    if any(high <= low for high, low in pairwise(ordered)):
        problems.append("list the tiers from best to worst, each with a lower min; only the last may omit it.")
    if source.tiers and not any(_is_number(tier.rate) and tier.rate > 0 for tier in source.tiers):
        problems.append("the rates of all tiers are 0, so nothing would be taken.")
    if len(source.tiers) > MAX_TIERS:
        problems.append(f"there are {len(source.tiers)} tiers; at most {MAX_TIERS} are possible.")
    if source.cap is not None and (not source.cap.field or not _is_number(source.cap.amount) or source.cap.amount < 1):
        problems.append("cap needs a field and an amount of at least 1.")
    return problems


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _number(name: str, value: Any, *, zero: bool = True) -> list[str]:
    if value is None:
        return []
    if not _is_number(value) or not math.isfinite(value) or value < 0 or (value == 0 and not zero):
        return [f"{name} is {printable(str(value))}; must be a number {'from' if zero else 'above'} 0."]
    return []


def _amount(name: str, value: Any) -> list[str]:
    if value is None:
        return []
    try:
        parse_amount(value, name)
    except UsageError as error:
        return [error.message]
    return []


def plain(value: Any) -> Any:
    """A mixture or a part of it as plain values, without unset ones."""
    if isinstance(value, Mixture | MixSource | Tier | Cap):
        named = {one.name: plain(getattr(value, one.name)) for one in fields(value) if one.init}
        return {name: one for name, one in named.items() if one is not None and one != []}
    if isinstance(value, Mapping):
        return {name: plain(one) for name, one in value.items()}
    return [plain(one) for one in value] if isinstance(value, list | tuple) else value
