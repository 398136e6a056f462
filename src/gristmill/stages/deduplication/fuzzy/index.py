"""An index of earlier deduplicated documents: their bands, shingles and pairs, and which of them were removed.

A folder with `index.json`, sealed by a checksum, which lists every file with its size and hash, and the files
themselves. Replacing `index.json` is the commit; unlisted files are ignored.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import xxhash

from gristmill.errors import (
    InputChangedError,
    InputError,
    InputNotFoundError,
    OutputExistsError,
    UsageError,
    VerificationError,
)
from gristmill.ledger.record.run_record import checked_record, encoded_record
from gristmill.stages.deduplication.sorted_runs import RunFile, RunFiles
from gristmill.storage.atomic import write_bytes_atomic
from gristmill.storage.files import is_local, local_path
from gristmill.storage.partitions import Partition

INDEX_FILE = "index.json"
FORMAT = 2
PARTS = ("bands", "shingles", "pairs")
"""The kinds of files kept for each source."""
_CHUNK = 1 << 22
Check = Literal["all", "touched"]


def is_index(path: object) -> bool:
    """Whether a path is the folder of an index."""
    return isinstance(path, str | os.PathLike) and is_local(str(path)) and (_folder(path) / INDEX_FILE).is_file()


def _folder(path: str | os.PathLike[str]) -> Path:
    return Path(local_path(os.fspath(path)))


@dataclass(frozen=True)
class FuzzyIndex:
    """The state of an index.

    Attributes:
        path: Its folder.
        record: The content of `index.json`.
    """

    path: str
    record: Mapping[str, Any]

    @classmethod
    def create(cls, path: str | os.PathLike[str], settings: Mapping[str, Any]) -> FuzzyIndex:
        """Create an empty index for runs with these settings.

        Raises:
            OutputExistsError: The folder is not empty.
        """
        if not is_local(str(path)):
            raise UsageError(f"{path}: an index must be a folder on this machine.")
        folder = _folder(path)
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise OutputExistsError(f"{path} is not empty. Choose a new folder for the index.", path=str(path))
        folder.mkdir(parents=True, exist_ok=True)
        index = cls(str(folder), {"format": FORMAT, "settings": dict(settings), "sources": [], "removed": []})
        index._write(index.record)
        return cls.load(path)

    @classmethod
    def load(cls, path: str | os.PathLike[str], *, check: Check = "all") -> FuzzyIndex:
        """Read an index.

        Args:
            path: Its folder.
            check: Compare the hash of `all` files with the record, or of `touched` files only: those whose size or
                modification time is not what it was when the file was added. Reading all files takes longer than a
                small snapshot.

        Raises:
            InputNotFoundError: There is no index.
            InputError: It is damaged, or has another format.
        """
        place = _folder(path) / INDEX_FILE
        if not place.is_file():
            raise InputNotFoundError(
                f"{path} is not an index: it has no {INDEX_FILE}. Create one with 'gristmill index create'.",
                path=str(path),
            )
        try:
            record = checked_record(place.read_bytes(), str(place), " Restore the index, or build it again.")
        except VerificationError as error:
            raise InputError(str(error), path=str(place)) from error
        if record.get("format") != FORMAT:
            raise InputError(
                f"{place} has format {record.get('format')!r}, but this version reads format {FORMAT}.", path=str(place)
            )
        index = cls(str(_folder(path)), record)
        for files in index._lists():
            _check_files(index.path, files, check)
        return index

    def _lists(self) -> list[list[dict[str, Any]]]:
        """The lists of all files of the index, including those needed to resume a run."""
        lists = [files for source in self.sources for files in (*source["files"].values(), source["removed_before"])]
        return [*lists, self.record["removed"]]

    @property
    def settings(self) -> dict[str, Any]:
        """The settings by which documents were compared."""
        return dict(self.record["settings"])

    @property
    def sources(self) -> list[dict[str, Any]]:
        """The sources, in the order in which they were added."""
        return list(self.record["sources"])

    @property
    def partitions(self) -> list[str]:
        """The partition ids of all sources, by number."""
        return [f"{source['name']}:{partition}" for source in self.sources for partition in source["partitions"]]

    def before(self, fingerprint: str, output: str) -> FuzzyIndex:
        """The index without its last source if a run into `output` added it, in order to resume that run.

        Raises:
            UsageError: The documents are already in the index.
        """
        for number, source in enumerate(self.sources):
            if source["fingerprint"] != fingerprint or source.get("forgotten"):
                continue
            if source["output"] == output and number == len(self.sources) - 1:
                record = {**self.record, "sources": self.sources[:-1], "removed": source["removed_before"]}
                return FuzzyIndex(self.path, record)
            raise UsageError(
                f"The index {self.path} already holds these documents, as source {source['name']!r}: all of them "
                "would be duplicates of themselves. Pass documents that are not in it."
            )
        return self

    def runs(self, part: str) -> RunFiles:
        """The files of all sources, in order."""
        return RunFiles(tuple(self._file(one) for source in self.sources for one in source["files"][part]))

    @property
    def removed(self) -> RunFiles:
        """The removal list over all sources."""
        return RunFiles(tuple(self._file(one) for one in self.record["removed"]))

    def _file(self, one: Mapping[str, Any]) -> RunFile:
        return RunFile(f"{self.path}/{one['name']}", one["size"], one["hash"])

    def add(
        self,
        name: str,
        *,
        fingerprint: str,
        output: str,
        partitions: Sequence[str],
        parts: Mapping[str, RunFiles],
        removed: RunFiles,
    ) -> FuzzyIndex:
        """Add a source; it takes effect when `index.json` is replaced.

        Raises:
            InputChangedError: Another run changed the index meanwhile.
        """
        now = FuzzyIndex.load(self.path, check="touched")  # also what was changed while the run was under way
        if any(source["fingerprint"] == fingerprint and source["output"] == output for source in now.sources[-1:]):
            return now
        if now.record["sources"] != self.record["sources"]:
            raise InputChangedError(
                f"The index {self.path} was changed by another run after this one started. The output was made from "
                "the earlier index: start over with --fresh (fresh=True).",
                path=self.path,
            )
        number = len(self.sources)
        name = _free_name(name, {source["name"] for source in self.sources})
        files = {part: self._take(runs, f"{number:05d}-{part}") for part, runs in parts.items()}
        source = {
            "name": name,
            "fingerprint": fingerprint,
            "output": output,
            "partitions": list(partitions),
            "files": files,
            "removed_before": self.record["removed"],
        }
        gone = self._take(removed, f"{number:05d}-removed")
        earlier = [{**one, "removed_before": []} for one in self.sources]
        self._write({**self.record, "sources": [*earlier, source], "removed": gone})
        return FuzzyIndex.load(self.path, check="touched")

    def replace(
        self,
        sources: Sequence[Mapping[str, Any]],
        new: Mapping[int, Mapping[str, RunFiles]],
        pairs: RunFiles,
        removed: RunFiles,
    ) -> FuzzyIndex:
        """Replace the index by other sources, with all their pairs and a common removal list.

        Args:
            sources: All sources, in order.
            new: The files of sources that were not in the index before.
            pairs: The compared pairs of all sources.
            removed: The removal list over all sources.
        """
        generation = int(self.record.get("generation", 0)) + 1
        made = []
        for number, source in enumerate(sources):
            files = dict(source["files"])
            for part, runs in new.get(number, {}).items():
                files[part] = self._take(runs, f"{number:05d}-{part}-g{generation}")
            files["pairs"] = self._take(pairs, f"pairs-g{generation}") if number == 0 else []
            # A run that added a source can no longer be resumed: the index has changed.
            made.append({**source, "files": files, "output": "", "removed_before": []})
        gone = self._take(removed, f"removed-g{generation}")
        self._write({**self.record, "sources": made, "removed": gone, "generation": generation})
        index = FuzzyIndex.load(self.path)
        index.sweep()
        return index

    def sweep(self) -> None:
        """Remove files that the index no longer lists."""
        named = {INDEX_FILE, *(one["name"] for files in self._lists() for one in files)}
        for file in Path(self.path).glob("*.arrow"):
            if file.name not in named:
                file.unlink()

    def _take(self, runs: RunFiles, stem: str) -> list[dict[str, Any]]:
        """Import files from a run: hard-linked if on the same disk, otherwise copied."""
        taken = []
        for number, file in enumerate(runs.files):
            name = f"{stem}-{number:05d}.arrow"
            target = Path(self.path) / name
            target.unlink(missing_ok=True)
            try:
                os.link(local_path(file.path), target)
            except OSError:
                shutil.copyfile(local_path(file.path), target)
            modified = target.stat().st_mtime_ns
            taken.append({"name": name, "size": file.size, "hash": file.hash, "modified": modified})
        return taken

    def _write(self, record: Mapping[str, Any]) -> None:
        write_bytes_atomic(f"{self.path}/{INDEX_FILE}", encoded_record(record))


def _free_name(name: str, taken: set[str]) -> str:
    number, chosen = 1, name
    while chosen in taken:
        number += 1
        chosen = f"{name}-{number}"
    return chosen


def _check_files(folder: str, files: Sequence[Mapping[str, Any]], check: Check) -> None:
    for one in files:
        path = Path(folder) / Path(one["name"]).name
        digest = xxhash.xxh3_128()
        try:
            found = path.stat()
            if check == "touched" and (found.st_size, found.st_mtime_ns) == (one["size"], one["modified"]):
                continue
            with path.open("rb") as file:
                while piece := file.read(_CHUNK):
                    digest.update(piece)
        except FileNotFoundError:
            raise InputError(f"{path} is missing from the index. Restore it, or build the index again.") from None
        if found.st_size != one["size"] or f"xxh3:{digest.hexdigest()}" != one["hash"]:
            raise InputError(
                f"{path} differs from what was written to the index: it was changed or damaged. Restore it, or build "
                "the index again.",
                path=str(path),
            )


def fingerprint_of(partitions: Sequence[Partition]) -> str:
    """A hash of the source files of documents and how they are partitioned."""
    digest = xxhash.xxh3_128()
    for partition in partitions:
        digest.update(f"{partition.id}:{partition.fingerprint()}\n".encode())
    return digest.hexdigest()
