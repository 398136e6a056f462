"""The bottleneck of a run, and the one change that would help most, from the record of the run.

Every suggestion says how long the run would have taken with it. The model is simple: segments work in parallel, so a
run takes as long as the one with the most work per worker, plus start-up.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gristmill.figures import duration, plural, share

TEXT = "text"
"""The column that every reader provides; other columns may come from the stage that a filter would be moved before."""
LEAST_GAIN = 0.1
"""Smaller gains are neither worth a change nor certain."""
_BUSY = 0.6
_CHEAPER = {"gz": 0.2, "gzip": 0.2, "bz2": 0.05, "brotli": 0.3}
"""Approximate time of Zstandard relative to other compressions."""
_SMALL_PARTITION = 1 << 20
_LEAST_SECONDS = 1.0
_FIELDS = ("starved_seconds", "blocked_seconds", "starting_seconds")


@dataclass(frozen=True, slots=True)
class SegmentState:
    """The activity of a segment's workers.

    Attributes:
        stages: Its stages.
        state: `busy`, `starved` (without input), `blocked` (without room for output), `ramping` (starting), `idle`, or
            `unknown` if the record does not say.
        workers: Maximum number at the same time.
        busy_seconds: Worker-seconds of work.
        starved_seconds: Worker-seconds without input.
        blocked_seconds: Worker-seconds without room for results or permission to continue.
        starting_seconds: Worker-seconds in start and setup.
        peak_memory_bytes: Peak memory of one worker.
    """

    stages: tuple[str, ...]
    state: str
    workers: int
    busy_seconds: float
    starved_seconds: float
    blocked_seconds: float
    starting_seconds: float
    peak_memory_bytes: int

    @property
    def per_worker(self) -> float:
        """Seconds of work per worker."""
        return self.busy_seconds / max(1, self.workers)


@dataclass(frozen=True, slots=True)
class Suggestion:
    """A suggested change to a run.

    Attributes:
        kind: `more_workers`, `split_input`, `larger_partitions`, `filter_first`, `faster_compression`,
            `less_memory` or `nothing`.
        change: What to do.
        reason: What was seen.
        seconds: How long the run would have taken with it; None if unknown.
        gain: Relative gain in throughput; None if unknown.
        stage: The stage to change, if there is one.
        value: The new value, if there is one: workers, bytes, or the stage to move in front of.
    """

    kind: str
    change: str
    reason: str
    seconds: float | None = None
    gain: float | None = None
    stage: str | None = None
    value: Any = None

    def __str__(self) -> str:
        if self.seconds is None or self.gain is None:
            return f"{self.change} {self.reason}"
        return f"{self.change} {self.reason} Expected: {duration(self.seconds)}, {share(self.gain)} more per second."


def suggestion(
    run: Mapping[str, Any], plan: Mapping[str, Any] | None = None, *, processors: int | None = None
) -> Suggestion:
    """The one change that would help most.

    Args:
        run: The record of the run, `run.json`.
        plan: Its plan, `plan.json`, which lists filters and compression.
        processors: Number of CPU cores of the machine; this machine's by default.

    Example:
        >>> suggestion({"wall_seconds": 0.2, "stages": []}).kind
        'nothing'
    """
    return _Diagnosis(run, plan or {}, processors).best()


def segment_states(run: Mapping[str, Any]) -> list[SegmentState]:
    """The activity of every segment's workers, in plan order; empty if the record has no stages."""
    stages = {str(one.get("stage")): one for one in run.get("stages") or () if isinstance(one, Mapping)}
    history = run.get("history")
    found: list[tuple[str, ...]] = []
    for segment in (history.get("segments") or ()) if isinstance(history, Mapping) else ():
        named = tuple(str(name) for name in segment.get("stages") or ())
        if any(name in stages for name in named) and not any(name in group for name in named for group in found):
            found.append(named)
    alone = tuple(name for name in stages if not any(name in group for group in found))
    if alone:  # steps before the last, or a run in the calling process
        found.append(alone)
    order = list(stages)
    found.sort(key=lambda group: min((order.index(name) for name in group if name in stages), default=0))
    return [_state(group, [stages[name] for name in group if name in stages]) for group in found]


def _state(names: tuple[str, ...], stages: Sequence[Mapping[str, Any]]) -> SegmentState:
    busy = sum(_number(one, "busy_seconds") for one in stages)
    known = any(name in one for one in stages for name in _FIELDS)
    starved, blocked, starting = (max((_number(one, name) for one in stages), default=0.0) for name in _FIELDS)
    shares = {"busy": busy, "starved": starved, "blocked": blocked, "ramping": starting}
    total = sum(shares.values())
    if not known:
        state = "unknown"
    elif total <= 0:
        state = "idle"
    else:
        state = "busy" if busy >= _BUSY * total else max(shares, key=shares.__getitem__)
    workers = max((int(_number(one, "workers")) for one in stages), default=0)
    memory = max((int(_number(one, "peak_memory_bytes")) for one in stages), default=0)
    return SegmentState(names, state, workers, busy, starved, blocked, starting, memory)


def _number(values: Mapping[str, Any], name: str) -> float:
    """A figure of the record; 0 if it is missing or null."""
    found = values.get(name)
    return float(found) if isinstance(found, int | float) and math.isfinite(found) else 0.0


class _Diagnosis:
    """The figures of one run, and what each change would do to them."""

    def __init__(self, run: Mapping[str, Any], plan: Mapping[str, Any], processors: int | None) -> None:
        if processors is None:
            from gristmill.observe.memory import cpu_count

            processors = max(1, int(cpu_count()))
        self.processors = processors
        self.run = run
        self.segments = segment_states(run)
        self.stages = [one for one in run.get("stages") or () if isinstance(one, Mapping)]
        planned = [one for one in plan.get("stages") or () if isinstance(one, Mapping)]
        self.plan = {str(one.get("name")): one for one in planned}
        self.wall = _number(run, "wall_seconds")
        history = run.get("history")
        self.history: Mapping[str, Any] = history if isinstance(history, Mapping) else {}
        seconds = self.history.get("seconds") or [0.0]
        self.start = min(self._first_work(seconds), self.wall)
        self.active = max(self.wall - self.start, 1e-9)
        self.work = sum(one.busy_seconds for one in self.segments)

    def _first_work(self, seconds: Sequence[float]) -> float:
        """When the first worker started working."""
        for place, at in enumerate(seconds):
            for segment in self.history.get("segments") or ():
                busy = segment.get("busy") or ()
                if place < len(busy) and busy[place]:
                    return float(seconds[place - 1]) if place else float(at)
        return 0.0

    def best(self) -> Suggestion:
        """The change with the largest gain; problems come before mere slowness."""
        deaths = self.run.get("worker_deaths")
        killed = sum(
            int(number)
            for cause, number in (deaths.items() if isinstance(deaths, Mapping) else ())
            if "memory" in str(cause) or "KILL" in str(cause)
        )
        if killed:
            fewer = max(1, max((one.workers for one in self.segments), default=2) // 2)
            return Suggestion(
                "less_memory",
                f"Use fewer workers (--workers {fewer}), or a smaller batch_bytes of the reader.",
                f"{plural(killed, 'worker')} ran out of memory, and their work was repeated.",
                value=fewer,
            )
        if self.wall < _LEAST_SECONDS or not self.work:
            return Suggestion("nothing", "Nothing to change.", "The run was too short to draw conclusions.")
        found = [one for one in self._candidates() if one.gain is not None and one.gain >= LEAST_GAIN]
        if found:
            return max(found, key=lambda one: one.gain or 0.0)
        dearest = max(self.stages, key=lambda one: _number(one, "busy_seconds"))
        part = share(min(1.0, _number(dearest, "busy_seconds") / max(self.work, 1e-9)))
        if self.start > self.active:
            reason = (
                f"Most of the time ({duration(self.start)}) passed before the first task; on a larger input this "
                "matters less."
            )
        else:
            reason = (
                f"Workers were busy; {self._called(dearest)} took {part} of the time. Only more CPU cores would help."
            )
        return Suggestion("nothing", "Nothing to change.", reason, stage=str(dearest.get("stage")))

    def _candidates(self) -> Iterator[Suggestion]:
        yield from self._more_workers()
        yield from self._split()
        yield from self._larger_partitions()
        yield from self._filter_first()
        yield from self._compression()

    def _made(self, kind: str, change: str, reason: str, active: float, **facts: Any) -> Suggestion:
        seconds = self.start + active
        return Suggestion(kind, change, reason, seconds, self.wall / max(seconds, 1e-9) - 1, **facts)

    def _slack(self) -> float:
        """How much longer the run took than its slowest segment; other changes do not affect that."""
        return max(1.0, self.active / max((one.per_worker for one in self.segments), default=self.active))

    # --- the changes ---

    def _more_workers(self) -> Iterator[Suggestion]:
        limit = max(self.segments, key=lambda one: one.per_worker)
        used = self.work / self.active
        most = self.processors if len(self.segments) > 1 else min(self.processors, self._partitions)
        if limit.workers >= most or limit.busy_seconds < _BUSY * limit.workers * self.active:
            return
        others = max((one.per_worker for one in self.segments if one is not limit), default=0.0)
        wanted = math.ceil(limit.busy_seconds / max(others, limit.busy_seconds / most)) if others else most
        workers = max(limit.workers + 1, min(most, wanted))
        active = max(limit.busy_seconds / workers, others, self.work / self.processors)
        dearest = self._dearest(limit)
        if len(self.segments) == 1:
            change = f"Use {plural(workers, 'worker')} (--workers {workers})."
        else:
            change = f"Use {plural(workers, 'worker')} for stage {dearest!r} (num_workers: {workers})."
        yield self._made(
            "more_workers",
            change,
            f"Its {plural(max(1, limit.workers), 'worker')} never paused, while on average {used:.1f} of "
            f"{self.processors} CPU cores were in use.",
            active * self._slack(),
            stage=dearest,
            value=workers,
        )

    def _split(self) -> Iterator[Suggestion]:
        """Too few partitions, or one much larger than the others."""
        if len(self.segments) != 1:
            return
        (only,) = self.segments
        few = self._partitions < self.processors and only.workers <= self._partitions
        workers = self.processors if few else only.workers
        parallel = only.busy_seconds / self.active
        if workers < 2 or parallel > 0.75 * workers or not (few or self._tail(only)):
            return
        size = int(_number(self.run, "input_bytes")) // (4 * workers)
        reason = (
            f"{plural(self._partitions, 'partition')} cannot keep {workers} workers busy."
            if few
            else f"Some partitions take much longer than others: on average {parallel:.1f} of {workers} workers worked."
        )
        yield self._made(
            "split_input",
            f"Split the input into smaller parts: blocksize={max(size, 1 << 20)} of the reader, or for compressed "
            "files 'gristmill split'.",
            reason,
            only.busy_seconds / workers * 1.05,
            value=max(size, 1 << 20),
        )

    def _tail(self, only: SegmentState) -> bool:
        """Whether workers were idle at the end rather than throughout."""
        series = next((one for one in self.history.get("segments") or () if tuple(one["stages"]) == only.stages), None)
        if series is None:
            return False
        busy, queued = list(series.get("busy") or ()), list(series.get("queued") or ())
        empty = [number for number, waiting in zip(busy, queued, strict=False) if not waiting]
        idle = sum(max(0, only.workers - number) for number in empty)
        return bool(idle >= 0.15 * only.workers * max(1, len(busy)))

    def _larger_partitions(self) -> Iterator[Suggestion]:
        size = _number(self.run, "input_bytes") / max(1, self._partitions)
        workers = max((one.workers for one in self.segments), default=1)
        if len(self.segments) != 1 or self._partitions < 50 * workers or size > _SMALL_PARTITION:
            return
        lost = 1 - self.work / (self.active * max(1, workers))
        yield self._made(
            "larger_partitions",
            "Merge small files: blocksize='16MB' of the reader.",
            f"There are {self._partitions:,} partitions of {size / 1000:.0f} KB on average: {share(max(lost, 0.0))} "
            "of the workers' time went into starting and committing them.",
            self.active * (1 - 0.8 * max(lost, 0.0)),
            value=16_000_000,
        )

    def _filter_first(self) -> Iterator[Suggestion]:
        """A filter after a costly stage that only reads the same text."""
        for at, costly in enumerate(self.stages):
            name = str(costly.get("stage"))
            if _number(costly, "busy_seconds") < 0.2 * self.work or not self._stands_alone(at):
                continue
            for later in self.stages[at + 1 :]:
                if any(_number(later, key) for key in ("changed", "created", "untracked")):
                    break  # later stages see other texts
                filter_name = str(later.get("stage"))
                gone = sum(_number(later["dropped"], key) for key in later.get("dropped") or {})
                before = _number(later, "rows_in")
                if not self._reads_text(filter_name) or not before or not gone:
                    continue
                saved = _number(costly, "busy_seconds") * gone / before
                segment = next((one for one in self.segments if name in one.stages), None)
                if segment is None:
                    continue
                new = max(
                    max((one.per_worker for one in self.segments if one is not segment), default=0.0),
                    (segment.busy_seconds - saved) / max(1, segment.workers),
                )
                yield self._made(
                    "filter_first",
                    f"Put {filter_name} in front of {name}.",
                    f"It drops {share(gone / before)} of the documents on which {name} spent "
                    f"{duration(_number(costly, 'busy_seconds'))} before.",
                    new * self._slack(),
                    stage=filter_name,
                    value=name,
                )

    def _compression(self) -> Iterator[Suggestion]:
        for one in self.stages:
            name = str(one.get("stage"))
            parameters = self.plan.get(name, {}).get("parameters")
            codec = parameters.get("compression") if isinstance(parameters, Mapping) else None
            if codec not in _CHEAPER or not name.endswith("writer"):
                continue
            saved = _number(one, "busy_seconds") * (1 - _CHEAPER[codec])
            segment = next((part for part in self.segments if name in part.stages), None)
            if segment is None:
                continue
            new = max(
                max((part.per_worker for part in self.segments if part is not segment), default=0.0),
                (segment.busy_seconds - saved) / max(1, segment.workers),
            )
            part = share(_number(one, "busy_seconds") / max(self.work, 1e-9))
            yield self._made(
                "faster_compression",
                "Compress the output with Zstandard (--compression zst).",
                f"{name} took {part} of the work, most of it for {codec}.",
                new * self._slack(),
                stage=name,
                value="zst",
            )

    # --- figures ---

    @property
    def _partitions(self) -> int:
        return int(_number(self.run, "partitions") - _number(self.run, "partitions_done_before"))

    def _dearest(self, segment: SegmentState) -> str:
        within = [one for one in self.stages if str(one.get("stage")) in segment.stages]
        return str(max(within, key=lambda one: _number(one, "busy_seconds")).get("stage"))

    def _called(self, stage: Mapping[str, Any]) -> str:
        """The name of a stage, and how many filters share its pass."""
        at, others = self.stages.index(stage), 0
        for following in self.stages[at + 1 :]:
            if _number(following, "calls"):
                break
            others += 1
        return f"{stage.get('stage')}" + (f" with {others} more filters in one pass" if others else "")

    def _stands_alone(self, at: int) -> bool:
        """Whether a stage processes documents, changes none of them, and shares no pass with later stages.

        The time of filters that share a pass is counted with the first of them.
        """
        one, name = self.stages[at], str(self.stages[at].get("stage"))
        following = self.stages[at + 1] if at + 1 < len(self.stages) else {}
        shares = bool(_number(one, "calls")) and not _number(following, "calls")
        passive = not any(_number(one, key) for key in ("changed", "created", "untracked"))
        return passive and not shares and not name.endswith(("_reader", "_writer"))

    def _reads_text(self, name: str) -> bool:
        """Whether a stage is a filter that reads only the text, so that it can be moved anywhere."""
        planned = self.plan.get(name, {})
        parameters = planned.get("parameters")
        fields = parameters.get("text_field") if isinstance(parameters, Mapping) else None
        return planned.get("role") == "score_filter" and fields == [TEXT]
