"""Benchmark files and their items: which texts of each record are searched for."""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import orjson
import pyarrow as pa

from gristmill.errors import InputError, InputNotFoundError, UsageError, did_you_mean
from gristmill.storage.compression import SourceFileObject, open_raw, open_source
from gristmill.storage.files import InputFile, StorageOptions, list_files
from gristmill.storage.formats import EXTENSIONS, Format, format_of
from gristmill.storage.parquet_blocks import open_parquet

DEFAULT_FIELDS = ("question", "answer", "choices")
"""The fields of an item that are searched for by default."""
_FORMATS: tuple[Format, ...] = ("jsonl", "parquet", "arrow")
_DEPTH = 8


@dataclass(frozen=True)
class Item:
    """One record of a benchmark: its position, its id if it has one, and its texts, each searched for separately."""

    benchmark: str
    row: int
    id: str | None
    texts: tuple[str, ...]


def find_benchmarks(path: str | Sequence[str], storage_options: StorageOptions = None) -> dict[str, list[InputFile]]:
    """The files of each benchmark, by its name.

    A file directly in the folder is a benchmark, named after the file; all files below a subfolder are one benchmark,
    named after the subfolder (the layout of a Hugging Face data set).

    Raises:
        InputNotFoundError: There is no file to read.
    """
    endings = [ending for kind in _FORMATS for ending in EXTENSIONS[kind]]
    found: dict[str, list[InputFile]] = {}
    for file in list_files(path, extensions=endings, storage_options=storage_options):
        if format_of(file.path) not in _FORMATS:
            raise UsageError(
                f"{file.path} does not have the name of a benchmark file: pass JSONL, Parquet or Arrow files, or a "
                "folder of them."
            )
        folder, slash, _ = file.relative.partition("/")
        found.setdefault(folder if slash else _stem(file.relative), []).append(file)
    if not found:
        raise InputNotFoundError(f"No benchmark files (JSONL, Parquet or Arrow) in {path}.")
    return dict(sorted(found.items()))


def _stem(name: str) -> str:
    return name.split(".", 1)[0] or name


def parse_fields(fields: Sequence[str] | None, benchmarks: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """The fields to search for in each benchmark; `NAME:FIELD` applies to one of them, a field name alone to all.

    Raises:
        UsageError: There is no benchmark of the given name.
    """
    shared: list[str] = []
    own: dict[str, list[str]] = {}
    for field in fields or DEFAULT_FIELDS:
        name, colon, inner = field.partition(":")
        if not colon:
            shared.append(field)
        elif name in benchmarks:
            own.setdefault(name, []).append(inner)
        else:
            raise UsageError(
                f"field {field!r}: there is no benchmark {name!r}, only {', '.join(map(repr, benchmarks))}."
                f"{did_you_mean(name, benchmarks)}"
            )
    return {name: tuple(own.get(name) or shared or DEFAULT_FIELDS) for name in benchmarks}


def read_items(
    files: Mapping[str, Sequence[tuple[str, str]]],
    fields: Mapping[str, Sequence[str]],
    storage_options: StorageOptions = None,
) -> Iterator[Item]:
    """The items of all benchmarks, in order.

    Args:
        files: The paths of each benchmark's files.
        fields: The fields to search for in each.
        storage_options: File system options for URLs.

    Raises:
        InputError: A record cannot be read.
        UsageError: No record of a file has any of the fields.
    """
    for benchmark, paths in files.items():
        wanted = fields[benchmark]
        row = 0
        seen: set[str] = set()
        known: dict[str, None] = {}
        for path, kind in paths:
            for record in _records(path, kind, storage_options):
                texts: list[str] = []
                for field in wanted:
                    if field in record:
                        seen.add(field)
                        texts += _texts_in(record[field])
                if len(known) < 100:
                    known.update(dict.fromkeys(map(str, record)))
                given = record.get("id")
                yield Item(benchmark, row, None if given is None else str(given), tuple(texts))
                row += 1
        missing = [field for field in wanted if field not in seen]
        if row and len(missing) == len(wanted):
            raise UsageError(
                f"Benchmark {benchmark!r} has none of the fields {', '.join(map(repr, wanted))} (found: "
                f"{', '.join(map(repr, sorted(known))) or 'none'}).{did_you_mean(wanted[0], known)} Choose the fields "
                f"to search for with --field {benchmark}:FIELD (fields=[…]).",
                benchmark=benchmark,
            )


def _texts_in(value: Any, depth: int = 0) -> list[str]:
    """All strings in a value, including those in lists and objects such as the choices of a question."""
    if isinstance(value, str):
        return [value]
    if depth >= _DEPTH:
        return []
    if isinstance(value, Mapping):
        return [text for inner in value.values() for text in _texts_in(inner, depth + 1)]
    if isinstance(value, list | tuple):
        return [text for inner in value for text in _texts_in(inner, depth + 1)]
    return []


def _records(path: str, kind: str, storage_options: StorageOptions) -> Iterator[Mapping[str, Any]]:
    try:
        if kind == "parquet":
            with open_parquet(path, storage_options=storage_options) as opened:
                for batch in opened.iter_batches():
                    yield from batch.to_pylist()
        elif kind == "arrow":
            with open_raw(path, storage_options=storage_options) as file:
                yield from _arrow_records(file)
        else:
            source = SourceFileObject(open_source(path, storage_options=storage_options))
            with io.BufferedReader(source) as lines:
                yield from _json_records(path, lines)
    except (pa.ArrowException, EOFError) as error:
        raise InputError(
            f"The benchmark file {path} cannot be read ({error}). A partly read benchmark would leave contamination "
            "undetected: replace the file.",
            path=path,
        ) from error


def _arrow_records(file: Any) -> Iterator[Mapping[str, Any]]:
    magic = file.read(6)
    file.seek(0)
    if magic == b"ARROW1":
        opened = pa.ipc.open_file(file)
        batches: Any = (opened.get_batch(number) for number in range(opened.num_record_batches))
    else:
        batches = pa.ipc.open_stream(file)
    for batch in batches:
        yield from batch.to_pylist()


def _json_records(path: str, lines: io.BufferedReader[Any]) -> Iterator[Mapping[str, Any]]:
    for number, line in enumerate(lines, 1):
        if number == 1 and line.lstrip().startswith(b"["):
            records = _parsed(path, number, line + lines.read())
            yield from (_checked(path, at, record) for at, record in enumerate(records, 1))
            return
        if line.strip():
            yield _checked(path, number, _parsed(path, number, line))


def _parsed(path: str, number: int, data: bytes) -> Any:
    try:
        return orjson.loads(data)
    except ValueError as error:
        raise InputError(
            f"Line {number} of the benchmark file {path} is not JSON ({error}). A partly read benchmark would leave "
            "contamination undetected: repair or remove the line.",
            path=path,
        ) from error


def _checked(path: str, number: int, record: Any) -> Mapping[str, Any]:
    if not isinstance(record, dict):
        raise InputError(
            f"Record {number} of the benchmark file {path} is not a JSON object. Each item must be one.", path=path
        )
    return record
