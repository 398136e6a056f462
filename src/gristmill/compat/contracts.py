"""What stages written for NeMo Curator rely on and Gristmill does otherwise; in force while compatibility is on."""

from __future__ import annotations

import functools
import importlib
import os
from typing import Any

from gristmill.backends import registry
from gristmill.compat import constructors, dataclass_fields, fasttext_lists
from gristmill.compat.document_ids import checked_ids
from gristmill.compat.slurm_array import shard_of_run
from gristmill.execution import stage_pickling
from gristmill.pipeline import planner
from gristmill.pipeline.pipeline import Pipeline
from gristmill.stages.base import ProcessingStage
from gristmill.tasks.document import DocumentBatch

_run = Pipeline.run


@functools.wraps(_run)
def _run_shard(
    self: Pipeline, executor: Any = None, initial_tasks: Any = None, checkpoint_path: Any = None, **options: Any
) -> Any:
    """Run a pipeline, or in a task of a Slurm array its shard; fails if ids to remove are not found."""
    if checkpoint_path is None:
        checkpoint_path = getattr(self, "_checkpoint_path", None)
    with checked_ids() as ids, shard_of_run(checkpoint_path):
        result = _run(self, executor, initial_tasks, checkpoint_path, **options)
        ids.check(result.report)
        return result


def _enable_resumability(self: Pipeline, checkpoint_path: Any) -> None:
    """Set the `checkpoint_path` of later runs; runs resume by their record in any case."""
    self._checkpoint_path = checkpoint_path  # type: ignore[attr-defined]


def install_in_worker() -> None:
    """Called in a worker before it loads the code of a script that runs under the old name."""
    importlib.import_module("gristmill.compat.finder").install(force=True)
    importlib.import_module("nemo_curator")


def apply() -> None:
    """Show batches as pandas frames, use a Ray cluster that is there, and send the switch along to every worker."""
    DocumentBatch.shows_pandas = True
    registry.default_name = default_executor
    planner.default_name = name_of
    Pipeline.run = _run_shard  # type: ignore[method-assign]
    Pipeline.enable_resumability = _enable_resumability  # type: ignore[attr-defined]
    fasttext_lists.apply()
    if install_in_worker not in stage_pickling.before_loading:
        stage_pickling.before_loading.append(install_in_worker)


def undo() -> None:
    """Return to Gristmill's own ways."""
    DocumentBatch.shows_pandas = False
    registry.default_name = None
    planner.default_name = None
    Pipeline.run = _run  # type: ignore[method-assign]
    del Pipeline.enable_resumability  # type: ignore[attr-defined]
    constructors.restore()
    dataclass_fields.remove_fields()
    fasttext_lists.undo()
    stage_pickling.before_loading.clear()


def name_of(stage: ProcessingStage[Any, Any]) -> str:
    """The name of a stage that was given none: `_name`, as its first releases had it, or that of the class."""
    return str(getattr(stage, "_name", None) or type(stage).__name__)


def default_executor() -> str:
    """Where a script runs that names no executor: on the cluster that it started or was given, else locally."""
    return "ray_data" if os.environ.get("RAY_ADDRESS") else "local"
