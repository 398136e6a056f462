"""`TextDuplicatesRemovalWorkflow`: removes the documents whose ids are on a list."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from gristmill.backends.base import BaseExecutor
from gristmill.backends.registry import as_executor
from gristmill.errors import InputChangedError, InputNotFoundError, UsageError
from gristmill.kernels.hashing import content_hashes
from gristmill.kernels.text_column import text_column
from gristmill.ledger.record.layout import STEPS_FOLDER, RunFolder, step_folder
from gristmill.ledger.record.manifest import Manifest
from gristmill.ledger.record.trail import DUPLICATE
from gristmill.pipeline.output import check_apart, check_single
from gristmill.pipeline.pipeline import Pipeline
from gristmill.pipeline.workflow import WorkflowBase, WorkflowRunResult
from gristmill.stages.base import ProcessingStage, Spec
from gristmill.stages.deduplication.duplicate_ids import read_id_generator
from gristmill.stages.deduplication.sorted_runs import RunFiles, SortedRunWriter, column, open_run, runs_of
from gristmill.stages.deduplication.source import DocumentSource, find_filetype
from gristmill.stages.deduplication.workflow_steps import Stage
from gristmill.stages.source_sink import Mode
from gristmill.stages.text.io.reader import ParquetReader
from gristmill.stages.text.io.reader.assign_ids import DEDUP_ID_FIELD, AssignRowIds
from gristmill.stages.text.io.writer import JsonlWriter, ParquetWriter
from gristmill.storage.files import RECORD_SUFFIX, list_files
from gristmill.storage.formats import EXTENSIONS
from gristmill.tasks.columns import TableColumns
from gristmill.tasks.document import DocumentBatch


class IdHashes(ProcessingStage[DocumentBatch, DocumentBatch]):
    """Turns a list of ids into their hashes, with the survivor and the similarity if the list has them."""

    notes_changes = True
    name = "id_hashes"
    fork_safe = True

    def __init__(self, id_field: str) -> None:
        self.id_field = id_field

    def inputs(self) -> Spec:
        return ["data"], [self.id_field]

    def outputs(self) -> Spec:
        return ["data"], ["hash", "hash_2", "survivor_id", "similarity", "cluster"]

    def filled_columns(self) -> list[str]:
        """Nothing: the stage creates its own table."""
        return []

    def process(self, task: DocumentBatch) -> DocumentBatch:
        data, offsets, _ = text_column(task.text(self.id_field))
        hashes = content_hashes(data, offsets)
        survivor, similarity = pa.nulls(task.num_items, pa.large_string()), pa.nulls(task.num_items, pa.float64())
        cluster = pa.nulls(task.num_items, pa.int64())
        if task.columns.has("survivor"):
            survivor = task.text("survivor")
        if task.columns.has("similarity"):
            similarity = task.column("similarity").cast(pa.float64())
        if task.columns.has("cluster") and pa.types.is_integer(task.column("cluster").type):
            cluster = task.column("cluster").cast(pa.int64())
        table = pa.table(
            {
                "hash": hashes[:, 0],
                "hash_2": hashes[:, 1],
                "survivor_id": survivor,
                "similarity": similarity,
                "cluster": cluster,
            }
        )
        return task.with_columns(TableColumns(table))


class RemovalById(ProcessingStage[DocumentBatch, DocumentBatch]):
    """Drops the documents whose id is on the list; the list is memory-mapped, so its size costs no memory.

    Args:
        ids: The sorted hashes of the ids.
        id_fields: Columns that identify documents; a document is dropped if any of its ids is listed.
        drop_fields: Columns to remove from the output.
    """

    notes_changes = True
    name = "removal_by_id"
    fork_safe = True

    def __init__(self, ids: RunFiles, id_fields: Sequence[str], *, drop_fields: Sequence[str] = ()) -> None:
        self._ids = ids
        self.ids = ids.digest
        self.id_fields = tuple(id_fields)
        self.drop_fields = tuple(drop_fields)
        self._tables: list[pa.Table] | None = None

    def inputs(self) -> Spec:
        return ["data"], list(self.id_fields)

    def outputs(self) -> Spec:
        return ["data"], []

    def process(self, task: DocumentBatch) -> DocumentBatch:
        if self._tables is None:
            found = [open_run(file.path, storage_options=self._ids.storage_options) for file in self._ids.files]
            self._tables = [table for table in found if table.num_rows]
        mask = np.zeros(task.num_items, bool)
        survivors = [""] * task.num_items
        similarity = np.full(task.num_items, np.nan)
        clusters = np.full(task.num_items, -1)
        for id_field in self.id_fields:
            data, offsets, valid = text_column(task.text(id_field))
            hashes = content_hashes(data, offsets)
            for table in self._tables:
                for row, place in _matches(hashes, column(table, "hash"), column(table, "hash_2")):
                    if valid[row] and not mask[row]:
                        mask[row] = True
                        survivors[row] = table.column("survivor_id")[place].as_py() or ""
                        alike = table.column("similarity")[place].as_py()
                        similarity[row] = np.nan if alike is None else alike
                        cluster = table.column("cluster")[place].as_py()
                        clusters[row] = -1 if cluster is None else cluster
        if self.drop_fields:
            task = task.without(list(self.drop_fields))
        return task.drop(
            mask,
            reason="listed",
            outcome=DUPLICATE,
            survivors=survivors,
            similarity=similarity,
            clusters=clusters if (clusters[mask] >= 0).all() else None,
        )


def _matches(wanted: Any, first: Any, second: Any) -> list[tuple[int, int]]:
    """Pairs of a row of `wanted` and the position of its hash in the list."""
    low = np.searchsorted(first, wanted[:, 0], "left")
    high = np.searchsorted(first, wanted[:, 0], "right")
    found = []
    for row in np.flatnonzero(high > low).tolist():
        for place in range(int(low[row]), int(high[row])):
            if second[place] == wanted[row, 1]:
                found.append((row, place))
                break
    return found


@dataclass(eq=False, repr=False)
class TextDuplicatesRemovalWorkflow(WorkflowBase):
    """Writes the documents whose ids are not on a list, such as the one of a deduplication without removal.

    Args:
        input_path: The documents.
        ids_to_remove_path: Parquet files with the ids to remove.
        output_path: Output folder for the remaining documents.
        input_filetype: "jsonl" or "parquet"; detected from the file names by default.
        id_field: Column that holds document ids; by default they are assigned as in the deduplication.
        duplicate_id_field: Column of the list that holds the ids.
        id_generator_path: Path of the deduplication's record of its input, so that assigned ids are the same; looked
            for beside the list by default. With it, documents without their own id are found too.
        output_filetype: "jsonl" or "parquet"; defaults to the input format.
        output_mode: See `mode` of the writers.
        drop_id_field: Remove the id column from the output (assigned ids always are).
        input_blocksize: See `blocksize` of the readers; only if ids are not assigned.
        files_per_partition: See the readers.
        input_file_extensions: Extensions of the files to read in a folder.
        read_kwargs: See the readers.
        write_kwargs: See the writers.
        output_fields: Columns to write; all by default.
        record_path: Where to keep the record of the run, instead of `OUTPUT.gristmill` beside the output.

    Example:
        >>> TextDuplicatesRemovalWorkflow("crawl/", "found/ExactDuplicateIds", "unique/", id_field="id").run()
    """

    input_path: str | Sequence[str]
    ids_to_remove_path: str
    output_path: str
    input_filetype: str | None = None
    id_field: str = DEDUP_ID_FIELD
    duplicate_id_field: str = "id"
    id_generator_path: str | None = None
    output_filetype: str | None = None
    output_mode: Mode | None = None
    drop_id_field: bool = False
    _: KW_ONLY
    input_blocksize: int | str | None = None
    files_per_partition: int | None = None
    input_file_extensions: Sequence[str] | None = None
    read_kwargs: Mapping[str, Any] | None = None
    write_kwargs: Mapping[str, Any] | None = None
    output_fields: Sequence[str] | None = None
    record_path: str | None = None

    def __post_init__(self) -> None:
        if not str(self.output_path):
            raise UsageError("TextDuplicatesRemovalWorkflow(output_path=''): set the folder to write to.")
        self.ids_to_remove_path = str(self.ids_to_remove_path)
        self.output_path = str(self.output_path)
        self._reading = dict(self.read_kwargs or {})
        self._writing = dict(self.write_kwargs or {})

    def _lists_nothing(self, storage: Any) -> bool:
        """Whether the list is the output of a run that found nothing, and so has no file at all."""
        folder = RunFolder(self.ids_to_remove_path, storage)
        if not folder.has_run():  # the list of a workflow
            parent, _, name = folder.path.rpartition("/")
            folder = RunFolder(folder.path, storage, record_path=f"{parent}{RECORD_SUFFIX}/{name}")
        entries = Manifest(folder).load()
        return bool(entries) and not any(entry.files for entry in entries.values())

    def run(
        self, executor: BaseExecutor | str | None = None, *, fresh: bool = False, **options: Any
    ) -> WorkflowRunResult:
        """Remove the listed documents.

        Args:
            executor: Where to run: an executor or a name. Defaults to the local executor.
            fresh: If True, discard the results of an earlier run and start over.
            **options: See `Pipeline.run`.

        Raises:
            InputChangedError: Ids are assigned, and the input has changed since.
        """
        begun = time.monotonic()
        chosen = as_executor(executor)
        result = WorkflowRunResult("text_duplicates_removal")
        storage = self._writing.get("storage_options")
        nothing = self._lists_nothing(storage)
        if not nothing:
            list_files(self.ids_to_remove_path, extensions=EXTENSIONS["parquet"], storage_options=storage)
        source, placed, proven = self._source()
        folder = RunFolder(self.output_path, storage, record_path=self.record_path)
        check_apart(folder, source.partitions(), source.searched_folders())
        kind = ParquetWriter if (self.output_filetype or source.filetype) == "parquet" else JsonlWriter
        output = kind(self.output_path, self._writing, self.output_fields, self.output_mode or "ignore")
        if folder.ending is not None:
            check_single(folder, output.extension, source.partitions())
        steps = f"{folder.record}/{STEPS_FOLDER}/ids"
        listed = RunFiles(())
        if not nothing:
            reader = ParquetReader(
                self.ids_to_remove_path, read_kwargs={"storage_options": storage} if storage else None
            )
            writer: Stage = SortedRunWriter(steps, storage_options=storage)
            pipeline = Pipeline("ids to remove", stages=[reader, IdHashes(self.duplicate_id_field), writer])
            # A quarantined id would keep its document.
            strict = {**options, "ignore_failures": False, "id_field": None, "url_field": None, "report": False}
            record = step_folder(steps, storage).record
            ids = pipeline.run(executor=chosen, fresh=fresh, record_path=record, **strict)
            result.add_pipeline_tasks("ids", ids)
            listed = runs_of(steps, storage_options=storage)
        own = [] if self._assigned else [self.id_field]
        places = [DEDUP_ID_FIELD] if placed else []
        removal = RemovalById(listed, own + places, drop_fields=places + (own if self.drop_id_field else []))
        stages = [source.reader(), *([AssignRowIds()] if placed else []), removal, output]
        done = Pipeline("removal", stages=stages).run(
            executor=chosen,
            fresh=fresh,
            id_field="id" if self._assigned else self.id_field,
            record_path=folder.record,
            **options,
        )
        result.add_pipeline_tasks("removal", done)
        count = sum(map(len, listed.parts("hash")))
        if placed and not proven and done.report.dropped < count:
            raise InputChangedError(
                f"{count - done.report.dropped} of the {count} listed ids do not belong to a document in "
                f"{self.input_path}, or are listed twice. The record of assigned ids has no fingerprints of files, so "
                "other documents may have been removed. Find duplicates again, and discard this output.",
                path=self.input_path,
            )
        result.extend_metadata(
            {
                "documents": done.report.rows_read,
                "num_listed": count,
                "num_duplicates_removed": done.report.dropped,
                "num_removed": done.report.dropped,
                "notes": _notes(count, done.report.dropped),
                "output": self.output_path,
                "total_time": time.monotonic() - begun,
            }
        )
        return result

    @property
    def _assigned(self) -> bool:
        """Whether documents are identified by their position alone."""
        return self.id_field == DEDUP_ID_FIELD

    def _source(self) -> tuple[DocumentSource, bool, bool]:
        """The documents, whether their positions are ids, and whether fingerprints prove them unchanged."""
        paths = self.input_path if isinstance(self.input_path, str) else tuple(map(str, self.input_path))
        storage = self._reading.get("storage_options")
        filetype = self.input_filetype or find_filetype(
            paths, storage_options=storage, extensions=self.input_file_extensions
        )
        extensions = None if self.input_file_extensions is None else tuple(self.input_file_extensions)
        generator = self._generator()
        if generator is not None:
            cut = (generator["blocksize"], generator["files_per_partition"])
            source = DocumentSource(paths, filetype, *cut, extensions, self._reading or None)
            if "partitions" not in generator:  # written by a script that deduplicates stage by stage
                return source, self._assigned, False
            now = {partition.id: partition.fingerprint() for partition in source.partitions()}
            if now == generator["partitions"]:
                return source, True, True
            if self._assigned:
                raise InputChangedError(
                    f"The documents in {self.input_path} are not those to which ids were assigned "
                    f"({self.id_generator_path or 'the record beside the list'}): a file was added, removed or "
                    "changed. Find duplicates again, or add ids to the documents and name their column in id_field.",
                    path=self.input_path,
                )
        cut = (self.input_blocksize, self.files_per_partition)
        return DocumentSource(paths, filetype, *cut, extensions, self._reading or None), False, False

    def _generator(self) -> dict[str, Any] | None:
        """The record of assigned ids; None if there is none and documents have their own ids."""
        list_path = self.ids_to_remove_path.rstrip("/")
        folder = f"{list_path.rpartition('/')[0]}/" if "/" in list_path else ""
        places = [f"{folder}{name}_id_generator.json" for name in ("exact", "fuzzy", "semantic")]
        places = [str(self.id_generator_path)] if self.id_generator_path else places
        for place in places:
            try:
                return read_id_generator(place, storage_options=self._writing.get("storage_options"))
            except (FileNotFoundError, InputNotFoundError):
                continue
        if not self._assigned:
            return None
        raise UsageError(
            f"The list in {self.ids_to_remove_path} holds assigned ids, but there is no record of how they were "
            f"assigned at {' or '.join(places)}. Set id_generator_path to it, or id_field to a column of ids.",
            places=places,
        )


def _notes(listed: int, removed: int) -> list[str]:
    """The message if not every listed id belongs to exactly one document."""
    if removed > listed:
        return [f"{removed - listed} more documents were removed than ids are listed: several have the same id."]
    if removed < listed:
        return [f"{listed - removed} of the listed ids do not belong to a document here, or are listed twice."]
    return []
