"""Messages between our own processes over a Unix socket.

A frame is a prefix (magic, number of raw buffers, payload length), the lengths of the raw buffers, the pickled message,
and then the buffers themselves: pickle protocol 5 leaves large buffers (Arrow, numpy, `PickleBuffer`) out of the
payload, so they are sent from where they lie and received into the memory they stay in. Both ends are processes that
we started; nothing that comes from data is ever unpickled here.

`Channel` blocks and is for workers. `PolledChannel` never blocks and is for a driver that serves many workers with one
selector: a driver that could block while sending to a worker that is itself blocked sending would wait for ever.
"""

from __future__ import annotations

import pickle
import select
import socket
import struct
import threading
from collections import deque
from collections.abc import Iterable
from typing import Any

from gristmill.errors import ChannelClosed, WorkerError

__all__ = ["Channel", "ChannelClosed", "FrameReader", "PolledChannel", "encode", "socket_pair"]

_MAGIC = b"GMc1"
_PREFIX = struct.Struct("<4sIQ")
_LENGTH = struct.Struct("<Q")

# Below this a separate buffer costs more than the copy it saves.
_IN_BAND_BYTES = 4096
# The smallest IOV_MAX among the systems we run on.
_MOST_PARTS = 512
# Kernel buffer asked for, so that an ordinary task message never waits for its reader.
_SOCKET_BUFFER = 1 << 20


def socket_pair() -> tuple[socket.socket, socket.socket]:
    """Two connected stream sockets with room for an ordinary message in the kernel."""
    pair = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    for end in pair:
        end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SOCKET_BUFFER)
    return pair


def encode(message: object) -> list[memoryview]:
    """The parts of a frame, in order; large buffers of `message` are referenced, not copied."""
    buffers: list[memoryview] = []

    def take(buffer: pickle.PickleBuffer) -> bool:
        raw = buffer.raw()
        if raw.nbytes < _IN_BAND_BYTES:
            return True
        buffers.append(raw)
        return False

    payload = pickle.dumps(message, protocol=5, buffer_callback=take)
    lengths = b"".join(_LENGTH.pack(buffer.nbytes) for buffer in buffers)
    head = _PREFIX.pack(_MAGIC, len(buffers), len(payload)) + lengths
    if len(payload) < _IN_BAND_BYTES:
        return [memoryview(head + payload), *buffers]
    return [memoryview(head), memoryview(payload), *buffers]


def _send_some(sock: socket.socket, parts: deque[memoryview]) -> None:
    """Send once from the front of `parts` and remove what the kernel took."""
    few = [parts[at] for at in range(min(len(parts), _MOST_PARTS))]
    try:
        sent = sock.sendmsg(few)
    except (BrokenPipeError, ConnectionResetError) as error:
        raise ChannelClosed("The other process closed the channel while a message was being sent to it.") from error
    for part in few:
        if sent < part.nbytes:
            parts[0] = part[sent:]
            return
        sent -= part.nbytes
        parts.popleft()


class FrameReader:
    """Turns the bytes of a socket into messages, however they were cut.

    Give it the socket whenever there may be something to read; it fills the memory that the message will keep.
    """

    def __init__(self) -> None:
        self._start()

    def _start(self) -> None:
        self._targets: list[bytearray] = [bytearray(_PREFIX.size)]
        self._stage = 0
        self._at = 0
        self._view = memoryview(self._targets[0])
        self._filled = 0
        self._count = 0
        self._payload_bytes = 0

    @property
    def between_messages(self) -> bool:
        """Whether nothing of a next message has arrived yet."""
        return self._stage == 0 and self._filled == 0

    def _expect(self, sizes: Iterable[int]) -> None:
        self._targets = [bytearray(size) for size in sizes]
        self._at = 0
        self._view = memoryview(self._targets[0])
        self._filled = 0

    def read_from(self, sock: socket.socket) -> tuple[bool, Any]:
        """Read once from `sock`; `(True, message)` when that completed a message, else `(False, None)`.

        Raises:
            BlockingIOError: The socket does not block and has nothing.
            ChannelClosed: The other end is gone.
        """
        if self._filled < self._view.nbytes:
            try:
                got = sock.recv_into(self._view[self._filled :])
            except ConnectionResetError:
                got = 0
            if got == 0:
                raise ChannelClosed("The other process closed the channel.", mid_message=not self.between_messages)
            self._filled += got
        while self._filled == self._view.nbytes:
            if self._at + 1 < len(self._targets):
                self._at += 1
                self._view = memoryview(self._targets[self._at])
                self._filled = 0
                if self._view.nbytes:
                    return False, None
                continue
            complete, message = self._next_stage()
            if complete:
                return True, message
        return False, None

    def _next_stage(self) -> tuple[bool, Any]:
        if self._stage == 0:
            magic, self._count, self._payload_bytes = _PREFIX.unpack(self._targets[0])
            if magic != _MAGIC:
                raise WorkerError(
                    f"A channel between our processes carried {bytes(magic)!r} where a message should begin; "
                    "something else wrote to its file descriptor.",
                    found=bytes(magic),
                )
            if self._count:
                self._stage = 1
                self._expect([_LENGTH.size * self._count])
                return False, None
            self._stage = 2
            self._expect([self._payload_bytes])
            return False, None
        if self._stage == 1:
            lengths = [length for (length,) in _LENGTH.iter_unpack(self._targets[0])]
            self._stage = 2
            self._expect([self._payload_bytes, *lengths])
            return False, None
        payload, *buffers = self._targets
        self._start()
        return True, pickle.loads(payload, buffers=buffers)  # noqa: S301 (written by our own process)


class Channel:
    """A blocking end of a channel; `send` may be called from several threads, `recv` from one."""

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(True)
        self.socket = sock
        self._reader = FrameReader()
        self._sending = threading.Lock()

    def fileno(self) -> int:
        """The descriptor, so that selectors take the channel itself."""
        return self.socket.fileno()

    def send(self, message: object) -> None:
        """Send `message` whole; returns when the kernel has all of it.

        Raises:
            ChannelClosed: The other end is gone.
        """
        parts = deque(encode(message))
        with self._sending:
            while parts:
                _send_some(self.socket, parts)

    def recv(self, *, timeout_s: float | None = None) -> Any:
        """The next message.

        Args:
            timeout_s: How long to wait for a message to begin; None waits for ever.

        Raises:
            ChannelClosed: The other end is gone.
            TimeoutError: Nothing came in time.
        """
        if timeout_s is not None and not self.poll(timeout_s):
            raise TimeoutError(f"No message came within {timeout_s:g} s.")
        while True:
            complete, message = self._reader.read_from(self.socket)
            if complete:
                return message

    def poll(self, timeout_s: float = 0.0) -> bool:
        """Whether a message (or the end) can be read within `timeout_s`."""
        poller = select.poll()
        poller.register(self.socket, select.POLLIN)
        return bool(poller.poll(max(0.0, timeout_s) * 1000))

    def close(self) -> None:
        """Close this end; the other one sees `ChannelClosed` after what was already sent."""
        self.socket.close()


class PolledChannel:
    """An end that never blocks: what the kernel does not take waits here until `flush`.

    Buffers of a sent message are referenced until they have left (`pending_bytes == 0`); do not change them before.
    """

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        self.socket = sock
        self._reader = FrameReader()
        self._unsent: deque[memoryview] = deque()
        self._lock = threading.Lock()
        self._ended = False

    def fileno(self) -> int:
        """The descriptor, so that selectors take the channel itself."""
        return self.socket.fileno()

    @property
    def pending_bytes(self) -> int:
        """Bytes that still wait to be sent; register for writing while this is not 0."""
        return sum(part.nbytes for part in self._unsent)

    @property
    def wants_write(self) -> bool:
        """Whether something still waits to be sent."""
        return bool(self._unsent)

    @property
    def ended(self) -> bool:
        """Whether the other end is gone and everything it sent has been received."""
        return self._ended

    def send(self, message: object) -> bool:
        """Send what the kernel takes now and keep the rest; True when nothing is left waiting.

        Raises:
            ChannelClosed: The other end is gone.
        """
        parts = encode(message)
        with self._lock:
            self._unsent.extend(parts)
            return self._flush()

    def flush(self) -> bool:
        """Send more of what waits; True when nothing is left."""
        with self._lock:
            return self._flush()

    def _flush(self) -> bool:
        try:
            while self._unsent:
                _send_some(self.socket, self._unsent)
        except BlockingIOError:
            return False
        except (ChannelClosed, OSError) as error:
            self._unsent.clear()
            if isinstance(error, ChannelClosed):
                raise
            raise ChannelClosed("The channel is closed on this side.") from error
        return True

    def receive(self, *, at_most: int | None = None) -> list[Any]:
        """The messages that are complete now, in order; an empty list when none is.

        Args:
            at_most: Stop after this many, so that one busy worker does not keep the driver.

        Raises:
            ChannelClosed: The other end is gone and no message was left (messages that came before it are given first).
        """
        messages: list[Any] = []
        if self._ended:
            raise ChannelClosed("The other process closed the channel.")
        while at_most is None or len(messages) < at_most:
            try:
                complete, message = self._reader.read_from(self.socket)
            except BlockingIOError:
                break
            except ChannelClosed:
                self._ended = True
                if messages:
                    break
                raise
            if complete:
                messages.append(message)
        return messages

    def close(self) -> None:
        """Close this end and forget what was not sent."""
        with self._lock:
            self._unsent.clear()
        self._ended = True
        self.socket.close()
