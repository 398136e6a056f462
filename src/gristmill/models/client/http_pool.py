"""A minimal HTTP/1.1 client for model servers: POST over persistent connections.

The next request is sent in the same step of the event loop in which a response arrives, so the server is hardly ever
idle. A general HTTP client takes three times the CPU time per request.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import ssl
import urllib.request
import zlib
from collections.abc import Mapping
from typing import Any, NamedTuple
from urllib.parse import SplitResult, unquote, urlsplit

_CONNECT_S = 30.0
_MAX_HEAD_BYTES = 2**16
_MAX_ERROR_BYTES = 2**16
"""The rest of an error response is not read."""
_NO_BODY = frozenset({204, 304})


class ConnectFailedError(OSError):
    """No connection to the server or its proxy."""


class ExchangeError(ConnectionError):
    """The connection ended before the response was complete, or the response is not HTTP."""


class TooLargeError(Exception):
    """The body of a response is larger than allowed."""


class Response(NamedTuple):
    """A complete response; header names are in lower case."""

    status: int
    headers: dict[str, str]
    body: bytes


class HttpPool:
    """A pool of persistent connections to one server; belongs to the event loop that first uses it.

    Uses a proxy according to HTTP_PROXY, HTTPS_PROXY and NO_PROXY.

    Args:
        base_url: Prefix of every path.
        headers: Sent with every request.
        timeout_s: Timeout of a request in seconds, including connecting and reading.

    Example:
        >>> pool = HttpPool("http://localhost:8000/v1", {"Content-Type": "application/json"}, timeout_s=60)
        >>> pool.idle
        0
    """

    def __init__(self, base_url: str, headers: Mapping[str, str], *, timeout_s: float) -> None:
        url = urlsplit(base_url)
        self._host, self._is_tls = url.hostname or "", url.scheme == "https"
        self._port = url.port or (443 if self._is_tls else 80)
        self._proxy = _proxy_for(url)
        self._timeout_s = timeout_s
        self._free: list[_Exchange] = []
        self._tls: ssl.SSLContext | None = None
        fixed = {"Host": url.netloc, **headers, "Accept-Encoding": "identity"}
        target = url.path
        if self._proxy is not None and not self._is_tls:
            target = f"http://{url.netloc}{url.path}"
            fixed |= _proxy_login(self._proxy)
        for text in (target, *(f"{name}{value}" for name, value in fixed.items())):
            if any(ord(char) < 32 or ord(char) == 127 for char in text):
                raise ValueError("a URL or header contains a control character")
        self._target = target.encode("latin-1")
        self._lines = "".join(f"{name}: {value}\r\n" for name, value in fixed.items()).encode("latin-1")

    @property
    def idle(self) -> int:
        """The number of idle connections."""
        return len(self._free)

    async def post(self, path: str, body: bytes, *, max_bytes: int) -> Response:
        """Send a request and read the response.

        Raises:
            ConnectFailedError: No connection could be established.
            ExchangeError: The response is incomplete.
            TooLargeError: The body has more than `max_bytes`; the body of an error is truncated instead.
            TimeoutError: The response was not complete in time.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._timeout_s
        exchange = self._taken() or await self._connected()
        head = b"POST %s%s HTTP/1.1\r\n%sContent-Length: %d\r\n\r\n"
        request = head % (self._target, path.encode("ascii"), self._lines, len(body)) + body
        timer = loop.call_at(deadline, exchange.fail, TimeoutError())
        try:
            response = await exchange.ask(request, max_bytes)
        except BaseException:
            exchange.abort()
            raise
        finally:
            timer.cancel()
        if exchange.can_be_kept:
            self._free.append(exchange)
        else:
            exchange.abort()
        return response

    async def close(self) -> None:
        """Close idle connections; others close when their request ends."""
        while self._free:
            self._free.pop().abort()
        await asyncio.sleep(0)  # the event loop closes the sockets in its next step

    def _taken(self) -> _Exchange | None:
        """The most recently used connection that is still open."""
        while self._free:
            exchange = self._free.pop()
            if exchange.is_open:
                return exchange
        return None

    async def _connected(self) -> _Exchange:
        proxy = self._proxy
        host, port = (self._host, self._port) if proxy is None else (proxy.hostname or "", proxy.port or 80)
        direct_tls = self._context() if self._is_tls and proxy is None else None
        exchange: _Exchange | None = None
        try:
            async with asyncio.timeout(min(_CONNECT_S, self._timeout_s)):
                loop = asyncio.get_running_loop()
                transport, exchange = await loop.create_connection(
                    _Exchange, host, port, ssl=direct_tls, happy_eyeballs_delay=0.25
                )
                if self._is_tls and proxy is not None:
                    await self._tunnel(exchange, proxy)
                    exchange.transport = await loop.start_tls(
                        transport, exchange, self._context(), server_hostname=self._host
                    )
                return exchange
        except TimeoutError as error:
            waited = min(_CONNECT_S, self._timeout_s)
            raise ConnectFailedError(f"no connection to {host}:{port} within {waited:g} s") from error
        except OSError as error:
            if exchange is not None:
                exchange.abort()
            raise ConnectFailedError(f"{type(error).__name__}: {error}") from error

    async def _tunnel(self, exchange: _Exchange, proxy: SplitResult) -> None:
        lines = "".join(f"{name}: {value}\r\n" for name, value in _proxy_login(proxy).items())
        place = f"[{self._host}]:{self._port}" if ":" in self._host else f"{self._host}:{self._port}"
        asked = f"CONNECT {place} HTTP/1.1\r\nHost: {place}\r\n{lines}\r\n".encode("latin-1")
        response = await exchange.ask(asked, _MAX_ERROR_BYTES, is_tunnel=True)
        if response.status != 200:
            raise ConnectFailedError(f"the proxy {proxy.hostname}:{proxy.port} answered with status {response.status}")

    def _context(self) -> ssl.SSLContext:
        if self._tls is None:
            self._tls = ssl.create_default_context()
        return self._tls


class _Exchange(asyncio.Protocol):
    """One connection, which handles one request at a time."""

    def __init__(self) -> None:
        self.transport: Any = None
        self.is_open = True
        self.can_be_kept = False
        self._waiter: asyncio.Future[Response] | None = None
        self._buffer = bytearray()

    async def ask(self, request: bytes, max_bytes: int, *, is_tunnel: bool = False) -> Response:
        """Send a request; returns the complete response."""
        self._waiter = asyncio.get_running_loop().create_future()
        self._max_bytes, self._is_tunnel = max_bytes, is_tunnel
        self._status = 0
        self._headers: dict[str, str] = {}
        self._body: bytearray | None = None  # of a response in chunks
        self._length: int | None = None
        self.can_be_kept = False
        if self.is_open:
            self.transport.write(request)
        else:
            self.fail(ExchangeError("the server closed the connection"))
        return await self._waiter

    def fail(self, error: BaseException) -> None:
        """End the current request with this error."""
        waiter, self._waiter = self._waiter, None
        if waiter is not None and not waiter.done():
            waiter.set_exception(error)

    def abort(self) -> None:
        """Close the connection."""
        self.is_open = False
        if self.transport is not None:
            self.transport.abort()

    # --- called by the event loop ---

    def connection_made(self, transport: Any) -> None:
        self.transport = transport

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_open = False
        if self._waiter is None:
            return
        if exc is None and self._status and self._length is None and self._body is None:
            self._finish(bytes(self._buffer))  # a body without a length ends with the connection
        else:
            told = "the server closed the connection" if exc is None else f"{type(exc).__name__}: {exc}"
            self.fail(ExchangeError(told))

    def data_received(self, data: bytes) -> None:
        if self._waiter is None:
            self.abort()  # nothing was requested
            return
        self._buffer += data
        try:
            self._read()
        except (ExchangeError, TooLargeError) as error:
            self.fail(error)
            self.abort()

    # --- reading ---

    def _read(self) -> None:
        while not self._status:
            end = self._buffer.find(b"\r\n\r\n")
            if end > _MAX_HEAD_BYTES or (end < 0 and len(self._buffer) > _MAX_HEAD_BYTES):
                raise ExchangeError("the header of the response is too large")
            if end < 0:
                return
            self._read_head(bytes(self._buffer[:end]))
            del self._buffer[: end + 4]
        most = self._max_bytes if self._status == 200 else _MAX_ERROR_BYTES
        if self._body is not None:
            ended, size = self._read_chunks(), len(self._body)
            if ended and size <= most:
                self._finish(bytes(self._body))
                return
            size += len(self._buffer)
        elif self._length is not None:
            if len(self._buffer) >= self._length <= most:
                body = bytes(self._buffer[: self._length])
                del self._buffer[: self._length]
                self._finish(body)
                return
            size = self._length if self._status == 200 else len(self._buffer)
        else:
            size = len(self._buffer)
        if size > most:
            if self._status == 200:
                raise TooLargeError
            self.can_be_kept = self._keeps = False
            self._finish(bytes((self._buffer if self._body is None else self._body)[:most]))

    def _read_head(self, head: bytes) -> None:
        first, *lines = head.split(b"\r\n")
        parts = first.split(None, 2)
        if len(parts) < 2 or not parts[0].startswith(b"HTTP/1.") or not parts[1].isdigit():
            raise ExchangeError(f"not an HTTP response: {first[:80]!r}")
        status = int(parts[1])
        if 100 <= status < 200:
            return  # the real one follows
        headers = {}
        for line in lines:
            name, _, value = line.partition(b":")
            headers[name.strip().lower().decode("latin-1")] = value.strip().decode("latin-1")
        self._status, self._headers = status, headers
        connection = headers.get("connection", "").lower()
        self._keeps = "close" not in connection and (parts[0] != b"HTTP/1.0" or "keep-alive" in connection)
        length = headers.get("content-length")
        if self._is_tunnel or status in _NO_BODY:
            self._length = 0
        elif "chunked" in headers.get("transfer-encoding", "").lower():
            self._body = bytearray()
        elif length is not None:
            if not (length.isascii() and length.isdigit()):
                raise ExchangeError(f"Content-Length is {length[:40]!r}")
            self._length = int(length)
        else:
            self._keeps = False

    def _read_chunks(self) -> bool:
        """Read all complete chunks; returns whether the last one is among them."""
        assert self._body is not None
        while True:
            end = self._buffer.find(b"\r\n")
            if end < 0:
                if len(self._buffer) > _MAX_HEAD_BYTES:
                    raise ExchangeError("the size of a chunk is too long")
                return False
            digits = bytes(self._buffer[:end]).partition(b";")[0].strip()
            try:
                size = int(digits, 16)
            except ValueError:
                raise ExchangeError(f"the size of a chunk is {digits[:40]!r}") from None
            if size < 0:
                raise ExchangeError(f"the size of a chunk is {digits[:40]!r}")
            if size == 0:  # trailers may follow, up to an empty line
                if self._buffer.startswith(b"\r\n", end + 2):
                    del self._buffer[: end + 4]
                    return True
                last = self._buffer.find(b"\r\n\r\n", end)
                if last < 0:
                    return False
                del self._buffer[: last + 4]
                return True
            if len(self._buffer) < end + 2 + size + 2:
                if len(self._body) + size > self._max_bytes and self._status == 200:
                    raise TooLargeError
                return False
            self._body += self._buffer[end + 2 : end + 2 + size]
            del self._buffer[: end + 2 + size + 2]

    def _finish(self, body: bytes) -> None:
        waiter, self._waiter = self._waiter, None
        self.can_be_kept = self.is_open and self._keeps and not self._buffer
        if waiter is not None and not waiter.done():
            try:
                encoding = self._headers.get("content-encoding", "identity").lower()
                most = self._max_bytes
                waiter.set_result(Response(self._status, self._headers, _decoded(body, encoding, most)))
            except (ExchangeError, TooLargeError) as error:
                waiter.set_exception(error)


def _decoded(body: bytes, encoding: str, most: int) -> bytes:
    """The body from a server that compresses although it was asked not to."""
    if encoding == "identity":
        return body
    if encoding not in ("gzip", "x-gzip", "deflate"):
        raise ExchangeError(f"the response has the Content-Encoding {encoding[:40]!r}")
    try:
        found = zlib.decompressobj(47).decompress(body, most + 1)
    except zlib.error as error:
        raise ExchangeError(f"the response is not valid {encoding}: {error}") from error
    if len(found) > most:
        raise TooLargeError
    return found


def _proxy_for(url: SplitResult) -> SplitResult | None:
    """The proxy for this URL, from the environment."""
    named = urllib.request.getproxies_environment().get(url.scheme)
    if not named or urllib.request.proxy_bypass_environment(url.netloc):  # type: ignore[attr-defined]
        return None
    proxy = urlsplit(named if "://" in named else f"http://{named}")
    with contextlib.suppress(ValueError):
        if proxy.scheme == "http" and proxy.hostname and proxy.port is not False:
            return proxy
    raise ValueError(f"the proxy for {url.scheme} must be an http:// URL with a host")


def _proxy_login(proxy: SplitResult) -> dict[str, str]:
    if proxy.username is None:
        return {}
    login = f"{unquote(proxy.username)}:{unquote(proxy.password or '')}"
    return {"Proxy-Authorization": f"Basic {base64.b64encode(login.encode()).decode()}"}
