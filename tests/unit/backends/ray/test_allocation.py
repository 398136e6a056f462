"""Workers that must fit a cluster at once."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gristmill.backends.plan import Segment
from gristmill.backends.ray.allocation import Demand, fit, packs
from gristmill.stages.resources import Resources


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
