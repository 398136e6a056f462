"""One run of a deduplication: its steps as pipelines with files between them, and their results so far."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from gristmill.backends.base import BaseExecutor
from gristmill.errors import MissingColumnError, OutputError
from gristmill.ledger.record.commit import remove_partition
from gristmill.ledger.record.layout import RECORD_FOLDER, RunFolder, step_folder
from gristmill.ledger.record.manifest import Manifest
from gristmill.ledger.record.workflow_record import CHOICE
from gristmill.pipeline.output import check_apart, check_single, check_strangers, check_usable
from gristmill.pipeline.pipeline import Pipeline
from gristmill.pipeline.workflow import WorkflowRunResult
from gristmill.stages.base import ProcessingStage
from gristmill.stages.deduplication.key_ranges import RangeReader
from gristmill.stages.deduplication.sorted_runs import RunFiles, SortedRunWriter, joined, runs_of
from gristmill.stages.deduplication.source import (
    DocumentSource,
    DocumentStage,
    check_disjoint,
    check_unchanged,
    first_key,
)
from gristmill.storage.partitions import Partition

if TYPE_CHECKING:
    from gristmill.pipeline.run import RunResult
    from gristmill.stages.deduplication.deduplication_workflow import DeduplicationWorkflow

Stage = ProcessingStage[Any, Any]


AGAINST = "against"
"""Prefix of the steps and partitions of documents that are only compared against."""


class Steps:
    """One run of a workflow: the folders of its steps, and their results so far."""

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
        self.against = workflow._against_source()
        """The documents that are only compared against and not changed."""
        kept = [] if self.against is None else self.against.partitions()
        before = [f"{AGAINST}:{partition.id}" for partition in kept] or workflow._known_partitions(self.partitions)
        self.first_partition = len(before)
        self.partition_ids = [*before, *(partition.id for partition in self.partitions)]
        self.result = WorkflowRunResult(workflow.name)
        self.root = step_folder(workflow._steps_path, workflow.storage_options)
        """The folder that holds the folders of all steps."""
        self.done: dict[str, str] = {}
        """The folders of the steps that this run has completed."""

    def path(self, step: str) -> str:
        """The folder of a step."""
        return f"{self.root.path}/{self.workflow.step_prefix}{step}"

    def folder(self, step: str) -> RunFolder:
        """The record of a step."""
        return step_folder(self.path(step), self.workflow.storage_options)

    def begin(self) -> None:
        """Resume the existing steps, or remove them when starting over."""
        self.check_apart()
        output, root = self.workflow.folder, self.root
        check_usable(root, write=False)
        check_usable(output)
        if self.workflow.perform_removal:  # reported now, and not after the whole search
            writer = self.workflow._writer(self.source)
            check_strangers(output, writer.mode, writer.extension, self.partitions)
        if self.fresh:
            for step in self._begun():
                root.remove_tree(root.join(step))
            return
        self.check_begun()

    def check_begun(self) -> None:
        """Refuse to continue if the part of the input that the first step read has changed."""
        first = (self.workflow.first_step, *self.workflow.earlier_steps)
        first += tuple(f"{AGAINST}_{step}" for step in first)
        names = {self.path(step).rpartition("/")[2] for step in first}
        complete = any(step not in names for step in self._begun() if step.startswith(self.workflow.step_prefix))
        check_unchanged(self.partitions, self.folder(self.workflow.first_step), complete=complete)
        if self.against is not None:
            kept = self.folder(f"{AGAINST}_{self.workflow.first_step}")
            check_unchanged(self.against.partitions(), kept, complete=complete)

    def _begun(self) -> list[str]:
        files = self.root.walk(self.root.path)
        return [name.split("/", 1)[0] for name in files if name.endswith(f"/{RECORD_FOLDER}/plan.json")]

    def check_apart(self) -> None:
        """Reject an output that overlaps with the input, before anything is written there."""
        output = self.workflow.folder
        check_apart(output, self.partitions, self.source.searched_folders())
        if self.against is not None:
            kept = self.against.partitions()
            check_apart(output, kept, self.against.searched_folders())
            check_disjoint(self.partitions, kept)
        if output.ending is not None and not self.workflow.perform_removal:
            raise OutputError(f"{output.path} is a single file. A list of duplicates needs a folder.", path=output.path)
        if output.ending is not None:
            check_single(output, self.workflow._writer(self.source).extension, self.partitions)

    def check_input(self) -> None:
        """Refuse to continue if the input changed after the first step read it."""
        check_unchanged(self.source.partitions(), self.folder(self.workflow.first_step), complete=True)

    def run_on_documents(
        self,
        step: str,
        stages: Sequence[Stage],
        fields: Sequence[str],
        *,
        kind: type[SortedRunWriter] = SortedRunWriter,
        **options: Any,
    ) -> RunFiles:
        """Run a step on the documents, and on those to compare with. Returns the output of both, the latter first.

        The documents to compare with come first in source order and are always preferred.
        """
        if self.against is not None:
            other = f"{AGAINST}_{step}"
            given = [_placed(stage, 0, preferred=True) for stage in stages]
            self.run(other, [self.against.reader(fields), *given, self.writer(other, kind)], **options)
            first = self.folder(f"{AGAINST}_{self.workflow.first_step}")
            check_unchanged(self.against.partitions(), first, complete=True)
        if self.first_partition:
            stages = [_placed(stage, self.first_partition, preferred=False) for stage in stages]
        self.run(step, [self.source.reader(fields), *stages, self.writer(step, kind)], **options)
        self.check_input()
        return self.all_runs(step)

    def all_runs(self, step: str) -> RunFiles:
        """The output of `run_on_documents`."""
        names = [step] if self.against is None else [f"{AGAINST}_{step}", step]
        return joined(*(self.runs(name) for name in names))

    @property
    def first_key(self) -> int:
        """The first key of the input's documents."""
        return first_key(self.first_partition)

    def removing(self, stage: RangeReader) -> RangeReader:
        """The stage that lists documents to remove, limited to those that may be removed."""
        if self.first_partition:
            stage.removable_from = self.first_key
        return stage

    def clear_other_choice(self, folder: RunFolder, removals: RunFiles) -> None:
        """Clear an output made with another removal list from the same search.

        The choice is recorded before anything is written, so that an output never holds a mixture of two.
        """
        place = folder.join(CHOICE)
        choice = removals.digest.encode()
        if folder.exists(place) and folder.read(place) != choice:
            manifest = Manifest(folder)
            for name in [*manifest.load(), *manifest.pending]:
                remove_partition(folder, name)
            folder.remove(folder.record_path("plan"))
        folder.write(place, choice)

    def run(self, step: str, stages: Sequence[Stage], *, output: RunFolder | None = None, **options: Any) -> RunResult:
        """Run one pipeline, and record its tasks and its time."""
        begun = time.monotonic()
        id_field = self.workflow.id_field or "id"
        # A document quarantined in one step only would be kept without having been compared.
        given: dict[str, Any] = {
            **self.options, "ignore_failures": False, "id_field": id_field, "report": False, **options,
        }  # fmt: skip
        pipeline = Pipeline(f"{self.workflow.name}: {step}", stages=stages)
        try:
            record = (output or self.folder(step)).record
            fresh = self.fresh and output is not None
            result = pipeline.run(executor=self.executor, fresh=fresh, record_path=record, **given)
        except MissingColumnError as error:
            raise self.workflow._explained(error) from None
        if output is None:
            self.done[step] = self.path(step)
        self.result.add_pipeline_tasks(step, list(result))
        self.result.add_metadata(f"{step}_time", time.monotonic() - begun)
        return result

    def writer(self, step: str, kind: type[SortedRunWriter] = SortedRunWriter) -> SortedRunWriter:
        """The writer of sorted rows of a step."""
        options = self.workflow.storage_options
        return kind(self.path(step), storage_options=options, run_bytes=self.workflow.run_bytes)

    def runs(self, step: str, **options: Any) -> RunFiles:
        """The output of a finished step."""
        return runs_of(self.path(step), storage_options=self.workflow.storage_options, **options)


def _placed(stage: Stage, first_partition: int, *, preferred: bool) -> Stage:
    return stage.placed(first_partition, preferred=preferred) if isinstance(stage, DocumentStage) else stage
