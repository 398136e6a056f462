"""Reads Hugging Face datasets: saved by `save_to_disk`, folders with a card, and those of the hub."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping, Sequence
from typing import Any

import yaml

from gristmill.errors import InputError, InputNotFoundError, UsageError, did_you_mean, require_module
from gristmill.stages.base import CompositeStage, ProcessingStage, Spec
from gristmill.stages.text.io.documents import DocumentReader
from gristmill.storage.files import InputFile, is_local, local_path, survey
from gristmill.storage.formats import FORMATS, Format
from gristmill.storage.valid_text import TextErrors
from gristmill.tasks.base import EmptyTask
from gristmill.tasks.document import DocumentBatch

_HUB_NAME = re.compile(r"[\w.-]+(/[\w.-]+)?")
_CARD_BYTES = 1 << 20
_DATA: tuple[Format, ...] = ("parquet", "jsonl", "csv", "arrow")


class HuggingFaceReader(CompositeStage[EmptyTask, DocumentBatch]):
    """Reads a dataset in the layout of the `datasets` library, file by file, without downloading it as a whole.

    Local: the output of `save_to_disk`, or a folder of Parquet, JSONL, CSV or Arrow files, optionally with a card that
    assigns files to splits. From the hub: the Parquet files that the hub provides for every dataset. Each file is a
    partition, so an interrupted run resumes where it left off.

    Args:
        path: A folder, or the name of a dataset on the hub, such as `allenai/c4`.
        config_name: The configuration, if there are several.
        split: The split, such as `train`; all of them by default.
        columns: Columns to read; all by default.
        files_per_partition: Number of whole files per partition.
        blocksize: Approximate partition size; large Parquet and JSONL files are split.
        max_documents: Read at most this many documents, from the start (of the sample, if there is one).
        sample: Fraction of documents to sample at random, such as 0.01.
        seed: Random seed of the sample.
        storage_options: File system options, such as a `token` for the hub.
        errors: How to handle text that is not UTF-8: `quarantine` its document, or `replace` the invalid bytes with
            U+FFFD and count the document as changed.

    Example:
        >>> pipeline.add_stage(HuggingFaceReader("allenai/c4", "en", split="train", columns=["text", "url"]))
    """

    name = "hugging_face_reader"

    def __init__(
        self,
        path: str | os.PathLike[str],
        config_name: str | None = None,
        split: str | None = None,
        columns: Sequence[str] | None = None,
        *,
        files_per_partition: int | None = None,
        blocksize: int | str | None = None,
        max_documents: int | None = None,
        sample: float | None = None,
        seed: int = 0,
        storage_options: Mapping[str, Any] | None = None,
        errors: TextErrors = "quarantine",
    ) -> None:
        self.path = os.fspath(path)
        self.config_name = config_name
        self.split = split
        self.columns = None if columns is None else list(columns)
        self.files_per_partition = files_per_partition
        self.blocksize = blocksize
        self.max_documents = max_documents
        self.sample = sample
        self.seed = seed
        self.storage_options = storage_options
        self.errors = errors

    def inputs(self) -> Spec:
        return [], []

    def outputs(self) -> Spec:
        return ["data"], list(self.columns or [])

    def decompose(self) -> list[ProcessingStage[Any, Any]]:
        paths, kind = self._files()
        reader = DocumentReader(
            paths,
            kind,
            files_per_partition=self.files_per_partition,
            blocksize=self.blocksize,
            fields=self.columns,
            max_documents=self.max_documents,
            sample=self.sample,
            seed=self.seed,
            storage_options=self.storage_options,
            errors=self.errors,
        )
        return reader.decompose()

    def _files(self) -> tuple[str | list[str], Format]:
        """The files to read and their format.

        Raises:
            InputError: There is no such configuration or split.
            InputNotFoundError: There is no such folder, and the name is not a valid hub dataset.
        """
        if self.path.startswith("hf://") or (is_local(self.path) and not os.path.exists(local_path(self.path))):
            return self._on_the_hub(), "parquet"
        files = self._saved() if is_local(self.path) else None
        if files is None:
            files = self._in_folder()
        kind = next(kind for kind in FORMATS if kind in files)
        return [file.path for file in files[kind]], kind

    def _on_the_hub(self) -> str:
        repository = self.path.removeprefix("hf://").removeprefix("datasets/").rstrip("/")
        if not _HUB_NAME.fullmatch(repository):
            raise InputNotFoundError(
                f"There is no folder {self.path!r}, and hub datasets have names such as 'allenai/c4'.",
                path=self.path,
                extensions=(),
            )
        require_module(
            "huggingface_hub", f"The hub dataset {repository!r} (no such folder exists locally)", extra="hub"
        )
        # Datasets without named configurations have one with this name.
        return f"hf://datasets/{repository}@~parquet/{self.config_name or 'default'}/{self.split or '*'}/*.parquet"

    def _saved(self) -> dict[Format | None, list[InputFile]] | None:
        """The files of a dataset written by `save_to_disk`; None if it is not one."""
        folder = local_path(self.path)
        splits = _json(os.path.join(folder, "dataset_dict.json"))
        if splits is not None:
            known = list(map(str, splits.get("splits", [])))
            folders = [os.path.join(folder, one) for one in self._of_splits(known)]
        elif os.path.exists(os.path.join(folder, "state.json")):
            folders = [folder]
            state = _json(os.path.join(folder, "state.json")) or {}
            if self.split not in (None, state.get("_split")):
                raise self._no_split([str(state.get("_split"))])
        else:
            return None
        files: list[str] = []
        for one in folders:
            state = _json(os.path.join(one, "state.json")) or {}
            names = [str(item.get("filename", "")) for item in state.get("_data_files", [])]
            if any(not name or name != os.path.basename(name) for name in names):
                raise InputError(f"{one}/state.json refers to data files outside its folder: {names}.", path=one)
            files += [os.path.join(one, name) for name in names]
        return survey(files).formats() if files else {}

    def _in_folder(self) -> dict[Format | None, list[InputFile]]:
        """The data files of a folder by format: those listed by the card, or those whose path names the split."""
        found = survey(self.path, storage_options=self.storage_options)
        formats = found.formats()
        kind = next((kind for kind in _DATA if kind in formats), None)
        if kind is None:
            raise InputError(
                f"{self.path!r} is not a dataset: it has neither Parquet, JSONL, CSV or Arrow files nor a state.json "
                "of save_to_disk.",
                path=self.path,
            )
        files = [file for file in formats[kind] if not file.relative.endswith(("dataset_infos.json", "state.json"))]
        patterns = self._card_patterns()
        if patterns is not None:
            import fnmatch

            files = [file for file in files if any(fnmatch.fnmatch(file.relative, one) for one in patterns)]
        elif self.config_name is not None:
            raise InputError(
                f"{self.path!r} has no card that defines configurations; omit config_name={self.config_name!r}.",
                path=self.path,
            )
        elif self.split is not None:
            named = re.compile(rf"(^|[/._-]){re.escape(self.split)}([/._-]|$)")
            some = [file for file in files if named.search(file.relative)]
            if not some:
                raise self._no_split([file.relative for file in files[:5]], "files are")
            files = some
        if not files:
            raise InputError(f"No file of {self.path!r} matches {patterns}, as listed by its card.", path=self.path)
        return {kind: files}

    def _card_patterns(self) -> list[str] | None:
        """The data files that the card lists for this configuration and split; None if it lists none."""
        configs = _card(self.path, self.storage_options).get("configs")
        if not isinstance(configs, list) or not all(isinstance(one, dict) and "data_files" in one for one in configs):
            return None
        by_name = {str(one.get("config_name", "default")): one["data_files"] for one in configs}
        name = self.config_name or ("default" if "default" in by_name else next(iter(by_name)))
        if name not in by_name or (self.config_name is None and len(by_name) > 1 and "default" not in by_name):
            known = ", ".join(map(repr, by_name))
            raise InputError(
                f"{self.path!r} has the configurations {known}, but not "
                f"config_name={self.config_name!r}.{did_you_mean(self.config_name or '', by_name)}",
                path=self.path,
            )
        given = by_name[name]
        if isinstance(given, str | list) and not (given and isinstance(given[0], dict)):
            given = [{"split": "train", "path": given}]
        by_split: dict[str, list[str]] = {}
        for one in given:
            paths = one["path"] if isinstance(one["path"], list) else [one["path"]]
            by_split.setdefault(str(one.get("split", "train")), []).extend(map(str, paths))
        return [path for split in self._of_splits(list(by_split)) for path in by_split[split]]

    def _of_splits(self, known: list[str]) -> list[str]:
        if self.split is None:
            return known
        if self.split not in known:
            raise self._no_split(known)
        return [self.split]

    def _no_split(self, known: Sequence[str], what: str = "splits are") -> UsageError:
        listed = ", ".join(map(repr, known)) or "none"
        return UsageError(
            f"{self.path!r} has no split {self.split!r}; its {what} {listed}.{did_you_mean(self.split or '', known)}",
            path=self.path,
        )


def _json(path: str) -> dict[str, Any] | None:
    """A JSON object from a small file; None if the file does not exist."""
    try:
        with open(path, "rb") as file:
            found = json.loads(file.read(_CARD_BYTES))
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise InputError(f"{path!r} is not JSON: {error}. Save the dataset again.", path=path) from error
    return found if isinstance(found, dict) else {}


def _card(folder: str, storage_options: Mapping[str, Any] | None) -> dict[str, Any]:
    """The header of a dataset's README.md; empty if there is none."""
    from gristmill.storage.compression import open_raw

    try:
        with open_raw(f"{folder.rstrip('/')}/README.md", storage_options=storage_options) as file:
            text = file.read(_CARD_BYTES).decode("utf-8", "replace")
    except InputNotFoundError:
        return {}
    header = re.match(r"---\r?\n(.*?\n)---(\r?\n|$)", text, re.DOTALL)
    try:
        found = yaml.safe_load(header[1]) if header else {}
    except yaml.YAMLError:
        return {}
    return found if isinstance(found, dict) else {}
