"""A stage that removes listed documents, under the name in `nemo_curator.stages.text.deduplication.removal`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from gristmill.backends.base import WorkerMetadata
from gristmill.compat.files import get_all_file_paths_under
from gristmill.compat.id_generator import CURATOR_DEDUP_ID_STR
from gristmill.compat.step_stages import read_columns
from gristmill.errors import InputNotFoundError
from gristmill.stages.base import ProcessingStage, Spec
from gristmill.tasks.document import DocumentBatch


@dataclass
class TextDuplicatesRemovalStage(ProcessingStage[DocumentBatch, DocumentBatch]):
    """Drops the documents whose ids are listed in Parquet files; each is a duplicate in the ledger.

    If ids were assigned (`_curator_dedup_id`), the run fails if a listed id refers to a file or row that is not read.

    Args:
        ids_to_remove_path: The file or folder with the list.
        id_field: The column of documents' ids.
        duplicate_id_field: The column of the list.
        read_kwargs: `storage_options` for URLs.
        drop_id_field: Omit the id column from the output.

    Example:
        >>> pipeline.add_stage(TextDuplicatesRemovalStage("cache/duplicates", id_field="id"))  # doctest: +SKIP
    """

    ids_to_remove_path: str
    id_field: str = CURATOR_DEDUP_ID_STR
    duplicate_id_field: str = "id"
    read_kwargs: dict[str, Any] | None = None
    drop_id_field: bool = False
    name: str = "DuplicatesRemovalStage"
    _listed: Any = field(default=None, init=False, repr=False)

    def inputs(self) -> Spec:
        return ["data"], [self.id_field]

    def outputs(self) -> Spec:
        return ["data"], []

    def setup(self, worker_metadata: WorkerMetadata | None = None) -> None:
        self._listed = self._ids()

    def listed_by_file(self) -> dict[str, int]:
        """Number of listed ids per file; ids have the form `FILE:ROW`."""
        names = self._ids().cast(pa.large_string())
        counted = pc.replace_substring_regex(names, r":\d+$", "").value_counts()
        return {one["values"]: one["counts"] for one in counted.to_pylist()}

    def _ids(self) -> pa.Array:
        options = (self.read_kwargs or {}).get("storage_options")
        files = get_all_file_paths_under(self.ids_to_remove_path, True, [".parquet"], options)
        if not files:
            raise InputNotFoundError(
                f"{self.ids_to_remove_path} holds no Parquet files with ids to remove.", path=self.ids_to_remove_path
            )
        table = read_columns(files, [self.duplicate_id_field], options)
        return table.column(self.duplicate_id_field).combine_chunks().unique().drop_null()

    def process(self, task: DocumentBatch) -> DocumentBatch:
        if self._listed is None:
            self.setup()
        ids = pa.chunked_array(task.to_pyarrow().column(self.id_field)).combine_chunks()
        listed = self._listed if ids.type == self._listed.type else self._listed.cast(ids.type)
        mask = pc.is_in(ids, value_set=listed).to_numpy(zero_copy_only=False)
        batch = task.drop(mask, reason="listed_duplicate")
        batch._metadata["num_removed"] = int(mask.sum())
        return batch.without([self.id_field]) if self.drop_id_field else batch
