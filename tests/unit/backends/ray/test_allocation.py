"""Workers must fit a cluster at once; plans whose workers can never find a place are refused, and only those."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("ray")

from gristmill.backends.plan import Segment
from gristmill.backends.ray.allocation import Demand, Request, check, fit, packs, place_on_devices
from gristmill.backends.ray.cluster import Node
from gristmill.errors import ResourcesError
from gristmill.stages.resources import Resources

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]


def _demand(cpus: float, *, stays: bool = True, workers: int | None = None, gpus: float = 0.0) -> Demand:
    return Demand(Segment(0, (), Resources(cpus=cpus, gpus=gpus), 1, None), stays, workers)


def test_exact_when_there_is_room() -> None:
    shares, note = fit([_demand(2.0), _demand(1.0, stays=False)], [4.0], gpus=0)
    assert [share.cpus for share in shares] == [2.0, 1.0]
    assert [share.least for share in shares] == [1, 0]
    assert [share.most for share in shares] == [2, 4]
    assert note is None


def test_scaled_with_a_line_that_says_so() -> None:
    shares, note = fit([_demand(1.0) for _ in range(30)], [2.0], gpus=0)
    assert sum(share.cpus for share in shares) <= 2.0
    assert all(share.cpus > 0 for share in shares)
    assert note is not None
    assert "30 CPUs" in note


def test_room_is_kept_for_tasks_beside_workers_that_stay() -> None:
    shares, _ = fit([_demand(1.0), _demand(1.0), _demand(1.0, stays=False)], [2.0], gpus=0)
    held = sum(share.cpus * share.least for share in shares)
    assert held + shares[2].cpus <= 2.0


def test_sizes_must_fit_nodes_not_only_their_sum() -> None:
    shares, note = fit([_demand(2.0)] * 3, [3.0, 3.0], gpus=0)
    assert packs([share.cpus for share in shares], [3.0, 3.0])
    assert note is not None


def test_a_node_may_be_lost() -> None:
    shares, note = fit([_demand(1.0), _demand(1.0, stays=False)], [1.0, 2.0], gpus=0)
    assert packs([share.cpus for share in shares], [1.0])
    assert note is not None
    shares, note = fit([_demand(1.0), _demand(1.0, stays=False)], [2.0, 2.0], gpus=0)
    assert [share.cpus for share in shares] == [1.0, 1.0]
    assert note is None


def test_nothing_is_kept_back_for_a_loss_that_nothing_would_survive() -> None:
    """A head without processors, or one that is far too small, must not shrink the workers of the only node."""
    for nodes in ([0.0, 2.0], [1.0, 64.0]):
        shares, note = fit([_demand(2.0, stays=False)], nodes, gpus=0)
        assert (shares[0].cpus, note) == (2.0, None)


def test_shares_of_a_device_are_what_ray_can_count() -> None:
    """A sixth, rounded up to four places, would leave room for five workers only; and a little is not nothing."""
    (share,), _ = fit([_demand(0.1, gpus=1 / 6)], [8.0], gpus=1)
    assert share.most == 6
    assert 6 * share.gpus <= 1
    (little,), _ = fit([_demand(0.1, gpus=1e-6)], [8.0], gpus=1)
    assert little.gpus == 0.0001


@pytest.mark.parametrize(("share", "devices", "workers"), [(0.25, 1, 4), (0.5, 3, 6), (1, 3, 3), (2, 5, 2)])
def test_workers_share_devices(share: float, devices: int, workers: int) -> None:
    (given_share,), _ = fit([_demand(0.1, gpus=share)], [8.0], gpus=devices)
    assert (given_share.gpus, given_share.most) == (share, workers)


def test_fixed_number_of_workers() -> None:
    (share,), _ = fit([_demand(1.0, workers=3)], [8.0], gpus=0)
    assert (share.least, share.most) == (3, 3)


@given(
    requests=st.lists(st.tuples(st.floats(0.1, 8.0), st.booleans()), min_size=1, max_size=12),
    nodes=st.lists(st.integers(1, 8).map(float), min_size=1, max_size=5),
)
def test_everything_finds_a_place(requests: list[tuple[float, bool]], nodes: list[float]) -> None:
    demands = [_demand(cpus, stays=stays) for cpus, stays in requests]
    shares, _ = fit(demands, nodes, gpus=0)
    held = [share.cpus for share in shares if share.least]
    passing = max((share.cpus for share in shares if not share.least), default=0.0)
    assert packs([*held, passing], nodes)


def test_a_task_finds_a_place_wherever_ray_puts_the_workers() -> None:
    """Eight workers on two nodes, four on each, must leave room for a task on one of them."""
    shares, _ = fit([_demand(1.0, stays=False), _demand(0.4, workers=4), _demand(0.4, workers=4)], [2.0, 2.0], gpus=0)
    assert 4 * shares[1].cpus + shares[0].cpus <= 2.0
    alone, note = fit([_demand(2.0, stays=False)], [0.0, 2.0, 2.0], gpus=0)
    assert (alone[0].cpus, note) == (2.0, None)


def _node(cpus: float, gpus: float = 0.0, **others: float) -> Node:
    return Node(f"{cpus}-{gpus}", cpus, gpus, others=others)


def test_all_of_it_must_be_on_one_node() -> None:
    """Sixteen processors here and a GPU there do not make a node with both."""
    with pytest.raises(ResourcesError, match="8 CPUs, 1 GPUs, but no node of the cluster has all of it") as caught:
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
    with pytest.raises(ResourcesError, match=r"one \(1 × 1\), two \(1 × 1\).*forever.*ray_actor_pool"):
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
