"""A status block gives a consistent reading at every moment."""

from __future__ import annotations

import mmap
import os
import time
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gristmill.backends.local.status import Phase, StatusBlock, StatusWriter, WorkerStatus


@pytest.fixture
def block() -> Iterator[StatusBlock]:
    made = StatusBlock.create()
    yield made
    made.close()


@pytest.fixture
def writer(block: StatusBlock) -> Iterator[StatusWriter]:
    made = StatusWriter(block.fileno())
    yield made
    made.close()


def test_an_untouched_block_says_starting(block: StatusBlock) -> None:
    assert block.read() == WorkerStatus()
    assert block.read().running_s == 0.0


def test_what_is_written_is_read(block: StatusBlock, writer: StatusWriter) -> None:
    before = time.monotonic_ns()
    writer.update(phase=Phase.PROCESSING, task=7, batch=3, stage=2, rows=(10, 20), restart_clock=True)
    status = block.read()
    assert (status.task, status.batch, status.stage, status.lo, status.hi) == (7, 3, 2, 10, 20)
    assert status.phase is Phase.PROCESSING
    assert before <= status.started_ns <= status.written_ns + 1
    assert status.cpu_ns > 0
    writer.update(rows=(10, 15))
    later = block.read()
    assert (later.task, later.lo, later.hi, later.started_ns) == (7, 10, 15, status.started_ns)
    assert later.beats == status.beats + 1


def test_idle_forgets_the_work_in_hand(block: StatusBlock, writer: StatusWriter) -> None:
    writer.update(task=7, restart_clock=True)
    writer.idle()
    status = block.read()
    assert (status.task, status.started_ns, status.phase, status.running_s) == (-1, 0, Phase.IDLE, 0.0)


def test_memory_is_noted(block: StatusBlock, writer: StatusWriter) -> None:
    rss = writer.note_memory()
    assert rss > 1 << 20
    assert block.read().rss_bytes == rss


def test_it_is_readable_after_its_descriptor_and_writer_are_gone(block: StatusBlock) -> None:
    writer = StatusWriter(block.fileno())
    writer.update(task=5)
    writer.close()
    block.release_descriptor()
    assert block.read().task == 5


@settings(max_examples=80, deadline=None)
@given(cut=st.integers(0, 99), junk=st.binary(min_size=100, max_size=100), writes=st.integers(1, 5))
def test_a_write_that_was_cut_short_hides_only_itself(cut: int, junk: bytes, writes: int) -> None:
    block = StatusBlock.create()
    writer = StatusWriter(block.fileno())
    raw = mmap.mmap(os.dup(block.fileno()), mmap.PAGESIZE)
    try:
        for task in range(writes):
            writer.update(task=task)
        before = block.read()
        assert before.task == writes - 1
        # The next write goes to the other slot; only its first `cut` bytes arrive.
        at = ((writes + 1) % 2) * 256
        raw[at : at + cut] = junk[:cut]
        assert block.read() == before
    finally:
        raw.close()
        writer.close()
        block.close()
