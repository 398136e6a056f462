"""No sequence of requests exceeds a budget."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gristmill.errors import UsageError
from gristmill.ledger.record.answer_cache import Spent
from gristmill.models.client import GenerationConfig
from gristmill.stages.text.annotate.budget import Limits, SharedBudget, reset_budget, worst_case


@given(
    requests=st.lists(st.tuples(st.integers(1, 50), st.integers(0, 50), st.floats(0, 1), st.booleans())),
    limits=st.sampled_from([Limits(tokens=200), Limits(cost=0.5, input_price=1e3, output_price=3e3)]),
)
def test_never_exceeded(requests: list[tuple[int, int, float, bool]], limits: Limits) -> None:
    budget = SharedBudget(None, limits)
    under_way: list[tuple[Spent, Spent]] = []
    for prompt, completion, share, settles in requests:
        worst = Spent(prompt, completion)
        if budget.reserve(worst):
            under_way.append((worst, Spent(int(prompt * share), int(completion * share))))
        if settles and under_way:
            budget.settle(*under_way.pop(0))
    for pair in under_way:
        budget.settle(*pair)
    assert limits.allows(budget.spent)


def test_two_workers_share_a_file(tmp_path: Path) -> None:
    path = str(tmp_path / "a" / "b.budget")
    reset_budget(path, Spent(50, 0))
    one, two = (SharedBudget(path, Limits(tokens=100)) for _ in range(2))
    assert one.reserve(Spent(30, 0))
    assert not two.reserve(Spent(30, 0))
    one.settle(Spent(30, 0), Spent(5, 5))
    assert two.reserve(Spent(30, 10))
    assert two.spent == Spent(55, 5)
    two.close()  # gives back what it had reserved
    assert one.reserve(Spent(40, 0))
    one.close()


def test_limits_are_checked() -> None:
    with pytest.raises(UsageError, match="input_price"):
        Limits(cost=1.0).check()
    with pytest.raises(UsageError, match="budget_tokens"):
        Limits(tokens=-1).check()


def test_worst_case_counts_bytes() -> None:
    messages = [{"role": "user", "content": "äö"}]
    assert worst_case(messages, GenerationConfig(max_tokens=10)) == Spent(4 + 16 + 64, 10)
    extra = {"response_format": {"schema": "x" * 500}, "max_completion_tokens": 70}
    worst = worst_case(messages, GenerationConfig(max_tokens=10, extra_kwargs=extra))
    assert worst.prompt_tokens > 500 + 4 + 16 + 64
    assert worst.completion_tokens == 70
