"""Runs a pipeline with deduplications: step by step, with files between them, and one record at the end.

Documents to be compared by a deduplication are first written by the stages before it; without such stages, it reads the
input itself. The duplicates it finds are removed by a stage at the start of the next step. The last step writes the
output, and its record covers all steps (see `ledger.record.step_record`).
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from gristmill.backends.base import BaseExecutor
from gristmill.errors import InputChangedError
from gristmill.figures import format_size
from gristmill.ledger.record.layout import RECORD_FOLDER, STEPS_FOLDER, RunFolder, step_folder
from gristmill.ledger.record.trail import StageTime, Trail
from gristmill.ledger.record.workflow_record import CHOICE
from gristmill.observe.events import (
    Event,
    Listener,
    Notice,
    RunStarted,
    Sample,
    TaskFinished,
    WorkerStarted,
    WorkerStopped,
)
from gristmill.pipeline.pipeline import Pipeline
from gristmill.pipeline.planner import expand
from gristmill.pipeline.run import Options, Run, prepare
from gristmill.stages.base import ProcessingStage
from gristmill.stages.deduplication.forecast import FreeSpace
from gristmill.stages.deduplication.step_files import PipelineDocuments
from gristmill.stages.text.io.reader.parquet import ParquetReaderStage
from gristmill.stages.text.io.writer import JsonlWriter, ParquetWriter
from gristmill.storage.formats import codec_of
from gristmill.tasks.base import Task

if TYPE_CHECKING:
    from gristmill.stages.deduplication.stages import Deduplication

Stage = ProcessingStage[Any, Any]

_SEARCH_SHARE = 0.3
"""Approximate size of what a search writes, relative to the documents that it compares."""


@dataclass(frozen=True)
class PipelineSteps:
    """The steps of one run before its last.

    Attributes:
        run: The run as a whole; its output is open.
        executor: Where all steps run.
        options: The options of the run.
    """

    run: Run
    executor: BaseExecutor
    options: Options

    def run_earlier(self, initial_tasks: Sequence[Task[Any]] | None) -> None:
        """Run all steps but the last, and make the last one the remaining work of the run.

        Raises:
            InputChangedError: Part of the output was made with other known duplicates.
        """
        assert self.run.state is not None
        if self.options.fresh:
            self.finish(keep=False)
        # Expanded as a whole: the names of parts, and the format of a writer, depend on the stages before it.
        stages = expand(self.run.pipeline.stages)
        places = [at for at, stage in enumerate(stages) if stage.needs_all_documents]
        self._check_room(len(places))
        documents: PipelineDocuments | None = None
        waiting: list[Stage] = []
        written = searched = 0
        for stage in stages[: places[-1] + 1]:
            if not stage.needs_all_documents:
                waiting.append(stage)
                continue
            searching: Any = stage
            if documents is None and not initial_tasks:
                documents = PipelineDocuments.read_by(waiting)
                waiting = [] if documents is not None else waiting
            if documents is None or waiting:
                written += 1
                documents = self._write_documents(documents, waiting, written, initial_tasks)
                waiting = []
            searched += 1
            documents = documents.without(self._search(searching, documents, searched))
        assert documents is not None
        self._begin_last(documents, stages[places[-1] + 1 :])

    def finish(self, *, keep: bool) -> None:
        """Remove the intermediate results, or keep them beside the output; called when the run is done."""
        if keep:
            self._folder.remove(self._folder.join(CHOICE))
        else:
            self._folder.remove_tree(self._root)

    # --- the steps ---

    def _write_documents(
        self,
        documents: PipelineDocuments | None,
        stages: Sequence[Stage],
        number: int,
        initial_tasks: Sequence[Task[Any]] | None,
    ) -> PipelineDocuments:
        """Run some stages. Returns the documents that they produce."""
        path = f"{self._root}/documents-{number}"
        filetype = self._filetype
        settings = {"storage_options": self._storage} if self._storage else None
        writer: Stage
        if filetype == "parquet":
            writer = ParquetWriter(path, settings)
        else:
            writer = JsonlWriter(path, settings, compression=self._compression)
        head = [] if documents is None else [documents.reader()]
        pipeline = Pipeline(
            f"{self.run.pipeline.name}: step {number}",
            stages=[*head, *stages, writer.with_(name="step_writer")],
            config={"keeps_rows": True, "earlier": None if documents is None else documents.step},
        )
        result = pipeline.run(
            self.executor,
            initial_tasks if documents is None else None,
            error_budget=self.options.error_budget,
            ignore_failures=self.options.ignore_failures,
            salvage=self.options.salvage,
            id_field=self.options.id_field,
            url_field=self.options.url_field,
            scores=self.options.scores,
            alarm_share=None,
            record_path=step_folder(path).record,
            listeners=[*self._listeners, self._recorded],
            progress=False,
            report=False,
        )
        self._spent({stage.name: StageTime(stage.calls, stage.busy_s) for stage in result.report.stages})
        return PipelineDocuments.left_by(path, filetype, self._storage)

    def _search(self, stage: Deduplication, documents: PipelineDocuments, number: int) -> Stage:
        """Find the duplicates among some documents. Returns the stage that removes them."""
        begun = time.monotonic()
        workflow = stage.workflow(
            output_path=self._folder.path,
            record_path=self._folder.record,
            cache_path=self._root,
            id_field=None if self.options.id_field == "id" else self.options.id_field,
            write_kwargs={"storage_options": self._storage} if self._storage else None,
        )
        workflow.step_prefix = f"search-{number}-"
        removal = workflow.search(
            documents,
            self.executor,
            name=stage.name,
            error_budget=self.options.error_budget,
            salvage=self.options.salvage,
            listeners=[*self._listeners, partial(self._sampled, stage.name)],
        )
        self._spent({stage.name: StageTime(1, time.monotonic() - begun)})
        return removal

    def _begin_last(self, documents: PipelineDocuments, stages: Sequence[Stage]) -> None:
        run, state = self.run, self.run.state
        assert state is not None
        self._check_choice(documents)
        config = {"earlier": documents.step}
        pipeline = Pipeline(run.pipeline.name, stages=[documents.reader(), *stages], config=config)
        prepared = prepare(pipeline, self.executor, None, self.options)
        begun = run.plan.settings
        settings = replace(prepared.plan.settings, plan_digest=begun.plan_digest, staging=begun.staging)
        run.work.go_on_with(replace(prepared.plan, settings=settings), prepared.root)
        segments = tuple(segment.describe() for segment in prepared.plan.segments)
        run.work.events.emit(replace(run.started, segments=segments))

    def _check_choice(self, documents: PipelineDocuments) -> None:
        """Refuse to add to an output for which other duplicates were found."""
        assert self.run.state is not None
        choice = "\n".join(str(vars(stage).get("removals")) for stage in documents.stages[2:]).encode()
        place = self._folder.join(CHOICE)
        there = self._folder.read(place) if self._folder.exists(place) else None
        if self.run.state.done and there != choice:
            raise InputChangedError(
                f"{self._folder.path} holds {len(self.run.state.done)} finished partitions, but they were made with "
                "other known duplicates: the input, or the output of earlier stages, has changed. A deduplication "
                "compares all documents, so everything must be redone: start over with --fresh (fresh=True), or "
                "write to another folder.",
                path=self._folder.path,
            )
        self._folder.write(place, choice)

    def _check_room(self, searches: int) -> None:
        """Warn if the intermediate files may not fit on the disk."""
        size = self.run.work.input_bytes
        place = FreeSpace.of(self._root)
        needed = int(size * (1 + searches * (1 + _SEARCH_SHARE)))
        if place.free is not None and needed > place.free:
            message = (
                f"Intermediate files and output may take up to {format_size(needed)}, but the disk of {self._root} "
                f"has {format_size(place.free)} free. If it fills up, free some space and run the same command again "
                "to resume."
            )
            self.run.work.events.emit(Notice(message, level="warning"))

    # --- places and formats ---

    @property
    def _folder(self) -> RunFolder:
        assert self.run.state is not None
        return self.run.state.folder

    @property
    def _root(self) -> str:
        return self._folder.join(f"{RECORD_FOLDER}/{STEPS_FOLDER}")

    @property
    def _storage(self) -> Mapping[str, Any] | None:
        return self._folder.storage_options

    @property
    def _filetype(self) -> str:
        """Parquet if Parquet is read, because JSON lacks its types."""
        reader = self.run.plan.segments[0].stages[0]
        return "parquet" if isinstance(reader, ParquetReaderStage) else "jsonl"

    @property
    def _compression(self) -> str | None:
        """Compressed input is probably many times larger uncompressed."""
        sources = self.run.work.source_files()
        return "zstd" if any(codec_of(path.lower()) != "none" for path in sources) else None

    # --- totals over all steps ---

    @property
    def _listeners(self) -> list[Listener]:
        """The listeners of the steps: all listeners of the run, except the one that keeps its record."""
        state = self.run.state
        assert state is not None
        return [one for one in self.run.work.events.listeners if one is not state.recorder and one is not self.run.perf]

    def _spent(self, times: Mapping[str, StageTime]) -> None:
        trail = Trail()
        trail.times.update(times)
        self.run.work.trail.merge(trail)

    def _recorded(self, event: Event) -> None:
        """Forward the events of a step to the record of the run."""
        assert self.run.state is not None
        if isinstance(event, RunStarted):
            self.run.state.recorder.begin_step(event.segments)
        elif isinstance(event, TaskFinished | Sample | Notice | WorkerStarted | WorkerStopped):
            self.run.state.recorder(event)

    def _sampled(self, stage: str, event: Event) -> None:
        """The same for a search, whose own stages all belong to `stage`."""
        if isinstance(event, RunStarted):
            event = replace(event, segments=tuple(replace(segment, stages=(stage,)) for segment in event.segments))
        if not isinstance(event, TaskFinished):
            self._recorded(event)
