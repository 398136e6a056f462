"""Responses in every form that HTTP/1.1 allows, in pieces of every size, straight and through proxies."""

from __future__ import annotations

import asyncio
import gzip
import ssl
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest

from gristmill.errors import LLMServerError, UsageError
from gristmill.models.client import AsyncOpenAIClient
from gristmill.models.client.http_pool import ConnectFailedError, ExchangeError, HttpPool, Response, TooLargeError

BODY = b'{"a": "\xc3\xa4"}'
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3;x=y\r\n" + BODY[:3] + b"\r\n%X\r\n" % len(BODY[3:])
PLAIN = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(BODY) + BODY
Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


async def _request(reader: asyncio.StreamReader) -> bytes:
    head = await reader.readuntil(b"\r\n\r\n")
    length = next((int(line[15:]) for line in head.split(b"\r\n") if line.startswith(b"Content-Length:")), 0)
    return head + await reader.readexactly(length)


@asynccontextmanager
async def _serving(handler: Handler, tls: ssl.SSLContext | None = None) -> AsyncIterator[int]:
    """A server; yields its port, and waits in the end until no connection is open."""
    tasks = []

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        tasks.append(asyncio.current_task())
        with suppress(ConnectionError, asyncio.IncompleteReadError):
            await handler(reader, writer)
        writer.close()
        with suppress(ConnectionError, ssl.SSLError):
            await writer.wait_closed()

    server = await asyncio.start_server(handle, "127.0.0.1", 0, ssl=tls)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        await asyncio.gather(*(task for task in tasks if task is not None))


async def _posted(url: str, *, times: int = 1, max_bytes: int = 1000) -> list[Response]:
    pool = HttpPool(url, {"X-Key": "k"}, timeout_s=10)
    try:
        return [await pool.post("/chat", b"{}", max_bytes=max_bytes) for _ in range(times)]
    finally:
        await pool.close()


def _exchange(handler: Handler, *, times: int = 1) -> list[Response]:
    async def run() -> list[Response]:
        async with _serving(handler) as port:
            return await _posted(f"http://127.0.0.1:{port}/v1", times=times)

    return asyncio.run(run())


def _says(answer: bytes, *, piece: int | None = None, closes: bool = False) -> Handler:
    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            await _request(reader)
            step = piece or len(answer)
            for at in range(0, len(answer), step):
                writer.write(answer[at : at + step])
                await writer.drain()
            if closes:
                return

    return handler


@pytest.mark.parametrize("piece", [None, 1, 7])
@pytest.mark.parametrize(
    ("answer", "closes"),
    [
        (PLAIN, False),
        (b"HTTP/1.1 100 Continue\r\n\r\n" + PLAIN, False),
        (CHUNKED + BODY[3:] + b"\r\n0\r\n\r\n", False),
        (CHUNKED + BODY[3:] + b"\r\n0\r\nX-Trailer: 1\r\n\r\n", False),
        (b"HTTP/1.0 200 OK\r\n\r\n" + BODY, True),
        (b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n" + BODY, True),
        (
            b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: %d\r\n\r\n"
            % len(gzip.compress(BODY, mtime=0))
            + gzip.compress(BODY, mtime=0),
            False,
        ),
    ],
)
def test_every_form_of_a_body(answer: bytes, closes: bool, piece: int | None) -> None:
    assert [one.body for one in _exchange(_says(answer, piece=piece, closes=closes), times=3)] == [BODY] * 3


def test_a_connection_is_used_again() -> None:
    connections = 0

    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        await _says(PLAIN)(reader, writer)

    _exchange(handler, times=5)
    assert connections == 1


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        (PLAIN[:-1], "closed the connection"),
        (CHUNKED + BODY[3:], "closed the connection"),
        (b"", "closed the connection"),
        (b"SSH-2.0-OpenSSH\r\n\r\n", "not an HTTP response"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: -5\r\n\r\n", "Content-Length"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n-5\r\n", "size of a chunk"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", "size of a chunk"),
        (b"HTTP/1.1 200 OK\r\nContent-Encoding: br\r\nContent-Length: 1\r\n\r\nx", "Content-Encoding"),
        (b"HTTP/1.1 200 OK\r\nX: " + b"y" * 70_000, "header of the response is too large"),
    ],
)
def test_what_is_no_complete_response(answer: bytes, told: str) -> None:
    with pytest.raises(ExchangeError, match=told):
        _exchange(_says(answer, piece=100_000, closes=True))


@pytest.mark.parametrize(
    "head",
    [
        b"Content-Length: 2000\r\n\r\n",
        b"Transfer-Encoding: chunked\r\n\r\n7D0\r\n",
        b"Content-Encoding: gzip\r\nContent-Length: %d\r\n\r\n" % len(gzip.compress(b"x" * 2000, mtime=0)),
        b"\r\n",
    ],
)
def test_a_body_that_is_too_large(head: bytes) -> None:
    body = gzip.compress(b"x" * 2000, mtime=0) if b"gzip" in head else b"x" * 2000
    with pytest.raises(TooLargeError):
        _exchange(_says(b"HTTP/1.1 200 OK\r\n" + head + body, closes=head == b"\r\n"))


def test_a_long_error_is_cut() -> None:
    answer = b"HTTP/1.1 500 No\r\nContent-Length: 9000000\r\n\r\n" + b"x" * 100_000
    (response,) = _exchange(_says(answer))
    assert (response.status, len(response.body)) == (500, 2**16)


def test_a_proxy_for_http(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []

    async def proxy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        seen.append(await _request(reader))
        writer.write(PLAIN)

    async def run() -> bytes:
        async with _serving(proxy) as port:
            monkeypatch.setenv("http_proxy", f"http://me:p%40ss@127.0.0.1:{port}")
            return (await _posted("http://models.example/v1"))[0].body

    assert asyncio.run(run()) == BODY
    assert seen[0].startswith(b"POST http://models.example/v1/chat HTTP/1.1\r\nHost: models.example\r\n")
    assert b"Proxy-Authorization: Basic bWU6cEBzcw==\r\n" in seen[0]
    monkeypatch.setenv("no_proxy", "models.example")
    assert HttpPool("http://models.example/v1", {}, timeout_s=5)._proxy is None


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tls") / "both.pem"
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost"]
    command += ["-addext", "subjectAltName=DNS:localhost", "-keyout", str(path), "-out", str(path) + ".crt"]
    try:
        subprocess.run(command, check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("needs openssl")
    path.write_bytes(path.read_bytes() + Path(f"{path}.crt").read_bytes())
    return path


@pytest.mark.parametrize("with_proxy", [False, True])
@pytest.mark.parametrize("trusted", [True, False])
def test_tls(certificate: Path, monkeypatch: pytest.MonkeyPatch, with_proxy: bool, trusted: bool) -> None:
    """The certificate is checked, through a tunnel as well."""
    if trusted:
        monkeypatch.setenv("SSL_CERT_FILE", f"{certificate}.crt")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    asked = []

    async def tunnel(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        asked.append(head)
        other, there = await asyncio.open_connection("127.0.0.1", int(head.split()[1].rpartition(b":")[2]))
        writer.write(b"HTTP/1.1 200 Connected\r\n\r\n")

        async def copy(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
            with suppress(ConnectionError):
                while data := await source.read(65536):
                    target.write(data)
                target.close()

        await asyncio.gather(copy(reader, there), copy(other, writer))
        with suppress(ConnectionError):
            await there.wait_closed()

    async def run() -> list[bytes]:
        async with _serving(tunnel) as proxy, _serving(_says(PLAIN), context) as port:
            if with_proxy:
                monkeypatch.setenv("https_proxy", f"http://127.0.0.1:{proxy}")
            return [one.body for one in await _posted(f"https://localhost:{port}/v1", times=3)]

    if trusted:
        assert asyncio.run(run()) == [BODY] * 3
    else:
        with pytest.raises(ConnectFailedError, match="CERTIFICATE_VERIFY_FAILED"):
            asyncio.run(run())
    assert len(asked) == with_proxy


def test_secrets_in_urls_and_headers_are_never_told(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match="user name or a password") as caught:
        AsyncOpenAIClient(base_url="http://me:hunter2@localhost/v1")
    assert "hunter2" not in str(caught.value)
    monkeypatch.setenv("MY_KEY", "sk-broken\nkey")
    client = AsyncOpenAIClient(base_url="http://localhost:9/v1", api_key_env="MY_KEY")
    with pytest.raises(LLMServerError, match="control character") as told:
        asyncio.run(client.query_model(messages=[], model="m"))
    assert "sk-broken" not in str(told.value)
