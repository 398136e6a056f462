"""A profile in progress: the driver's sampler, and the samples that the executor's processes leave."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from operator import attrgetter
from typing import Any

from gristmill.observe.profile.profile import DRIVER, Profile, add_up
from gristmill.observe.profile.sampler import Sampler


class ProfileSession:
    """Samples this process from construction until `finish`; workers are added by the executor.

    Args:
        pipeline: The name of the pipeline, or of the workflow.

    Attributes:
        pipeline: The same.
        place: Number of the active stage in this process; -1 for none.
    """

    def __init__(self, pipeline: str) -> None:
        self.pipeline = pipeline
        self.place = -1
        self._stages: list[str] = []
        self._workers: list[Mapping[str, Any]] = []
        self._sampler = Sampler(DRIVER, self._stages, partial(attrgetter("place"), self))
        self._sampler.__enter__()
        self._done = False

    @contextmanager
    def in_process(self, segments: Sequence[Sequence[str]]) -> Iterator[list[Steps]]:
        """Where segment runners, identified by the names of their stages, report their position."""
        steps = []
        for names in segments:
            steps.append(Steps(self, len(self._stages)))
            self._stages += names
        try:
            yield steps
        finally:
            self.place = -1

    def add(self, snapshot: Mapping[str, Any]) -> None:
        """Add the samples of a worker that has ended."""
        self._workers.append(snapshot)

    def close(self) -> None:
        """Stop sampling."""
        if not self._done:
            self._done = True
            self._sampler.__exit__()

    def finish(self) -> Profile:
        """The profile of everything that was sampled."""
        self.close()
        return add_up(self.pipeline, [self._sampler.snapshot(), *self._workers])


class Steps:
    """Receives the position of a runner in this process."""

    def __init__(self, session: ProfileSession, first: int) -> None:
        self._session = session
        self._first = first

    def at(self, call: int, stage: int, lo: int, hi: int) -> None:
        """Stage number `stage` of the segment is next."""
        self._session.place = self._first + stage
