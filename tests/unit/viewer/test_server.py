"""A real server and real requests: who may ask, and what is answered."""

from __future__ import annotations

import http.client
import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import pytest

from gristmill.errors import UsageError
from gristmill.ledger.record.layout import RunFolder
from gristmill.viewer.app import View
from gristmill.viewer.server import Server
from tests.unit.viewer.runs import HOSTILE


@pytest.fixture
def server(output: Path) -> Iterator[Server]:
    with Server(View(RunFolder(output))) as server:
        thread = server.start()
        yield server
        server.shutdown()
        thread.join(10)


class Client:
    """Asks as a browser would, but for what a test changes."""

    def __init__(self, server: Server) -> None:
        self.port = server.server_port
        self.headers = {"Host": f"127.0.0.1:{self.port}", "Cookie": f"{server.cookie}={server.token}"}

    def ask(
        self, path: str, *, method: str = "GET", body: bytes | None = None, **changed: str | None
    ) -> tuple[int, dict[str, str], bytes]:
        names = {name.replace("_", "-"): value for name, value in changed.items()}
        headers = {name: value for name, value in {**self.headers, **names}.items() if value is not None}
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=20)
        try:
            connection.putrequest(method, path, skip_host=True)
            for name, value in headers.items():
                connection.putheader(name, value)
            if body is not None:
                connection.putheader("Content-Length", str(len(body)))
            connection.endheaders(body)
            answer = connection.getresponse()
            return answer.status, dict(answer.getheaders()), answer.read()
        finally:
            connection.close()

    def label(self, body: object, **changed: str | None) -> tuple[int, dict[str, str], bytes]:
        own = {"Origin": f"http://127.0.0.1:{self.port}", "Content_Type": "application/json"}
        return self.ask("/api/label", method="POST", body=json.dumps(body).encode(), **{**own, **changed})


@pytest.fixture
def client(server: Server) -> Client:
    return Client(server)


def test_the_address_opens_the_page_and_sets_the_cookie(server: Server, client: Client) -> None:
    path = server.url.removeprefix(f"http://127.0.0.1:{server.server_port}")
    status, headers, page = client.ask(path, Cookie=None)
    assert status == 200
    assert b"<title>" in page
    assert headers["Set-Cookie"] == f"{server.cookie}={server.token}; Path=/; HttpOnly; SameSite=Strict"
    policy = headers["Content-Security-Policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    for asset in ("/", "/theme.css", "/view.css", "/view.js", "/icon.svg"):
        assert client.ask(asset)[0] == 200


@pytest.mark.parametrize("path", ["/", "/view.js", "/api/run", "/api/document?ref=a%231", "/api/export"])
@pytest.mark.parametrize(
    "changed",
    [
        {"Cookie": None},
        {"Cookie": "gristmill-view-1=guess"},
        {"Cookie": 'broken="'},
        {"Host": "evil.example"},
        {"Host": "evil.example:80"},
        {"Host": "127.0.0.1.evil.example:80"},
        {"Host": None},
    ],
    ids=str,
)
def test_others_get_nothing(client: Client, path: str, changed: dict[str, str | None]) -> None:
    status, headers, body = client.ask(path, **changed)
    assert status == 403
    assert "Set-Cookie" not in headers
    assert len(body) < 200


def test_the_token_in_an_address_opens_the_page_only(server: Server, client: Client) -> None:
    assert client.ask(f"/api/run?token={server.token}", Cookie=None)[0] == 403
    assert client.ask("/?token=guess", Cookie=None)[0] == 403


def test_cookies_of_others_do_not_matter(server: Server, client: Client) -> None:
    cookies = f'user={{"a": 1}}; odd; {server.cookie}={server.token}; last="'
    assert client.ask("/api/run", Cookie=cookies)[0] == 200


def test_localhost_and_a_forwarded_port_are_this_machine(client: Client) -> None:
    for host in ("localhost", f"localhost:{client.port}", "127.0.0.1:9999", "[::1]:80", "LOCALHOST:1"):
        assert client.ask("/api/run", Host=host)[0] == 200


@pytest.mark.parametrize(
    ("changed", "status"),
    [
        ({}, 200),
        ({"Origin": None}, 403),
        ({"Origin": "null"}, 403),
        ({"Origin": "http://evil.example"}, 403),
        ({"Origin": "http://127.0.0.1:1"}, 403),
        ({"Sec_Fetch_Site": "cross-site"}, 403),
        ({"Content_Type": "text/plain"}, 415),
        ({"Content_Type": "application/x-www-form-urlencoded"}, 415),
        ({"Cookie": None}, 403),
    ],
    ids=str,
)
def test_only_the_own_page_changes_labels(
    server: Server, client: Client, changed: dict[str, str | None], status: int
) -> None:
    assert client.label({"ref": "a#7", "label": "right"}, **changed)[0] == status
    assert server.view.labels.counts()["keep"] == (1 if status == 200 else 0)


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ([], 400),
        ({"ref": 5}, 400),
        ({"ref": "a#7", "label": "so so"}, 400),
        ({"ref": "x#7", "label": "right"}, 404),
        ({"ref": "a#7", "label": "r" * 100_000}, 413),
    ],
    ids=lambda value: str(value)[:30],
)
def test_labels_that_are_none(client: Client, body: object, status: int) -> None:
    answer = client.label(body)
    assert answer[0] == status
    assert "error" in json.loads(answer[2])


@pytest.mark.parametrize(
    "path",
    [
        "/../view.js", "/assets/view.js", "/view.js/..", "//etc/passwd", "/api/", "/api/none", "/%2e%2e/app.py",
        "/api/document?ref=..%2F..%2Fetc%2Fpasswd%230", "/labels.jsonl",
    ],
)  # fmt: skip
def test_nothing_else_is_served(client: Client, path: str) -> None:
    status, _, body = client.ask(path)
    assert status == 404
    assert set(json.loads(body)) == {"error"}


def test_questions(client: Client) -> None:
    def answer(path: str) -> dict[str, object]:
        status, headers, body = client.ask(path)
        assert status == 200, body
        assert headers["Content-Type"] == "application/json"
        return json.loads(body)  # type: ignore[no-any-return]

    assert answer("/api/run")["documents"] == 16
    assert len(answer("/api/search?status=quarantined")["hits"]) == 1  # type: ignore[arg-type]
    assert answer("/api/count?status=kept")["count"] == 9
    assert answer(f"/api/find?name={quote('doc-2')}")["note"] == ""
    assert answer("/api/document?ref=b%232")["text"] == HOSTILE["broken"]
    assert answer("/api/text?ref=b%235&offset=20000&side=input")["offset"] == 20000
    assert answer("/api/diff?ref=a%238")["equal"] is False
    assert set(answer("/api/snippets?refs=a%231%0Ab%236")["snippets"]) == {"a#1", "b#6"}  # type: ignore[call-overload]
    for path in ("/api/text?ref=a%231&offset=-1", "/api/search?score_min=x", "/api/search?" + "a=1&" * 400):
        assert client.ask(path)[0] == 400


def test_the_export_says_how_many(client: Client) -> None:
    assert client.label({"ref": "a#7", "label": "right"})[0] == 200
    status, headers, body = client.ask("/api/export")
    assert status == 200
    assert (headers["X-Gristmill-Written"], headers["X-Gristmill-Skipped"]) == ("1", "0")
    assert headers["Content-Disposition"].startswith("attachment")
    assert json.loads(body)["label"] == "keep"


def test_a_port_in_use(server: Server, view: View) -> None:
    with pytest.raises(UsageError, match=f"Port {server.server_port} on 127.0.0.1 is in use. Choose another --port"):
        Server(view, server.server_port)


def test_it_listens_on_this_machine_only(server: Server) -> None:
    assert server.socket.getsockname()[0] == "127.0.0.1"


def test_the_command_until_it_is_interrupted(output: Path) -> None:
    command = [sys.executable, "-m", "gristmill", "view", str(output), "--no-browser"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert process.stdout.readline() == "Press Ctrl+C to stop.\n"
        found = re.fullmatch(r"16 documents of (.+) at http://127\.0\.0\.1:(\d+)/\?token=(\S+)\n", line)
        assert found is not None, line
        with socket.create_connection(("127.0.0.1", int(found[2])), timeout=10):
            pass
        os.kill(process.pid, signal.SIGINT)
        out, err = process.communicate(timeout=20)
        assert (process.returncode, out, err) == (0, "Stopped.\n", "")
