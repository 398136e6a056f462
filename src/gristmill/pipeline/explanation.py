"""Describes in words what a run would do, for `Pipeline.describe` and `gristmill plan`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gristmill.backends.base import BaseExecutor
from gristmill.backends.plan import Segment
from gristmill.errors import GristmillError
from gristmill.figures import format_size, plural
from gristmill.ledger.record.input_files import sentence, totals
from gristmill.pipeline.output import preview_output
from gristmill.pipeline.run import Options, Prepared, prepare
from gristmill.stages.base import FusedStage

if TYPE_CHECKING:
    from gristmill.pipeline.pipeline import Pipeline


def explain(pipeline: Pipeline, chosen: BaseExecutor, options: Options) -> str:
    """The plan in words: input, segments with their stages, resources and workers, output and its progress."""
    prepared = prepare(pipeline, chosen, None, options)
    plan, partitions = prepared.plan, prepared.partitions
    capacity = chosen.capacity()
    size = sum(piece.size for partition in partitions for piece in partition.ranges if piece.whole)
    size += sum(piece.end - piece.start for p in partitions for piece in p.ranges if not piece.whole and piece.end > 0)
    there = f"{_counted(capacity.cpus, 'CPU')}, {_counted(capacity.gpus, 'GPU')}"
    lines = [f"Pipeline {pipeline.name} on {chosen.name}: {there}"]
    if prepared.sketch.source is not None:
        kind = "" if prepared.files is None else f" of {prepared.files.format}"
        known = f", {format_size(size)}{kind}" if size >= 0 else ""
        lines.append(f"Input: {plural(len(partitions), 'partition')}{known}")
    if prepared.files is not None and prepared.files.left_out:
        lines.append(sentence(totals(prepared.files.left_out)))
    for segment in plan.segments:
        lines.extend(_segment_lines(segment))
    if plan.settings.output is not None:
        lines.append(f"Output: {plan.settings.output}")
        lines.append(f"Record: {plan.settings.record}")
        comparing = [stage.name for stage in prepared.sketch.stages if stage.needs_all_documents]
        if comparing:
            lines.append(
                f"Runs in steps, because {' and '.join(comparing)} must compare all documents before any continues. "
                "Intermediate files are kept in the record and removed at the end."
            )
        elif plan.whole_partitions:
            lines.append("Each partition is processed by one worker from start to finish.")
        lines.extend(_standing(prepared))
    lines.extend(f"Note: {note}" for note in plan.notes)
    return "\n".join(lines)


def _standing(prepared: Prepared) -> list[str]:
    """How much of the output is already done, or why a run would not start."""
    sink, source = prepared.sketch.sink, prepared.sketch.source
    assert sink is not None
    assert prepared.folder is not None
    searched = [] if source is None else source.searched_folders()
    try:
        found = preview_output(prepared.folder, sink, prepared.plan, prepared.partitions, searched=searched)
    except (GristmillError, OSError) as error:
        return [f"A run would refuse: {error}"]
    done, again = len(found.done), [*found.changed, *found.damaged]
    if not done and not again:
        return []
    total = len(prepared.partitions)
    left = f"a run would process {total - done}" if done < total else "nothing is left to run"
    lines = [f"{done} of {plural(total, 'partition')} {'is' if done == 1 else 'are'} done; {left}."]
    if again:
        more = f", and {len(again) - 1} more" if len(again) > 1 else ""
        lines.append(f"To be redone: {again[0]} ({found.reasons[again[0]]}){more}.")
    return lines


def _segment_lines(segment: Segment) -> list[str]:
    workers = "as many workers as fit" if segment.workers is None else plural(segment.workers, "worker")
    gpus = f", {_counted(segment.resources.gpus, 'GPU')}" if segment.resources.gpus else ""
    tasks = f", {segment.batch_size} tasks per call" if segment.batch_size > 1 else ""
    lines = [f"Segment {segment.index + 1}: {workers}, each {_counted(segment.resources.cpus, 'CPU')}{gpus}{tasks}"]
    for stage in segment.stages:
        if isinstance(stage, FusedStage):
            lines.append(f"  {stage.name}: {len(stage.members)} stages in one pass")
            lines.extend(f"    {member.name}" for member in stage.members)
        else:
            limit = f" (time limit {stage.time_limit_s:g} s per document)" if stage.time_limit_s is not None else ""
            lines.append(f"  {stage.name}{limit}")
    return lines


def _counted(number: float, name: str) -> str:
    return f"{number:g} {name}" if number == 1 else f"{number:g} {name}s"
