"""The contract of a stage: what it reads, what it writes, and the hooks an executor calls."""

from __future__ import annotations

import copy
import inspect
import time
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import Field
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar, get_args, get_origin, get_type_hints

from gristmill.errors import StageDefinitionError, UnknownNameError, UsageError, did_you_mean
from gristmill.stages.resources import Resources
from gristmill.tasks.base import Task

if TYPE_CHECKING:
    from gristmill.backends.base import NodeInfo, WorkerMetadata

X = TypeVar("X", bound=Task[Any])
Y = TypeVar("Y", bound=Task[Any])

Spec = tuple[list[str], list[str]]
"""The task attributes and data columns that a stage reads or writes."""

_UNSET: Any = object()
_registry: dict[str, type[ProcessingStage[Any, Any]]] = {}


def get_stage_class(name: str) -> type[ProcessingStage[Any, Any]]:
    """The stage class registered under its class name.

    Raises:
        UnknownNameError: (a KeyError) No stage has this name, or its module has not been imported.
    """
    if name not in _registry:
        raise UnknownNameError(f"There is no stage class {name!r}.{did_you_mean(name, _registry)}", name=name)
    return _registry[name]


_PLAIN_ATTRIBUTES = ("name", "resources", "batch_size", "runtime_env")
_NOT_INHERITED = ("fork_safe", "never_drops", "notes_changes")
"""Attributes that a class declares about its own code, which may not hold for a subclass."""


S = TypeVar("S")


def is_batch_size(value: object) -> bool:
    """Whether this is a valid `batch_size`: a whole number of at least 1, or None for one task at a time."""
    return value is None or (isinstance(value, int) and not isinstance(value, bool) and value >= 1)


def own_copy(stage: S) -> S:
    """A copy that shares no mutable state, as far as the stage's attributes can be copied."""
    try:
        return copy.deepcopy(stage)
    except (TypeError, NotImplementedError, RecursionError):
        return copy.copy(stage)


class ProcessingStage(ABC, Generic[X, Y]):
    """One step of a pipeline. Subclass it, implement `process`, and declare the columns it reads and writes.

    A stage object is a description: constructors only store their arguments. Executors send copies to worker
    processes, where the hooks run in this order: `setup_on_node` (once per node), `setup` (once per worker),
    `process` or `process_batch` (many times), `teardown` (once per worker, also after an error).

    Attributes:
        name: Name of the stage in reports; unique within a pipeline.
        resources: Resources of one worker.
        batch_size: Number of tasks per call of `process_batch`; None means one.
        runtime_env: Packages or environment variables its workers need (used by executors on Ray).
        time_limit_s: Maximum time for one document; a slower one is quarantined and its worker replaced. None uses the
            default limit of the local executor.
        default_time_limit_s: Maximum time for one document if `time_limit_s` is None and the executor's default is
            longer. Enforced in the same way: without a worker process, only Python code can be interrupted.
        runs_without_gpu: If True, a stage that requests a GPU falls back to the CPU if there is none.
        needs_own_worker: If True, the stage does not share a worker with its neighbours (for example because it holds a
            model).
        overlaps_calls: The stage waits for a server. The local engine calls `process` for the next batch from another
            thread while the stage waits for the last responses of the current batch.
        kept_elsewhere: Folder where answers of language models are cached, if not in the record of the output.
        for_dropped: What to do, when a run records all scores, with documents that earlier stages dropped and that
            later filters should score: `"run"` passes them to this stage too, which must handle each document
            independently and change nothing but its result; `"pass"` leaves them unchanged (the stage only adds
            columns); `"score"` is for filters, whose `drop` then keeps them; `"stop"`, the default, does not follow
            them further.
        text_parameter: The attribute that names the column (or columns) read as text; planning rejects columns of lists
            or numbers there.
        fills_text: Whether the columns it adds may hold text. Scores, labels and ids are not text: planning does not
            allow them to overwrite a text.
        never_drops: Whether every input document is in the output. Not inherited, like `notes_changes`.
        needs_all_documents: The stage must see all documents before it can decide on any. A pipeline with such a stage
            runs in steps, which the stage defines (see `stages.deduplication`).
        takes_all_files: The stage needs all input files at once: they are passed in one task, so a single worker runs
            it.
        role: `"score_filter"` for stages that drop by recorded scores and the bounds in `filter_obj` and `invert`,
            `"deduplication"` for stages whose decision on a document depends on other documents.
        fork_safe: The stage's code may be loaded and run outside a worker: importing its module starts no thread, and
            no document can crash the process. The local engine imports it before forking workers, and runs it in the
            driver on small inputs. Not inherited, like `notes_changes`.
        notes_changes: The stage records every text that it changes (`batch.note_change`), so its output is not compared
            with its input. Not inherited: a subclass may change other texts, and is compared unless it declares this
            itself.

    Example:
        >>> class Upper(ProcessingStage):
        ...     name = "upper"
        ...
        ...     def process(self, task):
        ...         frame = task.to_pandas()
        ...         return DocumentBatch(data=frame.assign(text=frame["text"].str.upper()))
    """

    name = "ProcessingStage"
    resources = Resources(cpus=1.0)
    batch_size: int | None = 1
    runtime_env: Mapping[str, Any] | None = None
    time_limit_s: float | None = None
    default_time_limit_s: float | None = None
    runs_without_gpu = False
    needs_own_worker = False
    overlaps_calls: bool = False
    kept_elsewhere: str | None = None
    for_dropped: Literal["run", "pass", "score", "stop"] = "stop"
    text_parameter: str | None = None
    fills_text = True
    never_drops = False
    needs_all_documents = False
    role: Literal["", "score_filter", "deduplication"] = ""
    notes_changes = False
    fork_safe = False
    takes_all_files = False
    is_source_stage = False
    is_sink_stage = False
    is_resumable = True

    _requested_workers: int | None = _UNSET
    _ray_spec: Mapping[str, Any] = {}
    _xenna_spec: Mapping[str, Any] = {}
    _metrics: dict[str, float] | None = None

    def __init_subclass__(cls, **options: Any) -> None:
        """Reject definitions that look right but would be silently ignored; register all others by name."""
        super().__init_subclass__(**options)
        where, defined = f"{cls.__module__}.{cls.__qualname__}", cls.__dict__
        for attribute in _PLAIN_ATTRIBUTES:
            if f"_{attribute}" in defined and attribute != "runtime_env":
                raise StageDefinitionError(f"{where} defines _{attribute}; use {attribute} instead.")
            if isinstance(defined.get(attribute), property):
                raise StageDefinitionError(
                    f"{where} defines {attribute} as a property, which with_() cannot change; make it a class "
                    "attribute."
                )
        size = defined.get("batch_size", 1)
        if not isinstance(size, Field) and not is_batch_size(size):
            raise StageDefinitionError(
                f"{where} has batch_size = {size!r}; it must be a whole number of tasks, at least 1, or None for one."
            )
        annotated = "num_workers" in inspect.get_annotations(cls)
        if annotated or ("num_workers" in defined and not callable(defined["num_workers"])):
            raise StageDefinitionError(
                f"{where} has num_workers as an attribute; define a method num_workers(self) instead."
            )
        for claim in _NOT_INHERITED:
            if claim not in cls.__dict__:
                setattr(cls, claim, False)
        if not inspect.isabstract(cls):
            _registry[cls.__name__] = cls

    # --- the work ---

    @abstractmethod
    def process(self, task: X) -> Y | list[Y] | Iterator[Y] | None:
        """Turn one task into one, several (a list, or an iterator that is consumed lazily) or none.

        Called in a worker, many times. Returning None means that every document was dropped, with the stage's name as
        the reason.
        """

    def process_batch(self, tasks: list[X]) -> list[Y]:
        """Turn several tasks into any number; override it if processing many at once is faster.

        Called in a worker with up to `batch_size` tasks. If a stage overrides it, `process` is not called
        automatically.
        """
        results: list[Y] = []
        for task in tasks:
            if not self.validate_input(task):
                raise UsageError(
                    f"Task {task.task_id or task!r} failed validation for stage {self.name!r}: "
                    f"it needs {self.input_spec_for_task(task)}."
                )
            given = self.process(task)
            if given is None:
                continue
            if isinstance(given, Task):
                results.append(given)
            else:
                results.extend(given)
        return results

    # --- the life of a worker ---

    def check_environment(self) -> None:
        """Called in the driver when a run is planned: fail early if workers would fail.

        For example because a package is missing. It only checks: nothing is loaded or downloaded.
        """

    def keep_record(self, folder: str) -> None:
        """Called in the driver when a run with an output is planned: the stage may keep files in `folder`, the record.

        Called on the copy of the stage that workers get.
        """

    def begin_run(self) -> None:
        """Called once in the driver when a run starts, before its first task; not by `explain`."""

    def warm_up(self) -> None:
        """Called once in the driver before workers start: load or compile what all of them use."""

    def setup_on_node(self, node_info: NodeInfo | None = None, worker_metadata: WorkerMetadata | None = None) -> None:
        """Called once per node and stage, before any worker starts there: download, unpack."""

    def setup(self, worker_metadata: WorkerMetadata | None = None) -> None:
        """Called once per worker before its first task: load models, open connections."""

    def teardown(self) -> None:
        """Called once per worker at its end, also after an error or an interrupt."""

    # --- declarations ---

    def inputs(self) -> Spec | dict[type[Task[Any]], Spec]:
        """The attributes and columns this stage reads: `(["data"], ["text"])`; checked when the pipeline is planned."""
        return [], []

    def outputs(self) -> Spec:
        """The attributes and columns this stage adds or keeps; `([], [])` declares nothing."""
        return [], []

    def check_columns(self, columns: Collection[str]) -> None:
        """Called when a run is planned: reject these columns for a reason that `inputs` cannot express."""

    def filled_columns(self) -> list[str]:
        """Columns that this stage writes: those in `outputs` that it does not read; unknown without `inputs`.

        Planning warns where existing values would be overwritten.
        """
        declared = self.inputs()
        if isinstance(declared, dict) or type(self).inputs is ProcessingStage.inputs:
            return []
        filled = dict.fromkeys(self.outputs()[1])
        for name in declared[1]:
            filled.pop(name, None)
        return list(filled)

    def content_digest(self) -> str | None:
        """A digest of local files that affect the results but are only named by the parameters; None if there are none.

        An interrupted run is not resumed with different files.
        """
        return None

    def num_workers(self) -> int | None:
        """A fixed number of workers, or None to let the executor decide."""
        return None

    def requested_workers(self) -> int | None:
        """The number of workers, including `with_(num_workers=…)`."""
        return self.num_workers() if self._requested_workers is _UNSET else self._requested_workers

    def ray_stage_spec(self) -> dict[str, Any]:
        """Settings of this stage for executors on Ray Data."""
        return {"is_fanout_stage": self._fans_out()}

    def xenna_stage_spec(self) -> dict[str, Any]:
        """Settings of this stage for the Xenna executor, such as `worker_max_lifetime_m`."""
        return {}

    def merged_ray_stage_spec(self) -> dict[str, Any]:
        """`ray_stage_spec` with the overrides of `with_`."""
        return {**self.ray_stage_spec(), **self._ray_spec}

    def merged_xenna_stage_spec(self) -> dict[str, Any]:
        """`xenna_stage_spec` with the overrides of `with_`."""
        return {**self.xenna_stage_spec(), **self._xenna_spec}

    def fuse(self, following: Sequence[ProcessingStage[Any, Any]]) -> FusedStage | None:
        """One stage that does the work of this one and of some directly following stages, or None.

        The planner asks each stage once, from the front. Built-in filters return a stage that makes a single pass over
        the column.
        """
        return None

    # --- helpers ---

    def input_spec_for_task(self, task: Task[Any]) -> Spec:
        """The part of `inputs()` that applies to this type of task."""
        declared = self.inputs()
        if not isinstance(declared, dict):
            return declared
        for kind in type(task).__mro__:
            if kind in declared:
                return declared[kind]
        return [], []

    def validate_input(self, task: X) -> bool:
        """Whether the task has the attributes and columns that `inputs` declares."""
        attributes, columns = self.input_spec_for_task(task)
        for attribute in attributes:
            # Looked up without being read: the data of a batch may have to be decoded first.
            if attribute not in vars(task) and not hasattr(type(task), attribute):
                return False
        return not columns or not hasattr(task, "get_columns") or set(columns).issubset(task.get_columns())

    def supports_batch_processing(self) -> bool:
        """Whether the stage implements `process_batch` itself."""
        return type(self).process_batch is not ProcessingStage.process_batch

    def get_config(self) -> dict[str, Any]:
        """The stage's settings as the executors see them."""
        return {
            "name": self.name,
            "resources": self.resources,
            "batch_size": self.batch_size,
            "supports_batch_processing": self.supports_batch_processing(),
        }

    def with_(
        self,
        name: str | None = None,
        resources: Resources | None = None,
        batch_size: int | None = None,
        runtime_env: Mapping[str, Any] | None = None,
        ray_stage_spec: Mapping[str, Any] | None = None,
        xenna_stage_spec: Mapping[str, Any] | None = None,
        num_workers: int | None = _UNSET,
        *,
        time_limit_s: float | None = None,
    ) -> ProcessingStage[X, Y]:
        """A copy with some settings changed; omitted settings are kept.

        Example:
            >>> gpu = stage.with_(resources=Resources(gpus=0.25), batch_size=8)
        """
        changed = own_copy(self)
        if name is not None:
            changed.name = name
        if resources is not None:
            if not isinstance(resources, Resources):
                raise UsageError(f"with_(resources={resources!r}): must be a Resources object.")
            changed.resources = resources
        if batch_size is not None:
            if not is_batch_size(batch_size):
                raise UsageError(f"with_(batch_size={batch_size!r}): must be a whole number of tasks, at least 1.")
            changed.batch_size = batch_size
        if runtime_env is not None:
            changed.runtime_env = runtime_env
        if ray_stage_spec is not None:
            changed._ray_spec = {**self._ray_spec, **ray_stage_spec}
        if xenna_stage_spec is not None:
            if "num_workers" in xenna_stage_spec:
                raise UsageError("xenna_stage_spec has no key 'num_workers': use with_(num_workers=…).")
            changed._xenna_spec = {**self._xenna_spec, **xenna_stage_spec}
        if num_workers is not _UNSET:
            if num_workers is not None and (isinstance(num_workers, bool) or num_workers < 1):
                raise UsageError(f"with_(num_workers={num_workers!r}): must be at least 1, or None to reset.")
            changed._requested_workers = num_workers
        if time_limit_s is not None:
            changed.time_limit_s = time_limit_s
        return changed

    def _fans_out(self) -> bool:
        try:
            given = get_type_hints(type(self).process).get("return")
        except (NameError, TypeError):
            given = inspect.signature(type(self).process).return_annotation
            return isinstance(given, str) and given.replace("Iterator", "list").startswith("list[")
        kinds = [given, *get_args(given)]
        return any(get_origin(kind) in (list, Iterator) or kind is list for kind in kinds)

    def running_metrics(self) -> Mapping[str, float]:
        """Custom metrics of calls that have not returned yet, for the live display; called from another thread."""
        return {}

    def _log_metric(self, name: str, value: float) -> None:
        """Add `value` to the custom metric `name` of this call."""
        self._log_metrics({name: value})

    def _log_metrics(self, figures: Mapping[str, float]) -> None:
        """Add several custom metrics to this call."""
        if self._metrics is None:
            self._metrics = {}
        for name, value in figures.items():
            self._metrics[name] = self._metrics.get(name, 0.0) + value

    @contextmanager
    def _time_metric(self, name: str) -> Iterator[None]:
        """Add the seconds of the enclosed block to the custom metric `name`."""
        start = time.perf_counter()
        try:
            yield
        finally:
            self._log_metric(name, time.perf_counter() - start)

    def _consume_custom_metrics(self) -> dict[str, float]:
        """The custom metrics since the last call, which are then reset."""
        figures, self._metrics = self._metrics or {}, None
        return figures

    def __repr__(self) -> str:
        return f"{type(self).__name__}(name={self.name!r})"


class FusedStage(ProcessingStage[Any, Any]):
    """A stage that does the work of several; reports remain per member.

    Drops name their member by `batch.drop(..., stage=member.name)`; the runner derives the input and output rows of
    each member from them, in the order of `members`.
    """

    members: Sequence[ProcessingStage[Any, Any]] = ()

    @abstractmethod
    def process(self, task: Any) -> Any:
        """Do the work of all members."""

    def filled_columns(self) -> list[str]:
        """The columns that the members write."""
        names: list[str] = []
        for member in self.members:
            names += member.filled_columns()
        return names


class CompositeStage(ProcessingStage[X, Y]):
    """A stage that represents a sequence of others, which the planner expands.

    Example:
        >>> class Clean(CompositeStage):
        ...     name = "clean"
        ...
        ...     def decompose(self):
        ...         return [Normalise(), Filter()]
    """

    _changes: tuple[Mapping[str, Mapping[str, Any]], ...] = ()
    _keywords: Mapping[str, Any] = {}

    @abstractmethod
    def decompose(self) -> list[ProcessingStage[Any, Any]]:
        """The stages to run instead, in order; they may be composites themselves."""

    def process(self, task: X) -> Y | list[Y] | Iterator[Y] | None:
        """Never called: a composite is expanded before anything runs."""
        raise StageDefinitionError(
            f"{type(self).__name__} is a composite: put it into a Pipeline, or run the stages of .decompose()."
        )

    def inputs(self) -> Spec | dict[type[Task[Any]], Spec]:
        return self.decompose()[0].inputs()

    def outputs(self) -> Spec:
        return self.decompose()[-1].outputs()

    def with_(  # type: ignore[override]
        self, stage_config: Mapping[str, Mapping[str, Any]] | str | None = None, /, **settings: Any
    ) -> Any:
        """A copy with changed settings: for one part, or for all of them.

        Resources with GPUs are applied only to the parts that request a GPU themselves, if any does: a model gets them,
        the tokenizer before it keeps its own.

        Args:
            stage_config: `{stage name: {setting: value}}` for the named parts.
            **settings: The settings of `ProcessingStage.with_`, applied to every part (`name` to the composite).
        """
        changed = own_copy(self)
        if isinstance(stage_config, str):
            settings["name"] = stage_config
        elif stage_config is not None:
            changed._changes = (*self._changes, dict(stage_config))
        if "name" in settings:
            changed.name = settings.pop("name")
        if settings:
            changed._keywords = {**self._keywords, **settings}
        changed.decompose_and_apply_with()
        return changed

    def decompose_and_apply_with(
        self, before: Sequence[ProcessingStage[Any, Any]] = ()
    ) -> list[ProcessingStage[Any, Any]]:
        """The parts with the changes of `with_` applied; `before` are the expanded stages before it."""
        parts = list(self.decompose())
        if not self._changes and not self._keywords:
            return parts
        names = [part.name for part in parts]
        if self._changes and len(set(names)) != len(names):
            twice = sorted({name for name in names if names.count(name) > 1})
            raise UsageError(f"{type(self).__name__} has several parts named {twice}; with_ cannot tell them apart.")
        if self._keywords:
            parts = _with_keywords(parts, self._keywords)
        for change in self._changes:
            for name, settings in change.items():
                if name not in names:
                    raise UsageError(
                        f"{type(self).__name__} has no part named {name!r}; it has {', '.join(map(repr, names))}."
                        f"{did_you_mean(name, names)}"
                    )
                place = names.index(name)
                parts[place] = parts[place].with_(**settings)
                names[place] = parts[place].name
        return parts


def _with_keywords(
    parts: Sequence[ProcessingStage[Any, Any]], keywords: Mapping[str, Any]
) -> list[ProcessingStage[Any, Any]]:
    """The parts of a composite with common settings; GPUs only for those that request one, if any does."""
    resources = keywords.get("resources")
    if not getattr(resources, "requires_gpu", False) or not any(_asks_for_gpu(part) for part in parts):
        return [part.with_(**keywords) for part in parts]
    others = {name: value for name, value in keywords.items() if name != "resources"}
    return [part.with_(**(keywords if _asks_for_gpu(part) else others)) for part in parts]


def _asks_for_gpu(stage: ProcessingStage[Any, Any]) -> bool:
    if isinstance(stage, CompositeStage):
        return any(_asks_for_gpu(part) for part in stage.decompose_and_apply_with())
    return stage.resources.requires_gpu


def member_names(stage: ProcessingStage[Any, Any]) -> tuple[str, ...]:
    """The names under which the rows of `stage` are counted: its own, or those of its members."""
    return tuple(map(attrgetter("name"), stage.members)) if isinstance(stage, FusedStage) else (stage.name,)
