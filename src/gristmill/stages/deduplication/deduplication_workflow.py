"""What the deduplication workflows share: their input and output, and a run as pipelines with files between them."""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from gristmill.backends.base import BaseExecutor
from gristmill.backends.registry import as_executor
from gristmill.errors import MissingColumnError, UsageError, did_you_mean
from gristmill.ledger.commit import remove_partition
from gristmill.ledger.layout import RECORD_FOLDER, STEPS_FOLDER, RunFolder
from gristmill.ledger.manifest import Manifest
from gristmill.observe.events import Listener, Notice
from gristmill.pipeline.pipeline import Pipeline
from gristmill.pipeline.result import RunResult
from gristmill.pipeline.workflow import WorkflowBase, WorkflowRunResult
from gristmill.stages.base import ProcessingStage
from gristmill.stages.deduplication.duplicate_ids import DuplicateIds, write_id_generator
from gristmill.stages.deduplication.forecast import SAMPLE_BYTES, Forecast, Place, forecast, memory_limit
from gristmill.stages.deduplication.key_ranges import KeyRanges, document_cuts, range_count
from gristmill.stages.deduplication.removal import DuplicateRemoval
from gristmill.stages.deduplication.sorted_runs import RUN_BYTES, RunFiles, SortedRunWriter, count_distinct, runs_of
from gristmill.stages.deduplication.source import FILETYPES, DocumentSource, check_unchanged, find_filetype
from gristmill.stages.deduplication.survivor_rule import SurvivorRule
from gristmill.stages.text.io.writer import JsonlWriter, ParquetWriter
from gristmill.storage.atomic import write_json_atomic
from gristmill.storage.partitions import Partition

RECORD = "deduplication.json"
CHOICE = "removals"
"""The file that says by which removal list an output was made."""

Stage = ProcessingStage[Any, Any]


class DeduplicationWorkflow(WorkflowBase):
    """The base of the workflows; see `ExactDeduplicationWorkflow` for the arguments that all of them share."""

    name = "deduplication"
    reason = "duplicate"
    ids_folder = "DuplicateIds"
    id_generator_file = "id_generator.json"
    first_step = "signatures"
    run_bytes = RUN_BYTES
    """How much of its rows a partition of a step sorts at once."""

    def __init__(
        self,
        *,
        input_path: str | Sequence[str] | None,
        output_path: str,
        cache_path: str | None,
        input_filetype: str | None,
        input_blocksize: int | str | None,
        input_file_extensions: Sequence[str] | None,
        files_per_partition: int | None,
        output_filetype: str | None,
        text_field: str,
        id_field: str | None,
        assign_id: bool | None,
        perform_removal: bool,
        survivor: str,
        score_field: str | None,
        source_priority: Sequence[str] | None,
        merge_empty: bool,
        read_kwargs: Mapping[str, Any] | None,
        write_kwargs: Mapping[str, Any] | None,
        gpu_only: Mapping[str, Any],
    ) -> None:
        kind = type(self).__name__
        if assign_id and id_field is not None:
            raise UsageError(f"{kind}(assign_id=True, id_field={id_field!r}): give one of the two.")
        if assign_id is False and id_field is None:
            raise UsageError(f"{kind}(assign_id=False): name the column with the ids in id_field.")
        for option, value in (("input_filetype", input_filetype), ("output_filetype", output_filetype)):
            if value is not None and value not in FILETYPES:
                raise UsageError(
                    f"{kind}({option}={value!r}): give 'jsonl' or 'parquet'.{did_you_mean(str(value), FILETYPES)}"
                )
        self.input_path = input_path
        self.output_path = str(output_path)
        self.cache_path = None if cache_path is None else str(cache_path)
        self.input_filetype = input_filetype
        self.input_blocksize = input_blocksize
        self.input_file_extensions = input_file_extensions
        self.files_per_partition = files_per_partition
        self.output_filetype = output_filetype
        self.text_field = text_field
        self.id_field = id_field
        self.perform_removal = perform_removal
        self.merge_empty = merge_empty
        self.rule = SurvivorRule.of(survivor, score_field, source_priority)
        self.read_kwargs = dict(read_kwargs or {})
        self.write_kwargs = dict(write_kwargs or {})
        self.ignored = sorted(option for option, value in gpu_only.items() if value is not None)

    # --- what a kind of deduplication adds ---

    @abstractmethod
    def _find(self, steps: Steps) -> RunFiles | None:
        """Run the steps that find duplicates; gives the removal lists, or None where nothing is to be chosen yet."""

    @abstractmethod
    def _first_stage(self) -> Stage:
        """The stage that turns documents into signatures."""

    def _first_stages(self) -> list[Stage]:
        """The stages of the first step, between reader and writer."""
        return [self._first_stage()]

    sample_bytes = SAMPLE_BYTES
    """How much of the input a forecast looks at."""
    bytes_per_document = 0.0
    """About how many bytes of intermediate files a document takes."""
    bytes_per_text_byte = 0.0
    """About how many bytes of intermediate files a byte of text takes."""
    memory_per_document = 0.0
    """About how many bytes of memory a document takes, whatever the batches."""

    def plan(self, executor: BaseExecutor | str | None = None) -> Forecast:
        """What a run will need: documents, disk, memory and time, projected from a sample of the input.

        Raises:
            OutputError: A disk has not room enough.
            PlanningError: The memory is not enough.
        """
        engine = as_executor(executor)
        found = self._forecast(engine)
        found.check(Place.of(self._steps_path), Place.of(self.output_path), memory_limit(engine))
        return found

    def _forecast(self, executor: BaseExecutor) -> Forecast:
        source = self._source(None)
        return forecast(
            source,
            source.partitions(),
            self._first_stages(),
            steps=Place.of(self._steps_path),
            bytes_per_document=self.bytes_per_document,
            bytes_per_text_byte=self.bytes_per_text_byte,
            memory_per_document=self.memory_per_document,
            plain_output=(self.output_filetype or source.filetype) == "jsonl"
            and self.write_kwargs.get("compression") is None,
            workers=int(executor.capacity().cpus),
            notes=self._notes(),
            sample_bytes=self.sample_bytes,
        )

    @property
    def _steps_path(self) -> str:
        return (self.cache_path or self._in_output(f"{RECORD_FOLDER}/{STEPS_FOLDER}")).rstrip("/")

    # --- the run ---

    def run(
        self,
        executor: BaseExecutor | str | None = None,
        initial_tasks: Sequence[Any] | None = None,
        *,
        fresh: bool = False,
        error_budget: float | int | None = 0.01,
        listeners: Sequence[Listener] = (),
        progress: bool | None = None,
    ) -> WorkflowRunResult:
        """Find the duplicates and, with `perform_removal`, write the documents that stay.

        A run can be stopped at any moment: running it again goes on where it stopped.

        Args:
            executor: Where to run the pipelines: an executor or its name; the local one by default.
            initial_tasks: Tasks that name the input files, instead of `input_path`.
            fresh: Remove what an earlier run left, and start over.
            error_budget: As in `Pipeline.run`.
            listeners: Called with every event of every pipeline.
            progress: Show progress on stderr; by default only on a terminal.

        Raises:
            InputChangedError: The input is not what an earlier step has read.
        """
        begun = time.monotonic()
        options = {"error_budget": error_budget, "listeners": listeners, "progress": progress, "url_field": None}
        steps = Steps(self, as_executor(executor), self._source(initial_tasks), fresh=fresh, options=options)
        notes = self._notes()
        for listener in listeners:
            for note in notes:
                listener(Notice(note))
        steps.result.add_metadata("notes", notes)
        steps.begin()
        removals = self._find(steps)
        steps.check_input()
        if removals is not None:
            self._write(steps, removals)
        result = steps.result
        result.extend_metadata(self._facts(steps, removals))
        result.add_metadata("total_time", time.monotonic() - begun)
        write_json_atomic(
            self._in_output(f"{RECORD_FOLDER}/{RECORD}"),
            _plain(result.metadata),
            storage_options=self.storage_options,
        )
        return result

    def _write(self, steps: Steps, removals: RunFiles) -> None:
        """Write the documents that stay, or the list of those to remove."""
        if self.perform_removal:
            steps.clear_other_choice(self.output_path, removals)
            steps.run("removal", self._removal(steps, removals), output=self.output_path, url_field="url")
            return
        path = self._in_output(self.ids_folder)
        steps.clear_other_choice(path, removals)
        ids = DuplicateIds(steps.partition_ids, id_field=self.id_field)
        source = KeyRanges(removals, document_cuts(removals, range_count(removals.size)))
        writer = ParquetWriter(path, {"storage_options": self.storage_options} if self.storage_options else None)
        steps.run("duplicate_ids", [source, ids, writer], output=path)
        write_id_generator(self._in_output(self.id_generator_file), steps.source, steps.partitions)

    def _removal(self, steps: Steps, removals: RunFiles) -> list[Stage]:
        kind = self.output_filetype or steps.source.filetype
        writer = (ParquetWriter if kind == "parquet" else JsonlWriter)(self.output_path, self.write_kwargs)
        removal = DuplicateRemoval(removals, steps.partition_ids, reason=self.reason)
        return [steps.source.reader(), removal, writer]

    def _facts(self, steps: Steps, removals: RunFiles | None) -> dict[str, Any]:
        first = Manifest(steps.folder(self.first_step)).load().values()
        removed = 0 if removals is None else sum(map(len, removals.parts("survivor")))
        clusters = 0 if removals is None else count_distinct(removals, "survivor")
        read = sum(entry.rows_read for entry in first)
        return {
            "documents": read,
            "empty": sum(entry.rows_dropped for entry in first),
            "quarantined": sum(entry.quarantined for entry in first),
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
        return [f"{', '.join(self.ignored)}: only for GPUs or another engine; without effect here."]

    # --- input and output ---

    def _source(self, initial_tasks: Sequence[Any] | None) -> DocumentSource:
        paths: str | tuple[str, ...] | None
        if initial_tasks:
            paths = tuple(str(path) for task in initial_tasks for path in task.data)
        elif self.input_path is None:
            raise UsageError(f"{type(self).__name__} has no input: give input_path, or run(initial_tasks=[…]).")
        else:
            paths = self.input_path if isinstance(self.input_path, str) else tuple(map(str, self.input_path))
            paths = str(paths) if not isinstance(paths, tuple) else paths
        storage = self.read_kwargs.get("storage_options")
        return DocumentSource(
            paths,
            self.input_filetype or find_filetype(paths, storage_options=storage, extensions=self.input_file_extensions),
            self.input_blocksize,
            self.files_per_partition,
            None if self.input_file_extensions is None else tuple(self.input_file_extensions),
            self.read_kwargs or None,
        )

    @property
    def _named_columns(self) -> dict[str, str | None]:
        """The options that name columns, and what they name."""
        return {"text_field": self.text_field, "score_field": self.rule.score_field}

    def _explained(self, error: MissingColumnError) -> MissingColumnError:
        """The error in terms of the options of this workflow."""
        column, available = str(error.facts["column"]), list(error.facts["available"])
        named = [option for option, name in self._named_columns.items() if name == column]
        if not named:
            return error
        option = named[0]
        return MissingColumnError(
            f"{option}={column!r}: the documents have no such column, only "
            f"{', '.join(map(repr, available)) or 'none'}.{did_you_mean(column, available)} Name the right one with "
            f"--{option.replace('_', '-')} ({option}).",
            **error.facts,
        )

    def _in_output(self, relative: str) -> str:
        return f"{self.output_path.rstrip('/')}/{relative}"

    @property
    def storage_options(self) -> dict[str, Any] | None:
        """The options of the file system of output and steps."""
        options = self.write_kwargs.get("storage_options")
        return None if options is None else dict(options)

    def __repr__(self) -> str:
        return f"{type(self).__name__}(input_path={self.input_path!r}, output_path={self.output_path!r})"


class Steps:
    """One run of a workflow: the folders of its steps, and what has come of them so far."""

    def __init__(
        self,
        workflow: DeduplicationWorkflow,
        executor: BaseExecutor,
        source: DocumentSource,
        *,
        fresh: bool,
        options: Mapping[str, Any],
    ) -> None:
        self.workflow = workflow
        self.executor = executor
        self.source = source
        self.fresh = fresh
        self.options = dict(options)
        self.partitions: list[Partition] = source.partitions()
        self.partition_ids = [partition.id for partition in self.partitions]
        self.result = WorkflowRunResult(workflow.name)
        self._root = workflow._steps_path

    def path(self, step: str) -> str:
        """The folder of a step."""
        return f"{self._root}/{step}"

    def folder(self, step: str) -> RunFolder:
        """The record of a step."""
        return RunFolder(self.path(step), storage_options=self.workflow.storage_options)

    def begin(self) -> None:
        """Take up what is there, or remove it when starting over."""
        root = RunFolder(self._root, storage_options=self.workflow.storage_options)
        plans = [name.split("/", 1)[0] for name in root.walk() if name.endswith(f"/{RECORD_FOLDER}/plan.json")]
        if self.fresh:
            for step in plans:
                root.remove_tree(root.join(step))
            return
        first = self.workflow.first_step
        check_unchanged(self.partitions, self.folder(first), complete=any(step != first for step in plans))

    def check_input(self) -> None:
        """Refuse to go on with an input that is not what the first step has read."""
        check_unchanged(self.source.partitions(), self.folder(self.workflow.first_step), complete=True)

    def clear_other_choice(self, output: str, removals: RunFiles) -> None:
        """Clear an output for which another removal list was chosen from the same search.

        The choice is recorded before anything is written, so that an output never holds a mixture of two.
        """
        folder = RunFolder(output, storage_options=self.workflow.storage_options)
        place = folder.join(f"{RECORD_FOLDER}/{STEPS_FOLDER}/{CHOICE}")
        choice = removals.digest.encode()
        if folder.exists(place) and folder.read(place) != choice:
            manifest = Manifest(folder)
            for name in [*manifest.load(), *manifest.pending]:
                remove_partition(folder, name)
            folder.remove(folder.plan_file)
        folder.write(place, choice)

    def run(self, step: str, stages: Sequence[Stage], *, output: str | None = None, **options: Any) -> RunResult:
        """Run one pipeline, and keep its tasks and its time."""
        begun = time.monotonic()
        id_field = self.workflow.id_field or "id"
        given: dict[str, Any] = {**self.options, "id_field": id_field, **options}
        pipeline = Pipeline(f"{self.workflow.name}: {step}", stages=stages)
        try:
            result = pipeline.run(executor=self.executor, fresh=self.fresh and output is not None, **given)
        except MissingColumnError as error:
            raise self.workflow._explained(error) from None
        self.result.add_pipeline_tasks(step, list(result))
        self.result.add_metadata(f"{step}_time", time.monotonic() - begun)
        return result

    def writer(self, step: str, kind: type[SortedRunWriter] = SortedRunWriter) -> SortedRunWriter:
        """What a step writes sorted rows with."""
        options = self.workflow.storage_options
        return kind(self.path(step), storage_options=options, run_bytes=self.workflow.run_bytes)

    def runs(self, step: str, **options: Any) -> RunFiles:
        """What a finished step has left."""
        return runs_of(self.path(step), storage_options=self.workflow.storage_options, **options)


def _plain(values: Mapping[str, Any]) -> dict[str, Any]:
    convert: Callable[[Any], Any] = lambda value: value.item() if isinstance(value, np.generic) else value  # noqa: E731
    return {key: convert(value) for key, value in values.items()}
