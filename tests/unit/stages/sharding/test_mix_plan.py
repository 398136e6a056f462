"""From sizes and wishes to epochs, and what is said before a run."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gristmill.errors import PlanningError, UsageError
from gristmill.stages.sharding import Cap, MixSource, Mixture, Tier
from gristmill.stages.sharding.mix_plan import TierSize, allocate
from gristmill.stages.sharding.mixture import parse_amount, plain


def planned(mixture: Mixture, **amounts: int | list[int]) -> dict[str, float]:
    """How much is requested of every source, by its planned epochs."""
    sizes = {
        name: [TierSize(10, one) for one in (size if isinstance(size, list) else [size])]
        for name, size in amounts.items()
    }
    plan = allocate(mixture, sizes)
    return {
        source.name: sum(epochs * size.amount for epochs, size in zip(source.epochs, sizes[source.name], strict=True))
        for source in plan.sources
    }


def sources(**wishes: dict[str, Any]) -> dict[str, MixSource]:
    return {name: MixSource(f"{name}/", **wish) for name, wish in wishes.items()}


def test_weights_share_what_fixed_amounts_leave() -> None:
    mixture = Mixture(
        sources(web={"weight": 3}, code={"weight": 1}, books={"epochs": 2}, wiki={"budget": "1K"}), budget=10_000
    )
    found = planned(mixture, web=100_000, code=100_000, books=500, wiki=5000)
    assert found == pytest.approx({"web": 6000, "code": 2000, "books": 1000, "wiki": 1000})


def test_without_a_budget_no_source_is_repeated() -> None:
    mixture = Mixture(sources(web={"weight": 0.9}, code={"weight": 0.1}))
    assert planned(mixture, web=1000, code=1000) == pytest.approx({"web": 1000, "code": 1000 / 9})


@given(st.lists(st.integers(1, 10**9), min_size=2, max_size=6), st.floats(0.2, 20))
def test_temperature_is_a_power_of_the_sizes(sizes: list[int], temperature: float) -> None:
    amounts = {f"s{at}": size for at, size in enumerate(sizes)}
    mixture = Mixture(sources(**{name: {} for name in amounts}), temperature=temperature, budget=10**6)
    found = planned(mixture, **amounts)
    powers = {name: size ** (1 / temperature) for name, size in amounts.items()}
    for name in amounts:
        assert found[name] == pytest.approx(10**6 * powers[name] / sum(powers.values()))


def test_tiers_are_taken_at_their_rates() -> None:
    tiers = (Tier(0.8, 4), Tier(0.5, 1), Tier(None, 0))
    mixture = Mixture(sources(web={"budget": 900, "tier_field": "quality", "tiers": tiers}))
    plan = allocate(mixture, {"web": [TierSize(1, 100), TierSize(1, 200), TierSize(1, 700)]})
    assert plan.sources[0].epochs == pytest.approx([6.0, 1.5, 0.0])


def test_repetition_is_told() -> None:
    mixture = Mixture(sources(web={"weight": 1}, code={"weight": 1}), budget=2000)
    plan = allocate(mixture, {"web": [TierSize(10, 5000)], "code": [TierSize(10, 250)]})
    assert plan.sources[1].epochs == [4.0]
    assert [note for note in plan.notes if "Repeats: code is too small" in note and "up to 4 times" in note]


def test_a_limit_of_epochs_leaves_a_stated_shortfall() -> None:
    mixture = Mixture(sources(web={"weight": 1}, code={"weight": 1, "max_epochs": 2}), budget=2000)
    plan = allocate(mixture, {"web": [TierSize(10, 5000)], "code": [TierSize(10, 250)]})
    assert plan.sources[1].epochs == [2.0]
    assert [note for note in plan.notes if "Shortfall: code" in note and "500 of 1,000" in note]


def test_a_weight_of_zero_is_told() -> None:
    plan = allocate(Mixture(sources(a={"weight": 1}, b={"weight": 0})), {"a": [TierSize(1, 9)], "b": [TierSize(1, 9)]})
    assert plan.sources[1].epochs == [0.0]
    assert "b has weight 0: nothing of it is taken." in plan.notes


@pytest.mark.parametrize(
    ("wish", "size", "told"),
    [
        ({"epochs": 1}, TierSize(), "'web' has no documents"),
        ({"epochs": 1}, TierSize(5, 0), "'web' has no bytes in tiers"),
    ],
)
def test_an_empty_source_is_an_error(wish: dict[str, Any], size: TierSize, told: str) -> None:
    with pytest.raises(PlanningError, match=told):
        allocate(Mixture(sources(web=wish)), {"web": [size]})


def test_a_budget_that_is_used_up_is_an_error() -> None:
    mixture = Mixture(sources(web={"weight": 1}, books={"epochs": 3}), budget=1000)
    with pytest.raises(PlanningError, match=r"1,000 bytes is used up.*\(1,500\).*nothing is left for web"):
        allocate(mixture, {"web": [TierSize(1, 100)], "books": [TierSize(1, 500)]})


@pytest.mark.parametrize(
    ("wishes", "options", "told"),
    [
        ({}, {}, "there are no sources"),
        ({"a": {"weight": 0}, "b": {"weight": 0.0}}, {}, "the weights sum to 0"),
        ({"a": {"weight": -1}}, {}, "source 'a': weight is -1"),
        ({"a": {"weight": math.nan}}, {}, "weight is nan"),
        ({"a": {"weight": math.inf}}, {}, "weight is inf"),
        ({"a": {"weight": True}}, {}, "weight is True"),
        ({"a": {"epochs": 0}}, {}, "epochs is 0"),
        ({"a": {"weight": 1, "epochs": 1}}, {}, "weight and epochs are set"),
        ({"a": {}}, {}, "set weight, epochs or budget"),
        ({"a": {"weight": 1}}, {"temperature": 2}, "temperature computes weights"),
        ({"a": {"epochs": 1}}, {"budget": 5}, "every source has its own epochs or budget"),
        ({"a": {"budget": 0}}, {}, "budget=0"),
        ({"a": {"budget": "many"}}, {}, "'many' is not a size"),
        ({"a": {"weight": 1}}, {"unit": "words"}, "unit is 'words'"),
        ({"a": {"weight": 1}}, {"on_id_overlap": "drop"}, "on_id_overlap is 'drop'"),
        ({"a": {"weight": 1, "tiers": (Tier(0.5),)}}, {}, "tiers need both a field and levels"),
        ({"a": {"weight": 1, "tier_field": "q", "tiers": (Tier(0.1), Tier(0.5))}}, {}, "from best to worst"),
        ({"a": {"weight": 1, "tier_field": "q", "tiers": (Tier(None), Tier(0.5))}}, {}, "only the last may omit it"),
        ({"a": {"weight": 1, "tier_field": "q", "tiers": (Tier(0.1, -1),)}}, {}, "rate of tier 1 is -1"),
        ({"a": {"weight": 1, "tier_field": "q", "tiers": (Tier(0.1, 0),)}}, {}, "the rates of all tiers are 0"),
        ({"a": {"weight": 1, "cap": Cap("domain", 0)}}, {}, "cap needs a field and an amount"),
    ],
)
def test_mixtures_that_cannot_work(wishes: dict[str, Any], options: dict[str, Any], told: str) -> None:
    with pytest.raises(UsageError, match=told):
        Mixture(sources(**wishes), **options)


def test_amounts_are_written_as_people_write_them() -> None:
    assert [parse_amount(value, "x") for value in (5, "5M", "1.5B", "2 GB", "3T")] == [
        5, 5_000_000, 1_500_000_000, 2_000_000_000, 3_000_000_000_000,
    ]  # fmt: skip


def test_a_mixture_as_plain_values() -> None:
    mixture = Mixture(sources(web={"weight": 1.0, "cap": Cap("domain", 5)}), budget="1K")
    assert plain(mixture) == {
        "sources": {"web": {"path": "web/", "weight": 1.0, "cap": {"field": "domain", "amount": 5}}},
        "unit": "bytes", "budget": "1K", "on_id_overlap": "error",
    }  # fmt: skip
