"""Behaviour of NeMo Curator that its stages rely on and that differs here; active in compatibility mode."""

from __future__ import annotations

import functools
import importlib
import os
from copy import copy
from typing import Any

from gristmill.backends import registry
from gristmill.compat import constructors, dataclass_fields, fasttext_lists, readers, writers
from gristmill.compat.document_ids import checked_ids
from gristmill.compat.slurm_array import shard_of_run
from gristmill.execution import stage_pickling
from gristmill.pipeline import planner
from gristmill.pipeline.pipeline import Pipeline
from gristmill.stages import source_sink
from gristmill.stages.base import ProcessingStage
from gristmill.tasks.document import DocumentBatch

_run = Pipeline.run
_reject = vars(source_sink.BaseWriter)["__init_subclass__"]
_OF_WRITERS = ("fs", "_fs_path", "get_file_extension")


@functools.wraps(_run)
def _run_shard(
    self: Pipeline, executor: Any = None, initial_tasks: Any = None, checkpoint_path: Any = None, **options: Any
) -> Any:
    """Run a pipeline, or its shard in a Slurm array; fails if ids to remove are not found."""
    if checkpoint_path is None:
        checkpoint_path = getattr(self, "_checkpoint_path", None)
    pipeline = copy(self)
    stages: list[Any] = self.stages
    pipeline.stages = [writers.OwnFiles(one) if getattr(one, "writes_itself", False) else one for one in stages]
    with checked_ids() as ids, shard_of_run(checkpoint_path):
        result = _run(pipeline, executor, initial_tasks, checkpoint_path, **options)
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
    """Show batches as pandas frames, use an existing Ray cluster, and enable compatibility in every worker."""
    DocumentBatch.shows_pandas = True
    registry.default_name = default_executor
    planner.default_name = name_of
    Pipeline.run = _run_shard  # type: ignore[method-assign]
    Pipeline.enable_resumability = _enable_resumability  # type: ignore[attr-defined]
    for name in _OF_WRITERS:
        setattr(source_sink.BaseWriter, name, vars(writers.BaseWriter)[name])
    source_sink.BaseWriter.__init_subclass__ = classmethod(writers.adopt)  # type: ignore[assignment]
    source_sink.ReaderStage.__init_subclass__ = classmethod(readers.adopt)  # type: ignore[assignment]
    source_sink.ReaderStage.read_data = readers.read_data  # type: ignore[attr-defined]
    fasttext_lists.apply()
    if install_in_worker not in stage_pickling.before_loading:
        stage_pickling.before_loading.append(install_in_worker)


def undo() -> None:
    """Restore Gristmill's own behaviour."""
    DocumentBatch.shows_pandas = False
    registry.default_name = None
    planner.default_name = None
    Pipeline.run = _run  # type: ignore[method-assign]
    del Pipeline.enable_resumability  # type: ignore[attr-defined]
    for name in _OF_WRITERS:
        delattr(source_sink.BaseWriter, name)
    source_sink.BaseWriter.__init_subclass__ = _reject  # type: ignore[method-assign]
    del source_sink.ReaderStage.__init_subclass__, source_sink.ReaderStage.read_data  # type: ignore[attr-defined]
    constructors.restore()
    dataclass_fields.remove_fields()
    fasttext_lists.undo()
    stage_pickling.before_loading.clear()


def name_of(stage: ProcessingStage[Any, Any]) -> str:
    """The name of a stage without one: `_name`, as in early releases, or that of the class."""
    return str(getattr(stage, "_name", None) or type(stage).__name__)


def default_executor() -> str:
    """The executor for a script that names none: the cluster that it started or was given, otherwise local."""
    return "ray_data" if os.environ.get("RAY_ADDRESS") else "local"
