"""A budget in tokens and cost that is never exceeded: the worst case of a request is reserved before it is sent."""

from __future__ import annotations

import fcntl
import os
import struct
from dataclasses import dataclass

import orjson

from gristmill.errors import UsageError
from gristmill.ledger.record.answer_cache import Spent
from gristmill.models.client.llm_client import GenerationConfig

_STATE = struct.Struct("<QQQQ")  # spent: tokens in, out; reserved: tokens in, out
_PER_MILLION = 1e6


@dataclass(frozen=True, slots=True)
class Limits:
    """Spending limits, and the prices of tokens.

    Attributes:
        tokens: Maximum number of tokens in requests and responses together; None for no limit.
        cost: Maximum cost, in the currency of the prices; None for no limit.
        input_price: Price of a million tokens in requests.
        output_price: Price of a million tokens in responses.
    """

    tokens: int | None = None
    cost: float | None = None
    input_price: float = 0.0
    output_price: float = 0.0

    def check(self) -> None:
        """Check the values.

        Raises:
            UsageError: One is negative, or the cost is limited without prices.
        """
        for name, value in (("budget_tokens", self.tokens), ("budget_cost", self.cost)):
            if value is not None and (isinstance(value, bool) or not value >= 0):
                raise UsageError(f"{name}={value!r}: must be a number, at least 0, or None for no limit.")
        for name, value in (("input_price", self.input_price), ("output_price", self.output_price)):
            if isinstance(value, bool) or not value >= 0:
                raise UsageError(f"{name}={value!r}: must be the price of a million tokens, at least 0.")
        if self.cost is not None and not (self.input_price or self.output_price):
            raise UsageError(
                f"budget_cost={self.cost!r} needs token prices: set input_price and output_price, each per million "
                "tokens."
            )

    def cost_of(self, spent: Spent) -> float:
        """The cost of these tokens."""
        return (spent.prompt_tokens * self.input_price + spent.completion_tokens * self.output_price) / _PER_MILLION

    def allows(self, spent: Spent) -> bool:
        """Whether this total is within the limits."""
        within = self.tokens is None or spent.tokens <= self.tokens
        return within and (self.cost is None or self.cost_of(spent) <= self.cost)

    @property
    def is_limited(self) -> bool:
        """Whether any limit is set."""
        return self.tokens is not None or self.cost is not None

    def describe(self, spent: Spent) -> str:
        """The amount spent and the limit, for messages."""
        parts = [f"{spent.tokens:,} of {self.tokens:,} tokens"] if self.tokens is not None else []
        if self.cost is not None:
            parts.append(f"{self.cost_of(spent):.4f} of {self.cost:g} in money")
        return " and ".join(parts) or f"{spent.tokens:,} tokens"


class SharedBudget:
    """The amounts that all workers of a stage have spent and reserved, in a file that is locked for each update.

    Args:
        path: The file; None keeps the amounts in memory, for one worker.
        limits: Spending limits.
        spent: Amount spent before, used if the file does not exist yet.

    Attributes:
        reserved: Amount that was reserved by requests in progress, of all workers, before the last call.

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
        self._held = self.reserved = Spent()
        if path is not None:
            os.makedirs(os.path.dirname(path), exist_ok=True)
            self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)

    def reserve(self, worst: Spent) -> bool:
        """Reserve the maximum cost of a request; returns False if that could exceed the budget."""
        return self._change(Spent(), worst, checked=True)

    def settle(self, reserved: Spent, actual: Spent) -> None:
        """Replace the reservation for a request by its actual cost."""
        self._change(actual, Spent(-reserved.prompt_tokens, -reserved.completion_tokens), checked=False)

    @property
    def spent(self) -> Spent:
        """The amount spent."""
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
            was, self.reserved = self._figures()
            now, keeps = was + spent, self.reserved + reserved
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
        """Release outstanding reservations, and close the file."""
        self._change(Spent(), Spent(-self._held.prompt_tokens, -self._held.completion_tokens), checked=False)
        if self._file is not None:
            os.close(self._file)
            self._file = None


def reset_budget(path: str, spent: Spent) -> None:
    """Write the amount actually spent, before a run; reservations of an interrupted run are released."""
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644), "r+b") as file:
        file.write(_STATE.pack(spent.prompt_tokens, spent.completion_tokens, 0, 0))


def worst_case(messages: list[dict[str, str]], config: GenerationConfig) -> Spent:
    """Maximum number of tokens that a request can use.

    A token represents at least one byte; the rest allows for what a server's chat template adds. Servers may count
    other fields, such as a JSON schema, as part of the prompt.
    """
    extra = config.extra_kwargs or {}
    lengths = [config.max_tokens, *(extra.get(name) for name in ("max_tokens", "max_completion_tokens"))]
    size = sum(len(message["content"].encode()) + 16 for message in messages) + 64
    if extra:
        size += len(orjson.dumps(extra))
    return Spent(size, max(length for length in (0, *lengths) if isinstance(length, int)))
