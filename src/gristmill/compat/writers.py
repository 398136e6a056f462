"""The base class of custom writers, under the names in `nemo_curator.stages.text.io.writer`."""

from __future__ import annotations

import posixpath
from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass, field
from typing import Any

import xxhash
from fsspec.core import url_to_fs

from gristmill.compat.files import check_output_mode
from gristmill.errors import StageDefinitionError
from gristmill.stages import source_sink
from gristmill.stages.base import ProcessingStage
from gristmill.storage.atomic import WrittenFile
from gristmill.storage.table_sinks import numbered
from gristmill.tasks.document import DocumentBatch
from gristmill.tasks.file_group import FileGroupTask

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
        self.fields = None if self.fields is None else list(self.fields)

    @property
    def fs(self) -> Any:
        """The file system of the output."""
        return url_to_fs(self.path, **(self.storage_options or {}))[0]

    @property
    def _fs_path(self) -> str:
        """The output folder, as `fs` names it."""
        return str(url_to_fs(self.path, **(self.storage_options or {}))[1])

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


class OwnFiles(ProcessingStage[DocumentBatch, FileGroupTask]):
    """A writer whose `process` is a script's: called for every batch, it writes files without a record."""

    def __init__(self, writer: source_sink.BaseWriter) -> None:
        self.writer = writer
        self.name, self.resources, self.batch_size = writer.name, writer.resources, writer.batch_size
        for name in ("setup_on_node", "setup", "teardown", "inputs", "outputs"):
            setattr(self, name, getattr(writer, name))

    def begin_run(self) -> None:
        check_output_mode(
            self.writer.mode, url_to_fs(self.writer.path, **(self.writer.storage_options or {}))[0], self.writer.path
        )

    def process(self, task: DocumentBatch) -> FileGroupTask:
        return self.writer.process(task)


def adopt(cls: Any, /, **options: Any) -> None:
    """Let subclasses of writers define `write_data`, or `process`, which runs do not call otherwise."""
    super(source_sink.BaseWriter, cls).__init_subclass__(**options)
    hooks = ("encode", "open_part", "concatenate")
    if hooks[0] in vars(cls):  # not a writer of a script
        return
    cls.writes_itself = "process" in vars(cls) or getattr(cls, "writes_itself", False)
    if "write_data" not in vars(cls) or issubclass(cls, BaseWriter):
        return
    stock = next(base for base in cls.__mro__ if vars(base).get(hooks[0], BaseWriter.encode) is not BaseWriter.encode)

    def write_alone(self: Any, task: DocumentBatch, path: str) -> Any:
        plain = copy(self)
        plain.__class__ = stock
        return plain.write_alone(task, path)

    cls.write_alone, cls.writes_data = write_alone, True
    for name in hooks:
        setattr(cls, name, getattr(BaseWriter, name))
