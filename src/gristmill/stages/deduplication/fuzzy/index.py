"""An index of documents that were deduplicated before: their bands, shingles and pairs, and which of them are gone.

A folder with `index.json`, sealed, which lists every file with its size and hash, and the files themselves. Replacing
`index.json` is the commit; files that it does not list do not count.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import xxhash

from gristmill.errors import InputChangedError, InputError, InputNotFoundError, OutputExistsError, UsageError
from gristmill.ledger.record.run_record import checksum
from gristmill.stages.deduplication.sorted_runs import RunFile, RunFiles
from gristmill.storage.atomic import json_bytes, write_bytes_atomic
from gristmill.storage.files import is_local, local_path
from gristmill.storage.partitions import Partition

INDEX_FILE = "index.json"
FORMAT = 1
PARTS = ("bands", "shingles", "pairs")
"""What is kept of each source."""
_CHUNK = 1 << 22


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
        record: What `index.json` says.
    """

    path: str
    record: Mapping[str, Any]

    @classmethod
    def create(cls, path: str | os.PathLike[str], settings: Mapping[str, Any]) -> FuzzyIndex:
        """Make an empty index for runs with these settings.

        Raises:
            OutputExistsError: There is something already.
        """
        if not is_local(str(path)):
            raise UsageError(f"{path}: an index is a folder on this machine.")
        folder = _folder(path)
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise OutputExistsError(f"{path} exists and is not empty. Name a new folder for the index.", path=str(path))
        folder.mkdir(parents=True, exist_ok=True)
        index = cls(str(folder), {"format": FORMAT, "settings": dict(settings), "sources": [], "removed": []})
        index._write(index.record)
        return cls.load(path)

    @classmethod
    def load(cls, path: str | os.PathLike[str], *, check: bool = True) -> FuzzyIndex:
        """Read an index and, with `check`, the hashes of all of its files.

        Raises:
            InputNotFoundError: There is none.
            InputError: It is damaged, or of another format.
        """
        place = _folder(path) / INDEX_FILE
        if not place.is_file():
            raise InputNotFoundError(
                f"{path} is not an index: it has no {INDEX_FILE}. Make one with 'gristmill index create'.",
                path=str(path),
            )
        try:
            record = json.loads(place.read_bytes())
        except ValueError as error:
            raise InputError(f"{place} is damaged: {error}. Restore the index, or build it again.") from error
        if not isinstance(record, dict) or record.get("seal") != checksum(record):
            raise InputError(
                f"{place} was edited or damaged: its content does not match its checksum. Restore the index, or build "
                "it again.",
                path=str(place),
            )
        if record.get("format") != FORMAT:
            raise InputError(
                f"{place} has format {record.get('format')!r}, and this version reads format {FORMAT}.", path=str(place)
            )
        index = cls(str(_folder(path)), record)
        if check:
            index._check()
        return index

    def _check(self) -> None:
        for source in self.sources:
            for part in PARTS:
                _check_files(self.path, source["files"][part])
        _check_files(self.path, self.record["removed"])

    @property
    def settings(self) -> dict[str, Any]:
        """What documents were compared by."""
        return dict(self.record["settings"])

    @property
    def sources(self) -> list[dict[str, Any]]:
        """What was added, in this order."""
        return list(self.record["sources"])

    @property
    def partitions(self) -> list[str]:
        """What the partitions of all sources are called, by number."""
        return [f"{source['name']}:{partition}" for source in self.sources for partition in source["partitions"]]

    def before(self, fingerprint: str, output: str) -> FuzzyIndex:
        """The index without its last source, where that is what a run into `output` has added: to resume the run.

        Raises:
            UsageError: The documents are in the index already.
        """
        for number, source in enumerate(self.sources):
            if source["fingerprint"] != fingerprint or source.get("forgotten"):
                continue
            if source["output"] == output and number == len(self.sources) - 1:
                record = {**self.record, "sources": self.sources[:-1], "removed": source["removed_before"]}
                return FuzzyIndex(self.path, record)
            raise UsageError(
                f"The index {self.path} holds these documents already, as source {source['name']!r}: all of them would "
                "be duplicates of themselves. Give documents that are not in it."
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
        """Add a source; it counts once `index.json` is replaced.

        Raises:
            InputChangedError: Another run has changed the index meanwhile.
        """
        now = FuzzyIndex.load(self.path, check=False)  # its files were checked when the run began
        if any(source["fingerprint"] == fingerprint and source["output"] == output for source in now.sources[-1:]):
            return now
        if now.record["sources"] != self.record["sources"]:
            raise InputChangedError(
                f"The index {self.path} was changed by another run since this one began. The output was made from the "
                "earlier index: start over with --fresh (fresh=True).",
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
        return FuzzyIndex.load(self.path, check=False)

    def replace(
        self,
        sources: Sequence[Mapping[str, Any]],
        new: Mapping[int, Mapping[str, RunFiles]],
        pairs: RunFiles,
        removed: RunFiles,
    ) -> FuzzyIndex:
        """Make other sources, all pairs and the removal list over all of them the index.

        Args:
            sources: All sources, in order.
            new: The files of those that were not in the index before.
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
            # A run that added a source cannot be resumed any more: the index is another one.
            made.append({**source, "files": files, "output": "", "removed_before": []})
        gone = self._take(removed, f"removed-g{generation}")
        self._write({**self.record, "sources": made, "removed": gone, "generation": generation})
        index = FuzzyIndex.load(self.path)
        index.sweep()
        return index

    def sweep(self) -> None:
        """Remove files that the index does not list any more."""
        lists = [source["files"][part] for source in self.sources for part in PARTS]
        lists += [self.record["removed"], *(source["removed_before"] for source in self.sources)]
        named = {INDEX_FILE, *(one["name"] for files in lists for one in files)}
        for file in Path(self.path).glob("*.arrow"):
            if file.name not in named:
                file.unlink()

    def _take(self, runs: RunFiles, stem: str) -> list[dict[str, Any]]:
        """Take files over from a run: linked where both are on one disk, else copied."""
        taken = []
        for number, file in enumerate(runs.files):
            name = f"{stem}-{number:05d}.arrow"
            target = Path(self.path) / name
            target.unlink(missing_ok=True)
            try:
                os.link(local_path(file.path), target)
            except OSError:
                shutil.copyfile(local_path(file.path), target)
            taken.append({"name": name, "size": file.size, "hash": file.hash})
        return taken

    def _write(self, record: Mapping[str, Any]) -> None:
        record = {key: value for key, value in record.items() if key != "seal"}
        record["seal"] = checksum(record)
        write_bytes_atomic(f"{self.path}/{INDEX_FILE}", json_bytes(record))


def _free_name(name: str, taken: set[str]) -> str:
    number, chosen = 1, name
    while chosen in taken:
        number += 1
        chosen = f"{name}-{number}"
    return chosen


def _check_files(folder: str, files: Sequence[Mapping[str, Any]]) -> None:
    for one in files:
        path = Path(folder) / Path(one["name"]).name
        digest = xxhash.xxh3_128()
        try:
            with path.open("rb") as file:
                while piece := file.read(_CHUNK):
                    digest.update(piece)
        except FileNotFoundError:
            raise InputError(f"{path} is missing from the index. Restore it, or build the index again.") from None
        if path.stat().st_size != one["size"] or f"xxh3:{digest.hexdigest()}" != one["hash"]:
            raise InputError(
                f"{path} is not what was written to the index: it was changed or damaged. Restore it, or build the "
                "index again.",
                path=str(path),
            )


def fingerprint_of(partitions: Sequence[Partition]) -> str:
    """A hash of which files documents come from, and how these are cut."""
    digest = xxhash.xxh3_128()
    for partition in partitions:
        digest.update(f"{partition.id}:{partition.fingerprint()}\n".encode())
    return digest.hexdigest()
