"""Finds the remaining work: compares the committed partitions of an output with the partitions of a new run."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from gristmill.errors import ResumeError
from gristmill.ledger.record.commit import remove_partition
from gristmill.ledger.record.layout import RECORD_FOLDER, RunFolder
from gristmill.ledger.record.manifest import Manifest, ManifestEntry
from gristmill.ledger.record.plan_record import check_plan, read_plan, write_plan
from gristmill.ledger.record.plan_record import plan_digest as digest_of
from gristmill.storage.files import is_local, local_path
from gristmill.storage.partitions import Partition, plain_name

_NAMED = 5


@dataclass(slots=True)
class Resume:
    """The status of a run's partitions.

    Attributes:
        done: Ids of committed partitions that need nothing.
        changed: Ids whose input has changed; they are redone and their outputs replaced.
        damaged: Ids whose output files are missing or have another size; they are redone.
        new: Ids that were never committed.
        vanished: Ids of committed partitions that are no longer part of the run and whose outputs were removed.
        reasons: For changed and damaged ids, what was found.
        rows_read: Number of rows read by the finished partitions, plus the approximate number lost with damaged files.
        quarantined: Number of records they quarantined or lost.
    """

    done: set[str] = field(default_factory=set)
    changed: list[str] = field(default_factory=list)
    damaged: list[str] = field(default_factory=list)
    new: list[str] = field(default_factory=list)
    vanished: list[str] = field(default_factory=list)
    reasons: dict[str, str] = field(default_factory=dict)
    rows_read: int = 0
    quarantined: int = 0

    def judge(
        self, entry: ManifestEntry, partition: Partition, sizes: Mapping[str, int] | None, *, salvage: bool
    ) -> None:
        """Classify a committed entry; `sizes` are those of the files in the output, if they should be checked."""
        if entry.fingerprint != partition.fingerprint():
            self.changed.append(partition.id)
            self.reasons[partition.id] = _what_changed(entry, partition)
        elif sizes is not None and (damage := _damage(entry, sizes)):
            self.damaged.append(partition.id)
            self.reasons[partition.id] = damage
        elif any((file.salvaged is not None) != salvage for file in entry.damaged or ()):
            self.changed.append(partition.id)
            self.reasons[partition.id] = f"damaged input files are {'now' if salvage else 'no longer'} to be salvaged"
        else:
            self.done.add(partition.id)
            self.rows_read += entry.rows_read + entry.lost
            self.quarantined += entry.quarantined + entry.lost


def decide(
    manifest: Manifest | Mapping[str, ManifestEntry],
    partitions: Sequence[Partition],
    plan_digest: str,
    *,
    remove_vanished: bool = False,
    sizes: Mapping[str, int] | None = None,
    salvage: bool = False,
) -> Resume:
    """Which partitions are done, and which must be processed (again).

    Committed partitions that are no longer part of the run are an error, because their rows would stay in the output
    without any source.

    Args:
        manifest: The committed entries. A `Manifest` is also checked against the files in its folder, its entries get
            their current index, and leftovers of unfinished commits are removed if their partition is gone.
        partitions: All partitions of the run.
        plan_digest: The digest of the plan.
        remove_vanished: Remove the outputs of vanished partitions instead of raising.
        sizes: For entries passed without their folder, the sizes of the files in it.
        salvage: Whether the run keeps the readable part of damaged files; partitions with such files that were handled
            differently are redone.

    Raises:
        ResumeError: Some partitions have vanished, or were made by another plan.
    """
    folder = manifest.folder if isinstance(manifest, Manifest) else None
    here = {partition.id: partition for partition in partitions}
    result = Resume()
    other: list[str] = []
    vanished: list[ManifestEntry] = []
    committed = 0
    moved = False
    for entry in manifest.scan() if isinstance(manifest, Manifest) else manifest.values():
        if folder is not None and sizes is None:
            sizes = folder.walk()
        committed += 1
        partition = here.get(entry.partition)
        if entry.plan != plan_digest:
            other.append(entry.partition)
        elif partition is None:
            vanished.append(entry)
        else:
            _check_name(entry, partition)
            result.judge(entry, partition, sizes, salvage=salvage)
            moved = moved or entry.index != partition.index
    for entry in manifest.pending.values() if isinstance(manifest, Manifest) else ():
        if entry.partition in here:
            _check_name(entry, here[entry.partition])
    if other:
        raise ResumeError(
            f"{len(other)} of {committed} finished partitions ({_some(other)}) were written by another plan. Start "
            "over with --fresh (fresh=True) or write to another folder.",
            partitions=other,
        )
    vanished.sort(key=lambda entry: (entry.index, entry.partition))
    if vanished and not remove_vanished:
        raise _vanished_error(vanished, committed, len(partitions))
    result.vanished = [entry.partition for entry in vanished]
    for found in (result.changed, result.damaged):
        found.sort(key=lambda key: here[key].index)
    known = {*result.done, *result.changed, *result.damaged}
    result.new = [partition.id for partition in partitions if partition.id not in known]
    if isinstance(manifest, Manifest):
        for key in [*result.vanished, *(key for key in manifest.pending if key not in here)]:
            remove_partition(manifest.folder, key)
        if moved:
            manifest.renumber({partition.id: partition.index for partition in partitions})
    return result


def preview(
    folder: RunFolder, partitions: Sequence[Partition], description: Mapping[str, Any], *, salvage: bool = False
) -> Resume:
    """The status that the partitions of a run would have, determined without changing the output.

    Args:
        folder: The output with its committed partitions.
        partitions: All partitions of the run.
        description: Its plan.
        salvage: As in `decide`.

    Raises:
        ResumeError: For the same reasons as in the run.
    """
    digest = check_plan(folder, description)
    old = read_plan(folder) or {}
    replaced = {digest_of(old), *old.get("replaces", ())}  # see `adopt_plan`
    found = Manifest(folder).load()
    own = {key: replace(entry, plan=digest) if entry.plan in replaced else entry for key, entry in found.items()}
    return decide(own, partitions, digest, sizes=folder.walk(), salvage=salvage)


def adopt_plan(manifest: Manifest, description: Mapping[str, Any]) -> str:
    """Make `description` the plan of an output, replacing the one that made it.

    As soon as it is written, the new plan lists the plans whose entries count as its own, so that nothing is lost
    if the process dies before all of them are rewritten; calling this again completes it. Returns the digest.
    """
    folder = manifest.folder
    digest = digest_of(description)
    old = read_plan(folder)
    earlier = set() if old is None else {digest_of(old), *old.get("replaces", ())} - {digest}
    if earlier:
        write_plan(folder, {**description, "replaces": sorted(earlier)})
        for entry in manifest.ordered():
            if entry.plan in earlier:
                manifest.add(replace(entry, plan=digest))
    if old is None or earlier:
        write_plan(folder, description)
    return digest


def _what_changed(entry: ManifestEntry, partition: Partition) -> str:
    was = {part["relative"]: part for part in entry.source}
    now = {part["relative"]: part for part in partition.to_dict()["ranges"]}
    for name in now:
        if name not in was:
            return f"{name} was added"
    for name, before in was.items():
        after = now.get(name)
        if after is None:
            return f"{name} was removed"
        if before["size"] != after["size"]:
            return f"{name} had {before['size']} bytes and now has {after['size']}"
        if before["stamp"] != after["stamp"]:
            return f"{name} was modified since"
        if (before["start"], before["end"]) != (after["start"], after["end"]):
            return f"{name} is split at other positions"
    return "its files are in a different order"


def _damage(entry: ManifestEntry, sizes: Mapping[str, int]) -> str | None:
    for file in entry.all_files:
        first, _, name = file.path.partition("/")
        where, name = ("record", name) if first == RECORD_FOLDER else ("output", file.path)
        if file.path not in sizes:
            return f"{name} is missing from the {where}"
        if sizes[file.path] != file.size:
            return f"{name} should have {file.size} bytes but has {sizes[file.path]}"
    return None


def _check_name(entry: ManifestEntry, partition: Partition) -> None:
    """Refuse to continue if a finished partition has the name that a new input file would now give to another one.

    Raises:
        ResumeError: There is such a partition.
    """
    plain = plain_name(partition.id)
    if plain in (partition.id, partition.name):
        return
    for file in entry.files:
        if file.path.startswith((f"{plain}.", f"{plain}-")):
            raise ResumeError(
                f"{partition.ranges[0].path} was written as {file.path}, when no other input file had this name; now "
                "there is one with another extension. Start over with --fresh (fresh=True), write to another folder, "
                "or "
                "rename the new file.",
                partitions=[partition.id],
            )


def _vanished_error(vanished: Sequence[ManifestEntry], committed: int, partitions: int) -> ResumeError:
    names = [entry.partition for entry in vanished]
    paths = list(dict.fromkeys(part["path"] for entry in vanished for part in entry.source))
    local = [path for path in paths if is_local(path)]
    there = [path for path in local if os.path.exists(local_path(path))]
    if local and len(there) == len(local):
        cause = (
            "Their input files still exist, so this run selects less or splits differently: check limit, file_paths, "
            "blocksize and files_per_partition"
        )
    elif local and not there:
        cause = f"Their input files no longer exist ({_some(paths)})"
    elif local:
        gone = [path for path in local if path not in there]
        cause = f"Some of their input files no longer exist ({_some(gone)}), the others are not selected by this run"
    else:
        cause = f"Their input was {_some(paths)}"
    rows = sum(entry.rows_written for entry in vanished)
    return ResumeError(
        f"{len(vanished)} of {committed} finished partitions in the output ({_some(names)}; {rows} rows written) are "
        f"not among the {partitions} partitions of this run. {cause}. Refusing to keep rows whose input is gone: "
        "restore the input, write to another folder, or start over with --fresh (fresh=True).",
        partitions=names,
        inputs=paths,
    )


def _some(names: Iterable[str]) -> str:
    known = list(names)
    shown = ", ".join(known[:_NAMED])
    return shown if len(known) <= _NAMED else f"{shown} and {len(known) - _NAMED} more"
