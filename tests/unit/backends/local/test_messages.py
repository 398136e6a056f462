"""Messages come out as they went in, and a status page is consistent at every moment."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from multiprocessing import Pipe, RawArray
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gristmill.backends.local.fork_server import STATUS_BYTES
from gristmill.backends.local.messages import (
    IDLE,
    LARGEST_MESSAGE,
    GoOn,
    Link,
    StatusWriter,
    WorkerStatus,
    read_status,
)
from gristmill.backends.local.shared_files import SharedFolder

Links = tuple[Link, Link]


@pytest.fixture
def links(tmp_path: Path) -> Iterator[Links]:
    left, right = Pipe()
    with left, right, SharedFolder.create("run-1", base=tmp_path) as folder:
        yield Link(left, folder, "w1-d"), Link(right, SharedFolder.attach(folder.paths), "w1-m")


def files(tmp_path: Path) -> list[str]:
    return [path.name for path in tmp_path.rglob("w1-*")]


def test_small_messages_need_no_file_and_large_ones_leave_none(links: Links, tmp_path: Path) -> None:
    driver, worker = links
    for size in (0, LARGEST_MESSAGE - 100, LARGEST_MESSAGE, 3_000_000):
        # Nobody reads yet: even the largest is sent without waiting for its reader.
        worker.send([GoOn(size), bytes(size)])
        driver.send(bytes(size))
        assert len(files(tmp_path)) == (2 if size >= LARGEST_MESSAGE else 0)
        assert driver.receive() == [GoOn(size), bytes(size)]
        assert worker.receive() == bytes(size)
        assert files(tmp_path) == []


def test_the_end_comes_after_the_last_message(links: Links) -> None:
    driver, worker = links
    worker.send("last")
    worker.connection.close()
    assert driver.receive() == "last"
    with pytest.raises(EOFError):
        driver.receive()
    with pytest.raises(BrokenPipeError):
        driver.send("too late")


@pytest.mark.parametrize("foreign", [b"print from a stage\n", b"\x00\x00\x00"], ids=["text", "half a message"])
def test_what_is_no_message_is_refused_without_waiting_for_more(links: Links, foreign: bytes) -> None:
    driver, worker = links
    os.write(worker.connection.fileno(), foreign)
    worker.connection.close()
    with pytest.raises((OSError, EOFError)):
        driver.receive()


@pytest.fixture
def page() -> Any:
    return RawArray("B", STATUS_BYTES)


def test_an_untouched_page_says_idle(page: Any) -> None:
    assert read_status(page) == IDLE
    assert read_status(page).running_s == 0.0


def test_what_is_written_is_read(page: Any) -> None:
    before = time.monotonic_ns()
    writer = StatusWriter(page)
    writer.begin(7, 3, 2, 10, 20)
    status = read_status(page)
    assert status[:5] == (7, 3, 2, 10, 20)
    assert before <= status.started_ns <= time.monotonic_ns()
    writer.write(IDLE)
    assert read_status(page) == IDLE


@settings(max_examples=80, deadline=None)
@given(cut=st.integers(0, 59), junk=st.binary(min_size=60, max_size=60), writes=st.integers(1, 5))
def test_a_write_that_was_cut_short_hides_only_itself(cut: int, junk: bytes, writes: int) -> None:
    page = RawArray("B", STATUS_BYTES)
    writer = StatusWriter(page)
    for task in range(writes):
        writer.write(WorkerStatus(task))
    # The next write goes to the other slot; only its first `cut` bytes arrive.
    at = ((writes + 1) % 2) * 256
    memoryview(page).cast("B")[at : at + cut] = junk[:cut]
    assert read_status(page) == WorkerStatus(writes - 1)
