"""Splitting sequences and creating temporary files, under the names in `nemo_curator.utils`."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import islice, pairwise
from pathlib import Path
from typing import TypeVar

from gristmill.errors import UsageError

T = TypeVar("T")

__all__ = [
    "batched",
    "get_tmp_dir",
    "make_named_temporary_file",
    "make_pipeline_named_temporary_file",
    "make_pipeline_temporary_dir",
    "make_temporary_dir",
    "pairwise",
    "split_by_chunk_size",
    "split_into_n_chunks",
]


def batched(iterable: Iterable[T], n: int) -> Iterator[tuple[T, ...]]:
    """Tuples of `n` items; the last one may be shorter.

    Example:
        >>> list(batched("abc", 2))
        [('a', 'b'), ('c',)]
    """
    if n < 1:
        raise UsageError(f"n={n}: must be at least 1.")
    rest = iter(iterable)
    while group := tuple(islice(rest, n)):
        yield group


def split_by_chunk_size(
    iterable: Iterable[T],
    chunk_size: int,
    custom_size_func: Callable[[T], int] = lambda _: 1,
    *,
    drop_incomplete_chunk: bool = False,
) -> Iterator[list[T]]:
    """Lists of items whose sizes add up to at least `chunk_size`; the last one may be smaller.

    Example:
        >>> list(split_by_chunk_size([1, 2, 3], 2))
        [[1, 2], [3]]
    """
    chunk: list[T] = []
    filled = 0
    for item in iterable:
        chunk.append(item)
        filled += custom_size_func(item)
        if filled >= chunk_size:
            yield chunk
            chunk, filled = [], 0
    if chunk and not drop_incomplete_chunk:
        yield chunk


def split_into_n_chunks(iterable: Iterable[T], num_chunks: int) -> Iterator[list[T]]:
    """At most `num_chunks` lists of about equal length, the longer ones first.

    Example:
        >>> list(split_into_n_chunks([1, 2, 3], 2))
        [[1, 2], [3]]
    """
    items = list(iterable)
    number = min(num_chunks, len(items))
    start = 0
    for place in range(number):
        end = start + len(items) // number + (place < len(items) % number)
        yield items[start:end]
        start = end


# --- utils.operation_utils ---


def get_tmp_dir() -> Path:
    """The folder for temporary files."""
    return Path(tempfile.gettempdir())


@contextmanager
def make_temporary_dir(
    *, prefix: str | None = None, target_dir: Path | None = None, delete: bool = True
) -> Iterator[Path]:
    """A new folder, removed afterwards unless `delete` is False."""
    if delete:
        with tempfile.TemporaryDirectory(prefix=prefix, dir=target_dir) as folder:
            yield Path(folder)
    else:
        yield Path(tempfile.mkdtemp(prefix=prefix, dir=target_dir))


@contextmanager
def make_named_temporary_file(
    *, prefix: str | None = None, suffix: str | None = None, delete: bool = True, target_dir: Path | None = None
) -> Iterator[Path]:
    """A new empty file, removed afterwards unless `delete` is False."""
    with tempfile.NamedTemporaryFile(prefix=prefix, suffix=suffix, dir=target_dir, delete=delete) as file:
        yield Path(file.name)


@contextmanager
def make_pipeline_temporary_dir(sub_dir: str | None = None) -> Iterator[Path]:
    """A new folder below the folder for temporary files of pipelines."""
    with make_temporary_dir(target_dir=_pipeline_folder(sub_dir)) as folder:
        yield folder


@contextmanager
def make_pipeline_named_temporary_file(sub_dir: str | None = None, suffix: str | None = None) -> Iterator[Path]:
    """A new file below the folder for temporary files of pipelines."""
    with make_named_temporary_file(target_dir=_pipeline_folder(sub_dir), suffix=suffix) as file:
        yield file


def _pipeline_folder(sub_dir: str | None) -> Path:
    folder = get_tmp_dir() / "ray_pipeline" / (sub_dir or "")
    folder.mkdir(parents=True, exist_ok=True)
    return folder
