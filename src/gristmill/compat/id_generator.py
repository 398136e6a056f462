"""Document ids in deduplication, under the names in `nemo_curator.stages.deduplication.id_generator`.

Ids are derived from the input (partition and row), so that no actor has to assign them: the calls that scripts make
before and after a pipeline are accepted, but change nothing.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping
from typing import Any

import fsspec

from gristmill.errors import UsageError
from gristmill.stages.text.io.reader.assign_ids import DEDUP_ID_FIELD

CURATOR_DEDUP_ID_STR = DEDUP_ID_FIELD
CURATOR_ID_GENERATOR_ACTOR_NAME = "curator_deduplication_id_generator"
# As in the workflows; importing them here would load them in every worker.
EXACT_FILE, FUZZY_FILE = "exact_id_generator.json", "fuzzy_id_generator.json"
Options = Mapping[str, Any] | None
__all__ = [
    "CURATOR_DEDUP_ID_STR",
    "CURATOR_ID_GENERATOR_ACTOR_NAME",
    "IdGenerator",
    "IdGeneratorBase",
    "create_id_generator_actor",
    "get_id_generator_actor",
    "kill_id_generator_actor",
    "write_id_generator_to_disk",
]


class IdGeneratorBase:
    """Assigns ranges of whole numbers to batches of files, for code that requests them.

    Example:
        >>> ids = IdGeneratorBase()
        >>> ids.register_batch(["a.jsonl"], 10), ids.register_batch(["b.jsonl"], 5), ids.register_batch(["a.jsonl"], 10)
        (0, 10, 0)
    """

    def __init__(self, start_id: int = 0, batch_registry: Mapping[str, Any] | None = None) -> None:
        self.next_id = start_id
        self.batch_registry = {key: tuple(value) for key, value in (batch_registry or {}).items()}

    def register_batch(self, files: str | list[str], count: int) -> int:
        """The first id of a batch; the same files get the same ids."""
        key = self.hash_files(files)
        if key not in self.batch_registry:
            self.batch_registry[key] = (self.next_id, self.next_id + count - 1)
            self.next_id += count
        return int(self.batch_registry[key][0])

    def hash_files(self, filepath: str | list[str]) -> str:
        """The name of a batch of files."""
        return str(uuid.uuid5(uuid.NAMESPACE_URL, filepath if isinstance(filepath, str) else ";".join(filepath)))

    def get_batch_range(self, files: str | list[str] | None, key: str | None) -> tuple[int, int]:
        """The first and the last id of a batch, by its files or its name."""
        if (files is None) == (key is None):
            raise UsageError("get_batch_range: pass either files or key.")
        first, last = self.batch_registry[self.hash_files(files) if files is not None else str(key)]
        return int(first), int(last)

    def to_disk(self, filepath: str, storage_options: Options = None) -> None:
        """Write the ranges as JSON."""
        with fsspec.open(filepath, "w", **dict(storage_options or {})) as file:
            json.dump({"next_id": self.next_id, "batch_registry": self.batch_registry}, file)

    @classmethod
    def from_disk(cls, filepath: str, storage_options: Options = None) -> IdGeneratorBase:
        """What `to_disk` wrote."""
        with fsspec.open(filepath, "r", **dict(storage_options or {})) as file:
            saved = json.load(file)
        return cls(saved["next_id"], saved["batch_registry"])


class IdGenerator(IdGeneratorBase):
    """Another name for `IdGeneratorBase`."""

    def wait(self) -> None:
        """Return immediately: it already exists."""


_current: list[IdGenerator] = []


def create_id_generator_actor(filepath: str | None = None, storage_options: Options = None) -> None:
    """Create the generator of this process, from an earlier file if one is given; starts no cluster."""
    _current.clear()
    made = IdGenerator()
    if filepath is not None:
        with fsspec.open(filepath, "r", **dict(storage_options or {})) as file:
            saved = json.load(file)
        made = IdGenerator(saved.get("next_id", 0), saved.get("batch_registry"))
    _current.append(made)


def get_id_generator_actor() -> IdGenerator:
    """The generator of this process.

    Raises:
        UsageError: (a ValueError) There is none.
    """
    if not _current:
        raise UsageError("There is no id generator in this process: call create_id_generator_actor() first.")
    return _current[0]


def kill_id_generator_actor() -> None:
    """Forget the generator of this process."""
    get_id_generator_actor()
    _current.clear()


def write_id_generator_to_disk(filepath: str, storage_options: Options = None) -> None:
    """Write the generator of this process, in the form that `TextDuplicatesRemovalWorkflow` reads as well.

    Document ids are derived from whole files, one partition each, so there is nothing else to record.
    """
    current = get_id_generator_actor()
    payload = {
        "id_field": DEDUP_ID_FIELD,
        "blocksize": None,
        "files_per_partition": 1,
        "next_id": current.next_id,
        "batch_registry": current.batch_registry,
    }
    with fsspec.open(filepath, "w", **dict(storage_options or {})) as file:
        json.dump(payload, file)
