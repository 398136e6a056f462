"""Stages for the tests of equality; importable by workers in other processes."""

from __future__ import annotations

import os
from collections.abc import Iterator

import numpy as np

from gristmill.stages.base import ProcessingStage
from gristmill.tasks import DocumentBatch


def shout(text: str) -> str:
    """The text in capitals."""
    return text.upper()


class Frames(ProcessingStage[DocumentBatch, DocumentBatch]):
    """Drops and changes rows of a pandas frame, without saying so."""

    name = "frames"

    def process(self, task: DocumentBatch) -> DocumentBatch:
        frame = task.to_pandas()
        frame = frame[frame["n"] % 4 != 1]
        return DocumentBatch(data=frame.assign(text=frame["text"].str.strip() + "."))


class Halves(ProcessingStage[DocumentBatch, DocumentBatch]):
    """Two tasks for one."""

    name = "halves"

    def process(self, task: DocumentBatch) -> list[DocumentBatch]:
        half = task.num_items // 2
        return [task.slice(0, half), task.slice(half, task.num_items - half)]


class Apart(ProcessingStage[DocumentBatch, DocumentBatch]):
    """Changes nothing, in a worker of its own."""

    name = "apart"
    needs_own_worker = True

    def process(self, task: DocumentBatch) -> DocumentBatch:
        return task


class Pieces(ProcessingStage[DocumentBatch, DocumentBatch]):
    """Several documents for one, and a stream of tasks."""

    name = "pieces"

    def process(self, task: DocumentBatch) -> Iterator[DocumentBatch]:
        for start in range(0, task.num_items, 5):
            part = task.slice(start, min(5, task.num_items - start))
            yield part.take(np.repeat(np.arange(part.num_items), 2))


class DropAll(ProcessingStage[DocumentBatch, DocumentBatch]):
    """Nothing comes out."""

    name = "nothing"

    def process(self, task: DocumentBatch) -> None:
        return None


class Picky(ProcessingStage[DocumentBatch, DocumentBatch]):
    """Cannot process some documents, or with `unless` only as long as there is no such file."""

    name = "picky"

    def __init__(self, unless: str | None = None) -> None:
        self.unless = unless

    def process(self, task: DocumentBatch) -> DocumentBatch:
        if self.unless is not None and os.path.exists(self.unless):
            return task
        for number in task.column("n").to_pylist():
            if number % 17 == 3:
                raise ValueError(f"cannot digest {number}")
        return task
