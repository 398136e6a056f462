"""The tasks of a run in progress: which worker has which, which results have arrived, and what worker deaths show."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field

from gristmill.backends.local.fork_server import WorkerProcess
from gristmill.backends.local.messages import Link, WorkerStatus
from gristmill.backends.local.shared_files import SharedFolder
from gristmill.backends.local.state import Queued, State, Worker
from gristmill.backends.plan import ExecutionPlan
from gristmill.errors import WorkerError
from gristmill.execution.packed_task import PackedTask
from gristmill.execution.recovery import Attempts, Place
from gristmill.tracking.origins import Step


@dataclass(slots=True)
class Job:
    """A task of one segment until it is finished there; `seen` holds the results it has produced."""

    number: int
    segment: int
    task: PackedTask
    attempts: Attempts = field(default_factory=Attempts)
    seen: set[tuple[Step, ...]] = field(default_factory=set)


@dataclass(slots=True)
class AssignedWork:
    """The engine's state of a worker, in addition to the scheduler's.

    Attributes:
        groups: Its jobs, by group number.
        slow_stages: Stages that receive the documents of a group in small pieces, by group number.
        first_calls: When the first slow call of each stage was seen, which has a longer limit.
        over_limit: It was stopped because a document took too long.
        over_memory: It was stopped because it used too much memory.
        innocent: It was stopped for a reason unrelated to its documents.
        held: Its recent private memory.
        call_began: When its current documents arrived.
        held_before: Its memory at that time.
        leaks: It already held most of the excess memory before these documents arrived.
    """

    process: WorkerProcess
    link: Link
    groups: dict[int, tuple[int, ...]] = field(default_factory=dict)
    slow_stages: dict[int, Collection[int]] = field(default_factory=dict)
    first_calls: dict[int, int] = field(default_factory=dict)
    over_limit: bool = False
    over_memory: bool = False
    innocent: bool = False
    held: int = 0
    call_began: int = 0
    held_before: int = 0
    leaks: bool = False
    expected: bool = False
    stopped_for: str = "finished"


class Jobs:
    """All unfinished jobs.

    Args:
        plan: Names the segments.
        state: Holds their queues.
        folder: Shared folder with their documents.
    """

    def __init__(self, plan: ExecutionPlan, state: State, folder: SharedFolder) -> None:
        self._plan = plan
        self._state = state
        self._folder = folder
        self._jobs: dict[int, Job] = {}
        self._numbers = itertools.count()

    def add(self, segment: int, task: PackedTask) -> None:
        """Queue a task for a segment."""
        job = Job(next(self._numbers), segment, task)
        self._jobs[job.number] = job
        self._state.segments[segment].put(Queued(job.number, task.nbytes))

    def of(self, items: Iterable[Queued]) -> list[Job]:
        """Take the jobs of queued tasks."""
        return [self._jobs[item.number] for item in items]

    def is_new(self, assigned: AssignedWork, group: int, path: tuple[Step, ...], partition: int) -> bool:
        """Whether no earlier attempt has produced this result; remembers it."""
        job = self._giver(assigned, group, path, partition)
        if job is None:
            return True
        if path in job.seen:
            return False
        job.seen.add(path)
        return True

    def _giver(self, assigned: AssignedWork, group: int, path: tuple[Step, ...], partition: int) -> Job | None:
        """The job in a group that produced a result: the one whose task the result descends from."""
        jobs = [self._jobs[number] for number in assigned.groups.get(group, ()) if number in self._jobs]
        for job in jobs:
            if job.task.partition == partition and path[: len(job.task.path)] == job.task.path:
                return job
        return jobs[0] if jobs else None

    def finish(self, numbers: Sequence[int]) -> list[Job]:
        """Finish these jobs and release their documents."""
        jobs = [self._jobs.pop(number) for number in numbers]
        for job in jobs:
            self.release(job.task)
        return jobs

    def release(self, task: PackedTask) -> None:
        """Release the documents of a task; processes that have mapped them keep them."""
        if task.documents is not None:
            self._folder.release(task.documents)

    def sweep_after(self, worker: int) -> None:
        """Remove files that a dead worker wrote but never announced."""
        known = {job.task.documents.path for job in self._jobs.values() if job.task.documents is not None}
        self._folder.discard(f"w{worker}-", keep=known)

    def take_back(
        self, worker: Worker, assigned: AssignedWork, status: WorkerStatus, words: str, *, innocent: bool
    ) -> WorkerError | None:
        """Return the tasks of a dead worker to the queue, and record the death for the one it was working on.

        Args:
            worker: The dead worker.
            assigned: Its assigned work.
            status: Its last status.
            words: Cause of death.
            innocent: Whether its death says nothing about the documents.

        Returns:
            The error that ends the run, if one of the tasks must not be retried.
        """
        segment = self._state.segments[worker.segment]
        hopeless = None
        # If a worker dies between two tasks, or while it loads one, the next task is blamed.
        blamed = status.task if status.task in assigned.groups else next(iter(assigned.groups), None)
        for group, numbers in reversed(list(assigned.groups.items())):
            jobs = [self._jobs[number] for number in numbers]
            for job in reversed(jobs):
                if group == blamed and not innocent:
                    known = len(jobs) == 1 and status.task == group and not assigned.leaks
                    place = Place(status.batch, status.stage, status.lo, status.hi) if known else None
                    alone = worker.alone and len(jobs) == 1
                    # Memory that a worker held before is not blamed on its last documents.
                    certain = known and (assigned.over_limit or (assigned.over_memory and alone))
                    again = job.attempts.died(place, words, was_alone=alone, certain=certain)
                    if not again:
                        hopeless = self._hopeless(job, words, leaks=assigned.leaks)
                segment.put(Queued(job.number, job.task.nbytes, job.attempts.alone), first=True)
        return hopeless

    def _hopeless(self, job: Job, words: str, *, leaks: bool) -> WorkerError:
        task = job.task.task_id
        keeps = "It keeps memory from batch to batch: use smaller partitions (blocksize of the reader). "
        advice = keeps if leaks else ""
        return WorkerError(
            f"{self._plan.segments[job.segment].name} killed its worker {job.attempts.deaths} times on {task} "
            f"({words}), and no single document could be identified as the cause. {advice}"
            "Committed output is intact; remove the cause and run the same command again to resume.",
            cause=words,
            task=task,
        )
