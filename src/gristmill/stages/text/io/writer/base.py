"""What all writers share: where they write, which columns, and what to do about what is already there."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any, Literal, get_args

from gristmill.errors import NotSupportedError, UsageError, did_you_mean
from gristmill.stages.base import Spec
from gristmill.stages.source_sink import SinkStage
from gristmill.stages.text.io.reader.partitioning import field_names
from gristmill.tasks.document import DocumentBatch
from gristmill.tasks.file_group import FileGroupTask

Mode = Literal["ignore", "overwrite", "error"]


class BaseWriter(SinkStage):
    """Writes documents into a folder, one file per partition, each of them complete or not there.

    Args:
        path: The folder.
        write_kwargs: `compression`, and `storage_options` of the file system.
        fields: Only these columns, in this order.
        mode: What to do about what is in the folder: "ignore" goes on where an earlier run stopped and refuses to
            replace files of other origin, "overwrite" starts over and replaces them, "error" wants an empty folder.
        compression: How files are compressed.
    """

    def __init__(
        self,
        path: str,
        write_kwargs: Mapping[str, Any] | None = None,
        fields: Sequence[str] | None = None,
        mode: Mode = "ignore",
        *,
        compression: str | None = None,
        storage_options: Mapping[str, Any] | None = None,
    ) -> None:
        settings = dict(write_kwargs or {})
        known = ("compression", "storage_options")
        for key in settings:
            if key not in known:
                raise UsageError(
                    f"{type(self).__name__}(write_kwargs={settings!r}): unknown {key!r}; known are {', '.join(known)}."
                    f"{did_you_mean(key, known)}"
                )
        if mode not in get_args(Mode):
            hint = ""
            if str(mode) == "append":
                hint = " Appending is what 'ignore' does: partitions that are not there yet are added."
            kind = NotSupportedError if str(mode) == "append" else UsageError
            raise kind(
                f"{type(self).__name__}(mode={mode!r}): mode is one of {', '.join(get_args(Mode))}.{hint}", mode=mode
            )
        self.path = str(path)
        self.fields = field_names(fields)
        self.mode = mode
        self.compression = settings.get("compression", compression)
        options = settings.get("storage_options", storage_options)
        self.storage_options = None if options is None else dict(options)

    def inputs(self) -> Spec:
        return ["data"], list(self.fields or [])

    def outputs(self) -> Spec:
        return ["data"], []

    def process(self, task: DocumentBatch) -> FileGroupTask:
        """Write one batch as a file of its own; in a pipeline the runner writes partitions instead."""
        sources = task._metadata.get("source_files", [])
        key = "\n".join([*sorted(map(str, sources)), task.task_id])
        name = hashlib.sha256(key.encode()).hexdigest()[:12]
        part = self.open_part(f"{self.path.rstrip('/')}/{name}{self.extension}")
        try:
            part.append(self.encode(task), rows=task.num_items)
            files = part.close()
        except BaseException:
            part.abort()
            raise
        return FileGroupTask(
            task.dataset_name,
            [file.path for file in files],
            list(task._stage_perf),
            {**task._metadata, "format": self.extension.split(".")[1]},
        )
