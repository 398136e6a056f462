"""A budget in tokens and money that is never exceeded: the worst case of a request is reserved before it is sent."""

from __future__ import annotations

import fcntl
import os
import struct
from dataclasses import dataclass

from gristmill.errors import UsageError
from gristmill.ledger.record.answer_cache import Spent

_STATE = struct.Struct("<QQQQ")  # spent: tokens in, out; reserved: tokens in, out
_PER_MILLION = 1e6


@dataclass(frozen=True, slots=True)
class Limits:
    """What may be spent, and what tokens cost.

    Attributes:
        tokens: The most tokens of questions and answers together; None for any number.
        cost: The most money, in the currency of the prices; None for any amount.
        input_price: What a million tokens of questions cost.
        output_price: What a million tokens of answers cost.
    """

    tokens: int | None = None
    cost: float | None = None
    input_price: float = 0.0
    output_price: float = 0.0

    def check(self) -> None:
        """Refuse values that cannot work.

        Raises:
            UsageError: One is negative, or money is limited without prices.
        """
        for name, value in (("budget_tokens", self.tokens), ("budget_cost", self.cost)):
            if value is not None and (isinstance(value, bool) or not value >= 0):
                raise UsageError(f"{name}={value!r}: pass a number from 0, or None for no limit.")
        for name, value in (("input_price", self.input_price), ("output_price", self.output_price)):
            if isinstance(value, bool) or not value >= 0:
                raise UsageError(f"{name}={value!r}: pass the price of a million tokens, from 0.")
        if self.cost is not None and not (self.input_price or self.output_price):
            raise UsageError(
                f"budget_cost={self.cost!r} needs the prices of tokens: pass input_price and output_price, each for a "
                "million tokens."
            )

    def cost_of(self, spent: Spent) -> float:
        """What these tokens cost."""
        return (spent.prompt_tokens * self.input_price + spent.completion_tokens * self.output_price) / _PER_MILLION

    def allows(self, spent: Spent) -> bool:
        """Whether this much may be spent in all."""
        within = self.tokens is None or spent.tokens <= self.tokens
        return within and (self.cost is None or self.cost_of(spent) <= self.cost)

    @property
    def is_limited(self) -> bool:
        """Whether there is a limit at all."""
        return self.tokens is not None or self.cost is not None

    def describe(self, spent: Spent) -> str:
        """What was spent of what was allowed, for people."""
        parts = [f"{spent.tokens:,} of {self.tokens:,} tokens"] if self.tokens is not None else []
        if self.cost is not None:
            parts.append(f"{self.cost_of(spent):.4f} of {self.cost:g} in money")
        return " and ".join(parts) or f"{spent.tokens:,} tokens"


class SharedBudget:
    """What all workers of a stage have spent and reserved, in a file that they lock for each change.

    Args:
        path: The file; None keeps the figures in memory, for one worker.
        limits: What may be spent.
        spent: What was spent before, for a file that does not exist yet.

    Example:
        >>> budget = SharedBudget(None, Limits(tokens=100))
        >>> budget.reserve(Spent(60, 20)), budget.reserve(Spent(30, 0))
        (True, False)
        >>> budget.settle(Spent(60, 20), Spent(10, 10))
        >>> budget.reserve(Spent(30, 0))
        True
    """

    def __init__(self, path: str | None, limits: Limits, spent: Spent = Spent()) -> None:  # noqa: B008
        self.limits = limits
        self._file: int | None = None
        self._memory = _STATE.pack(spent.prompt_tokens, spent.completion_tokens, 0, 0)
        self._held = Spent()
        if path is not None:
            os.makedirs(os.path.dirname(path), exist_ok=True)
            self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)

    def reserve(self, worst: Spent) -> bool:
        """Put aside what a request can cost at most; False if that could exceed the budget."""
        return self._change(Spent(), worst, checked=True)

    def settle(self, reserved: Spent, actual: Spent) -> None:
        """Replace what was reserved for a request by what it cost."""
        self._change(actual, Spent(-reserved.prompt_tokens, -reserved.completion_tokens), checked=False)

    @property
    def spent(self) -> Spent:
        """What was spent."""
        return self._figures()[0]

    def _figures(self) -> tuple[Spent, Spent]:
        data = self._memory
        if self._file is not None:
            data = os.pread(self._file, _STATE.size, 0) or self._memory
        a, b, c, d = _STATE.unpack(data)
        return Spent(a, b), Spent(c, d)

    def _change(self, spent: Spent, reserved: Spent, *, checked: bool) -> bool:
        if not self.limits.is_limited:
            return True
        if self._file is not None:
            fcntl.flock(self._file, fcntl.LOCK_EX)
        try:
            was, held = self._figures()
            now, keeps = was + spent, held + reserved
            if checked and not self.limits.allows(now + keeps):
                return False
            data = _STATE.pack(
                now.prompt_tokens, now.completion_tokens, max(0, keeps.prompt_tokens), max(0, keeps.completion_tokens)
            )
            if self._file is None:
                self._memory = data
            else:
                os.pwrite(self._file, data, 0)
            self._held = self._held + reserved
            return True
        finally:
            if self._file is not None:
                fcntl.flock(self._file, fcntl.LOCK_UN)

    def close(self) -> None:
        """Give back what is still reserved, and close the file."""
        self._change(Spent(), Spent(-self._held.prompt_tokens, -self._held.completion_tokens), checked=False)
        if self._file is not None:
            os.close(self._file)
            self._file = None


def reset_budget(path: str, spent: Spent) -> None:
    """Write what was really spent, before a run; what an interrupted one had reserved is free again."""
    os.makedirs(os.path.dirname(path), exist_ok=True)
    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        os.pwrite(file, _STATE.pack(spent.prompt_tokens, spent.completion_tokens, 0, 0), 0)
    finally:
        os.close(file)


def worst_case(messages: list[dict[str, str]], max_tokens: int) -> Spent:
    """The most tokens that a request can take.

    A token stands for at least one byte; the rest is for what a server's chat template adds.
    """
    size = sum(len(message["content"].encode()) + 16 for message in messages)
    return Spent(size + 64, max_tokens)
