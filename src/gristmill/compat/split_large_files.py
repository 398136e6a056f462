"""Splits large files into smaller ones: `python -m nemo_curator.utils.split_large_files`.

Readers of Gristmill split large files while they read (`blocksize`); this is for other tools.
"""

from __future__ import annotations

import argparse
import posixpath
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq

from gristmill.compat.files import get_all_file_paths_under
from gristmill.errors import InputNotFoundError, UsageError
from gristmill.storage.parquet_blocks import open_parquet

Options = Mapping[str, Any] | None
__all__ = ["main", "parse_args", "split_jsonl_file_by_size", "split_parquet_file_by_size"]


class _RemoteCall:
    """A function that can be called directly, or like a Ray task: `f.remote(…)`."""

    def __init__(self, function: Any) -> None:
        self._function = function
        self.__doc__ = function.__doc__

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        return self._function(*arguments, **options)

    def remote(self, *arguments: Any, **options: Any) -> Any:
        """Run it as a Ray task."""
        import ray

        return ray.remote(self._function).remote(*arguments, **options)


def _write_jsonl(input_file: str, output_path: str, target_size_mb: int, storage_options: Options = None) -> None:
    """Split a JSONL file at line ends; a line longer than the target gets its own file."""
    target = _bytes(target_size_mb)
    with fsspec.open(input_file, "rb", compression="infer", **dict(storage_options or {})) as file:
        for number, lines in enumerate(_groups(file, len, target)):
            with fsspec.open(
                _part(input_file, output_path, number, ".jsonl"), "wb", **dict(storage_options or {})
            ) as out:
                out.writelines(lines)


def _write_parquet(input_file: str, output_path: str, target_size_mb: int, storage_options: Options = None) -> None:
    """Split a Parquet file by the size of its rows in memory."""
    target = _bytes(target_size_mb)
    with open_parquet(input_file, storage_options=storage_options) as opened:
        groups = (opened.read_row_group(number) for number in range(opened.num_row_groups))
        pieces = (piece for table in groups for piece in _pieces(table, target))
        for number, tables in enumerate(_groups(pieces, lambda table: int(table.nbytes), target)):
            place = _part(input_file, output_path, number, ".parquet")
            with fsspec.open(place, "wb", **dict(storage_options or {})) as out:
                pq.write_table(pa.concat_tables(tables), out)


split_jsonl_file_by_size = _RemoteCall(_write_jsonl)
split_parquet_file_by_size = _RemoteCall(_write_parquet)


def _bytes(target_size_mb: int) -> int:
    if target_size_mb <= 0:
        raise UsageError(f"target_size_mb={target_size_mb}: must be above 0.")
    return int(target_size_mb * (1 << 20))


def _pieces(table: pa.Table, target: int) -> Iterator[pa.Table]:
    """The table in slices of at most `target` bytes, or of one row."""
    if table.nbytes <= target or table.num_rows <= 1:
        yield table
        return
    half = table.num_rows // 2
    yield from _pieces(table.slice(0, half), target)
    yield from _pieces(table.slice(half), target)


def _groups(items: Iterable[Any], size_of: Any, target: int) -> Iterator[list[Any]]:
    """Group neighbours, up to `target` bytes per group."""
    group: list[Any] = []
    filled = 0
    for item in items:
        size = size_of(item)
        if group and filled + size > target:
            yield group
            group, filled = [], 0
        group.append(item)
        filled += size
    if group:
        yield group


def _part(input_file: str, output_path: str, number: int, ending: str) -> str:
    name = posixpath.basename(str(input_file).rstrip("/"))
    stem, found = posixpath.splitext(name)
    if found in (".gz", ".bz2", ".zst", ".xz"):
        stem, found = posixpath.splitext(stem)
    return f"{str(output_path).rstrip('/')}/{stem}_{number}{found or ending}"


def parse_args(args: Sequence[str] | None = None) -> argparse.Namespace:
    """The options of the command."""
    parser = argparse.ArgumentParser(description="Split large files into smaller ones.")
    parser.add_argument("--input-path", required=True, help="file, or folder of files, to split")
    parser.add_argument("--file-type", required=True, choices=["parquet", "jsonl"], help="what the files are")
    parser.add_argument("--output-path", required=True, help="folder for the smaller files")
    parser.add_argument("--target-size-mb", type=int, default=128, help="size of the smaller files in MiB")
    return parser.parse_args(args)


def main(args: Sequence[str] | None = None) -> None:
    """Split every file that the options name.

    Raises:
        InputNotFoundError: There is no file of that kind.
    """
    asked = parse_args(args)
    extensions = [".parquet"] if asked.file_type == "parquet" else [".jsonl", ".json"]
    files = get_all_file_paths_under(asked.input_path, recurse_subdirectories=True, keep_extensions=extensions)
    if not files:
        raise InputNotFoundError(f"{asked.input_path} holds no {asked.file_type} files.", path=asked.input_path)
    fsspec.core.url_to_fs(asked.output_path)[0].makedirs(asked.output_path, exist_ok=True)
    split = split_parquet_file_by_size if asked.file_type == "parquet" else split_jsonl_file_by_size
    for file in files:
        split(file, asked.output_path, asked.target_size_mb)


if __name__ == "__main__":
    main()
