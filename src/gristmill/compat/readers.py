"""The base class of custom readers, under the names in `nemo_curator.stages.text.io.reader`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from gristmill.errors import StageDefinitionError, UsageError
from gristmill.stages import source_sink
from gristmill.stages.base import ProcessingStage, Spec
from gristmill.stages.text.io.reader.assign_ids import DEDUP_ID_FIELD
from gristmill.tasks.document import DocumentBatch
from gristmill.tasks.file_group import FileGroupTask

__all__ = ["BaseFileReader", "BaseReader", "ReaderOutput"]


@dataclass(frozen=True)
class ReaderOutput:
    """What a reader read: a pandas frame or an Arrow table, and metadata if it has any."""

    data: Any
    metadata: dict[str, Any] | None = None


@dataclass
class BaseReader(ProcessingStage[FileGroupTask, DocumentBatch]):
    """Base class of a custom reader: implement `read_data`, which receives whole files, or `read_task`.

    Args:
        fields: The columns to read; passed to `read_data`.
        read_kwargs: Passed to `read_data`.
        name: The stage's name.
        _generate_ids: Add the id column for deduplication, like `_assign_ids`.
        allow_empty: Accept files without documents, which are an error otherwise.

    Example:
        >>> @dataclass
        ... class WordsReader(BaseReader):
        ...     name: str = "words_reader"
        ...
        ...     def read_data(self, file_paths, read_kwargs, fields):
        ...         words = [open(path).read() for path in file_paths]
        ...         return pa.table({"text": words})
    """

    fields: list[str] | None = None
    read_kwargs: dict[str, Any] = field(default_factory=dict)
    name: str = "reader"
    _generate_ids: bool = False
    _assign_ids: bool = False
    allow_empty: bool = False

    def __post_init__(self) -> None:
        if self._generate_ids and self._assign_ids:
            raise UsageError(f"{type(self).__name__}: _generate_ids and _assign_ids are mutually exclusive.")
        self.name = self.name or type(self).__name__

    @property
    def assigns_ids(self) -> bool:
        """Whether documents get ids, so that each file has to be a partition."""
        return self._generate_ids or self._assign_ids

    def inputs(self) -> Spec:
        return [], []

    def outputs(self) -> Spec:
        ids = [DEDUP_ID_FIELD] if self.assigns_ids else []
        return ["data"], [*(self.fields or []), *ids]

    def process(self, task: FileGroupTask) -> DocumentBatch:
        found = self.read_task(task, dict(self.read_kwargs or {}), self.fields)
        metadata = task._metadata if found.metadata is None else found.metadata
        if not self.allow_empty and (found.data is None or not len(found.data)):
            raise UsageError(
                f"{self.name} read no documents from {', '.join(map(str, task.data[:3]))}. If that is intended, pass "
                "allow_empty=True.",
                paths=list(task.data),
            )
        batch = DocumentBatch(task.dataset_name, found.data, _metadata=dict(metadata))
        if self.assigns_ids and DEDUP_ID_FIELD not in batch.get_columns():
            ids = [f"{task.partition_id}:{row}" for row in range(batch.num_items)]
            batch = batch.with_column(DEDUP_ID_FIELD, pa.array(ids, pa.large_string()))
        return batch

    def read_task(
        self, task: FileGroupTask, read_kwargs: dict[str, Any] | None, fields: Sequence[str] | None
    ) -> ReaderOutput:
        """The content of a task's files; override it to set metadata as well."""
        return ReaderOutput(self.read_data(list(task.data), read_kwargs, fields))

    def read_data(self, file_paths: list[str], read_kwargs: dict[str, Any] | None, fields: Sequence[str] | None) -> Any:
        """The content of files as a pandas frame or an Arrow table; a subclass implements it."""
        raise StageDefinitionError(
            f"{type(self).__name__} must define read_data(self, file_paths, read_kwargs, fields)."
        )


@dataclass
class BaseFileReader(BaseReader):
    """Another name for `BaseReader`."""


def adopt(cls: Any, /, **options: Any) -> None:
    """Let subclasses of stock readers define `read_data`, which then gets whole files."""
    super(source_sink.ReaderStage, cls).__init_subclass__(**options)
    if "read_data" in vars(cls) and "process" not in vars(cls):
        cls.reads_ranges, cls.only_format, cls.process = False, None, _process


def _process(self: Any, task: FileGroupTask) -> DocumentBatch:
    data = self.read_data(list(task.data), getattr(self, "read_kwargs", None) or {}, self.fields)
    return DocumentBatch(task.dataset_name, data, _metadata=dict(task._metadata))


def read_data(self: Any, paths: Sequence[str], read_kwargs: Any = None, fields: Any = None) -> Any:
    """What a stock reader reads, as a pandas frame, for subclasses that change it."""
    import pandas as pd

    stock: Any = next(base for base in type(self).__mro__ if vars(base).get("process", _process) is not _process)
    frames = []
    for batch in stock.process(self, FileGroupTask(data=list(paths))):
        for bad in batch.quarantined:
            raise UsageError(f"{bad.file}: row {bad.row} cannot be read ({bad.cause}).", path=bad.file, row=bad.row)
        frames.append(batch.to_pandas())
    return pd.concat(frames, ignore_index=True) if frames else pd.DataFrame(columns=list(self.fields or []))
