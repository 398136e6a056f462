"""The viewer's server: it serves only this machine, only users who have the printed URL, and only its own page.

Every request must name this machine as its host (which defeats DNS rebinding) and carry the token of the printed URL as
a cookie. Requests that change something must come from the page itself.
"""

from __future__ import annotations

import errno
import hmac
import json
import secrets
import sys
import tempfile
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import IO, Any, cast
from urllib.parse import parse_qsl, urlsplit

from gristmill.errors import GristmillError, UsageError
from gristmill.viewer.app import NotFoundError, View

HOST = "127.0.0.1"
ASSETS = {
    "/": ("index.html", "text/html; charset=utf-8"),
    "/theme.css": ("../../theme.css", "text/css; charset=utf-8"),
    "/view.css": ("view.css", "text/css; charset=utf-8"),
    "/view.js": ("view.js", "text/javascript; charset=utf-8"),
    "/icon.svg": ("icon.svg", "image/svg+xml"),
}
"""Every file that is served, by its URL path."""

_OWN_NAMES = ("127.0.0.1", "localhost", "[::1]")
_MAX_BODY = 1 << 16
_SPOOLED = 16 << 20
_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}


class Server(ThreadingHTTPServer):
    """Serves the viewer of one run until it is closed.

    Args:
        view: Answers the requests.
        port: Port to listen on; 0 for any free port.

    Attributes:
        url: The URL with the token.

    Raises:
        UsageError: The port is in use or not allowed.

    Example:
        >>> Server(View(RunFolder("out")), port=0).serve_forever()  # doctest: +SKIP
    """

    daemon_threads = True

    def __init__(self, view: View, port: int = 0) -> None:
        self.view = view
        self.token = secrets.token_urlsafe(24)
        self.cookie = ""
        try:
            super().__init__((HOST, port), _Handler)
        except OSError as error:
            why = {errno.EADDRINUSE: "is in use", errno.EACCES: "is not allowed for the current user"}.get(
                error.errno or 0
            )
            told = why or f"cannot be used ({error.strerror or error})"
            raise UsageError(f"Port {port} on {HOST} {told}. Choose another --port, or 0 for any free one.") from error
        self.cookie = f"gristmill-view-{self.server_port}"
        self.url = f"http://{HOST}:{self.server_port}/?token={self.token}"

    def start(self) -> threading.Thread:
        """Serve in the background; `shutdown` ends it."""
        thread = threading.Thread(target=self.serve_forever, args=(0.05,), name="viewer", daemon=True)
        thread.start()
        return thread

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore browsers that disconnect in the middle of an answer."""
        if not isinstance(sys.exc_info()[1], ConnectionError | TimeoutError):
            super().handle_error(request, client_address)


class _RefusedError(Exception):
    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.message = message


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server_version = "gristmill"
    sys_version = ""
    timeout = 60

    def do_GET(self) -> None:
        """Answer a query."""
        self._answered(self._get)

    def do_POST(self) -> None:
        """Change a label."""
        self._answered(self._post)

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing: a log of local requests would be useless."""

    @property
    def _served(self) -> Server:
        return cast(Server, self.server)

    def _answered(self, answer: Callable[[str, dict[str, str]], None]) -> None:
        try:
            try:
                address = urlsplit(self.path)
                given = dict(parse_qsl(address.query, keep_blank_values=True, max_num_fields=300))
                self._check_host()
                self._check_token(given)
                answer(address.path, given)
            except _RefusedError as refused:
                if urlsplit(self.path).path == "/":
                    self._send(f"{refused.message}\n".encode(), "text/plain; charset=utf-8", {}, refused.status)
                else:
                    self._send_json({"error": refused.message}, refused.status)
            except NotFoundError as error:
                self._send_json({"error": error.message}, 404)
            except (GristmillError, ValueError) as error:
                self._send_json({"error": str(error)}, 400)
        except (ConnectionError, TimeoutError):
            self.close_connection = True
        except Exception as error:  # one answer failed; the next one may work
            sys.stderr.write(f"gristmill view: {self.path.partition('?')[0]}: {type(error).__name__}: {error}\n")
            self._send_json({"error": f"Unexpected error: {type(error).__name__}: {error}"}, 500)

    # --- who may ask ---

    def _check_host(self) -> None:
        name = self.headers.get("Host", "").rpartition(":")
        host = name[0] or name[2]
        if host.lower() not in _OWN_NAMES:
            raise _RefusedError(403, "This viewer only answers to 127.0.0.1 and localhost.")

    def _check_token(self, given: dict[str, str]) -> None:
        # The page itself is opened by its URL; all other requests carry the cookie that the page has set.
        held = given.get("token", "") if self.path.startswith("/?") else ""
        if not held:
            # Other programs on this machine have cookies for the same host, and not all are well formed.
            pairs = [one.strip().partition("=") for one in self.headers.get("Cookie", "").split(";")]
            held = next((value for name, _, value in pairs if name == self._served.cookie), "")
        if not hmac.compare_digest(held.encode("utf-8", "replace"), self._served.token.encode()):
            raise _RefusedError(403, "Open the full address that `gristmill view` printed, including its token.")

    def _check_origin(self) -> None:
        own = f"http://{self.headers.get('Host', '')}"
        site = self.headers.get("Sec-Fetch-Site", "same-origin")
        if self.headers.get("Origin") != own or site != "same-origin":
            raise _RefusedError(403, "Only the viewer's own page may change labels.")
        if self.headers.get_content_type() != "application/json":
            raise _RefusedError(415, "Labels must be sent as application/json.")

    # --- answers ---

    def _get(self, path: str, given: dict[str, str]) -> None:
        view = self._served.view
        if path in ASSETS:
            name, kind = ASSETS[path]
            cookie = f"{self._served.cookie}={self._served.token}; Path=/; HttpOnly; SameSite=Strict"
            data = (Path(__file__).parent / "assets" / name).read_bytes()
            self._send(data, kind, {"Set-Cookie": cookie} if path == "/" else {})
        elif path == "/api/export":
            self._export(view)
        else:
            questions: dict[str, Callable[[], dict[str, Any]]] = {
                "/api/run": view.run,
                "/api/search": lambda: view.search(given),
                "/api/count": lambda: view.count(given),
                "/api/find": lambda: view.find(given.get("name", "")),
                "/api/snippets": lambda: view.snippets(given.get("refs", "").split("\n"), given.get("text", "")),
                "/api/document": lambda: view.document(given.get("ref", "")),
                "/api/text": lambda: view.text(
                    given.get("ref", ""), given.get("side", ""), _number(given.get("offset", "0"))
                ),
                "/api/diff": lambda: view.diff(given.get("ref", "")),
            }
            if path not in questions:
                raise _RefusedError(404, "Not found.")
            self._send_json(questions[path]())

    def _post(self, path: str, given: dict[str, str]) -> None:
        self._check_origin()
        length = _number(self.headers.get("Content-Length", ""))
        if length > _MAX_BODY:
            self.close_connection = True
            raise _RefusedError(413, "The request is too large for a label.")
        body = json.loads(self.rfile.read(length))
        if path != "/api/label":
            raise _RefusedError(404, "Not found.")
        if not isinstance(body, dict) or not isinstance(body.get("ref"), str):
            raise UsageError('Labels must be sent as {"ref": …, "label": …}.')
        self._send_json(self._served.view.label(body["ref"], body.get("label")))

    def _export(self, view: View) -> None:
        with tempfile.SpooledTemporaryFile(_SPOOLED) as file:
            written, skipped = write_export(view, cast("IO[bytes]", file))
            size = file.tell()
            file.seek(0)
            self.send_response(200)
            named = 'attachment; filename="labels.jsonl"'
            counts = {"X-Gristmill-Written": str(written), "X-Gristmill-Skipped": str(skipped)}
            sent = {"Content-Type": "application/jsonl", "Content-Disposition": named, "Content-Length": str(size)}
            for name, value in {**sent, **counts, **_HEADERS}.items():
                self.send_header(name, value)
            self.end_headers()
            while piece := file.read(1 << 20):
                self.wfile.write(piece)

    def _send_json(self, value: Any, status: int = 200) -> None:
        # Escaped to ASCII: texts may contain lone surrogates, which are not valid UTF-8.
        self._send(json.dumps(value, allow_nan=False).encode("ascii"), "application/json", {}, status)

    def _send(self, data: bytes, kind: str, headers: dict[str, str], status: int = 200) -> None:
        self.send_response(status)
        if status >= 400 and self.command == "POST":
            self.close_connection = True  # the request body may not have been read
            headers = {**headers, "Connection": "close"}
        for name, value in {
            "Content-Type": kind, "Content-Length": str(len(data)), **_HEADERS, **headers,
        }.items():  # fmt: skip
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(data)


def write_export(view: View, file: IO[bytes]) -> tuple[int, int]:
    """Write the labelled documents as JSONL; returns their number, and the number whose text is gone."""
    written = skipped = 0
    for line in view.export():
        if line is None:
            skipped += 1
        else:
            written += 1
            file.write(line)
    return written, skipped


def _number(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= 18):
        raise UsageError(f"{text[:40]!r} is not a number.")
    return int(text)
