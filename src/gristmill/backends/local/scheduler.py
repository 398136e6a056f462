"""The scheduler: a pure function from the state to the next actions.

CPUs are only counted for busy workers; one that is idle or waits for room uses none. The segment closest to the end
goes first, so that data leaves memory as soon as possible, and the bottleneck segment is always served: the others wait
for it when its queue is full. This balances CPUs and is work-conserving.

Between two short tasks a worker would wait too long for the driver. Workers therefore prefetch their next task, and if
the run has the whole machine (`State.overlap`), more workers than CPUs are active: the kernel then fills the pauses of
one with another. Workers hold GPUs even when idle, so a GPU is taken from an idle worker if another segment has none.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from gristmill.backends.local.state import UNKNOWN_BYTES, Life, SegmentState, State, Worker


@dataclass(frozen=True, slots=True)
class Start:
    """Start a worker for a segment; `warm` if there is nothing for it to do yet."""

    segment: int
    gpus: tuple[int, ...] = ()
    warm: bool = False


@dataclass(frozen=True, slots=True)
class Give:
    """Assign the next `count` tasks of the segment's queue to a worker, or the next of those that must run alone."""

    worker: int
    count: int
    alone: bool = False


@dataclass(frozen=True, slots=True)
class Unblock:
    """Let a worker continue that waited for room in the next queue."""

    worker: int


@dataclass(frozen=True, slots=True)
class Stop:
    """Stop an idle worker; `recycled` if another will replace it."""

    worker: int
    recycled: bool = False


Action: TypeAlias = Start | Give | Unblock | Stop


def next_action(state: State) -> Action | None:
    """The most urgent action, or None if there is nothing to do until the next event."""
    active = _active(state)
    for segment in active:
        if segment.warm and not state.memory_is_short and not state.of(segment.index):
            start = _start(state, segment, warm=True)
            if start is not None:
                return start
    for segment in reversed(active):
        action = (
            _recycle(state, segment)
            or _unblock(state, segment)
            or _serve_alone(state, segment)
            or _serve(state, segment)
        )
        if action is not None:
            return action
    return _complete(state, active) or _make_way(state, active) or _release(state)


def _active(state: State) -> list[SegmentState]:
    """The segments that may work now: all of them, or in batch mode the first that is not done."""
    if not state.batch_mode:
        return state.segments
    for segment in state.segments:
        busy = any(worker.assigned for worker in state.workers.values() if worker.segment == segment.index)
        if busy or segment.waiting or (segment.index == 0 and state.source_left):
            return [segment]
    return []


def _room(state: State, segment: SegmentState) -> bool:
    """Whether the output of this segment has somewhere to go."""
    following = segment.index + 1
    return following >= len(state.segments) or state.batch_mode or not state.segments[following].full


def _cpu_for(state: State, segment: SegmentState) -> bool:
    """Whether a worker of this segment may start working; at least one worker is always allowed to."""
    if segment.fixed_workers is not None:
        return True
    used = state.cpus_used
    most = state.cpus + (state.overlap if _may_overlap(state, segment) else 0.0)
    return used + segment.cpus <= most + 1e-9 or used == 0


def _may_overlap(state: State, segment: SegmentState) -> bool:
    """Whether more workers than CPUs are useful here."""
    return segment.short and not state.memory_is_short and _is_waited_for(state, segment)


def _is_waited_for(state: State, segment: SegmentState) -> bool:
    """Whether the output of this segment will be consumed soon instead of filling memory."""
    if segment.index + 1 == len(state.segments) or state.batch_mode:
        return True
    following = state.segments[segment.index + 1]
    return following.waiting < 2 * following.max_workers * following.batch_size


def _may_produce(state: State, segment: SegmentState) -> bool:
    """Whether the segment should accept new work."""
    if not _room(state, segment):
        return False
    if segment.index == 0 and state.memory_is_short:
        # Something must be in progress, or nothing would ever be freed.
        return not any(worker.assigned for worker in state.workers.values())
    return True


def _somebody_works(state: State) -> bool:
    return any(worker.working for worker in state.workers.values())


def _working(state: State, segment: SegmentState) -> int:
    return sum(worker.working for worker in state.of(segment.index))


def _group(state: State, segment: SegmentState) -> int:
    """How many tasks form a group now; 0 while it is better to wait for a full one."""
    count = min(len(segment.queue), segment.batch_size)
    ripe = count == segment.batch_size or segment.full or state.upstream_done(segment.index)
    return count if ripe else 0


def _complete(state: State, active: list[SegmentState]) -> Action | None:
    """Assign incomplete groups if nothing in progress could complete them."""
    if not _stuck(state):
        return None
    for segment in reversed(active):
        action = _serve(state, segment, min(len(segment.queue), segment.batch_size))
        if action is not None:
            return action
    return None


def _stuck(state: State) -> bool:
    """Whether nothing is in progress: no worker is working, starting or leaving."""
    return not any(
        worker.life is not Life.READY or (worker.assigned and not worker.blocked) for worker in state.workers.values()
    )


def _serve(state: State, segment: SegmentState, count: int | None = None) -> Action | None:
    count = _group(state, segment) if count is None else count
    if not count or not _may_produce(state, segment):
        return None
    workers = state.of(segment.index)
    missing = segment.fixed_workers is not None and len(workers) < segment.fixed_workers
    idle = [worker for worker in workers if worker.idle and not _is_due(state, segment, worker)]
    if idle and _somebody_works(state):
        idle = [worker for worker in idle if not state.is_too_much_for(worker)]
    if idle and not missing:
        if _cpu_for(state, segment):
            return Give(min(idle, key=lambda worker: worker.number).number, count)
        return None
    groups = -(-len(segment.queue) // segment.batch_size)
    if missing or _coming(workers) < groups:
        start = _start(state, segment)
        if start is not None:
            return start
    if idle and _cpu_for(state, segment):
        return Give(min(idle, key=lambda worker: worker.number).number, count)
    # A task that must run alone needs the place of a worker that has finished.
    if segment.alone or not _prefetches(state, segment, groups) or not _others_are_busy(state, segment):
        return None
    ahead = [
        worker for worker in workers if worker.life is Life.READY and 1 <= len(worker.assigned) <= segment.prefetch
    ]
    ahead = [w for w in ahead if not w.alone and not w.blocked and not _is_due(state, segment, w)]
    ahead = [w for w in ahead if not state.is_too_much_for(w)]
    if ahead:
        return Give(min(ahead, key=lambda worker: (len(worker.assigned), worker.number)).number, count)
    return None


def _prefetches(state: State, segment: SegmentState, groups: int) -> bool:
    """Whether a worker should prefetch a task, so that it does not wait between two.

    For long tasks this gains nothing, and a task queued at a busy worker is not available to an idle one; so there is
    no prefetching at the very end, when there are fewer tasks than workers.
    """
    if segment.leak_bytes is None and state.room < UNKNOWN_BYTES:
        return False  # it is not known yet whether its workers retain memory
    never_waits = segment.overlaps or bool(segment.gpus)
    if never_waits and not state.upstream_done(segment.index):
        return True
    if groups < _working(state, segment):
        return False
    return never_waits or (segment.short and _is_waited_for(state, segment))


def _coming(workers: list[Worker]) -> int:
    """How many workers will soon be able to accept a task."""
    return sum(worker.life is Life.STARTING for worker in workers)


def _others_are_busy(state: State, segment: SegmentState) -> bool:
    """Whether no other worker of the segment could start the task now, so that prefetching it does no harm."""
    return _start(state, segment) is None


def _serve_alone(state: State, segment: SegmentState) -> Action | None:
    """Find a fresh worker for a task that must run alone; if there is no room for one, stop a used one."""
    if not segment.alone or not _may_produce(state, segment):
        return None
    workers = state.of(segment.index)
    fresh = [worker for worker in workers if worker.fresh and not worker.due]
    ready = [worker for worker in fresh if worker.life is Life.READY]
    if ready:
        return Give(ready[0].number, 1, alone=True) if _cpu_for(state, segment) else None
    if len(fresh) >= len(segment.alone):
        return None
    start = _start(state, segment)
    if start is not None:
        return start
    used = [worker for worker in workers if worker.idle]
    if used and _cpu_for(state, segment) and not _one_is_leaving(state, segment):
        return Stop(used[0].number)
    return None


def _one_is_leaving(state: State, segment: SegmentState) -> bool:
    """Whether there will soon be room for another worker of the segment."""
    return any(worker.life is Life.LEAVING and worker.segment == segment.index for worker in state.workers.values())


def _start(state: State, segment: SegmentState, *, warm: bool = False) -> Start | None:
    workers = state.of(segment.index)
    if len(workers) >= segment.max_workers or not (warm or _cpu_for(state, segment)):
        return None
    if workers and not segment.node_ready:
        return None  # the first one prepares the node for the others
    # A leaving worker holds its memory until it is gone.
    if (workers or _one_is_leaving(state, segment)) and (state.memory_is_short or not _fits(state, segment)):
        return None
    gpus = _gpus_for(state, segment)
    return None if gpus is None else Start(segment.index, gpus, warm)


def _fits(state: State, segment: SegmentState) -> bool:
    """Whether the budget has room for another busy worker; the first one of a segment shows how much one needs."""
    if segment.worker_bytes is None:
        return state.room > UNKNOWN_BYTES
    # Later tasks may be somewhat larger; and a worker that retains memory shows it only with its second group.
    return state.room > (2.0 if segment.leak_bytes is None else 1.1) * segment.worker_bytes


def _gpus_for(state: State, segment: SegmentState) -> tuple[int, ...] | None:
    return pick_gpus(state.free_gpus, segment.gpus) if segment.gpus else ()


def pick_gpus(free: list[float], wanted: float) -> tuple[int, ...] | None:
    """Devices with room for `wanted`: one with the smallest share that fits, or that number of whole ones."""
    if wanted < 1:
        fitting = [(share, device) for device, share in enumerate(free) if share >= wanted - 1e-9]
        return (min(fitting)[1],) if fitting else None
    whole = [device for device, share in enumerate(free) if share >= 1 - 1e-9]
    return tuple(whole[: round(wanted)]) if len(whole) >= round(wanted) else None


def _unblock(state: State, segment: SegmentState) -> Action | None:
    if not _room(state, segment) or not _cpu_for(state, segment):
        return None
    for worker in state.of(segment.index):
        if worker.blocked:
            return Unblock(worker.number)
    return None


def _is_due(state: State, segment: SegmentState, worker: Worker) -> bool:
    """Whether a worker should be replaced, because its memory has grown or it is too old. It gets no more work."""
    if worker.due or state.outgrows(worker):
        return True
    old = segment.max_lifetime_s is not None and state.now - worker.started_at >= segment.max_lifetime_s
    return old and not worker.fresh and state.now - segment.last_recycled_at >= segment.restart_interval_s


def _recycle(state: State, segment: SegmentState) -> Action | None:
    """Replace a worker that is due, once it is idle."""
    for worker in state.of(segment.index):
        if worker.idle and _is_due(state, segment, worker):
            return Stop(worker.number, recycled=True)
    return None


def _make_way(state: State, active: list[SegmentState]) -> Action | None:
    """Take a GPU from an idle worker for a segment that waits for one.

    Immediately if a segment has no worker at all; once per interval if it has some and still limits the others.
    """
    for segment in reversed(active):
        if not segment.gpus or not segment.waiting or _gpus_for(state, segment) is not None:
            continue
        workers = state.of(segment.index)
        rested = state.now - state.moved_at >= state.autoscale_interval_s
        limits = segment.full and len(workers) < segment.max_workers and rested
        if workers and not limits:
            continue
        leaving = [worker for worker in state.workers.values() if worker.life is Life.LEAVING and worker.gpus]
        if _gpus_after(state, segment, leaving) is not None:
            continue  # a device is about to become free
        idle = [
            worker
            for other in state.segments
            if other is not segment and (not workers or len(state.of(other.index)) > 1)
            for worker in state.of(other.index)
            if worker.idle and worker.gpus
        ]
        # Only if it helps: a worker stopped in vain would be restarted, and so on forever.
        devices = _gpus_after(state, segment, leaving + idle) or ()
        for worker in idle:
            if set(worker.gpus) & set(devices):
                return Stop(worker.number)
    return _let_one_end(state)


def _gpus_after(state: State, segment: SegmentState, going: list[Worker]) -> tuple[int, ...] | None:
    """The devices that the segment could use once the workers in `going` have stopped."""
    free = list(state.free_gpus)
    for worker in going:
        for device in worker.gpus:
            free[device] += min(1.0, state.segments[worker.segment].gpus)
    return pick_gpus(free, segment.gpus)


def _let_one_end(state: State) -> Action | None:
    """Resolve a standstill: let a worker finish its assigned work although there is no room for the results.

    A segment that waits for the GPU of a blocked worker cannot make room before that worker has ended.
    """
    if not _stuck(state):
        return None
    blocked = [worker for worker in state.workers.values() if worker.blocked and worker.assigned]
    if not blocked:
        return None
    return Unblock(max(blocked, key=lambda worker: (bool(worker.gpus), worker.segment)).number)


def _release(state: State) -> Action | None:
    """Stop workers of segments that will get no more input, and long-idle ones when memory is short."""
    for segment in state.segments:
        over = not segment.waiting and state.upstream_done(segment.index)
        for worker in state.of(segment.index):
            tired = state.memory_is_short and state.now - worker.idle_since >= state.autoscale_interval_s
            if worker.idle and (over or (tired and not segment.waiting)):
                return Stop(worker.number)
    return None
