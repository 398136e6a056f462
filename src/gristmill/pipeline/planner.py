"""Turns the stages of a pipeline into an execution plan: expand, check, fuse.

Every predictable failure is found here, before any data is read.
"""

from __future__ import annotations

import typing
from collections import Counter
from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import dataclass, replace
from itertools import chain, count, pairwise, repeat
from operator import attrgetter

from gristmill.backends.base import Capacity
from gristmill.backends.plan import ExecutionPlan, RunSettings, Segment, Stage
from gristmill.errors import MissingColumnError, PlanningError, ResourcesError, UsageError, did_you_mean
from gristmill.figures import format_size
from gristmill.stages.base import CompositeStage, FusedStage, ProcessingStage, is_batch_size, member_names, own_copy
from gristmill.stages.resources import Resources
from gristmill.stages.source_sink import ReaderStage, SinkStage, SourceColumns, SourceStage
from gristmill.storage.partitions import Partition
from gristmill.tasks.base import EmptyTask

_MAX_DEPTH = 50
_TAKES_ALL = attrgetter("takes_all_files")
_MANY_PARTITIONS, _TINY_BYTES = 20, 100_000
_LARGE_BYTES = 256 * 10**6
_ranges = attrgetter("ranges")
"""A notice is shown for at least this many partitions below this size: no batch spans several partitions."""


@dataclass(slots=True)
class Draft:
    """A plan in progress: the source, the stages that documents pass, and the last one if it is a writer."""

    source: SourceStage | None
    stages: list[Stage]
    sink: SinkStage | None = None


draft_hooks: list[Callable[[Draft], None]] = []
"""Functions called with every draft, which they may change; `gristmill.compat` uses it to select one shard of the
input."""
default_name: Callable[[Stage], str] | None = None
"""Names a stage whose class has no name. If set, stages that share a name are numbered; otherwise they are rejected."""


def expand(stages: Sequence[Stage]) -> list[Stage]:
    """The stages with every composite replaced by its parts, at any depth.

    Users cannot see the names of parts, so a duplicate name (the same classifier used twice, for example) gets a
    number.
    """
    flat: list[Stage] = []
    taken: set[str] = set()
    for stage in stages:
        waiting = [(stage, 0)]
        while waiting:
            piece, depth = waiting.pop()
            if isinstance(piece, CompositeStage):
                if depth > _MAX_DEPTH:
                    raise PlanningError(f"Composite stage {piece.name!r} contains itself.", stage=piece.name)
                inner = piece.decompose_and_apply_with(flat)
                if not inner:
                    raise PlanningError(f"Composite stage {piece.name!r} has no parts: decompose() returned nothing.")
                waiting.extend(zip(reversed(inner), repeat(depth + 1)))
                continue
            if default_name is not None and piece.name == ProcessingStage.name:
                piece = piece.with_(name=default_name(piece))
            numbers = default_name is not None or piece is not stage
            if numbers and piece.name in taken and not isinstance(piece, FusedStage):
                numbered = (f"{piece.name}_{number}" for number in count(2))
                piece = piece.with_(name=next(name for name in numbered if name not in taken))
            taken.add(piece.name)
            flat.append(piece)
    return flat


def draft(stages: Sequence[Stage], *, has_initial_tasks: bool) -> Draft:
    """Expand the stages and run the checks that need no input.

    Raises:
        PlanningError: The stages cannot form a pipeline.
    """
    flat = expand(stages)
    if not flat:
        raise PlanningError("The pipeline has no stages. Add some with add_stage().")
    for place, stage in enumerate(flat):
        if isinstance(stage, SourceStage) and place:
            raise _misplaced_source(stages, stage)
    names = list(chain.from_iterable(map(member_names, flat)))
    twice = [name for name, number in sorted(Counter(names).items()) if number > 1]
    if twice:
        raise PlanningError(
            f"Several stages are named {', '.join(map(repr, twice))}, but reports identify stages by name. "
            f"Rename one: stage.with_(name={twice[0] + '_2'!r}), in a recipe 'with: {{name: {twice[0]}_2}}'.",
            names=twice,
        )
    for stage, after in pairwise(flat):
        if isinstance(stage, SinkStage):
            raise PlanningError(
                f"Writer {stage.name!r} is followed by {after.name!r}; a writer must come last. "
                "To write twice, run two pipelines.",
                stage=stage.name,
            )
    # A shallow copy: its list of files can be very long.
    source = copy(flat[0]) if isinstance(flat[0], SourceStage) else None
    if source is not None and has_initial_tasks:
        raise PlanningError("The pipeline has a reader and was also given initial_tasks; use one of the two.")
    rest = [own_copy(stage) for stage in (flat[1:] if source is not None else flat)]
    for stage in rest:
        if stage.time_limit_s is not None and not 0 < stage.time_limit_s < float("inf"):
            told = f"Stage {stage.name!r} has time_limit_s={stage.time_limit_s!r}; it must be above 0, and finite."
            raise PlanningError(told, stage=stage.name)
        if stage.batch_size != 1 and not is_batch_size(stage.batch_size):
            raise PlanningError(
                f"Stage {stage.name!r} has batch_size={stage.batch_size!r}; it must be a whole number of tasks, at "
                "least 1, or None for one at a time.",
                stage=stage.name,
            )
    if not rest:
        raise PlanningError(f"The pipeline only lists files with {flat[0].name!r}; add a reader stage.")
    if source is None and not has_initial_tasks and not _begins(rest[0]):
        raise PlanningError(
            f"The first stage, {rest[0].name!r}, needs documents, but the pipeline has no reader. "
            "Add a JsonlReader or ParquetReader first, or call run(initial_tasks=[…]).",
            stage=rest[0].name,
        )
    if source is not None:
        reader = rest[0] if isinstance(rest[0], ReaderStage) and rest[0].reads_ranges else None
        if reader is None or reader.only_format not in (None, source.format):
            source.serve(rest[0])
        if any(map(_TAKES_ALL, rest)):
            source.gather_files()
    sketch = Draft(source, rest, rest[-1] if isinstance(rest[-1], SinkStage) else None)
    for change in draft_hooks:
        change(sketch)
    return sketch


def _misplaced_source(stages: Sequence[Stage], source: Stage) -> PlanningError:
    """The message for a source that is not the first stage, in terms of the stage the user wrote."""
    for before, stage in pairwise(stages):
        if any(isinstance(part, SourceStage) for part in expand([stage])):
            return PlanningError(
                f"A reader must be the first stage: {type(stage).__name__} ({stage.name!r}) was found after "
                f"{before.name!r}. To read several places, pass file_paths=[…, …] to one reader.",
                stage=stage.name,
            )
    return PlanningError(f"A reader must be the first stage, but {source.name!r} is not.", stage=source.name)


def _begins(stage: Stage) -> bool:
    """Whether a stage can be the first without any input."""
    if stage.is_source_stage:
        return True
    for base in getattr(type(stage), "__orig_bases__", ()):
        kinds = typing.get_args(base)
        if kinds and isinstance(kinds[0], type):
            return issubclass(kinds[0], EmptyTask)
    try:
        hints = typing.get_type_hints(type(stage).process)
    except (NameError, TypeError):
        hints = {}
    taken = [kind for name, kind in hints.items() if name != "return"]
    if taken and isinstance(taken[0], type):
        return issubclass(taken[0], EmptyTask)
    return stage.inputs() == ([], [])


def declared_columns(stages: Sequence[Stage]) -> tuple[list[str], list[str]]:
    """The columns that stages read and no earlier stage provides, and the columns that they provide."""
    wanted: dict[str, None] = {}
    provided: dict[str, None] = {}
    for stage in stages:
        for member in stage.members if isinstance(stage, FusedStage) else [stage]:
            declared = member.inputs()
            for _, names in declared.values() if isinstance(declared, dict) else [declared]:
                for name in names:
                    if name not in provided:
                        wanted[name] = None
            provided.update(dict.fromkeys(member.outputs()[1]))
    return list(wanted), list(provided)


def check_columns(stages: Sequence[Stage], found: SourceColumns | None) -> list[str]:
    """Track the columns from the source through the stages.

    Returns:
        Notes about columns that were not seen but may still appear (if not, the stage fails), and about input columns
        that a stage overwrites.

    Raises:
        MissingColumnError: A stage reads a column that does not exist at that point.
        PlanningError: A stage reads text from a column of another type, or would overwrite a text with its results.
    """
    notes: list[str] = []
    if found is None:
        return notes
    known = dict.fromkeys(found.names)
    owners: dict[str, str | None] = dict.fromkeys(known)  # stages; None owns the columns of the input
    not_text = dict(found.not_text)
    texts: list[tuple[str, ...]] = []  # the columns that each stage reads as text
    for stage in stages:
        given = () if stage.text_parameter is None else getattr(stage, stage.text_parameter)
        texts.append((given,) if isinstance(given, str) else tuple(given))
    for stage, reads in zip(stages, texts, strict=True):
        if isinstance(stage, ReaderStage):
            continue
        needed, provided = declared_columns([stage])
        for name in needed:
            if name not in known and not found.complete:
                notes.append(
                    f"{stage.name} reads column {name!r}, which is missing from all {found.looked_at} sampled (found: "
                    f"{', '.join(map(repr, known)) or 'none'}).{did_you_mean(name, known)} The stage fails on batches "
                    "without it."
                )
                known[name] = None
            elif name not in known:
                is_text = name in reads
                name_it = f"with {stage.text_parameter}" if is_text else "in the stage's parameters"
                name_it += " (--text-field)" if is_text and stage.text_parameter != "url_field" else ""
                raise MissingColumnError(
                    f"Stage {stage.name!r} reads column {name!r}, which is missing (found: "
                    f"{', '.join(map(repr, known)) or 'none'}, from {found.looked_at}).{did_you_mean(name, known)} "
                    f"Name the right one {name_it}, or add a stage before it that writes "
                    f"{name!r}{', such as HtmlExtractor' if is_text and 'html' in known else ''}.{found.beside}",
                    stage=stage.name,
                    column=name,
                    available=list(known),
                    beside=found.beside,
                )
        for name in reads:
            if name in not_text:
                cause = f"({stage.text_parameter}) holds {not_text[name]} in {found.looked_at}: use a text column."
                raise _no_text(stage, name, cause)
        stage.check_columns(list(known))
        for name in needed:
            if owners.get(name) is not None:
                del owners[name]  # a later stage has read what was written there
        for name in stage.filled_columns():
            if name in known and not stage.fills_text and name in chain.from_iterable(texts):
                raise _no_text(
                    stage, name, "holds text, which the stage's results would overwrite: choose another column."
                )
            if name in owners and owners[name] is None:
                notes.append(
                    f"{stage.name} writes column {name!r}, which the input already has: the input values are "
                    "overwritten. Choose another column for the stage to keep them."
                )
            elif name in owners:
                notes.append(
                    f"{stage.name} overwrites column {name!r}, written by {owners[name]} before any stage reads it. "
                    "Choose another column for one of them."
                )
            owners[name] = stage.name
        known.update(dict.fromkeys(provided))
        for name in provided if stage.fills_text else ():
            not_text.pop(name, None)
        if not provided and not needed and type(stage).outputs is ProcessingStage.outputs:
            break  # a stage that declares nothing may add any column
    return notes


def _no_text(stage: Stage, column: str, cause: str) -> PlanningError:
    """The error for a text column that holds something else, or would."""
    return PlanningError(f"Stage {stage.name!r}: column {column!r} {cause}", stage=stage.name, column=column)


def fuse_stages(stages: Sequence[Stage]) -> list[Stage]:
    """The stages with fusible runs replaced by single stages, as offered by the first stage of a run."""
    fused: list[Stage] = []
    place = 0
    while place < len(stages):
        offer = stages[place].fuse(stages[place + 1 :])
        if offer is None:
            fused.append(stages[place])
            place += 1
            continue
        fused.append(offer)
        place += len(offer.members)
    return fused


def resolve(stage: Stage, capacity: Capacity, notes: list[str]) -> Resources:
    """The resources of a worker of the stage on this executor.

    Raises:
        ResourcesError: No worker here can provide them.
    """
    asked = stage.resources
    needs_gpu = asked.gpus or asked.gpu_memory_gb
    if needs_gpu and not capacity.gpus:
        if stage.runs_without_gpu:
            notes.append(f"No GPU found: {stage.name} will run on the CPU.")
            return Resources(cpus=asked.cpus)
        amount = f"gpus={asked.gpus:g}" if asked.gpus else f"gpu_memory_gb={asked.gpu_memory_gb:g}"
        raise ResourcesError(
            f"Stage {stage.name!r} requests a GPU ({amount}), but this executor has none. Run it on a machine with "
            "one, declare slots with the executor's num_gpus, or use "
            f".with_(resources=Resources(cpus={asked.cpus:g})).",
            stage=stage.name,
            asked=asked,
        )
    if asked.cpus > capacity.largest_node_cpus:
        raise ResourcesError(
            f"Stage {stage.name!r} requests {asked.cpus:g} CPUs per worker, but a worker can have at most "
            f"{capacity.largest_node_cpus:g} here. Request fewer: "
            f".with_(resources=Resources(cpus={max(1, int(capacity.largest_node_cpus))})).",
            stage=stage.name,
            asked=asked,
        )
    if not needs_gpu:
        return asked
    try:
        gpus = asked.gpus_on(capacity.gpu_memory_gb)
    except UsageError as error:
        raise ResourcesError(f"Stage {stage.name!r}: {error}", stage=stage.name, asked=asked) from error
    if gpus > capacity.largest_node_gpus:
        raise ResourcesError(
            f"Stage {stage.name!r} requests {gpus:g} GPUs per worker, but a worker can have at most "
            f"{capacity.largest_node_gpus:g} here.",
            stage=stage.name,
            asked=asked,
        )
    return Resources(cpus=asked.cpus, gpus=gpus)


def make_segments(
    stages: Sequence[Stage], capacity: Capacity, notes: list[str], *, share: bool = True
) -> tuple[Segment, ...]:
    """Group adjacent stages that can share a worker (none, unless `share`)."""
    segments: list[Segment] = []
    joinable = False  # whether the last segment takes more stages
    for stage in stages:
        resources = resolve(stage, capacity, notes)
        workers = stage.requested_workers()
        shares = share and not stage.needs_own_worker and not resources.gpus
        last = segments[-1] if segments else None
        if (
            shares
            and joinable
            and last is not None
            and last.resources == resources
            and last.runtime_env == stage.runtime_env
            and last.workers == workers
            and last.batch_size == (stage.batch_size or 1)
        ):
            segments[-1] = replace(last, stages=(*last.stages, stage))
        else:
            segments.append(
                Segment(len(segments), (stage,), resources, stage.batch_size or 1, workers, stage.runtime_env)
            )
        joinable = shares
    return tuple(segments)


def finish(
    name: str,
    sketch: Draft,
    capacity: Capacity,
    settings: RunSettings,
    partitions: Sequence[Partition] = (),
    *,
    share_workers: bool = True,
) -> ExecutionPlan:
    """The execution plan of a checked draft."""
    notes: list[str] = []
    stages = sketch.stages
    if sketch.source is not None and partitions:
        sketch.source.prepare(stages[0], partitions)
    if isinstance(stages[0], ReaderStage):
        columns, _ = declared_columns(stages[1:])
        identity = filter(None, () if settings.output is None else (settings.id_field, settings.url_field))
        stages[0].hints = tuple(dict.fromkeys([*columns, *identity]))
        if stages[0].selection is not None:
            notes.append(f"This run reads only {stages[0].selection}.")
    names = tuple(chain.from_iterable(map(member_names, stages)))
    segments = make_segments(fuse_stages(stages), capacity, notes, share=share_workers)
    if sketch.source is not None and len(segments) > 1 and len(partitions) >= _MANY_PARTITIONS:
        size = sum(part.size for partition in partitions for part in partition.ranges) // len(partitions)
        if 0 <= size < _TINY_BYTES:  # below zero if the sizes are unknown
            notes.append(
                f"{len(partitions)} partitions of about {format_size(size)}: later stages get small batches. Combine "
                "files with the reader's blocksize='128MB' or files_per_partition."
            )
    if len(partitions) < capacity.cpus:
        for part in chain.from_iterable(map(_ranges, partitions)):
            if part.whole and part.size >= _LARGE_BYTES:
                notes.append(
                    f"{part.relative} ({format_size(part.size)}) is one partition, so one worker reads it from start "
                    "to end: files of this format or compression are not split. To use more cores, provide it in "
                    "several files, or convert it to Parquet or uncompressed JSONL first."
                )
                break
    plan = ExecutionPlan(name, segments, replace(settings, stage_names=names), names, tuple(notes))
    for stage in stages:
        if isinstance(stage, ReaderStage):
            stage.salvage = settings.salvage
            # Documents passed on to another worker cannot be taken back when the end of their file turns out to be
            # damaged.
            stage.checks_first = not settings.salvage and not plan.whole_partitions
    return plan
