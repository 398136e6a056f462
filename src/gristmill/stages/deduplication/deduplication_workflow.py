"""Base class of the deduplication workflows: input, output, and a run as several pipelines with files between them."""

from __future__ import annotations

import os
import time
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from typing import Any

import numpy as np

from gristmill.backends.base import BaseExecutor
from gristmill.backends.registry import as_executor
from gristmill.errors import MissingColumnError, UsageError, did_you_mean
from gristmill.ledger.record.layout import STEPS_FOLDER, RunFolder, list_folder
from gristmill.ledger.record.manifest import Manifest
from gristmill.ledger.record.workflow_record import write_workflow_record
from gristmill.observe.events import EventStream, Listener, Notice
from gristmill.pipeline.planner import declared_columns, expand
from gristmill.pipeline.workflow import WorkflowBase, WorkflowRunResult
from gristmill.stages.deduplication.duplicate_ids import DuplicateIds, write_id_generator
from gristmill.stages.deduplication.forecast import SAMPLE_BYTES, Forecast, FreeSpace, forecast, memory_limit
from gristmill.stages.deduplication.key_ranges import KeyRanges, document_cuts, range_count
from gristmill.stages.deduplication.removal import DuplicateRemoval
from gristmill.stages.deduplication.sorted_runs import RUN_BYTES, RunFiles, count_distinct
from gristmill.stages.deduplication.source import FILETYPES, DocumentSource, find_filetype
from gristmill.stages.deduplication.step_files import PipelineDocuments
from gristmill.stages.deduplication.survivor_rule import SurvivorRule
from gristmill.stages.deduplication.workflow_steps import Stage, Steps
from gristmill.stages.text.io.writer import JsonlWriter, ParquetWriter
from gristmill.storage.partitions import Partition, make_partitions

_LOOKED_AT = 3
"""Number of partitions whose scores are checked before a run."""


class DeduplicationWorkflow(WorkflowBase):
    """Base class of the workflows; see `ExactDeduplicationWorkflow` for the arguments that all of them share."""

    name = "deduplication"
    reason = "duplicate"
    ids_folder = "DuplicateIds"
    id_generator_file = "id_generator.json"
    first_step = "signatures"
    earlier_steps: tuple[str, ...] = ()
    """The steps before the first that reads documents."""
    run_bytes = RUN_BYTES
    """Amount of data that a partition of a step sorts at once."""

    step_prefix = ""
    """Prefix of the steps' folders, if they are beside those of others."""

    without_effect: tuple[str, ...] = ()
    """Options that are accepted for other engines; a run warns if one is set."""

    # The options that the kinds share. Each kind declares them as fields in the order of its own signature.
    input_path: str | Sequence[str] | None
    output_path: str
    record_path: str | None
    cache_path: str | None
    input_filetype: str | None
    input_blocksize: int | str | None
    input_file_extensions: Sequence[str] | None
    files_per_partition: int | None
    output_filetype: str | None
    text_field: str
    id_field: str | None
    perform_removal: bool
    survivor: str | None
    score_field: str | None
    source_priority: Sequence[str] | None
    read_kwargs: Mapping[str, Any] | None
    write_kwargs: Mapping[str, Any] | None
    # These are not for all kinds.
    against: str | Sequence[str] | None = None
    assign_id: bool | None = None
    merge_empty: bool = False

    def __post_init__(self) -> None:
        kind = type(self).__name__
        if not str(self.output_path):
            raise UsageError(f"{kind}(output_path=''): set the folder to write to.")
        if self.assign_id and self.id_field is not None:
            raise UsageError(f"{kind}(assign_id=True, id_field={self.id_field!r}): set only one of the two.")
        if self.assign_id is False and self.id_field is None:
            raise UsageError(f"{kind}(assign_id=False): set id_field to the column that holds the ids.")
        for option in ("input_filetype", "output_filetype"):
            value = getattr(self, option)
            if value is not None and value not in FILETYPES:
                raise UsageError(
                    f"{kind}({option}={value!r}): must be 'jsonl' or 'parquet'.{did_you_mean(str(value), FILETYPES)}"
                )
        # Splitting an empty input finds invalid sizes.
        make_partitions(
            (), format="jsonl", files_per_partition=self.files_per_partition, blocksize=self.input_blocksize
        )
        self.output_path = str(self.output_path)
        self.cache_path = None if self.cache_path is None else str(self.cache_path)
        self.rule = SurvivorRule.of(self.survivor or "first", self.score_field, self.source_priority)
        self.ignored = sorted(option for option in self.without_effect if getattr(self, option) is not None)

    # --- what a kind of deduplication defines ---

    @abstractmethod
    def _find(self, steps: Steps) -> RunFiles | None:
        """Run the steps that find duplicates. Returns the removal lists, or None if nothing can be removed yet."""

    @abstractmethod
    def _first_stage(self) -> Stage:
        """The stage that turns documents into signatures."""

    def _first_stages(self) -> list[Stage]:
        """The stages of the first step, between reader and writer."""
        return [self._first_stage()]

    def _forecast_stages(self) -> list[Stage]:
        """The stages that a forecast times on a sample."""
        return self._first_stages()

    sample_bytes = SAMPLE_BYTES
    """Amount of input that a forecast reads."""
    bytes_per_document = 0.0
    """Approximate bytes of intermediate files per document."""
    bytes_per_text_byte = 0.0
    """Approximate bytes of intermediate files per byte of text."""
    memory_per_document = 0.0
    """Approximate bytes of memory per document, independent of batches."""

    def plan(self, executor: BaseExecutor | str | None = None) -> Forecast:
        """Estimate what a run will need (documents, disk, memory and time) from a sample of the input.

        Raises:
            OutputError: A disk does not have enough free space.
            PlanningError: There is not enough memory.
        """
        engine = as_executor(executor)
        steps = Steps(self, engine, self._source(None), fresh=False, options={})
        steps.check_apart()
        notes = check_named_columns(self, steps.source)
        found = self._forecast(engine)
        found.notes.extend(notes)
        found.check(FreeSpace.of(self._steps_path), FreeSpace.of(self.output_path), memory_limit(engine))
        return found

    def _forecast(self, executor: BaseExecutor) -> Forecast:
        source = self._source(None)
        return forecast(
            source,
            source.partitions(),
            self._forecast_stages(),
            steps=FreeSpace.of(self._steps_path),
            bytes_per_document=self.bytes_per_document,
            bytes_per_text_byte=self.bytes_per_text_byte,
            memory_per_document=self.memory_per_document,
            plain_output=(self.output_filetype or source.filetype) == "jsonl"
            and (self.write_kwargs or {}).get("compression") is None,
            workers=int(executor.capacity().cpus),
            notes=self._notes(),
            sample_bytes=self.sample_bytes,
        )

    @property
    def _steps_path(self) -> str:
        return (self.cache_path or f"{self.folder.record}/{STEPS_FOLDER}").rstrip("/")

    @property
    def folder(self) -> RunFolder:
        """The output with its record."""
        return RunFolder(self.output_path, self.storage_options, record_path=self.record_path)

    # --- the run ---

    def run(
        self,
        executor: BaseExecutor | str | None = None,
        initial_tasks: Sequence[Any] | None = None,
        *,
        fresh: bool = False,
        error_budget: float | int | None = 0.01,
        salvage: bool = False,
        listeners: Sequence[Listener] = (),
        progress: bool | None = None,
        metrics_port: int | None = None,
        metrics_file: str | os.PathLike[str] | None = None,
        profile: bool = False,
    ) -> WorkflowRunResult:
        """Find the duplicates and, with `perform_removal`, write the remaining documents.

        A run can be interrupted at any time; run it again to resume.

        Args:
            executor: Where to run the pipelines: an executor or a name. Defaults to the local executor.
            initial_tasks: Tasks that name the input files, instead of `input_path`.
            fresh: If True, discard the results of an earlier run and start over.
            error_budget: See `Pipeline.run`.
            salvage: See `Pipeline.run`.
            listeners: Called with every event of every pipeline.
            progress: If False, show nothing on stderr. Otherwise show a live table on a terminal; elsewhere, notices as
                they occur and a progress line per `logging_interval` of the executor.
            metrics_port: See `Pipeline.run`.
            metrics_file: See `Pipeline.run`.
            profile: See `Pipeline.run`; covers all pipelines.

        Raises:
            InputChangedError: The input changed after an earlier step read it.
        """
        options: dict[str, Any] = {"fresh": fresh, "error_budget": error_budget, "salvage": salvage}
        if profile:
            from gristmill.pipeline.profiled_run import begin_profile, end_profile

            session, chosen = begin_profile(self.name, as_executor(executor))
            options |= {"listeners": listeners, "progress": progress}
            with closing(session):
                result = self.run(
                    chosen, initial_tasks, metrics_port=metrics_port, metrics_file=metrics_file, **options
                )
                result.profile = end_profile(session, self.folder, EventStream(list(listeners)))
            return result
        if metrics_port is None and metrics_file is None:
            return self._run(executor, initial_tasks, listeners=listeners, progress=progress, **options)
        from gristmill.metrics.export import MetricsExport

        with closing(MetricsExport(self.name, port=metrics_port, file=metrics_file)) as metrics:
            for listener in listeners:
                listener(metrics.announce())
            return self._run(executor, initial_tasks, listeners=[*listeners, metrics], progress=progress, **options)

    def _run(
        self,
        executor: BaseExecutor | str | None,
        initial_tasks: Sequence[Any] | None,
        *,
        fresh: bool,
        error_budget: float | int | None,
        salvage: bool,
        listeners: Sequence[Listener],
        progress: bool | None,
    ) -> WorkflowRunResult:
        begun = time.monotonic()
        options = {
            "error_budget": error_budget, "salvage": salvage, "listeners": listeners, "progress": progress,
            "url_field": None,
        }  # fmt: skip
        steps = Steps(self, as_executor(executor), self._source(initial_tasks), fresh=fresh, options=options)
        notes = [*self._notes(), *check_named_columns(self, steps.source)]
        if steps.against is not None:
            check_compared_columns(self, steps.against)
        if steps.executor.config.get("ignore_failures"):
            notes.append(
                "ignore_failures has no effect in deduplication: a skipped document could be an undetected duplicate."
            )
        for listener in listeners:
            for note in notes:
                listener(Notice(note))
        steps.result.add_metadata("notes", notes)
        steps.begin()
        self.folder.remove_profile()  # a new one is written at the end
        removals = self._find(steps)
        steps.check_input()
        if removals is not None:
            self._write(steps, removals)
        self._ended(steps)
        result = steps.result
        result.extend_metadata(self._facts(steps, removals))
        result.add_metadata("total_time", time.monotonic() - begun)
        write_workflow_record(
            self.folder,
            _plain(result.metadata),
            steps=steps.done,
            list_folder=self.ids_folder,
            listed=removals is not None and not self.perform_removal,
            files=(self.id_generator_file,),
        )
        return result

    def search(
        self,
        documents: PipelineDocuments,
        executor: BaseExecutor,
        *,
        name: str,
        error_budget: float | int | None,
        salvage: bool,
        listeners: Sequence[Listener],
    ) -> Stage:
        """Find the duplicates among documents of a pipeline. Returns the stage `name` that removes them.

        Raises:
            InputChangedError: The documents changed after an earlier step of the search read them.
        """
        if self.rule.survivor == "priority" and not documents.has_one_file_each():
            raise UsageError(
                f"Stage {name!r} prefers documents by their source files (survivor='priority'), but several files are "
                "read as one partition, and after other stages the source file of a document is unknown. Omit "
                "files_per_partition and blocksize of the reader, or put the deduplication directly after the reader."
            )
        options = {
            "error_budget": error_budget, "salvage": salvage, "listeners": listeners, "progress": False,
            "url_field": None,
        }  # fmt: skip
        steps = Steps(self, executor, documents, fresh=False, options=options)
        notes = [*self._notes(), *check_named_columns(self, documents)]
        if steps.against is not None:
            check_compared_columns(self, steps.against)
        for listener in listeners:
            for note in notes:
                listener(Notice(f"{name}: {note}"))
        steps.check_begun()
        removals = self._find(steps)
        assert removals is not None
        steps.check_input()
        removal = self._remover(steps, removals, step=documents.step)
        removal.name = name
        return removal

    def _write(self, steps: Steps, removals: RunFiles) -> None:
        """Write the remaining documents, or the list of those to remove."""
        if self.perform_removal:
            steps.clear_other_choice(self.folder, removals)
            steps.run("removal", self._removal(steps, removals), output=self.folder, url_field="url", report=True)
            return
        listed = list_folder(self.folder, self.ids_folder)
        steps.clear_other_choice(listed, removals)
        ids = DuplicateIds(steps.partition_ids, id_field=self.id_field)
        source = KeyRanges(removals, document_cuts(removals, range_count(removals.size)))
        writer = ParquetWriter(listed.path, {"storage_options": self.storage_options} if self.storage_options else None)
        steps.run("duplicate_ids", [source, ids, writer], output=listed)
        write_id_generator(
            self._in_output(self.id_generator_file),
            steps.source,
            steps.partitions,
            storage_options=self.storage_options,
        )

    def _removal(self, steps: Steps, removals: RunFiles) -> list[Stage]:
        return [steps.source.reader(), self._remover(steps, removals), self._writer(steps.source)]

    def _remover(self, steps: Steps, removals: RunFiles, *, step: str | None = None) -> Stage:
        """The stage that applies the results; `step` is the folder of the step whose files were searched."""
        return DuplicateRemoval(
            removals,
            steps.partition_ids,
            reason=self.reason,
            step=step,
            storage_options=self.storage_options,
            first_partition=steps.first_partition,
        )

    def _writer(self, source: DocumentSource) -> JsonlWriter | ParquetWriter:
        """The writer of the remaining documents."""
        kind = self.output_filetype or source.filetype
        return (ParquetWriter if kind == "parquet" else JsonlWriter)(self.output_path, dict(self.write_kwargs or {}))

    def _facts(self, steps: Steps, removals: RunFiles | None) -> dict[str, Any]:
        first = Manifest(steps.folder(self.first_step)).load().values()
        removed = 0 if removals is None else sum(map(len, removals.parts("survivor")))
        clusters = 0 if removals is None else count_distinct(removals, "survivor")
        read = sum(entry.rows_read for entry in first)
        return {
            "documents": read,
            "empty": sum(entry.rows_dropped for entry in first),
            "quarantined": sum(entry.quarantined for entry in first),
            "damaged": [f"{file}." for entry in first for file in entry.damaged or ()],
            "clusters": clusters,
            "num_duplicates": removed,
            "num_removed": removed if self.perform_removal else 0,
            "perform_removal": self.perform_removal,
            "survivor": self.rule.survivor,
            "output": self.output_path,
        }

    def _notes(self) -> list[str]:
        if not self.ignored:
            return []
        return [f"{', '.join(self.ignored)}: only for GPUs or another engine; has no effect here."]

    # --- input and output ---

    def _source(self, initial_tasks: Sequence[Any] | None) -> DocumentSource:
        paths: str | tuple[str, ...] | None
        if initial_tasks:
            paths = tuple(str(path) for task in initial_tasks for path in task.data)
        elif self.input_path is None:
            raise UsageError(f"{type(self).__name__} has no input: set input_path, or use run(initial_tasks=[…]).")
        else:
            paths = self.input_path if isinstance(self.input_path, str) else tuple(map(str, self.input_path))
            paths = str(paths) if not isinstance(paths, tuple) else paths
        storage = (self.read_kwargs or {}).get("storage_options")
        return DocumentSource(
            paths,
            self.input_filetype or find_filetype(paths, storage_options=storage, extensions=self.input_file_extensions),
            self.input_blocksize if self.folder.ending is None else None,
            self.files_per_partition,
            None if self.input_file_extensions is None else tuple(self.input_file_extensions),
            dict(self.read_kwargs) if self.read_kwargs else None,
        )

    def _known_partitions(self, partitions: Sequence[Partition]) -> list[str]:
        """The partition ids of documents that were compared before, which precede these."""
        return []

    def _ended(self, steps: Steps) -> None:
        """Called when the output of a run is complete, before its record is written."""

    def _against_source(self) -> DocumentSource | None:
        """The documents to compare with, partitioned like the input."""
        if self.against is None:
            return None
        paths = str(self.against) if isinstance(self.against, str | os.PathLike) else tuple(map(str, self.against))
        storage = (self.read_kwargs or {}).get("storage_options")
        return DocumentSource(
            paths,
            find_filetype(paths, storage_options=storage, extensions=self.input_file_extensions),
            self.input_blocksize,
            self.files_per_partition,
            None if self.input_file_extensions is None else tuple(self.input_file_extensions),
            dict(self.read_kwargs) if self.read_kwargs else None,
        )

    @property
    def _named_columns(self) -> dict[str, str | None]:
        """The options that name columns, with their values."""
        return {"text_field": self.text_field, "score_field": self.rule.score_field}

    def _explained(self, error: MissingColumnError) -> MissingColumnError:
        """The error in terms of the options of this workflow."""
        column, available = str(error.facts["column"]), list(error.facts["available"])
        named = [option for option, name in self._named_columns.items() if name == column]
        if not named:
            return error
        return missing_column(named[0], column, available, stage=error.facts.get("stage"))

    def _in_output(self, relative: str) -> str:
        return f"{self.output_path.rstrip('/')}/{relative}"

    @property
    def storage_options(self) -> dict[str, Any] | None:
        """File system options of output and steps."""
        options = (self.write_kwargs or {}).get("storage_options")
        return None if options is None else dict(options)

    def __repr__(self) -> str:
        return f"{type(self).__name__}(input_path={self.input_path!r}, output_path={self.output_path!r})"


def _plain(values: Mapping[str, Any]) -> dict[str, Any]:
    convert: Callable[[Any], Any] = lambda value: value.item() if isinstance(value, np.generic) else value  # noqa: E731
    return {key: convert(value) for key, value in values.items()}


def check_named_columns(workflow: DeduplicationWorkflow, source: DocumentSource) -> list[str]:
    """Reject missing columns and non-numeric scores, as far as the first documents show.

    Returns:
        Notes about optional columns that were not seen.

    Raises:
        MissingColumnError: No document has the column; for a column to compare by, no sampled document has it.
        UsageError: The scores are not numbers.
    """
    # A document without text counts as empty, so a run with a misspelt column name would silently compare nothing. This
    # is why the compared column must be seen.
    score = workflow.rule.score_field
    compared = [name for name in declared_columns(expand(workflow._first_stages()))[0] if name != score]
    others = {"score_field": score, "id_field": workflow.id_field}
    if workflow.id_field == "id":
        del others["id_field"]  # used if present
    found = source.look_for([*compared, *(name for name in others.values() if name is not None)])
    if found is None:
        return []
    available, looked_at = list(found.names), "" if found.complete else found.looked_at
    options = {name: option for option, name in workflow._named_columns.items()}
    for name in compared:
        if name not in available and name in options:
            raise missing_column(options[name], name, available, looked_at=looked_at)
    notes = []
    for option, column in others.items():
        if column is None or column in available:
            continue
        if found.complete:
            raise missing_column(option, column, available)
        notes.append(f"{option}={column!r}: this column is missing from all {looked_at} sampled.")
    if score is not None:
        for batch in source.first_batches(source.partitions()[:_LOOKED_AT], [score]):
            if batch is not None:
                workflow.rule.check(batch)
    return notes


def check_compared_columns(workflow: DeduplicationWorkflow, against: DocumentSource) -> None:
    """Reject documents to compare with that lack the compared column.

    Raises:
        MissingColumnError: No sampled document has the column.
    """
    score = workflow.rule.score_field
    compared = [name for name in declared_columns(expand(workflow._first_stages()))[0] if name != score]
    found = against.look_for(compared)
    if found is None:
        return
    options = {name: option for option, name in workflow._named_columns.items()}
    for name in compared:
        if name not in found.names and name in options:
            raise MissingColumnError(
                f"against={workflow.against!r}: these documents lack the column {name!r} to compare by (found: "
                f"{', '.join(map(repr, found.names)) or 'none'}). Input and --against must have the same "
                f"{options[name]}.",
                column=name,
                available=list(found.names),
            )


def missing_column(
    option: str, column: str, available: list[str], *, looked_at: str = "", **facts: Any
) -> MissingColumnError:
    """The error for a column that an option names and that no (sampled) document has."""
    none = f"none of the {looked_at} sampled has such a" if looked_at else "the documents have no such"
    return MissingColumnError(
        f"{option}={column!r}: {none} column, only {', '.join(map(repr, available)) or 'none'}."
        f"{did_you_mean(column, available)} Name the right one with --{option.replace('_', '-')} ({option}).",
        column=column,
        available=available,
        **facts,
    )
