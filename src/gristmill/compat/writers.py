"""The base class of custom writers, under the names in `nemo_curator.stages.text.io.writer`."""

from __future__ import annotations

import posixpath
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import xxhash
from fsspec.core import url_to_fs

from gristmill.errors import StageDefinitionError
from gristmill.stages import source_sink
from gristmill.storage.atomic import WrittenFile
from gristmill.storage.table_sinks import numbered
from gristmill.tasks.document import DocumentBatch

__all__ = ["BaseWriter"]
_CHUNK = 1 << 20


@dataclass
class BaseWriter(source_sink.BaseWriter):
    """Base class of a custom writer: implement `write_data`, which writes one batch to one file.

    Files are committed with their partition, under names that derive from the input: the path that `write_data`
    receives is not the final path of the file.

    Args:
        path: The output folder.
        file_extension: The extension of its files, without the dot.
        write_kwargs: For `write_data`; `storage_options` are those of the file system.
        fields: For `write_data`.
        name: The stage's name.
        mode: How to treat existing files, as for other writers.

    Attributes:
        fs: The file system of `path`.

    Example:
        >>> @dataclass
        ... class CountWriter(BaseWriter):
        ...     file_extension: str = "txt"
        ...     name: str = "count_writer"
        ...
        ...     def write_data(self, task, file_path):
        ...         with self.fs.open(file_path, "w") as file:
        ...             file.write(str(task.num_items))
    """

    path: str
    file_extension: str = ""
    write_kwargs: dict[str, Any] = field(default_factory=dict)
    fields: Any = None
    name: str = "BaseWriter"
    mode: Any = "ignore"
    append_mode_implemented: bool = False

    def __post_init__(self) -> None:
        options = dict(self.write_kwargs or {})
        mode: Any = "ignore" if self.mode == "append" and self.append_mode_implemented else self.mode
        super().__init__(self.path, None, self.fields, mode, storage_options=options.get("storage_options"))

    @property
    def fs(self) -> Any:
        """The file system of the output."""
        return url_to_fs(self.path, **(self.storage_options or {}))[0]

    def get_file_extension(self) -> str:
        """The file extension, without the dot."""
        return self.file_extension

    @property
    def extension(self) -> str:
        ending = self.get_file_extension().lstrip(".")
        if not ending:
            raise StageDefinitionError(f"{type(self).__name__} needs a file_extension, such as 'csv'.")
        return f".{ending}"

    def write_data(self, task: DocumentBatch, file_path: str) -> None:
        """Write a batch; a subclass implements it."""
        raise StageDefinitionError(f"{type(self).__name__} must define write_data(self, task, file_path).")

    def encode(self, batch: DocumentBatch) -> _Payload:
        return _Payload(batch)

    def open_part(self, path: str) -> _Part:
        return _Part(self, path)

    def concatenate(self, pieces: Sequence[WrittenFile], path: str) -> list[WrittenFile]:
        files = []
        for number, piece in enumerate(pieces):
            target = numbered(path, number, self.extension)
            self.fs.mv(piece.path, target)
            files.append(WrittenFile(target, piece.size, piece.rows, piece.hash))
        return files


class _Payload:
    """A batch for a custom writer."""

    def __init__(self, batch: DocumentBatch) -> None:
        self.batch = batch
        self.nbytes = batch.columns.nbytes


class _Part:
    """The files of one partition, one for each batch."""

    def __init__(self, writer: BaseWriter, path: str) -> None:
        self._writer = writer
        self._path = path
        self._done: list[WrittenFile] = []

    def append(self, payload: _Payload, /, *, rows: int | None = None) -> None:
        """Write a batch."""
        fs = self._writer.fs
        path = numbered(self._path, len(self._done), self._writer.extension)
        fs.makedirs(posixpath.dirname(path), exist_ok=True)
        self._writer.write_data(payload.batch, path)
        if not fs.exists(path):
            raise StageDefinitionError(
                f"{type(self._writer).__name__}.write_data returned without writing its file ({path})."
            )
        digest, size = xxhash.xxh3_128(), 0
        with fs.open(path, "rb") as file:
            while chunk := file.read(_CHUNK):
                digest.update(chunk)
                size += len(chunk)
        self._done.append(WrittenFile(path, size, payload.batch.num_items, f"xxh3:{digest.hexdigest()}"))

    def close(self) -> list[WrittenFile]:
        """Report what was written."""
        return self._done

    def abort(self) -> None:
        """Remove what was written."""
        for file in self._done:
            if self._writer.fs.exists(file.path):
                self._writer.fs.rm(file.path)
