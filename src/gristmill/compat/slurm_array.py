"""Shards of a pipeline as tasks of a Slurm array, under the names in `nemo_curator.backends.slurm_array`.

Every task of the array runs the same script. Each processes the partitions of its shard, writes them to its own folder
below the output (`shard-00003`), and writes a file under `checkpoint_path` when it is done. Missing shards can be
submitted again.
"""

from __future__ import annotations

import hashlib
import json
import os
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from gristmill.compat.files import write_json_atomically, write_json_atomically_if_absent
from gristmill.errors import UsageError
from gristmill.pipeline import planner
from gristmill.storage.files import LeftOut, SourceFiles
from gristmill.storage.partitions import Partition
from gristmill.tasks.base import Task

METADATA_DIRNAME = ".nemo_curator_metadata"
SLURM_ARRAY_ENABLED_ENV_VAR = "NEMO_CURATOR_SLURM_ARRAY_ENABLED"
SLURM_ARRAY_SHARD_INDEX_ENV_VAR = "NEMO_CURATOR_SLURM_ARRAY_SHARD_INDEX"
SLURM_ARRAY_TOTAL_SHARDS_ENV_VAR = "NEMO_CURATOR_SLURM_ARRAY_TOTAL_SHARDS"
SLURM_ARRAY_MINIMUM_SHARD_INDEX_ENV_VAR = "NEMO_CURATOR_SLURM_ARRAY_MINIMUM_SHARD_INDEX"
FAILED_TASKS_DIR_ENV_VAR = "NEMO_CURATOR_FAILED_TASKS_DIR"
FAILED_TASK_MANIFEST_FILENAME = "failed_tasks.json"
_NAMESPACE, _FOLDER = "slurm_array", ".slurm_array_completion"
Place = str | os.PathLike[str]


# --- utils.retry_manifest ---


@dataclass(frozen=True)
class CompletionManifestRecord:
    """A completion marker file."""

    path: Path
    payload: dict[str, Any]


def read_completion_manifests(
    checkpoint_path: Place, *, namespace: str, completion_dirname: str | None = None
) -> list[CompletionManifestRecord]:
    """The completion markers under a checkpoint, sorted by name.

    Raises:
        UsageError: (a ValueError) A file there is not a completion marker.
    """
    folder = Path(checkpoint_path, METADATA_DIRNAME, completion_dirname or f".{_safe(namespace)}_completion").absolute()
    records = []
    for path in sorted(folder.glob(f"completed_{_safe(namespace)}_*.json")):
        try:
            payload = json.loads(path.read_text(encoding="utf-8"))
        except ValueError as error:
            raise UsageError(
                f"{path} is not JSON: {error}. Remove it, and run its shard again.", path=str(path)
            ) from error
        if not isinstance(payload, dict) or payload.get("status") != "completed":
            raise UsageError(f"{path} is not a completion marker. Remove it.", path=str(path))
        records.append(CompletionManifestRecord(path, payload))
    return records


class CompletionManifest:
    """Writes a completion marker when a block ends without an error.

    Args:
        checkpoint_path: The folder above.
        namespace: The kind of work.
        identity: Plain values that identify the piece of work.
        metadata: Further values to write.
        completion_dirname: The folder's name below `.nemo_curator_metadata`.
        enabled: False writes nothing.
        flatten_identity: Write the identity beside the status, instead of below `identity`.
        flatten_metadata: The same for the metadata.
    """

    def __init__(
        self,
        checkpoint_path: Place,
        namespace: str,
        identity: Mapping[str, Any],
        *,
        metadata: Mapping[str, Any] | None = None,
        completion_dirname: str | None = None,
        enabled: bool = True,
        flatten_identity: bool = True,
        flatten_metadata: bool = False,
    ) -> None:
        self.namespace = namespace
        self.identity = dict(identity)
        self.enabled = enabled
        self.manifest_dir = Path(
            checkpoint_path, METADATA_DIRNAME, completion_dirname or f".{_safe(namespace)}_completion"
        ).absolute()
        self._payload = dict(self.identity) if flatten_identity else {"identity": self.identity}
        if metadata:
            self._payload.update(metadata if flatten_metadata else {"metadata": dict(metadata)})

    @property
    def filename_prefix(self) -> str:
        """The name of the file, without extension."""
        text = json.dumps(self.identity, default=str, separators=(",", ":"), sort_keys=True)
        return f"completed_{_safe(self.namespace)}_{hashlib.sha256(text.encode()).hexdigest()[:16]}"

    def mark_completed(self, extra: Mapping[str, Any] | None = None) -> Path | None:
        """Write the file; returns its path."""
        if not self.enabled:
            return None
        path = self.manifest_dir / f"{self.filename_prefix}.json"
        write_json_atomically(path, {**self._payload, **(extra or {}), "status": "completed"})
        return path

    def __enter__(self) -> CompletionManifest:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is None:
            self.mark_completed()


def _safe(text: object) -> str:
    return "".join(letter if letter.isalnum() or letter in "._-" else "_" for letter in str(text))


# --- backends.failed_task_markers ---


def configure_failed_task_manifest_dir(checkpoint_path: Place) -> Path:
    """The folder for failure markers of this attempt, unless a variable names another."""
    return _marks(Path(checkpoint_path, METADATA_DIRNAME, ".failed_tasks", f"local_attempt_{uuid.uuid4().hex}"))


def configure_slurm_array_failed_task_manifest_dir(checkpoint_path: Place, shard_index: int) -> Path:
    """The same for a shard; Slurm's variables distinguish the attempts."""
    job = os.environ.get("SLURM_JOB_ID", f"local_{os.getpid()}")
    task = os.environ.get("SLURM_ARRAY_TASK_ID", "local")
    restart = os.environ.get("SLURM_RESTART_COUNT", "0")
    names = (f"slurm_job_{job}", f"array_task_{task}", f"restart_{restart}", f"shard_{shard_index}")
    return _marks(Path(checkpoint_path, METADATA_DIRNAME, ".failed_tasks", *names))


def _marks(folder: Path) -> Path:
    return Path(os.environ.setdefault(FAILED_TASKS_DIR_ENV_VAR, str(folder.absolute())))


def record_failed_tasks() -> None:
    """Mark this attempt as one in which a task failed."""
    folder = os.environ.get(FAILED_TASKS_DIR_ENV_VAR)
    if folder:
        Path(folder).mkdir(parents=True, exist_ok=True)
        Path(folder, FAILED_TASK_MANIFEST_FILENAME).touch()


def failed_task_manifest_exists(manifest_dir: Place | None = None) -> bool:
    """Whether a task of this attempt failed."""
    folder = manifest_dir or os.environ.get(FAILED_TASKS_DIR_ENV_VAR)
    return bool(folder) and Path(str(folder), FAILED_TASK_MANIFEST_FILENAME).is_file()


# --- backends.slurm_array ---


@dataclass
class SlurmArrayConfig:
    """The index of this process's shard, and the number of shards."""

    shard_index: int
    total_shards: int
    minimum_shard_index: int = 0

    @classmethod
    def from_env(cls) -> SlurmArrayConfig | None:
        """From the variables of NeMo Curator or Slurm; None outside an array, or if it is switched off.

        Raises:
            UsageError: (a ValueError) They are contradictory.
        """
        switch = os.environ.get(SLURM_ARRAY_ENABLED_ENV_VAR)
        if switch is not None and switch.strip().lower() in ("0", "false", "no", "off"):
            return None
        if switch is not None and switch.strip().lower() not in ("1", "true", "yes", "on"):
            raise UsageError(f"{SLURM_ARRAY_ENABLED_ENV_VAR}={switch!r}: must be 1 or 0.")
        index = _number(SLURM_ARRAY_SHARD_INDEX_ENV_VAR, "SLURM_ARRAY_TASK_ID")
        total = _number(SLURM_ARRAY_TOTAL_SHARDS_ENV_VAR, "SLURM_ARRAY_TASK_COUNT")
        if index is None and total is None and switch is None:
            return None
        if index is None or total is None or total < 1 or index < 0:
            raise UsageError(
                f"A Slurm array needs the shard's index (SLURM_ARRAY_TASK_ID, found {index}) and the number of shards "
                f"(SLURM_ARRAY_TASK_COUNT, found {total}). To ignore them, set {SLURM_ARRAY_ENABLED_ENV_VAR}=0."
            )
        return cls(index, total, _number(SLURM_ARRAY_MINIMUM_SHARD_INDEX_ENV_VAR) or 0)


@dataclass(frozen=True)
class SlurmArrayRetryPlan:
    """The unfinished shards, and the total number."""

    shard_indices: tuple[int, ...]
    total_shards: int
    minimum_shard_index: int


@dataclass(frozen=True)
class SlurmArrayRetrySubmission:
    """The indices of an array to submit, and what to add to each for the shard's index."""

    array_indices: tuple[int, ...]
    shard_index_offset: int


def _number(*names: str) -> int | None:
    for name in names:
        if name in os.environ:
            try:
                return int(os.environ[name])
            except ValueError:
                raise UsageError(f"{name}={os.environ[name]!r} must be a whole number.") from None
    return None


def configure_slurm_array_source_filtering(shard_index: int, total_shards: int, minimum_shard_index: int) -> None:
    """Set the variables that make this process a shard."""
    os.environ[SLURM_ARRAY_ENABLED_ENV_VAR] = "1"
    os.environ[SLURM_ARRAY_SHARD_INDEX_ENV_VAR] = str(shard_index)
    os.environ[SLURM_ARRAY_TOTAL_SHARDS_ENV_VAR] = str(total_shards)
    os.environ[SLURM_ARRAY_MINIMUM_SHARD_INDEX_ENV_VAR] = str(minimum_shard_index)


def resolve_slurm_array_config(is_source_stage: bool) -> SlurmArrayConfig | None:
    """The shard, for a source; other stages only see their input."""
    return SlurmArrayConfig.from_env() if is_source_stage else None


def _shard(name: str, slurm_array: SlurmArrayConfig) -> int:
    digest = hashlib.sha256(name.encode()).hexdigest()
    return int(digest[:16], 16) % slurm_array.total_shards + slurm_array.minimum_shard_index


def shard_of_partition(partition_id: str, slurm_array: SlurmArrayConfig) -> bool:
    """Whether a partition belongs to this shard."""
    return _shard(partition_id, slurm_array) == slurm_array.shard_index


def slurm_array_shard_for_task(task: Task[Any], slurm_array: SlurmArrayConfig) -> int:
    """The shard of a task, by a hash of its id."""
    return _shard(task.task_id, slurm_array)


def filter_slurm_array_source_tasks(
    tasks: Sequence[Task[Any]], slurm_array: SlurmArrayConfig | None, stage_name: str
) -> list[Task[Any]]:
    """The tasks of this shard."""
    if slurm_array is None:
        return list(tasks)
    return [task for task in tasks if slurm_array_shard_for_task(task, slurm_array) == slurm_array.shard_index]


def is_slurm_array_driver_process(use_slurm: bool = True) -> bool:
    """Whether this process runs the pipeline: on the first node of its job, or outside Slurm."""
    return not use_slurm or os.environ.get("SLURM_NODEID", "0") == "0"


def build_slurm_array_completion_manifest(
    checkpoint_path: Place | None, shard_index: int, total_shards: int, minimum_shard_index: int
) -> CompletionManifest | None:
    """The completion marker of a shard; None without a checkpoint.

    Raises:
        UsageError: (a ValueError) The checkpoint is that of another array, or there is no such shard.
    """
    if checkpoint_path is None:
        return None
    if not 0 <= minimum_shard_index <= shard_index < minimum_shard_index + total_shards:
        raise UsageError(
            f"Shard {shard_index} is not one of the {total_shards} shards from {minimum_shard_index} on; check "
            f"SLURM_ARRAY_TASK_ID, and {SLURM_ARRAY_MINIMUM_SHARD_INDEX_ENV_VAR} for an array that does not begin at 0."
        )
    shape = {"minimum_shard_index": minimum_shard_index, "total_shards": total_shards}
    path = Path(checkpoint_path, METADATA_DIRNAME, _FOLDER, "run.json").absolute()
    if not write_json_atomically_if_absent(path, shape) and json.loads(path.read_text()) != shape:
        raise UsageError(
            f"{path} describes an array of a different shape than {shape}. Use a separate checkpoint_path for each run."
        )
    identity = {**shape, "shard_index": shard_index}
    return CompletionManifest(checkpoint_path, _NAMESPACE, identity, completion_dirname=_FOLDER)


def find_slurm_array_retries(checkpoint_path: Place) -> SlurmArrayRetryPlan | None:
    """The unfinished shards; None if no array has run."""
    path = Path(checkpoint_path, METADATA_DIRNAME, _FOLDER, "run.json").absolute()
    if not path.is_file():
        return None
    shape = json.loads(path.read_text())
    first, total = int(shape["minimum_shard_index"]), int(shape["total_shards"])
    records = read_completion_manifests(checkpoint_path, namespace=_NAMESPACE, completion_dirname=_FOLDER)
    done = {record.payload["shard_index"] for record in records}
    missing = [index for index in range(first, first + total) if index not in done]
    return SlurmArrayRetryPlan(tuple(missing), total, first)


def build_slurm_array_retry_submissions(
    retry_plan: SlurmArrayRetryPlan, max_array_size: int | None = None
) -> tuple[SlurmArrayRetrySubmission, ...]:
    """The missing shards as arrays with indices below `max_array_size`."""
    if max_array_size is not None and max_array_size < 1:
        raise UsageError(f"max_array_size={max_array_size}: must be at least 1.")
    found: dict[int, list[int]] = {}
    for index in retry_plan.shard_indices:
        offset = 0 if max_array_size is None else index - index % max_array_size
        found.setdefault(offset, []).append(index - offset)
    return tuple(SlurmArrayRetrySubmission(tuple(found[offset]), offset) for offset in sorted(found))


def format_slurm_array_indices(indices: Iterable[int]) -> str:
    """Indices in the notation of `sbatch --array`.

    Example:
        >>> format_slurm_array_indices([5, 1, 2, 3])
        '1-3,5'
    """
    ranges: list[list[int]] = []
    for index in sorted(set(indices)):
        if index < 0:
            raise UsageError(f"A Slurm array has no index {index}.")
        if ranges and ranges[-1][1] == index - 1:
            ranges[-1][1] = index
        else:
            ranges.append([index, index])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in ranges)


# --- a shard of a run ---


@contextmanager
def shard_of_run(checkpoint_path: Place | None) -> Iterator[None]:
    """Make the runs inside process only the partitions of this process's shard, if it is part of a Slurm array."""
    array = SlurmArrayConfig.from_env()
    if array is None:
        yield
        return
    done = None
    if is_slurm_array_driver_process():
        if checkpoint_path is not None:
            configure_slurm_array_failed_task_manifest_dir(checkpoint_path, array.shard_index)
        done = build_slurm_array_completion_manifest(
            checkpoint_path, array.shard_index, array.total_shards, array.minimum_shard_index
        )

    def take_shard(sketch: planner.Draft) -> None:
        _take_shard(sketch, array)

    planner.draft_hooks.append(take_shard)
    try:
        yield
    except BaseException:
        record_failed_tasks()
        raise
    finally:
        planner.draft_hooks.remove(take_shard)
    if done is not None:
        done.mark_completed()


def _take_shard(sketch: planner.Draft, array: SlurmArrayConfig) -> None:
    source, sink = sketch.source, sketch.sink
    if source is None:
        raise UsageError(
            "A Slurm array divides the files of a reader, but this pipeline starts from initial tasks. Filter them "
            f"with filter_slurm_array_source_tasks, or set {SLURM_ARRAY_ENABLED_ENV_VAR}=0."
        )
    find = source.partitions

    def partitions() -> list[Partition]:
        found = find()
        mine = [part for part in found if shard_of_partition(part.id, array)]
        files = source.surveyed
        if files is not None:
            read = {piece.path for part in mine for piece in part.ranges}
            others = {piece.path: piece for part in found for piece in part.ranges if piece.path not in read}
            left_out = [LeftOut(piece.path, piece.relative, "shard") for piece in others.values()]
            source.surveyed = SourceFiles(
                files.paths, files.extensions, len(read), [*files.left_out, *left_out], files.format
            )
        return [replace(part, index=number) for number, part in enumerate(mine)]

    source.partitions = partitions  # type: ignore[method-assign]
    if sink is not None:
        sink.path = f"{sink.path.rstrip('/')}/shard-{array.shard_index:05d}"
