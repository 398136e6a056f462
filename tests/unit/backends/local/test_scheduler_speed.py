"""What schedules cost on a machine on paper: processors are shared, messages take a moment, nothing really runs."""

from __future__ import annotations

import itertools

import pytest

from tests.unit.backends.local.simulated_machine import Machine, machine

LATENCIES = (0.0005, 0.0015)


def _best_split(costs: list[float], tasks: int, latency_s: float) -> float:
    """The time of the best fixed number of workers for each stage."""
    splits = itertools.product((1, 2, 3), repeat=len(costs))
    return min(machine(costs, tasks, workers=list(split), latency_s=latency_s).run() for split in splits)


@pytest.mark.parametrize("latency_s", LATENCIES)
@pytest.mark.parametrize(
    "costs", [[0.005, 0.02], [0.02, 0.005], [0.01, 0.01], [0.002, 0.01, 0.004], [0.05, 0.4]], ids=str
)
def test_workers_that_nobody_fixed_are_as_good_as_the_best_split(costs: list[float], latency_s: float) -> None:
    free = machine(costs, 120, latency_s=latency_s).run()
    assert _best_split(costs, 120, latency_s) / free >= 0.95


def test_they_settle_within_two_intervals_after_the_costs_have_changed() -> None:
    """The cheap stage becomes the expensive one half-way; no worker waits for an interval to pass."""
    changed = machine([0.005, 0.02], 400, changed_at=(200, [0.02, 0.005]))
    changed.run()
    halves = sum(machine(costs, 200).run() for costs in ([0.005, 0.02], [0.02, 0.005]))
    assert halves / changed.now >= 0.95


@pytest.mark.parametrize("latency_s", LATENCIES)
def test_a_gpu_never_waits_for_what_feeds_it(latency_s: float) -> None:
    run = machine([0.02, 0.05], 200, gpus=[0.0, 1.0], latency_s=latency_s)
    run.run()
    (spans,) = [spans for number, spans in run.spans.items() if run.segment_of[number] == 1]
    held = sum(end - begin for begin, end in spans[1:])
    assert held / (spans[-1][1] - spans[0][1]) >= 0.99


@pytest.mark.parametrize("costs", [[0.005, 0.02], [0.001, 0.01, 0.03]], ids=str)
def test_a_fast_stage_does_not_run_far_ahead_of_a_slow_one(costs: list[float]) -> None:
    run = machine(costs, 300)
    run.run()
    assert max(run.most_queued) <= 8


def test_a_run_that_got_a_part_of_the_machine_keeps_to_it() -> None:
    run = machine([0.005, 0.02], 200, overlap=0.0)
    run.run()
    assert run.most_running <= 2


def test_the_paper_machine_takes_the_time_that_arithmetic_gives() -> None:
    alone: Machine = machine([0.1], 20, cpus=1.0, workers=[1], latency_s=0.01)
    # The first task is handed out before it is known to be short; from then on the next one is always there.
    assert alone.run() == pytest.approx(20 * 0.1 + 4 * 0.01)
    shared = machine([0.1], 20, cpus=1.0, workers=[4], latency_s=0.0)
    assert shared.run() == pytest.approx(2.0, abs=0.01)
