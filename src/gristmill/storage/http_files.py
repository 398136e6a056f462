"""Files over HTTP(S): read as a whole or in part, and downloaded with cheap recovery from interruptions.

An interrupted download resumes where it left off, within an attempt, after a retry, and in a later process, provided
that the server proves by its ETag or its date that the file is still the same. Every result has the length that the
server announced.
"""

from __future__ import annotations

import email.utils
import errno
import fcntl
import http.client
import json
import os
import random
import re
import ssl
import struct
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import IO, Any, TypeVar
from urllib.parse import urlsplit

from gristmill import __version__
from gristmill.errors import DownloadError, DownloadMissingError, GristmillError, StoreError, UsageError
from gristmill.figures import format_size, plural

STATE_SUFFIX = ".json"
"""Suffix of the file beside a partial download that holds the server's headers."""
_PIECE = 256 << 10
_PROGRESS = 1 << 20
"""Bytes of progress after which attempts are counted from zero."""
_LEAST_PACE = 1024
_RETRIED = frozenset({408, 425, 429, 500, 502, 503, 504, 507, 509, 520, 521, 522, 523, 524})
_MISSING = frozenset({404, 410})
_DISK = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EACCES, errno.EPERM, errno.EIO)
_LONGEST_WAIT_S = 600.0
_CONTENT_RANGE = re.compile(r"bytes (?:(\d+)-(\d+)|\*)/(\d+|\*)")

T = TypeVar("T")


class _TransientError(Exception):
    """A failure after which another attempt may succeed.

    Attributes:
        answered: Whether the server responded at all.
        wait_s: Delay that the server requested.
        ends_at: Length of the file, if the request was beyond its end.
    """

    def __init__(
        self, message: str, *, answered: bool, wait_s: float | None = None, ends_at: int | None = None
    ) -> None:
        super().__init__(message)
        self.answered = answered
        self.wait_s = wait_s
        self.ends_at = ends_at


@dataclass(slots=True)
class HttpFiles:
    """HTTP settings for reading and downloading files.

    Attributes:
        attempts: Maximum number of consecutive attempts without progress.
        timeout_s: Maximum time in seconds without data from the server.
        backoff_s: Approximate delay before the second attempt; doubled before each further one.
        max_backoff_s: Maximum delay, unless the server requests a longer one.
        max_bytes_per_second: Bandwidth limit of all processes of this machine that share a `bandwidth_file`.
        headers: Sent with every request.
    """

    attempts: int = 8
    timeout_s: float = 60.0
    backoff_s: float = 1.0
    max_backoff_s: float = 60.0
    max_bytes_per_second: int | None = None
    headers: dict[str, str] = field(default_factory=dict)

    def read(self, url: str, *, max_bytes: int = 256 << 20) -> bytes:
        """The content of a small file, such as a list of others.

        Raises:
            DownloadError: It cannot be downloaded; `DownloadMissingError` if it does not exist on the server.
            StoreError: The server cannot be reached.
        """

        def attempt() -> bytes:
            with self._open(url) as response:
                data: bytes = self._received(url, lambda: response.read(max_bytes + 1))
                announced = _length(response)
            if len(data) > max_bytes:
                raise DownloadError(f"{url} has more than {format_size(max_bytes)}, more than expected here.", url=url)
            if announced is not None and len(data) != announced:
                raise _TransientError(f"{len(data)} of {announced} bytes arrived", answered=True)
            return data

        return self._tried(url, attempt)

    def read_range(self, url: str, offset: int, length: int) -> bytes:
        """`length` bytes of a file, starting at `offset`.

        Raises:
            DownloadError: They cannot be downloaded.
            StoreError: The server cannot be reached.
        """
        wanted = {"Range": f"bytes={offset}-{offset + length - 1}"}

        def attempt() -> bytes:
            with self._open(url, wanted) as response:
                first, _ = _content_range(response)
                if response.status != http.client.PARTIAL_CONTENT or first != offset:
                    raise DownloadError(
                        f"The server of {url} does not serve parts of files (requested {wanted}).", url=url
                    )
                data: bytes = self._received(url, lambda: response.read(length))
            if len(data) != length:
                raise _TransientError(f"{len(data)} of {length} bytes arrived", answered=True)
            return data

        return self._tried(url, attempt)

    def matches(self, url: str, path: str) -> bool:
        """Whether the file at `path` has the length of the one at `url`; true if that is unknown."""
        size = os.path.getsize(path)
        try:
            with self._open(url, method="HEAD") as response:
                announced = _length(response)
        except (_TransientError, GristmillError):
            announced = None
        return size > 0 if announced is None else size == announced

    def download(self, url: str, path: str, *, bandwidth_file: str | None = None) -> int:
        """Download a file to `path`, resuming a partial download; returns its length.

        Raises:
            DownloadError: It cannot be downloaded; the part received so far is kept for a later attempt.
            StoreError: The server cannot be reached.
        """
        transfer = _Transfer(url, path, self, Bandwidth(self.max_bytes_per_second, bandwidth_file))
        size = self._tried(url, transfer.attempt, progress=transfer.size)
        with suppress(FileNotFoundError):
            os.unlink(path + STATE_SUFFIX)
        return size

    # --- requests ---

    def _open(self, url: str, headers: Mapping[str, str] | None = None, *, method: str = "GET") -> Any:
        """The response to one request, after redirects.

        Raises:
            _TransientError: There was none, or another attempt may succeed.
            DownloadError: No further attempt will succeed.
        """
        if urlsplit(url).scheme not in ("http", "https"):
            raise UsageError(f"{url!r} is not an http:// or https:// address.", value=url)
        sent = {"User-Agent": f"gristmill/{__version__}", "Accept-Encoding": "identity", **self.headers}
        request = urllib.request.Request(url, headers={**sent, **(headers or {})}, method=method)  # noqa: S310 (checked)
        try:
            return _opener().open(request, timeout=self.timeout_s)
        except urllib.error.HTTPError as error:
            with error:
                raise self._refused(url, error) from error
        except (OSError, http.client.HTTPException) as error:
            raise _no_answer(url, error, answered=isinstance(error, http.client.HTTPException)) from error

    def _refused(self, url: str, error: urllib.error.HTTPError) -> Exception:
        said = f"HTTP {error.code} {error.reason}".rstrip()
        if error.code == http.client.REQUESTED_RANGE_NOT_SATISFIABLE:
            _, total = _content_range(error)
            return _TransientError(said, answered=True, ends_at=-1 if total is None else total)
        if error.code in _RETRIED:
            return _TransientError(said, answered=True, wait_s=_retry_after(error.headers.get("Retry-After")))
        if error.code in _MISSING:
            return DownloadMissingError(
                f"{url} does not exist on the server ({said}). Check the address, or whether it was withdrawn.", url=url
            )
        hint = "Open the address in a browser to see what the server expects."
        if error.code in (401, 403):
            hint = "The server denies access: it needs credentials, or blocks clients that send too many requests."
        return DownloadError(f"{url} could not be downloaded: the server answered {said}. {hint}", url=url)

    def _received(self, url: str, read: Callable[[], T]) -> T:
        """The result of `read`; an interruption raises an error that allows a retry."""
        try:
            return read()
        except (OSError, http.client.HTTPException) as error:
            raise _no_answer(url, error, answered=True) from error

    def _tried(self, url: str, attempt: Callable[[], T], progress: Callable[[], int] | None = None) -> T:
        """The result of `attempt`, which is retried at growing intervals while that may help."""
        failed, reached, answered = 0, 0 if progress is None else progress(), False
        while True:
            try:
                return attempt()
            except _TransientError as error:
                failed, answered = failed + 1, answered or error.answered
                got = 0 if progress is None else progress()
                if got >= reached + _PROGRESS:
                    failed, reached = 1, got
                if failed >= self.attempts:
                    raise _given_up(url, error, failed, got, answered=answered) from error
                longest = min(self.max_backoff_s, self.backoff_s * 2 ** (failed - 1))
                wait_s = longest * random.uniform(0.5, 1)  # noqa: S311 (so that clients do not come back together)
                time.sleep(wait_s if error.wait_s is None else max(wait_s, error.wait_s))


class _Transfer:
    """One download: the existing part of the file, and the server's headers from when it began."""

    def __init__(self, url: str, path: str, files: HttpFiles, bandwidth: Bandwidth) -> None:
        self.url = url
        self.path = path
        self.files = files
        self.bandwidth = bandwidth

    def size(self) -> int:
        """The number of bytes downloaded so far."""
        try:
            return os.path.getsize(self.path)
        except FileNotFoundError:
            return 0

    def attempt(self) -> int:
        """Receive the missing part; returns the length of the file.

        Raises:
            _TransientError: It is not complete yet.
        """
        have, state = self.size(), self._state()
        validator = state.get("validator")
        if not have or not validator or state.get("url") != self.url:
            have, validator = 0, None
        elif have == state.get("total"):
            return have
        headers = {"Range": f"bytes={have}-", "If-Range": validator} if validator else {}
        try:
            response = self.files._open(self.url, headers)
        except _TransientError as error:
            if error.ends_at is None:
                raise
            if error.ends_at == have:  # more was announced than there is
                return have
            self._forget()
            raise
        with response:
            total = _length(response)
            if response.status == http.client.PARTIAL_CONTENT:
                first, total = _content_range(response)
                if not have or first != have or _validator(response) != validator:
                    self._forget()
                    raise _TransientError(
                        "the server sent a different part of the file than was requested", answered=True
                    )
            else:
                have = 0  # from the beginning: the file has changed, or the server does not serve parts
                self._begin(_validator(response), total)
            with open(self.path, "ab" if have else "wb", buffering=0) as file:
                self._receive(response, file)
                size = file.tell()
                os.fsync(file.fileno())
        if total is not None and size != total:
            if size > total:
                self._forget()
            raise _TransientError(f"the connection ended after {size} of {total} bytes", answered=True)
        return size

    def _receive(self, response: Any, file: IO[bytes]) -> None:
        since, received, paused = time.monotonic(), 0, 0.0
        patience, most = 2 * self.files.timeout_s, self.bandwidth.piece(_PIECE)
        while piece := self.files._received(self.url, lambda: response.read1(most)):
            _write_all(file, piece)
            received += len(piece)
            paused += self.bandwidth.wait(len(piece))
            spent = time.monotonic() - since - paused
            if spent > patience:
                if received < _LEAST_PACE * spent:
                    told = f"only {received} bytes arrived in {spent:.0f} s"
                    raise _TransientError(told, answered=True)
                since, received, paused = time.monotonic(), 0, 0.0

    def _state(self) -> dict[str, Any]:
        try:
            with open(self.path + STATE_SUFFIX, "rb") as file:
                state = json.load(file)
        except (OSError, ValueError):
            return {}
        return state if isinstance(state, dict) else {}

    def _begin(self, validator: str | None, total: int | None) -> None:
        """Discard the existing part, then store what identifies the file later."""
        self._forget()
        with open(self.path + STATE_SUFFIX + "~", "w", encoding="utf-8") as file:
            json.dump({"url": self.url, "validator": validator, "total": total}, file)
        os.replace(self.path + STATE_SUFFIX + "~", self.path + STATE_SUFFIX)

    def _forget(self) -> None:
        for path in (self.path + STATE_SUFFIX, self.path):
            with suppress(FileNotFoundError):
                os.unlink(path)


class Bandwidth:
    """A bandwidth limit shared by all processes of a machine, through a file that holds the time of the next transfer.

    Args:
        bytes_per_second: The limit; None for none.
        path: The file; without one, the limit applies only to this object.
    """

    def __init__(self, bytes_per_second: int | None, path: str | None = None) -> None:
        if bytes_per_second is not None and bytes_per_second < 1:
            raise UsageError(f"max_bytes_per_second={bytes_per_second} must be at least 1.", value=bytes_per_second)
        self.bytes_per_second = bytes_per_second
        self.path = path
        self._free_at = 0.0

    def piece(self, most: int) -> int:
        """Number of bytes to read at once: at most `most`, and no more than a second's worth."""
        return most if self.bytes_per_second is None else min(most, self.bytes_per_second)

    def wait(self, count: int) -> float:
        """Sleep for as long as `count` bytes may take; returns the seconds."""
        if self.bytes_per_second is None:
            return 0.0
        now, takes = time.time(), count / self.bytes_per_second
        if self.path is None:
            self._free_at = max(now, self._free_at) + takes
        else:
            with open(self.path, "a+b") as file:
                fcntl.flock(file, fcntl.LOCK_EX)
                file.seek(0)
                stored = file.read(8)
                free_at = struct.unpack("<d", stored)[0] if len(stored) == 8 else 0.0
                # A time far ahead is from a clock that was wrong.
                self._free_at = max(now, free_at if free_at < now + _LONGEST_WAIT_S else now) + takes
                file.truncate(0)
                file.write(struct.pack("<d", self._free_at))
        pause = max(0.0, self._free_at - now)
        time.sleep(pause)
        return pause


# --- responses ---


def _opener() -> urllib.request.OpenerDirector:
    """An opener for http and https addresses only, through a proxy if the environment names one."""
    opener = urllib.request.OpenerDirector()
    for handler in (
        urllib.request.ProxyHandler(),
        urllib.request.HTTPHandler(),
        urllib.request.HTTPSHandler(),
        urllib.request.HTTPRedirectHandler(),
        urllib.request.HTTPDefaultErrorHandler(),
        urllib.request.HTTPErrorProcessor(),
        urllib.request.UnknownHandler(),
    ):
        opener.add_handler(handler)
    return opener


def _length(response: Any) -> int | None:
    """The length that a response announces."""
    text = response.headers.get("Content-Length")
    return int(text) if text is not None and text.isdigit() else None


def _content_range(response: Any) -> tuple[int | None, int | None]:
    """The first byte of a part and the length of the whole file, if the response states them."""
    found = _CONTENT_RANGE.fullmatch(response.headers.get("Content-Range") or "")
    if found is None:
        return None, None
    first, _, total = found.groups()
    return None if first is None else int(first), None if total == "*" else int(total)


def _validator(response: Any) -> str | None:
    """What identifies a version of a file: a strong ETag, otherwise the date of its last change."""
    tag: str | None = response.headers.get("ETag")
    if tag and not tag.startswith("W/"):
        return tag
    date: str | None = response.headers.get("Last-Modified")
    return date


def _retry_after(text: str | None) -> float | None:
    """The delay in seconds that the server requests, at most ten minutes."""
    if not text:
        return None
    if text.strip().isdigit():
        return min(float(text), _LONGEST_WAIT_S)
    try:
        until = email.utils.parsedate_to_datetime(text)
    except ValueError:
        return None
    return min(max(0.0, until.timestamp() - time.time()), _LONGEST_WAIT_S)


def _write_all(file: IO[bytes], piece: bytes) -> None:
    view = memoryview(piece)
    while view:
        view = view[file.write(view) :]


def _no_answer(url: str, error: Exception, *, answered: bool) -> Exception:
    """Convert a connection error into a transient or a final error."""
    reason = getattr(error, "reason", error)
    if isinstance(reason, ssl.SSLCertVerificationError):
        return StoreError(f"{url}: the certificate of the server is not valid ({reason.verify_message}).", path=url)
    if isinstance(reason, OSError) and reason.errno in _DISK:
        return reason
    if isinstance(reason, TimeoutError):
        return _TransientError("the server did not respond in time", answered=answered)
    return _TransientError(f"{type(reason).__name__}: {reason}", answered=answered)


def _given_up(url: str, error: _TransientError, attempts: int, got: int, *, answered: bool) -> GristmillError:
    tried = f"after {plural(attempts, 'attempt')}: {error}"
    if not answered:
        return StoreError(
            f"The server of {url} cannot be reached, {tried}. Check the connection (and the proxy in HTTPS_PROXY), "
            "then run the same command again to resume.",
            path=url,
        )
    kept = f" {format_size(got)} of it are kept, and the next attempt resumes from there." if got else ""
    return DownloadError(
        f"{url} could not be downloaded {tried}.{kept} Run the same command again later to resume.",
        url=url,
        transient=True,
    )
