"""A model hub on this machine: answers what the hub's library asks before and while it downloads."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

_COMMIT = "a" * 40


class LocalHub(ThreadingHTTPServer):
    """Serves folders as model repositories, and notes what was asked for."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Answer)
        self.models: dict[str, Path] = {}
        self.asked: list[str] = []
        self.refusal: tuple[int, dict[str, str]] = (404, {"X-Error-Code": "RepoNotFound"})

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def answer(self, path: str) -> bytes | None:
        for name, folder in self.models.items():
            files = [file for file in sorted(folder.rglob("*")) if file.is_file()]
            if path.startswith(f"/api/models/{name}/tree/"):
                entries = [
                    {
                        "type": "file",
                        "path": file.relative_to(folder).as_posix(),
                        "size": file.stat().st_size,
                        "oid": hashlib.sha1(file.read_bytes()).hexdigest(),
                    }
                    for file in files
                ]
                return json.dumps(entries).encode()
            if path.startswith(f"/api/models/{name}/"):
                names = [{"rfilename": file.relative_to(folder).as_posix()} for file in files]
                return json.dumps({"id": name, "sha": _COMMIT, "siblings": names}).encode()
            start = f"/{name}/resolve/"
            if path.startswith(start):
                file = folder / path.removeprefix(start).partition("/")[2]
                return file.read_bytes() if file.is_file() else None
        return None


class _Answer(BaseHTTPRequestHandler):
    server: LocalHub

    def do_HEAD(self) -> None:
        self._send(with_body=False)

    def do_GET(self) -> None:
        self._send(with_body=True)

    def _send(self, *, with_body: bool) -> None:
        path = self.path.partition("?")[0]
        self.server.asked.append(path)
        data = self.server.answer(path)
        status, headers = self.server.refusal
        self.send_response(status if data is None else 200)
        if data is None:
            for name, value in headers.items():
                self.send_header(name, value)
        else:
            self.send_header("ETag", f'"{hashlib.sha1(data).hexdigest()}"')
            self.send_header("X-Repo-Commit", _COMMIT)
        self.send_header("Content-Length", str(len(data or b"")))
        self.end_headers()
        if with_body and data is not None:
            self.wfile.write(data)

    def log_message(self, *_: object) -> None:
        """Say nothing on the terminal."""


@contextmanager
def local_hub() -> Iterator[LocalHub]:
    hub = LocalHub()
    thread = threading.Thread(target=hub.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield hub
    finally:
        hub.shutdown()
        thread.join()
        hub.server_close()
