"""Hosts in the form used for comparison: ASCII."""

from __future__ import annotations

import re
from urllib.parse import unquote_to_bytes

import numpy as np

from gristmill.kernels.text_column import Bytes, Integers, TextColumn, text_column
from gristmill.kernels.url_parts import END, FLAGS, HOST, HOST_END, ODD_HOST

_NAME = re.compile(rb"[a-z0-9._~-]*[a-z0-9_~-][a-z0-9._~-]*")


def ascii_host(host: bytes) -> bytes | None:
    """An international host name as ASCII (IDNA 2003, as in Python's standard library); None if it is invalid.

    Example:
        >>> ascii_host("Bücher.example".encode())
        b'xn--bcher-kva.example'
    """
    try:
        found = unquote_to_bytes(host).decode("utf-8").encode("idna").lower()
    except UnicodeError:
        return None
    return found if _NAME.fullmatch(found) else None


def odd_rows(parts: Integers) -> Integers:
    """The rows whose hosts are not plain ASCII."""
    return np.flatnonzero(parts[:, FLAGS] & ODD_HOST)


def with_ascii_hosts(data: Bytes, starts: Integers, parts: Integers, rows: Integers) -> TextColumn:
    """The URLs of some rows with their hosts in ASCII; empty if the host has no ASCII form."""
    texts: list[str | None] = []
    for row in rows.tolist():
        begin, end = int(parts[row, HOST]), int(parts[row, HOST_END])
        host = ascii_host(data[begin:end].tobytes())
        around = data[starts[row] : begin].tobytes(), data[end : parts[row, END]].tobytes()
        texts.append(None if host is None else host.join(around).decode("utf-8", "replace"))
    return text_column(texts)
