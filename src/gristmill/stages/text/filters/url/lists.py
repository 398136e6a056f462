"""Lists of domains and URLs, read from files into a table of hashes."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from functools import lru_cache

import numpy as np
import xxhash

from gristmill.errors import InputError, InputNotFoundError, UsageError
from gristmill.kernels.text_column import Bytes
from gristmill.kernels.url_lists import Hashes, entry_spans, list_keys, make_table
from gristmill.kernels.url_parts import url_parts
from gristmill.stages.text.filters.url.hosts import odd_rows, with_ascii_hosts
from gristmill.storage.compression import SourceFileObject, open_source
from gristmill.storage.files import filesystem, is_local, local_path

_BLOCK = 1 << 24
_PARTS = ("domains", "urls")
"""The list files in a folder; other files beside them (`usage`, `expressions`) are ignored."""


def list_files(paths: Iterable[str]) -> list[str]:
    """The files named by paths: files themselves, and in folders those called `domains` and `urls`.

    Raises:
        InputNotFoundError: There is no such file, or a folder contains no list.
    """
    found: list[str] = []
    for path in paths:
        if not is_local(path):
            fs, inner = filesystem(path)
            if not fs.exists(inner):
                raise InputNotFoundError(f"There is no list of domains at {path!r}.", path=path)
            found.append(path)
            continue
        place = local_path(path)
        if os.path.isfile(place):
            found.append(place)
            continue
        names = sorted(os.listdir(place)) if os.path.isdir(place) else []
        inside = [os.path.join(place, name) for name in names if name.partition(".")[0] in _PARTS]
        if not inside:
            what = "The folder has no file called 'domains' or 'urls'" if names else "There is no list of domains"
            raise InputNotFoundError(
                f"{what} at {path!r}. Pass files with one domain or URL per line, or unpacked folders of the UT1 "
                "lists.",
                path=path,
            )
        found += inside
    return found


def list_digest(paths: Iterable[str]) -> str:
    """A digest of the contents of list files."""
    digest = xxhash.xxh3_128()
    for path in list_files(paths):
        for block in _blocks(path):
            digest.update(block.tobytes())
    return digest.hexdigest()


def as_names(given: str | Iterable[str], parameter: str) -> tuple[str, ...]:
    """One string or several as a tuple.

    Raises:
        UsageError: An item is not a string.
    """
    names = (given,) if isinstance(given, str) else tuple(given)
    for name in names:
        if not isinstance(name, str) or not name.strip():
            raise UsageError(f"{parameter} contains {name!r}: must be non-empty strings.", parameter=parameter)
    return names


@lru_cache(maxsize=4)
def read_table(paths: tuple[str, ...], entries: tuple[str, ...]) -> Hashes:
    """The table of all entries; a process reads each list once, even if several filters use it.

    Raises:
        InputNotFoundError: A file is missing.
        InputError: A file has no usable entry.
        UsageError: An entry is neither a domain nor a URL.
    """
    keys: list[Hashes] = []
    for path in list_files(paths):
        found = [_keys(block) for block in _blocks(path)]
        if not any(len(one) for one in found):
            raise InputError(
                f"The list {path!r} contains no domain or URL. It must have one per line, such as 'example.com' or "
                "'example.com/path'; compressed files need a suffix such as .gz.",
                path=path,
            )
        keys += found
    for entry in entries:
        keys.append(_keys(np.frombuffer(entry.encode(), np.uint8)))
        if not len(keys[-1]) or len(entry.split()) != 1:
            raise UsageError(f"{entry!r} is neither a domain nor a URL.", value=entry)
    return make_table(np.concatenate([np.zeros(0, np.uint64), *keys]))


def _blocks(path: str) -> Iterator[Bytes]:
    """The bytes of a list, in pieces of whole lines."""
    with SourceFileObject(open_source(path)) as source:
        rest = b""
        buffer = memoryview(bytearray(_BLOCK))
        while count := source.readinto(buffer):
            piece = rest + bytes(buffer[:count])
            cut = piece.rfind(b"\n") + 1
            rest = piece[cut:]
            if cut:
                yield np.frombuffer(piece[:cut], np.uint8)
        if rest:
            yield np.frombuffer(rest, np.uint8)


def _keys(data: Bytes) -> Hashes:
    starts, ends = entry_spans(data)
    parts = url_parts(data, starts, ends, np.ones(len(starts), np.bool_), True)
    keys = [list_keys(data, parts).ravel()]
    odd = odd_rows(parts)
    if len(odd):
        keys[0][odd * 2] = keys[0][odd * 2 + 1] = 0
        fixed = with_ascii_hosts(data, starts, parts, odd)
        alive = np.ones(len(odd), np.bool_)
        keys.append(
            list_keys(fixed.data, url_parts(fixed.data, fixed.offsets[:-1], fixed.offsets[1:], alive, True)).ravel()
        )
    found: Hashes = np.concatenate(keys)
    return np.extract(found != 0, found)
