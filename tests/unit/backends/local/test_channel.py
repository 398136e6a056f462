"""Messages come out as they went in, however the socket cuts them."""

from __future__ import annotations

import pickle
import select
import socket
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gristmill.backends.local.channel import Channel, ChannelClosed, FrameReader, PolledChannel, encode, socket_pair
from gristmill.errors import WorkerError


class Slices:
    """A stand-in for a socket that gives `data` in pieces of the given sizes."""

    def __init__(self, data: bytes, sizes: list[int]) -> None:
        self.data = data
        self.sizes = sizes
        self.calls = 0

    def recv_into(self, target: memoryview) -> int:
        size = self.sizes[self.calls % len(self.sizes)]
        self.calls += 1
        piece = self.data[: min(size, target.nbytes)]
        self.data = self.data[len(piece) :]
        target[: len(piece)] = piece
        return len(piece)


def read_all(source: Any, count: int) -> list[Any]:
    reader = FrameReader()
    messages: list[Any] = []
    while len(messages) < count:
        complete, message = reader.read_from(source)
        if complete:
            messages.append(message)
    assert reader.between_messages
    return messages


values = st.recursive(
    st.none() | st.integers() | st.text() | st.binary(max_size=50) | st.builds(bytearray, st.binary(max_size=9000)),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)


@settings(max_examples=60, deadline=None)
@given(messages=st.lists(values, min_size=1, max_size=4), sizes=st.lists(st.integers(1, 5000), min_size=1, max_size=5))
def test_frames_survive_any_cut(messages: list[Any], sizes: list[int]) -> None:
    sent = [[pickle.PickleBuffer(m), 1] if isinstance(m, bytearray) and len(m) > 0 else m for m in messages]
    data = b"".join(bytes(part) for message in sent for part in encode(message))
    received = read_all(Slices(data, sizes), len(messages))
    assert [bytes(m[0]) if isinstance(s, list) and s and isinstance(s[0], pickle.PickleBuffer) else m
            for m, s in zip(received, sent, strict=True)] == [
        bytes(m) if isinstance(m, bytearray) and len(m) > 0 else m for m in messages
    ]  # fmt: skip


def test_large_buffers_are_referenced_and_small_ones_are_not() -> None:
    large = np.zeros(100_000, dtype=np.uint8)
    parts = encode({"large": large, "small": np.zeros(16, dtype=np.uint8)})
    assert [part.nbytes for part in parts[1:]] == [100_000]
    large[7] = 9
    assert parts[1][7] == 9


@pytest.fixture
def pair() -> Iterator[tuple[Channel, PolledChannel]]:
    left, right = socket_pair()
    worker, driver = Channel(left), PolledChannel(right)
    yield worker, driver
    worker.close()
    driver.close()


def receive_one(driver: PolledChannel) -> Any:
    while True:
        messages = driver.receive(at_most=1)
        if messages:
            return messages[0]
        select.select([driver], [], [], 5)


def test_a_table_crosses_both_ways(pair: tuple[Channel, PolledChannel]) -> None:
    worker, driver = pair
    table = pa.table({"text": ["a" * 50] * 20_000})
    sender = threading.Thread(target=lambda: worker.send(("result", table)))
    sender.start()
    assert receive_one(driver) == ("result", table)
    sender.join()

    finished = driver.send(table)
    received: list[Any] = []
    reader = threading.Thread(target=lambda: received.append(worker.recv(timeout_s=60)))
    reader.start()
    while not finished:
        select.select([], [driver], [], 5)
        finished = driver.flush()
    reader.join()
    assert received == [table]


def test_the_driver_never_blocks_on_a_worker_that_does_not_read(pair: tuple[Channel, PolledChannel]) -> None:
    _, driver = pair
    big = bytearray(20 << 20)
    assert not driver.send(pickle.PickleBuffer(big))
    assert driver.wants_write
    assert 0 < driver.pending_bytes < len(big)
    assert not driver.flush()
    assert driver.receive() == []


def test_sends_from_several_threads_do_not_mix(pair: tuple[Channel, PolledChannel]) -> None:
    worker, driver = pair
    threads = [
        threading.Thread(target=lambda n=n: [worker.send((n, i, bytes(5000))) for i in range(50)]) for n in range(4)
    ]
    for thread in threads:
        thread.start()
    received = [receive_one(driver)[:2] for _ in range(200)]
    for thread in threads:
        thread.join()
    for number in range(4):
        assert [i for n, i in received if n == number] == list(range(50))


def test_the_end_comes_after_the_last_message(pair: tuple[Channel, PolledChannel]) -> None:
    worker, driver = pair
    worker.send("last")
    worker.close()
    assert driver.receive() == ["last"]
    assert driver.ended
    with pytest.raises(ChannelClosed):
        driver.receive()
    with pytest.raises(ChannelClosed):
        driver.send("too late")
    assert not driver.wants_write


def test_a_worker_sees_the_end(pair: tuple[Channel, PolledChannel]) -> None:
    worker, driver = pair
    driver.close()
    with pytest.raises(ChannelClosed):
        worker.recv()
    with pytest.raises(ChannelClosed):
        worker.send(1)


def test_a_message_cut_by_death_is_not_given() -> None:
    left, right = socket_pair()
    data = b"".join(bytes(part) for part in encode("half a message"))
    with left, right:
        left.sendall(data[:-3])
        left.close()
        with pytest.raises(ChannelClosed) as caught:
            read_all(right, 1)
    assert caught.value.facts["mid_message"] is True


def test_waiting_has_an_end(pair: tuple[Channel, PolledChannel]) -> None:
    worker, _ = pair
    with pytest.raises(TimeoutError, match=r"0\.01 s"):
        worker.recv(timeout_s=0.01)


def test_foreign_bytes_are_refused() -> None:
    left, right = socket.socketpair()
    with left, right:
        left.sendall(b"print from a stage\n")
        with pytest.raises(WorkerError, match="something else wrote"):
            read_all(right, 1)


def test_the_error_pickles() -> None:
    error = pickle.loads(pickle.dumps(ChannelClosed("gone", mid_message=True)))
    assert isinstance(error, ConnectionError)
    assert error.facts == {"mid_message": True}
