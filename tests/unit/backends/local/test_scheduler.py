"""The scheduler in a simulated world: random pipelines, deaths, short memory, recycling; no process, no clock."""

from __future__ import annotations

import itertools
import random
from collections import Counter
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gristmill.backends.local.scheduler import Give, Start, Stop, Unblock, next_action, pick_gpus
from gristmill.backends.local.state import WINDOW, Life, Queued, SegmentState, State, Worker


@dataclass
class World:
    """Workers that do what the engine's would, in an order that only the random generator decides."""

    state: State
    sources: int
    chance: random.Random
    fan_out: list[int]
    deaths: float = 0.0
    growth: float = 0.0
    kept: int = 0
    memory_from_queues: bool = False
    numbers: itertools.count = field(default_factory=itertools.count)
    groups: itertools.count = field(default_factory=itertools.count)
    created: Counter = field(default_factory=Counter)
    closed: Counter = field(default_factory=Counter)
    left: dict[int, int] = field(default_factory=dict)
    alone_in_fresh: int = 0
    died: Counter = field(default_factory=Counter)
    forced: Counter = field(default_factory=Counter)

    def run(self, *, most_events: int = 30_000) -> None:
        self.refill()
        for _ in range(most_events):
            self.act()
            if self.state.finished:
                break
            if not self.happen():
                self.wait()
        assert self.state.finished, "some work is never done"
        assert self.closed == self.created
        assert set(self.closed.values()) <= {1}
        for _ in range(100):
            self.act()
            if not self.state.workers or not self.happen():
                break
        assert not self.state.workers, "workers stay although nothing can come any more"
        assert self.state.free_gpus == pytest.approx([1.0] * len(self.state.free_gpus))

    # --- what the engine does ---

    def act(self) -> None:
        for _ in range(2_000):
            action = next_action(self.state)
            if action is None:
                return
            self.check_before(action)
            self.do(action)
            self.refill()
            self.check()
        raise AssertionError("the scheduler never comes to rest")

    def refill(self) -> None:
        first = self.state.segments[0]
        while self.sources and len(first.queue) < first.batch_size * (first.max_workers + 1):
            self.sources -= 1
            self.put(0, nbytes=1)
        self.state.source_left = self.sources > 0

    def put(self, segment: int, nbytes: int) -> None:
        number = next(self.numbers)
        self.created[segment, number] += 1
        self.state.segments[segment].put(Queued(number, nbytes))

    def do(self, action: object) -> None:
        state = self.state
        if isinstance(action, Start):
            state.started(Worker(next(self.numbers), action.segment, action.gpus, warm=action.warm))
        elif isinstance(action, Give):
            state.given(action.worker, next(self.groups), action.count, alone=action.alone)
        elif isinstance(action, Unblock):
            following = state.workers[action.worker].segment + 1
            if state.segments[following].full:
                self.forced[following] += 1
            state.unblocked(action.worker)
        elif isinstance(action, Stop):
            state.leaves(action.worker, recycled=action.recycled)

    # --- what happens by itself ---

    def happen(self) -> bool:
        able = [
            worker
            for worker in self.state.workers.values()
            if worker.life is not Life.READY or (worker.assigned and not worker.blocked)
        ]
        if not able:
            return False
        self.state.now += 0.01
        worker = self.chance.choice(able)
        if worker.life is Life.STARTING:
            self.state.is_ready(worker.number)
        elif worker.life is Life.LEAVING:
            self.state.ended(worker.number)
        elif self.chance.random() < self.deaths:
            self.die(worker)
        else:
            self.work(worker)
        if self.memory_from_queues:
            self.state.memory = sum(segment.queued_bytes for segment in self.state.segments) * 10
        self.check()
        return True

    def wait(self) -> None:
        """Nothing is on its way: only the passing of time can help."""
        for _ in range(3):
            self.state.now += max(self.state.autoscale_interval_s, 60.0)
            before = self.state.finished
            action = next_action(self.state)
            if action is not None or before:
                return
        raise AssertionError(f"deadlock: {self.state}")

    def work(self, worker: Worker) -> None:
        group, items = worker.assigned[0]
        following = worker.segment + 1
        total = sum(self.outputs(worker.segment, item.number) for item in items)
        left = self.left.setdefault(group, total)
        if left and following < len(self.state.segments):
            self.left[group] -= 1
            self.put(following, nbytes=self.chance.randint(1, 40))
            if not self.state.batch_mode:
                self.state.sent(worker.number)
            return
        held = worker.held + self.chance.randint(0, 2 * self.kept)
        taken = max(worker.taken, held + self.chance.randint(0, self.kept))
        for item in self.state.done(worker.number, group, held=held, taken=taken):
            self.closed[worker.segment, item.number] += 1
        if self.chance.random() < self.growth:
            worker.due = True

    def outputs(self, segment: int, number: int) -> int:
        return (number * 7 + segment) % (self.fan_out[segment] + 1)

    def die(self, worker: Worker) -> None:
        self.state.ended(worker.number)
        segment = self.state.segments[worker.segment]
        for place, (group, items) in reversed(list(enumerate(worker.assigned))):
            for item in reversed(items):
                blamed = place == 0 and self.died[item.number] < 6
                self.died[item.number] += place == 0
                segment.put(Queued(item.number, item.nbytes, item.alone or blamed), first=True)
            # Results that were sent before stay sent; the next attempt's are recognised and dropped.
            self.left.pop(group, None)

    # --- what must always hold ---

    def check_before(self, action: object) -> None:
        if isinstance(action, Give):
            worker = self.state.workers[action.worker]
            segment = self.state.segments[worker.segment]
            assert worker.life is Life.READY
            assert 1 <= action.count <= segment.batch_size
            assert len(worker.assigned) <= segment.prefetch
            if action.alone:
                assert worker.fresh, "a task that must be alone got a used worker"
                assert not worker.assigned
                assert action.count == 1
                self.alone_in_fresh += 1
            else:
                assert not worker.alone or not worker.assigned, "a task that must be alone got company"
        elif isinstance(action, Stop):
            assert not self.state.workers[action.worker].assigned, "a worker was stopped while it had work"
        elif isinstance(action, Unblock):
            worker = self.state.workers[action.worker]
            if self.state.segments[worker.segment + 1].full:
                assert worker.gpus, "a full queue was overfilled without need: nobody waits for a GPU of this worker"

    def check(self) -> None:
        state = self.state
        for segment in state.segments:
            if not segment.full:
                self.forced[segment.index] = 0
        counted = [s for s in state.segments if s.fixed_workers is None]
        busy = {s.index: [w for w in state.workers.values() if w.segment == s.index and w.working] for s in counted}
        used = sum(s.cpus * len(busy[s.index]) for s in counted)
        single = sum(len(workers) for workers in busy.values()) <= 1
        assert used <= state.cpus + state.overlap + 1e-9 or single, f"{used} processors of {state.cpus} are used"
        assert all(share >= -1e-9 for share in state.free_gpus)
        for segment in state.segments:
            workers = state.of(segment.index)
            assert len(workers) <= segment.max_workers
            if segment.fixed_workers is not None:
                assert len(workers) <= segment.fixed_workers
            if segment.index and not state.batch_mode:
                before = state.segments[segment.index - 1]
                writers = max(before.max_workers, sum(w.segment == before.index for w in state.workers.values()))
                # Whoever was at work when the queue became full has two results more to send; so has each that was
                # let go on although it was full. Deaths bring tasks back, and new workers with two more results.
                more = WINDOW * (writers + self.forced[segment.index]) + sum(self.died.values())
                assert segment.queued_bytes <= segment.queue_limit + 40 * more
        if state.batch_mode:
            assert len({w.segment for w in state.workers.values() if w.assigned}) <= 1


@st.composite
def worlds(draw: st.DrawFn, *, deaths: bool = False, batch: bool | None = None) -> World:
    cpus = draw(st.sampled_from([0.5, 1.0, 2.0, 4.0]))
    gpus = draw(st.integers(0, 3))
    segments = []
    for index in range(draw(st.integers(1, 5))):
        share = draw(st.sampled_from([0.0, 0.0, 0.25, 0.5, 1.0, 2.0]))
        share = share if share <= gpus else 0.0
        fixed = draw(st.sampled_from([None, None, None, 1, 2]))
        fitting = int(gpus / share + 1e-9) if share else 8
        if share and share < 1:
            fitting = int(1 / share) * gpus
        most = min(fixed or draw(st.integers(1, 4)), fitting)
        segments.append(
            SegmentState(
                index,
                cpus=draw(st.sampled_from([0.25, 0.5, 1.0, 2.0, 4.0])),
                gpus=share,
                batch_size=draw(st.sampled_from([1, 1, 2, 5])),
                fixed_workers=None if fixed is None else min(fixed, most),
                max_workers=most,
                queue_limit=draw(st.sampled_from([1, 50, 200])),
                prefetch=draw(st.sampled_from([0, 1, 1, 2])),
                pace_s=draw(st.sampled_from([None, 0.01, 5.0])),
                warm=index > 0 and draw(st.booleans()),
                max_lifetime_s=draw(st.sampled_from([None, None, 0.05])),
                restart_interval_s=0.1,
            )
        )
    state = State(
        segments,
        cpus=cpus,
        overlap=draw(st.sampled_from([0.0, cpus])),
        free_gpus=[1.0] * gpus,
        batch_mode=draw(st.booleans()) if batch is None else batch,
        autoscale_interval_s=draw(st.sampled_from([0.05, 10.0])),
        budget=draw(st.sampled_from([1 << 62, 2000, 200, 20])),
    )
    return World(
        state,
        sources=draw(st.integers(0, 25)),
        chance=random.Random(draw(st.integers(0, 1 << 32))),
        fan_out=[draw(st.integers(0, 3)) for _ in segments],
        deaths=draw(st.sampled_from([0.02, 0.2])) if deaths else 0.0,
        growth=draw(st.sampled_from([0.0, 0.3])),
        kept=draw(st.sampled_from([0, 10, 100])),
    )


@settings(max_examples=150)
@given(worlds())
def test_every_task_is_closed_once_and_nothing_is_exceeded(world: World) -> None:
    world.run()


@settings(max_examples=120)
@given(worlds(deaths=True))
def test_deaths_lose_nothing_and_are_retried_in_fresh_workers(world: World) -> None:
    world.run()
    assert world.alone_in_fresh >= bool(sum(world.died.values()))


@settings(max_examples=60)
@given(worlds(deaths=True), st.sampled_from([1, 100, 1000]))
def test_short_memory_slows_down_and_never_stops(world: World, budget: int) -> None:
    world.memory_from_queues = True
    world.state.budget = budget
    world.state.memory = 10_000
    world.run()


@settings(max_examples=60)
@given(worlds())
def test_memory_that_stays_short_forever_still_lets_everything_through(world: World) -> None:
    world.state.budget, world.state.memory = 1, 100
    world.run()


@settings(max_examples=60)
@given(worlds(batch=True))
def test_batch_mode_runs_one_segment_at_a_time(world: World) -> None:
    seen: list[int] = []
    happen = world.happen

    def note() -> bool:
        seen.extend({worker.segment for worker in world.state.workers.values() if worker.assigned})
        return happen()

    world.happen = note  # type: ignore[method-assign]
    world.run()
    assert seen == sorted(seen)


def _plain(*segments: SegmentState, cpus: float = 2.0, gpus: int = 0) -> State:
    return State(list(segments), cpus=cpus, free_gpus=[1.0] * gpus, source_left=False)


def _segment(index: int, **options: object) -> SegmentState:
    settings = {"cpus": 1.0, "gpus": 0.0, "batch_size": 1, "fixed_workers": None, "max_workers": 2, **options}
    return SegmentState(index, **settings)  # type: ignore[arg-type]


def _ready(state: State, number: int, segment: int, **options: object) -> Worker:
    worker = Worker(number, segment, **options)  # type: ignore[arg-type]
    state.started(worker)
    state.is_ready(number)
    return worker


def test_an_idle_worker_gets_the_next_task() -> None:
    state = _plain(_segment(0))
    _ready(state, 7, 0)
    state.segments[0].put(Queued(1, 10))
    assert next_action(state) == Give(7, 1)


def test_what_is_nearest_to_the_end_goes_first() -> None:
    state = _plain(_segment(0), _segment(1), cpus=1.0)
    _ready(state, 1, 0)
    _ready(state, 2, 1)
    state.segments[0].put(Queued(1, 10))
    state.segments[1].put(Queued(2, 10))
    assert next_action(state) == Give(2, 1)


def test_a_group_is_waited_for_while_more_can_come_and_given_short_at_the_end() -> None:
    state = _plain(_segment(0), _segment(1, batch_size=3))
    _ready(state, 1, 0)
    _ready(state, 2, 1)
    state.segments[0].put(Queued(1, 10))
    state.segments[1].put(Queued(2, 10))
    assert next_action(state) == Give(1, 1)
    state.given(1, 0, 1, alone=False)
    assert next_action(state) is None
    state.done(1, 0)
    assert next_action(state) == Give(2, 1)


def test_a_full_queue_stops_the_segment_before_it() -> None:
    state = _plain(_segment(0), _segment(1, queue_limit=10, max_workers=1))
    _ready(state, 1, 0)
    busy = _ready(state, 2, 1)
    state.segments[1].prefetch = 0
    state.segments[1].put(Queued(1, 10))
    state.given(2, 0, 1, alone=False)
    state.segments[1].put(Queued(2, 10))
    state.segments[0].put(Queued(3, 1))
    assert busy.working
    assert next_action(state) is None


def test_a_worker_that_found_the_queue_full_gets_all_its_credit_back() -> None:
    state = _plain(_segment(0), _segment(1, queue_limit=10, max_workers=1, prefetch=0))
    writer = _ready(state, 1, 0)
    _ready(state, 2, 1)
    state.segments[0].put(Queued(0, 1))
    state.given(1, 0, 1, alone=False)
    state.segments[1].put(Queued(1, 10))
    state.given(2, 1, 1, alone=False)
    for number in (2, 3):
        state.segments[1].put(Queued(number, 10))
        assert state.sent(1) == 0
    assert writer.blocked
    assert not writer.working
    state.done(2, 1)
    state.given(2, 2, 1, alone=False)
    state.segments[1].pop()
    assert next_action(state) == Unblock(1)
    assert state.unblocked(1) == 2
    assert not writer.blocked


def test_a_task_that_must_be_alone_does_not_hold_up_the_others() -> None:
    state = _plain(_segment(0))
    _ready(state, 1, 0).fresh = False
    state.segments[0].put(Queued(1, 10, alone=True))
    state.segments[0].put(Queued(2, 10))
    assert next_action(state) == Start(0)
    state.started(Worker(2, 0))
    assert next_action(state) == Give(1, 1)


def test_a_used_worker_makes_way_for_a_task_that_must_be_alone() -> None:
    state = _plain(_segment(0, max_workers=1))
    _ready(state, 1, 0).fresh = False
    state.segments[0].put(Queued(1, 10, alone=True))
    assert next_action(state) == Stop(1)


def test_fresh_workers_that_nobody_reserved_serve_a_task_that_must_be_alone() -> None:
    state = _plain(_segment(0, max_workers=1))
    _ready(state, 1, 0)
    state.segments[0].put(Queued(1, 10, alone=True))
    assert next_action(state) == Give(1, 1, alone=True)


def test_the_number_of_workers_asked_for_is_started() -> None:
    state = _plain(_segment(0, fixed_workers=3, max_workers=3), cpus=1.0)
    _ready(state, 1, 0)
    state.segments[0].put(Queued(1, 10))
    started = 0
    while isinstance(action := next_action(state), Start):
        started += 1
        state.started(Worker(10 + started, action.segment))
    assert started == 2
    assert action == Give(1, 1)


def test_only_one_worker_prepares_the_node() -> None:
    state = _plain(_segment(0))
    for number in range(4):
        state.segments[0].put(Queued(number, 10))
    assert next_action(state) == Start(0)
    state.started(Worker(1, 0))
    assert next_action(state) is None
    state.is_ready(1)
    assert next_action(state) == Give(1, 1)
    state.given(1, 0, 1, alone=False)
    assert next_action(state) == Start(0)


def test_a_worker_is_prefetched_for_only_when_nobody_else_could_begin() -> None:
    state = _plain(_segment(0), _segment(1, max_workers=1, pace_s=0.01))
    _ready(state, 2, 1)
    for number in range(3):
        state.segments[1].put(Queued(number, 10))
    state.given(2, 0, 1, alone=False)
    assert next_action(state) == Give(2, 1)
    state.given(2, 1, 1, alone=False)
    assert next_action(state) is None


@pytest.mark.parametrize("pace_s", [None, 5.0])
def test_nothing_long_or_unknown_is_handed_out_ahead(pace_s: float | None) -> None:
    state = _plain(_segment(0, max_workers=1, pace_s=pace_s))
    _ready(state, 1, 0)
    for number in range(3):
        state.segments[0].put(Queued(number, 10))
    state.given(1, 0, 1, alone=False)
    assert next_action(state) is None


def test_a_worker_that_is_too_old_gets_nothing_ahead_and_is_replaced() -> None:
    state = _plain(_segment(0, max_workers=1, pace_s=0.01, max_lifetime_s=10.0, restart_interval_s=0.0))
    _ready(state, 1, 0)
    for number in range(3):
        state.segments[0].put(Queued(number, 10))
    state.given(1, 0, 1, alone=False)
    state.now = 10.0
    assert next_action(state) is None
    state.done(1, 0)
    assert next_action(state) == Stop(1, recycled=True)


def test_the_last_tasks_are_not_handed_out_ahead_of_workers_who_will_be_idle() -> None:
    state = _plain(_segment(0, pace_s=0.01))
    for number in (1, 2):
        _ready(state, number, 0)
        state.segments[0].put(Queued(number, 10))
        state.given(number, number, 1, alone=False)
    state.segments[0].put(Queued(3, 10))
    assert next_action(state) is None
    state.segments[0].put(Queued(4, 10))
    assert isinstance(next_action(state), Give)


def test_short_tasks_may_overlap_unless_memory_is_short() -> None:
    state = _plain(_segment(0, pace_s=0.01), _segment(1, pace_s=0.01), cpus=1.0)
    state.overlap = 1.0
    _ready(state, 1, 0)
    _ready(state, 2, 1)
    state.segments[1].put(Queued(1, 10))
    state.given(2, 0, 1, alone=False)
    state.segments[0].put(Queued(2, 10))
    state.budget, state.memory = 100, 90
    assert next_action(state) is None
    state.memory = 10
    assert next_action(state) == Give(1, 1)


def test_a_further_worker_is_started_only_where_the_budget_has_room_for_what_the_first_took() -> None:
    state = _plain(_segment(0))
    state.budget, state.own = 1000, 300
    _ready(state, 1, 0)
    for number in range(4):
        state.segments[0].put(Queued(number, 1))
    state.given(1, 0, 1, alone=False)
    assert next_action(state) is None, "nobody knows yet what a worker takes"
    state.done(1, 0, taken=400)
    state.given(1, 1, 1, alone=False)
    assert next_action(state) is None, "two would take 800 beside the 300 of the driver"
    state.budget = 1150
    assert next_action(state) is None, "a worker that keeps memory shows it only with its second group"
    state.done(1, 1, taken=400)
    state.given(1, 2, 1, alone=False)
    assert next_action(state) == Start(0)
    state.started(Worker(2, 0))
    assert state.room < 400


@pytest.mark.parametrize("batch_mode", [True, False])
def test_what_lies_on_disk_between_segments_takes_no_room(batch_mode: bool) -> None:
    state = _plain(_segment(0), _segment(1))
    state.batch_mode, state.budget = batch_mode, 1000
    _ready(state, 1, 1)
    for number in range(30):
        state.segments[1].put(Queued(number, 100))
    for group in range(2):
        state.given(1, group, 1, alone=False)
        state.done(1, group, held=100, taken=100)
    state.given(1, 2, 1, alone=False)
    assert next_action(state) == (Start(1) if batch_mode else None)


@pytest.mark.parametrize("room", [450, 700, 1000, 2000])
def test_workers_that_keep_memory_stay_within_the_budget(room: int) -> None:
    keeps, needs, own = 50, 60, 500
    state = _plain(_segment(0, max_workers=4), cpus=4.0)
    state.budget, state.own = own + room, own
    for number in range(100):
        state.segments[0].put(Queued(number, 0))
    memory: dict[int, int] = {}
    most_workers = recycled = 0
    chance, numbers, groups = random.Random(room), itertools.count(), itertools.count()
    while not state.finished:
        while (action := next_action(state)) is not None:
            if isinstance(action, Start):
                _ready(state, number := next(numbers), 0)
                memory[number] = 0
            elif isinstance(action, Give):
                state.given(action.worker, next(groups), action.count, alone=False)
            elif isinstance(action, Stop):
                state.leaves(action.worker, recycled=action.recycled)
                recycled += action.recycled
        at_work = [worker for worker in state.workers.values() if worker.assigned]
        leaving = [worker for worker in state.workers.values() if worker.life is Life.LEAVING]
        assert sum(memory.values()) + len(at_work) * (keeps + needs) <= room
        most_workers = max(most_workers, len(state.workers))
        worker = chance.choice(at_work + leaving)
        if worker.life is Life.LEAVING:
            state.ended(worker.number)
            del memory[worker.number]
            continue
        memory[worker.number] += keeps
        held = memory[worker.number]
        state.done(worker.number, worker.assigned[0][0], seconds=0.1, held=held, taken=held + needs)
    assert recycled >= 3
    assert most_workers >= min(4, room // 300)


def test_no_worker_is_stopped_for_a_gpu_that_this_would_not_free() -> None:
    state = _plain(_segment(0, gpus=2.0), _segment(1, gpus=2.0), _segment(2, gpus=0.5), cpus=8.0, gpus=3)
    _ready(state, 1, 0, gpus=(0, 1))
    _ready(state, 2, 2, gpus=(2,))
    state.segments[0].put(Queued(1, 10))
    state.given(1, 0, 1, alone=False)
    state.segments[1].put(Queued(2, 10))
    assert next_action(state) is None


def test_a_segment_gets_the_gpu_of_one_that_has_nothing_to_do() -> None:
    state = _plain(_segment(0, gpus=1.0), _segment(1, gpus=1.0), gpus=1)
    state.source_left = True
    _ready(state, 1, 0, gpus=(0,))
    state.segments[1].put(Queued(1, 10))
    assert next_action(state) == Stop(1)
    state.leaves(1, recycled=False)
    assert next_action(state) is None
    state.ended(1)
    assert next_action(state) == Start(1, (0,))


def test_a_gpu_moves_to_the_segment_that_limits_once_per_interval() -> None:
    state = _plain(_segment(0, gpus=1.0), _segment(1, gpus=1.0, queue_limit=10, prefetch=0), cpus=8.0, gpus=3)
    state.source_left = True
    state.autoscale_interval_s = 100.0
    for number, segment in ((1, 0), (2, 0), (3, 1)):
        _ready(state, number, segment, gpus=(number - 1,))
    state.segments[1].put(Queued(1, 10))
    state.given(3, 0, 1, alone=False)
    state.segments[1].put(Queued(2, 10))
    state.now = 99.0
    assert next_action(state) is None
    state.now = 100.0
    assert next_action(state) == Stop(1)


@pytest.mark.parametrize(
    ("free", "wanted", "found"),
    [
        ([1.0, 1.0], 0.25, (0,)),
        ([1.0, 0.5], 0.25, (1,)),
        ([0.2, 0.1], 0.25, None),
        ([1.0, 0.75, 1.0], 2, (0, 2)),
        ([1.0, 0.75], 2, None),
        ([], 1, None),
    ],
)
def test_devices_are_filled_up_before_new_ones_are_opened(
    free: list[float], wanted: float, found: tuple[int, ...] | None
) -> None:
    assert pick_gpus(free, wanted) == found


@pytest.mark.parametrize("seed", range(3))
def test_the_simulation_notices_a_lost_task(seed: int) -> None:
    state = _plain(_segment(0))
    world = World(state, sources=3, chance=random.Random(seed), fan_out=[0])
    original = world.work

    def lose(worker: Worker) -> None:
        if worker.assigned[0][1][0].number == 1:
            state.done(worker.number, worker.assigned[0][0])
        else:
            original(worker)

    world.work = lose  # type: ignore[method-assign]
    with pytest.raises(AssertionError):
        world.run()
