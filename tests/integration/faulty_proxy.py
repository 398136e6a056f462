"""An HTTP proxy before an object store that delays, refuses, resets and cuts off what it is told to."""

from __future__ import annotations

import contextlib
import http.client
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Literal

Fault = Literal["slow", "500", "503", "reset", "short"]
SLOW_S = 0.2
SLOW_DOWN = (
    b'<?xml version="1.0" encoding="UTF-8"?><Error><Code>%s</Code><Message>%s</Message><RequestId>1</RequestId></Error>'
)


class FaultyProxy(ThreadingHTTPServer):
    """Hands requests on to `target`; `choose` is asked about each, with its number, method and path.

    Attributes:
        faults: What was done to which request, in order.
    """

    daemon_threads = True

    def __init__(self, target: str, choose: Callable[[int, str, str], Fault | None]) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.target = target.removeprefix("http://")
        self.choose = choose
        self.faults: list[tuple[Fault, str, str]] = []
        self.requests = 0
        self.lock = threading.Lock()

    @property
    def url(self) -> str:
        """Where clients find it."""
        return f"http://127.0.0.1:{self.server_address[1]}"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Clients that disconnect are expected here."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: FaultyProxy

    def _handle(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        with self.server.lock:
            self.server.requests += 1
            fault = self.server.choose(self.server.requests, self.command, self.path)
            if fault is not None:
                self.server.faults.append((fault, self.command, self.path))
        if fault in ("500", "503"):
            name = b"InternalError" if fault == "500" else b"SlowDown"
            self._answer(int(fault), [], SLOW_DOWN % (name, b"Please reduce your request rate."))
            return
        if fault == "reset":
            self._reset()
            return
        if fault == "slow":
            time.sleep(SLOW_S)
        connection = http.client.HTTPConnection(self.server.target, timeout=60)
        connection.request(self.command, self.path, body, dict(self.headers.items()))
        answer = connection.getresponse()
        content = answer.read()
        connection.close()
        self._answer(answer.status, answer.getheaders(), content, short=fault == "short")

    def _answer(self, status: int, headers: list[tuple[str, str]], content: bytes, *, short: bool = False) -> None:
        self.send_response_only(status)
        length = next((value for name, value in headers if name.lower() == "content-length"), str(len(content)))
        for name, value in headers:
            if name.lower() not in ("content-length", "transfer-encoding", "connection"):
                self.send_header(name, value)
        self.send_header("Content-Length", length if self.command == "HEAD" else str(len(content)))
        self.end_headers()
        self.wfile.write(content[: len(content) // 2] if short else content)
        self.wfile.flush()
        if short:
            self._reset()

    def _reset(self) -> None:
        self.close_connection = True
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.connection.close()

    do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = _handle  # noqa: N815

    def log_message(self, *arguments: Any) -> None:
        """Quiet."""


@contextlib.contextmanager
def faulty_proxy(target: str, choose: Callable[[int, str, str], Fault | None]) -> Iterator[FaultyProxy]:
    """A proxy that runs until the block ends."""
    proxy = FaultyProxy(target, choose)
    thread = threading.Thread(target=proxy.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield proxy
    finally:
        proxy.shutdown()
        proxy.server_close()
        thread.join()
