"""Plans whose workers can never find a place are refused, and only those."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("ray")

from gristmill.backends.ray.cluster import Node
from gristmill.backends.ray.feasibility import Request, check, place_on_devices
from gristmill.errors import ResourcesError

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]


def _node(cpus: float, gpus: float = 0.0, **others: float) -> Node:
    return Node(f"{cpus}-{gpus}", cpus, gpus, is_head=False, others=others)


def test_all_of_it_must_be_on_one_node() -> None:
    """Sixteen processors here and a GPU there do not make a node with both."""
    with pytest.raises(ResourcesError, match="8 CPUs, 1 GPUs, and no node of the cluster has all of it") as caught:
        check([Request("embed", 8.0, 1.0)], [_node(16.0), _node(4.0, 1.0)], at_once=True)
    assert "The nodes have 16 CPUs; 4 CPUs, 1 GPUs" in str(caught.value)
    assert caught.value.stage == "embed"
    check([Request("embed", 4.0, 1.0)], [_node(16.0), _node(4.0, 1.0)], at_once=True)


def test_what_nodes_offer_by_name() -> None:
    request = Request("licensed", 1.0, 0.0, {"licence": 1.0})
    with pytest.raises(ResourcesError, match="1 of 'licence'"):
        check([request], [_node(8.0)], at_once=True)
    check([request], [_node(8.0), _node(1.0, licence=1.0)], at_once=True)


def test_two_stages_cannot_hold_the_same_gpu_at_once() -> None:
    both = [Request("one", 0.1, 1.0), Request("two", 0.1, 1.0)]
    with pytest.raises(ResourcesError, match=r"one \(1 × 1\), two \(1 × 1\).*for ever.*ray_actor_pool"):
        check(both, [_node(8.0, 1.0)], at_once=True)
    check(both, [_node(8.0, 1.0)], at_once=False)
    check(both, [_node(8.0, 1.0), _node(8.0, 1.0)], at_once=True)


def test_a_fixed_number_of_workers_must_fit_also_alone() -> None:
    with pytest.raises(ResourcesError, match=r"one \(5 × 0.25\).*num_workers"):
        check([Request("one", 0.1, 0.25, workers=5)], [_node(8.0, 1.0)], at_once=False)
    check([Request("one", 0.1, 0.25, workers=4)], [_node(8.0, 1.0)], at_once=False)


def test_processors_do_not_count_together() -> None:
    """They were booked so that they fit."""
    check([Request("one", 2.0, 0.0, workers=9), Request("two", 2.0, 0.0)], [_node(2.0)], at_once=True)


@pytest.mark.parametrize(
    ("wanted", "devices", "fits"),
    [
        ([], [], True),
        ([0.5, 0.5, 0.5], [1], False),
        ([0.6, 0.6], [1], False),
        ([0.6, 0.6], [2], True),
        ([0.5, 2, 0.5], [3], True),
        ([2], [1, 1], False),
        ([2, 0.3, 0.3, 0.3], [2, 1], True),
        ([0.1666] * 6, [1], True),
    ],
)
def test_devices(wanted: list[float], devices: list[int], fits: bool) -> None:
    assert place_on_devices(wanted, devices) is fits


def _found_by_trying(wanted: Sequence[int], devices: Sequence[int]) -> bool:
    """Whether some way of placing shares, in quarters, works at all."""
    places = [(node, device) for node, count in enumerate(devices) for device in range(count)]
    choices = [
        [(place,) for place in places]
        if quarters < 4
        else [group for group in itertools.combinations(places, quarters // 4) if len({node for node, _ in group}) == 1]
        for quarters in wanted
    ]
    for way in itertools.product(*choices):
        used: dict[tuple[int, int], int] = {}
        for quarters, group in zip(wanted, way, strict=True):
            for place in group:
                used[place] = used.get(place, 0) + min(quarters, 4)
        if all(amount <= 4 for amount in used.values()):
            return True
    return False


@settings(max_examples=60)
@given(
    wanted=st.lists(st.sampled_from([1, 2, 4, 8]), max_size=5),
    devices=st.lists(st.integers(0, 2), max_size=3),
)
def test_nothing_is_refused_that_would_fit(wanted: list[int], devices: list[int]) -> None:
    """With shares that divide each other, the simple way of placing is as good as trying all ways."""
    assert place_on_devices([quarters / 4 for quarters in wanted], devices) is _found_by_trying(wanted, devices)
