"""Ids of documents that do not depend on how files are split, and removal that fails if a listed id is not found.

An id is a file's name and a row in it (`crawl/a:17`), so stages that assign ids read one whole file per partition.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from gristmill.compat.constructors import warn_without_effect
from gristmill.compat.id_generator import CURATOR_DEDUP_ID_STR
from gristmill.compat.removal import TextDuplicatesRemovalStage
from gristmill.compat.slurm_array import SlurmArrayConfig, shard_of_partition
from gristmill.errors import InputChangedError
from gristmill.figures import plural
from gristmill.pipeline import planner
from gristmill.pipeline.run import RunReport
from gristmill.stages.text.io.reader.partitioning import FilePartitioningStage
from gristmill.storage.formats import format_of
from gristmill.storage.partitions import Partition


@dataclass
class RemovalCheck:
    """The ids that a run has to find, by the removal stage that lists them."""

    listed: dict[str, int] = field(default_factory=dict)

    def check(self, report: RunReport) -> None:
        """Compare the number of listed ids with what the run removed.

        Documents that earlier stages dropped or quarantined may be among the listed ones.

        Raises:
            InputChangedError: Listed ids were not found.
        """
        lost = 0
        for stage in report.stages:
            gone = sum(stage.dropped.values())
            missing = self.listed.get(stage.name, 0) - gone
            if missing > lost:
                raise InputChangedError(
                    f"Stage {stage.name!r} should have removed {plural(self.listed[stage.name], 'document')}, but "
                    f"{plural(missing, 'listed id')} never occurred and only {plural(lost, 'document')} had been "
                    "dropped before: a file has changed since its duplicates were identified, so other documents may "
                    "have been removed. Identify duplicates again, and discard this output.",
                    stage=stage.name,
                    missing=missing,
                )
            lost += gone + sum(stage.quarantined.values())


@contextmanager
def checked_ids() -> Iterator[RemovalCheck]:
    """Make the runs inside assign ids by whole files, and reject a removal list that names files they do not read."""
    found = RemovalCheck()

    def change(sketch: planner.Draft) -> None:
        if isinstance(sketch.source, FilePartitioningStage):
            if any(getattr(stage, "assigns_ids", False) for stage in sketch.stages):
                _separate_files(sketch.source)
            for stage in sketch.stages:
                if isinstance(stage, TextDuplicatesRemovalStage) and stage.id_field == CURATOR_DEDUP_ID_STR:
                    _check_files(sketch.source, stage, found)

    planner.draft_hooks.append(change)
    try:
        yield found
    finally:
        planner.draft_hooks.remove(change)


def _separate_files(source: FilePartitioningStage) -> None:
    for option in ("blocksize", "files_per_partition"):
        if getattr(source, option) not in (None, 1):
            warn_without_effect(type(source).__name__, option, stacklevel=2)
    source.blocksize, source.files_per_partition = None, 1
    find = source.partitions

    def partitions() -> list[Partition]:
        """Files are named as by a reader of their format."""
        found = find()
        formats = {format_of(piece.relative) for partition in found for piece in partition.ranges}
        kind = formats.pop() if len(formats) == 1 else None
        if kind is not None and kind != source.format:
            source.format = kind
            found = find()
        return found

    source.partitions = partitions  # type: ignore[method-assign]


def _check_files(source: FilePartitioningStage, stage: TextDuplicatesRemovalStage, found: RemovalCheck) -> None:
    if source.limit is not None or source.selection is not None:
        return  # the script requested a part of the documents
    find = source.partitions

    def partitions() -> list[Partition]:
        all_of_them = find()
        counts = stage.listed_by_file()
        known = {partition.id for partition in all_of_them}
        unknown = [file for file in counts if file not in known]
        if unknown:
            raise InputChangedError(
                f"{stage.ids_to_remove_path} lists {plural(sum(map(counts.__getitem__, unknown)), 'id')} of documents "
                f"that are not in the input: there is no file {unknown[0]!r}, but {_some(known)}. Read the same "
                "folder as the stage that assigned the ids, and with _assign_ids=True; ids that a workflow assigned "
                "are removed by TextDuplicatesRemovalWorkflow.",
                path=stage.ids_to_remove_path,
                files=unknown,
            )
        array = SlurmArrayConfig.from_env()
        mine = counts if array is None else [file for file in counts if shard_of_partition(file, array)]
        found.listed[stage.name] = sum(map(counts.__getitem__, mine))
        return all_of_them

    source.partitions = partitions  # type: ignore[method-assign]


def _some(names: set[str]) -> str:
    shown = ", ".join(map(repr, sorted(names)[:3]))
    return shown if len(names) <= 3 else f"{shown} and {len(names) - 3} more"
