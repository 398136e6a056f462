"""The pipeline: a named list of stages that can be described and run."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from gristmill import notebook
from gristmill.backends.base import BaseExecutor
from gristmill.errors import StageFailedError
from gristmill.observe.events import Listener, Notice
from gristmill.stages.base import ProcessingStage
from gristmill.tasks.base import Task

if TYPE_CHECKING:
    from gristmill.pipeline.replay import ReplayReport
    from gristmill.pipeline.run import RunResult

Stage = ProcessingStage[Any, Any]
_NOT_ON_RAY = (
    "RAY_ADDRESS points to a Ray cluster, but this run uses the local executor. To run on the cluster, pass "
    'executor="ray_data" (--executor ray_data).'
)


class Pipeline:
    """A named sequence of stages that documents pass through in order.

    Args:
        name: Name of the pipeline in reports.
        description: Free text for people.
        stages: Initial stages; more can be added.
        config: Stored with the pipeline for the caller's own use.

    Example:
        >>> pipeline = Pipeline(name="clean")
        >>> pipeline.add_stage(JsonlReader("in/")).add_stage(JsonlWriter("out/"))
        >>> result = pipeline.run()
        >>> print(result.report)
    """

    def __init__(
        self,
        name: str,
        description: str | None = None,
        stages: Sequence[Stage] | None = None,
        config: Mapping[str, Any] | None = None,
    ) -> None:
        self.name = name
        self.description = description
        self.stages: list[Stage] = []
        self.config = dict(config or {})
        for stage in stages or ():
            self.add_stage(stage)

    def add_stage(self, stage: Stage) -> Pipeline:
        """Append a stage. Returns the pipeline, so that calls can be chained."""
        if not isinstance(stage, ProcessingStage):
            from gristmill.pipeline.not_a_stage import not_a_stage

            caller = sys._getframe(1)
            raise not_a_stage(stage, None if caller.f_code is Pipeline.__init__.__code__ else caller)
        self.stages.append(stage)
        return self

    def build(self) -> list[Stage]:
        """The stages with composites expanded, after all checks that need no input."""
        from gristmill.pipeline.planner import draft, expand

        flat = expand(self.stages)
        draft(self.stages, has_initial_tasks=not flat or not flat[0].is_source_stage)
        return flat

    def describe(self) -> str:
        """The pipeline as it was defined: its stages and the columns they read and write."""
        lines = [f"Pipeline: {self.name}"]
        if self.description:
            lines.append(f"Description: {self.description}")
        lines.append(f"Stages: {len(self.stages)}")
        for number, stage in enumerate(self.stages, 1):
            lines.append(f"{number}. {stage.name} ({type(stage).__name__})")
            needed, given = stage.inputs(), stage.outputs()
            if not isinstance(needed, dict) and needed[1]:
                lines.append(f"   reads: {', '.join(needed[1])}")
            if given[1]:
                lines.append(f"   writes: {', '.join(given[1])}")
        return notebook.ShownText("\n".join(lines))

    def explain(
        self,
        executor: BaseExecutor | str | None = None,
        *,
        id_field: str | None = "id",
        url_field: str | None = "url",
        scores: str = "decisive",
        record_path: str | os.PathLike[str] | None = None,
        salvage: bool = False,
    ) -> str:
        """Describe what a run would do: partitions, segments, workers, resources, and how much of the output exists.

        Reads only listings, a few records and the manifest of the output. The options are those of `run` that affect
        the output, and the location of the record.
        """
        from gristmill.backends.registry import as_executor
        from gristmill.pipeline.explanation import explain
        from gristmill.pipeline.run import Options

        options = Options(
            id_field=id_field, url_field=url_field, scores=scores, record_path=record_path, salvage=salvage
        )
        return notebook.ShownText(explain(self, as_executor(executor), options))

    def run(
        self,
        executor: BaseExecutor | str | None = None,
        initial_tasks: Sequence[Task[Any]] | None = None,
        checkpoint_path: str | None = None,
        *,
        fresh: bool = False,
        error_budget: float | int | None = 0.01,
        ignore_failures: bool | None = None,
        salvage: bool = False,
        id_field: str | None = "id",
        url_field: str | None = "url",
        scores: str = "decisive",
        alarm_share: float | None = 0.9,
        record_path: str | os.PathLike[str] | None = None,
        listeners: Sequence[Listener] = (),
        progress: bool | None = None,
        keep_steps: bool = False,
        metrics_port: int | None = None,
        metrics_file: str | os.PathLike[str] | None = None,
        report: bool = True,
        profile: bool = False,
    ) -> RunResult:
        """Run the pipeline.

        A run with a writer can be interrupted at any time; run it again to resume.

        Args:
            executor: Where to run: an executor or a name (`local`, `ray_data`, `xenna`). Defaults to the local
                executor.
            initial_tasks: Tasks to start with, for a pipeline without a reader.
            checkpoint_path: Accepted for compatibility and ignored: the record beside the output holds everything
                needed to resume.
            fresh: If True, discard the results of an earlier run of this output and start over.
            error_budget: How many records may be quarantined before the run fails: a float in [0, 1] is a share of all
                records (at least 10 records, except for 0.0), an int a number, None no limit.
            ignore_failures: If True, quarantine documents on which a stage raises instead of failing. Defaults to the
                executor's configuration. If False, error messages do not suggest it either.
            salvage: If True, keep the readable documents of a damaged input file, marked as unverified. By default such
                a file is skipped entirely. Either way, the lost records count as quarantined.
            id_field: Column that holds document ids, for the ledger.
            url_field: Column that holds document URLs, for the ledger.
            scores: `decisive` records the deciding score of each dropped document, `all` every score of every document.
            alarm_share: Add an alarm to the report for each stage that drops more than this share; None for no alarms.
            record_path: Where to keep the record of the run, instead of `OUTPUT.gristmill` beside the output; later
                commands about the run need the same path.
            listeners: Called with every event of the run.
            progress: If False, show nothing on stderr. Otherwise show a live table on a terminal; elsewhere, notices as
                they occur and a progress line per `logging_interval` of the executor.
            keep_steps: Keep the intermediate files of a pipeline with deduplication, which are removed at the end by
                default.
            metrics_port: Local port on which to serve Prometheus metrics; 0 picks a free port and reports it. Needs the
                extra `monitor`.
            metrics_file: File to write the same metrics to, every ten seconds and at the end.
            report: Write `report.html` to the record when the run ends, even if it fails.
            profile: Profile the run (local executor only): writes `profile.html` and `profile.json` to the record and
                sets `profile` of the result.
        """
        from gristmill.backends.registry import as_executor
        from gristmill.pipeline.run import NEEDS_ALL, Options, begun_run

        chosen = as_executor(executor)
        options = Options(
            fresh=fresh,
            error_budget=error_budget,
            ignore_failures=ignore_failures,
            salvage=salvage,
            id_field=id_field,
            url_field=url_field,
            scores=scores,
            alarm_share=alarm_share,
            record_path=record_path,
            report=report,
        )
        metrics = session = None
        if metrics_port is not None or metrics_file is not None:
            from gristmill.metrics.export import MetricsExport

            metrics = MetricsExport(self.name, port=metrics_port, file=metrics_file)
            listeners = [*listeners, metrics]
        try:
            if profile:
                from gristmill.pipeline.profiled_run import begin_profile, end_profile

                session, chosen = begin_profile(self.name, chosen)
            comparing: Any = next(filter(NEEDS_ALL, self.stages), None)
            steps = None
            with begun_run(self, chosen, initial_tasks, options, list(listeners), progress=progress) as run:
                if executor is None and chosen.shares_environment and os.environ.get("RAY_ADDRESS"):
                    run.work.events.emit(Notice(_NOT_ON_RAY))
                if metrics is not None:
                    run.work.events.emit(metrics.announce())
                if session is None and run.state is not None:
                    run.state.folder.remove_profile()
                try:
                    if comparing is not None:
                        steps = comparing.steps(run, chosen, options)
                    if len(run.work):
                        if steps is not None:
                            steps.run_earlier(initial_tasks)
                        chosen.execute(run.work.plan, run.work)
                    run.work.finish()
                    if run.state is not None:
                        run.state.check_whole(run.started.partitions)
                        sink = run.work.plan.sink
                        if sink is not None and sink.has_summary:
                            run.state.summarize(sink)
                finally:
                    if session is not None:
                        folder = None if run.state is None else run.state.folder
                        found = end_profile(session, folder, run.work.events)
            if steps is not None:
                steps.finish(keep=keep_steps)
            result = run.result()
            if session is not None:
                result.profile = found
            return result
        except StageFailedError as error:
            # The message has the stage's traceback; that of the engine would only obscure it.
            shown = _advised(error) if ignore_failures is None else error
            raise shown.with_traceback(None) from None
        finally:
            if metrics is not None:
                metrics.close()
            if session is not None:
                session.close()

    def replay(self, executor: BaseExecutor | str | None = None, **options: Any) -> ReplayReport:
        """Process quarantined records of this pipeline's output again, after a fix.

        Takes the options of `gristmill.pipeline.replay.replay`.
        """
        from gristmill.pipeline.replay import replay

        return replay(self, executor, **options)

    _repr_html_ = notebook.of_pipeline

    def __repr__(self) -> str:
        return f"Pipeline(name={self.name!r}, stages=[{', '.join(stage.name for stage in self.stages)}])"


def _advised(error: StageFailedError) -> StageFailedError:
    """The error, with advice on how to continue without the affected documents where that is possible."""
    if not error.facts.get("can_be_ignored"):
        return error
    advice = "To quarantine such documents instead, run with --ignore-failures (ignore_failures=True)."
    return type(error)(f"{error.message} {advice}", **{**error.facts, "can_be_ignored": False})
