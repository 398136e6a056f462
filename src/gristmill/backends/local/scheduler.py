"""The scheduler: a pure function from the state to the next actions.

Processors are counted for workers that work; one that is idle or waits for room costs none. What is nearest to the end
goes first, so that data leaves memory as soon as it can, and the segment that limits the whole is always served: the
others wait for it when its queue is full. That is all the balancing there is, and it is work-conserving.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from gristmill.backends.local.state import Life, SegmentState, State, Worker


@dataclass(frozen=True, slots=True)
class Start:
    """Start a worker for a segment; `alone` reserves it for one task."""

    segment: int
    gpus: tuple[int, ...] = ()
    alone: bool = False


@dataclass(frozen=True, slots=True)
class Give:
    """Hand the next `count` tasks of the segment's queue to a worker."""

    worker: int
    count: int


@dataclass(frozen=True, slots=True)
class Unblock:
    """Let a worker go on that waited for room in the next queue."""

    worker: int


@dataclass(frozen=True, slots=True)
class Stop:
    """Let an idle worker end; `recycled` when another will take its place."""

    worker: int
    recycled: bool = False


Action: TypeAlias = Start | Give | Unblock | Stop


def next_action(state: State) -> Action | None:
    """The most urgent thing to do, or None if there is nothing to do until something happens."""
    active = _active(state)
    for segment in reversed(active):
        action = _recycle(state, segment) or _unblock(state, segment) or _serve(state, segment)
        if action is not None:
            return action
    for segment in active:
        if segment.warm and not state.of(segment.index):
            start = _start(state, segment)
            if start is not None:
                return start
    return _release(state)


def _active(state: State) -> list[SegmentState]:
    """The segments that may work now: all of them, or in batch mode the first that is not done."""
    if not state.batch_mode:
        return state.segments
    for segment in state.segments:
        busy = any(worker.hands for worker in state.workers.values() if worker.segment == segment.index)
        if busy or segment.queue or (segment.index == 0 and state.source_left):
            return [segment]
    return []


def _room(state: State, segment: SegmentState) -> bool:
    """Whether what this segment gives has somewhere to go."""
    following = segment.index + 1
    return following >= len(state.segments) or state.batch_mode or not state.segments[following].full


def _cpu_for(state: State, segment: SegmentState) -> bool:
    """Whether a worker of this segment may start to work; something may always work."""
    if segment.fixed_workers is not None:
        return True
    used = state.cpus_used
    return used + segment.cpus <= state.cpus + 1e-9 or used == 0


def _may_produce(state: State, segment: SegmentState) -> bool:
    """Whether the segment should take on new work."""
    if not _room(state, segment):
        return False
    if segment.index == 0 and state.memory_is_short:
        # Something must be in the works, or nothing would ever be freed.
        return not any(worker.hands for worker in state.workers.values())
    return True


def _waiting(state: State, segment: SegmentState) -> int:
    """How many tasks could be handed out now as a group; 0 while a group is better waited for."""
    if segment.queue and segment.queue[0].alone:
        return 1
    count = 0
    for item in segment.queue:
        if item.alone or count == segment.batch_size:
            break
        count += 1
    if count == segment.batch_size:
        return count
    if count < len(segment.queue) or segment.full or state.upstream_done(segment.index):
        return count
    if segment.index == 0:
        return 0 if state.source_left else count
    return count if _stuck(state) else 0


def _stuck(state: State) -> bool:
    """Whether nothing is on its way that could complete a group."""
    return not any(worker.hands and not worker.blocked for worker in state.workers.values())


def _serve(state: State, segment: SegmentState) -> Action | None:
    count = _waiting(state, segment)
    if not count or not _may_produce(state, segment):
        return None
    workers = state.of(segment.index)
    if segment.queue[0].alone:
        return _serve_alone(state, segment, workers)
    shared = [worker for worker in workers if not worker.alone]
    idle = [worker for worker in shared if worker.life is Life.READY and not worker.hands and not worker.due]
    if idle:
        if _cpu_for(state, segment):
            return Give(min(idle, key=lambda worker: worker.number).number, count)
        return None
    if segment.node_ready or not workers:
        start = _start(state, segment)
        if start is not None and not (segment.fixed_workers is None and _coming(shared) >= len(segment.queue)):
            return start
    ahead = [
        worker
        for worker in shared
        if worker.life is Life.READY and not worker.due and 1 <= len(worker.hands) <= segment.prefetch
    ]
    if ahead and _others_are_busy(state, segment):
        return Give(min(ahead, key=lambda worker: (len(worker.hands), worker.number)).number, count)
    return None


def _coming(workers: list[Worker]) -> int:
    """How many workers will soon be able to take a task."""
    return sum(worker.life is Life.STARTING for worker in workers)


def _others_are_busy(state: State, segment: SegmentState) -> bool:
    """Whether no further worker of the segment could take the task now instead of its being prefetched."""
    return len(state.of(segment.index)) >= segment.max_workers or not _cpu_for(state, segment)


def _serve_alone(state: State, segment: SegmentState, workers: list[Worker]) -> Action | None:
    for worker in workers:
        if worker.alone and worker.fresh and worker.life is Life.READY:
            return Give(worker.number, 1)
    if any(worker.alone and worker.fresh for worker in workers):
        return None
    spare = [worker for worker in workers if worker.life is Life.READY and not worker.hands and not worker.fresh]
    if len(workers) >= segment.max_workers and spare:
        return Stop(spare[0].number)
    if len(workers) >= segment.max_workers and any(worker.hands or worker.life is Life.STARTING for worker in workers):
        return None
    return _start(state, segment, alone=True)


def _start(state: State, segment: SegmentState, *, alone: bool = False) -> Start | None:
    if len(state.of(segment.index)) >= segment.max_workers or not _cpu_for(state, segment):
        return None
    leaving = any(worker.life is Life.LEAVING for worker in state.workers.values())
    gpus: tuple[int, ...] = ()
    if segment.gpus:
        found = pick_gpus(state.free_gpus, segment.gpus)
        if found is None:
            return None
        gpus = found
    if state.memory_is_short and (state.workers or leaving):
        return None
    return Start(segment.index, gpus, alone)


def pick_gpus(free: list[float], wanted: float) -> tuple[int, ...] | None:
    """Devices with room for `wanted`: one with the smallest share that fits, or so many whole ones."""
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


def _recycle(state: State, segment: SegmentState) -> Action | None:
    """Replace a worker that is due (its memory has grown) or too old, once it has nothing in hand."""
    for worker in state.of(segment.index):
        if worker.life is not Life.READY or worker.hands:
            continue
        old = state.max_lifetime_s is not None and state.now - worker.started_at >= state.max_lifetime_s
        rested = state.now - segment.last_recycled_at >= state.restart_interval_s
        if worker.due or (old and rested and not worker.fresh):
            return Stop(worker.number, recycled=True)
    return None


def _release(state: State) -> Action | None:
    """Give up workers of segments to which nothing can come any more."""
    for segment in state.segments:
        if segment.queue or not state.upstream_done(segment.index):
            continue
        for worker in state.of(segment.index):
            if worker.life is Life.READY and not worker.hands:
                return Stop(worker.number)
    return None
