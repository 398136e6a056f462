"""A small web server on this machine that serves files from memory and fails in the ways that servers do."""

from __future__ import annotations

import hashlib
import re
import socket
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass
class Fault:
    """What goes wrong with one request.

    Attributes:
        status: Answer with this status and no content.
        headers: Headers of the answer, in place of the usual ones; None leaves one out.
        reset_after: Reset the connection after this many bytes of the content.
        end_after: Close the connection properly after this many bytes.
        stall_after: Send this many bytes, then nothing for `stall_s`.
        announce: Announce this many bytes too many.
        before: Called before the answer is made, to change a file, say.
        bytes_per_second: Send no faster.
    """

    status: int | None = None
    headers: dict[str, str | None] = field(default_factory=dict)
    reset_after: int | None = None
    end_after: int | None = None
    stall_after: int | None = None
    stall_s: float = 30.0
    announce: int = 0
    before: Any = None
    bytes_per_second: int | None = None


@dataclass
class WebServer:
    """The running server.

    Attributes:
        url: Where it is.
        files: Contents by path.
        faults: What goes wrong, by path, one for each request, in order.
        always: What goes wrong with every request, by path.
        requests: Method, path and headers of every request.
        ranges: Whether parts of files are given.
        stopping: Set when the server ends.
    """

    url: str
    files: dict[str, bytes] = field(default_factory=dict)
    faults: dict[str, list[Fault]] = field(default_factory=dict)
    always: dict[str, Fault] = field(default_factory=dict)
    requests: list[tuple[str, str, dict[str, str]]] = field(default_factory=list)
    ranges: bool = True
    stopping: threading.Event = field(default_factory=threading.Event)

    def gets(self, path: str) -> list[dict[str, str]]:
        """The headers of the requests for the content of a file."""
        return [headers for method, asked, headers in self.requests if method == "GET" and asked == path]


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    web: WebServer

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def do_HEAD(self) -> None:
        self._answer()

    def do_GET(self) -> None:
        self._answer()

    def _answer(self) -> None:
        web, path = self.web, self.path
        web.requests.append((self.command, path, dict(self.headers)))
        waiting = web.faults.get(path)
        fault = web.always.get(path) or Fault()
        if self.command == "GET" and waiting:
            fault = waiting.pop(0)
        if fault.before is not None:
            fault.before()
        content = web.files.get(path)
        if fault.status is not None or content is None:
            self._head(fault.status or 404, {"Content-Length": "0"}, fault)
            return
        tag = f'"{hashlib.sha256(content).hexdigest()[:16]}"'
        headers = {"ETag": tag, "Accept-Ranges": "bytes"}
        asked = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
        status, start, end = 200, 0, len(content)
        if asked and web.ranges and self.headers.get("If-Range", tag) == tag:
            start, end = int(asked[1]), min(len(content), int(asked[2]) + 1 if asked[2] else len(content))
            if start >= len(content):
                self._head(416, {"Content-Range": f"bytes */{len(content)}", "Content-Length": "0"}, fault)
                return
            status, headers["Content-Range"] = 206, f"bytes {start}-{end - 1}/{len(content)}"
        self._head(status, {**headers, "Content-Length": str(end - start + fault.announce)}, fault)
        if self.command == "GET":
            self._send(content[start:end], fault)

    def _head(self, status: int, headers: dict[str, str], fault: Fault) -> None:
        self.send_response(status)
        for name, value in {**headers, **fault.headers}.items():
            if value is not None:
                self.send_header(name, value)
        self.end_headers()

    def _send(self, content: bytes, fault: Fault) -> None:
        stop = min(
            [len(content), *(n for n in (fault.reset_after, fault.end_after, fault.stall_after) if n is not None)]
        )
        step = 1 << 16 if fault.bytes_per_second is None else max(1, fault.bytes_per_second // 20)
        with suppress(OSError):
            for at in range(0, stop, step):
                self.wfile.write(content[at : min(stop, at + step)])
                if fault.bytes_per_second is not None and self.web.stopping.wait(0.05):
                    return
            self.wfile.flush()
            if fault.stall_after is not None:
                self.web.stopping.wait(fault.stall_s)
        if fault.reset_after is not None:
            time.sleep(0.05)  # so that what was sent arrives before the reset
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        if stop < len(content) or fault.announce:
            self.close_connection = True
            if fault.reset_after is not None:
                self.connection.close()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False

    def handle_error(self, request: Any, client_address: Any) -> None:
        pass  # connections that were reset on purpose


@contextmanager
def web_server() -> Iterator[WebServer]:
    """A server at a free port of this machine."""
    handler = type("Handler", (_Handler,), {})
    server = _Server(("127.0.0.1", 0), handler)
    web = handler.web = WebServer(f"http://127.0.0.1:{server.server_address[1]}")
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield web
    finally:
        web.stopping.set()
        server.shutdown()
        server.server_close()
        thread.join()
