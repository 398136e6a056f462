"""What shuffling and mixing share: documents scattered by a random key, shards gathered from them, one record.

Ordinary pipelines with files between them: `scatter` (one for each source) leaves documents sorted by key, the last one
writes the shards, and `documents` leaves the table that leads from a document to its shard.
"""

from __future__ import annotations

import json
import math
import os
import re
import sys
import time
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import xxhash

from gristmill import __version__
from gristmill.backends.base import BaseExecutor
from gristmill.backends.registry import as_executor
from gristmill.errors import ConservationError, InputChangedError, OutputExistsError, UsageError, did_you_mean
from gristmill.figures import format_size, parse_size
from gristmill.ledger.record.dataset_record import (
    DOCUMENTS,
    documents_path,
    read_dataset_record,
    shard_facts,
    write_dataset_record,
)
from gristmill.ledger.record.layout import STEPS_FOLDER, RunFolder, step_folder
from gristmill.ledger.record.manifest import Manifest
from gristmill.observe.events import Listener, Notice
from gristmill.pipeline.output import check_apart, check_usable
from gristmill.pipeline.pipeline import Pipeline
from gristmill.pipeline.workflow import WorkflowBase, WorkflowRunResult
from gristmill.stages.base import ProcessingStage
from gristmill.stages.deduplication.deduplication_workflow import missing_column
from gristmill.stages.deduplication.forecast import FreeSpace
from gristmill.stages.deduplication.sorted_runs import RunFiles, column, open_run, runs_of
from gristmill.stages.deduplication.source import (
    FILETYPES,
    DocumentSource,
    find_filetype,
    first_named,
    input_differences,
)
from gristmill.stages.sharding.input_digests import InputDigests
from gristmill.stages.sharding.keys import Placement, checked_splits
from gristmill.stages.sharding.scatter import ScatterWriter
from gristmill.stages.sharding.shards import Shard, ShardReader, ShardSource, plan_shards
from gristmill.stages.sharding.trace import TraceReader
from gristmill.stages.text.io.writer import JsonlWriter, ParquetWriter
from gristmill.storage.files import is_local, local_path
from gristmill.storage.partitions import Partition

Stage = ProcessingStage[Any, Any]

DEFAULT_SHARD_SIZE = 256 << 20
TOKEN_COLUMN = "gristmill_token_count"
"""The column for token counts that are made on the way; it is not written."""
_BLOCKSIZE = "128MiB"
_LICENSES = 1000
"""How many different licences of a source are listed."""
_LENGTHS = ("length",)
_STEP = re.compile(r"(scatter|sizes|values|caps)-\d{3}")


@dataclass
class Source:
    """One input: where it lies, what it is called, and what is done with it before it is scattered."""

    number: int
    name: str
    documents: DocumentSource
    placement: Placement
    stages: list[Stage] = field(default_factory=list)
    facts: dict[str, Any] = field(default_factory=dict)

    @property
    def step(self) -> str:
        """The name of the step that scatters it."""
        return f"scatter-{self.number:03d}"


@dataclass(eq=False, repr=False)
class ShardingWorkflow(WorkflowBase):
    """The base of `ShuffleWorkflow` and `MixWorkflow`; see the first for the arguments that both share."""

    name = "sharding"

    output_path: str
    _: KW_ONLY
    seed: int = 0
    shard_size: int | str | None = None
    shard_documents: int | None = None
    shard_tokens: int | None = None
    splits: Mapping[str, float | None] | None = None
    split_field: str | None = None
    balance: str | None = None
    token_count_field: str | None = None
    tokenizer: str | None = None
    text_field: str = "text"
    id_field: str | None = None
    license_field: str | None = None
    output_filetype: str | None = None
    input_blocksize: int | str | None = None
    read_kwargs: Mapping[str, Any] | None = None
    write_kwargs: Mapping[str, Any] | None = None
    record_path: str | None = None
    cache_path: str | None = None
    keep_steps: bool = False

    def __post_init__(self) -> None:
        kind = type(self).__name__
        if not str(self.output_path):
            raise UsageError(f"{kind}(output_path=''): name the folder to write to.")
        if isinstance(self.seed, bool) or not isinstance(self.seed, int):
            raise UsageError(f"{kind}(seed={self.seed!r}): give a whole number.")
        if self.output_filetype is not None and self.output_filetype not in FILETYPES:
            raise UsageError(
                f"{kind}(output_filetype={self.output_filetype!r}): give 'jsonl' or 'parquet'."
                f"{did_you_mean(str(self.output_filetype), FILETYPES)}"
            )
        if self.balance is not None and self.balance not in _LENGTHS:
            raise UsageError(f"{kind}(balance={self.balance!r}): give 'length' or None.")
        given = [name for name in ("shard_size", "shard_documents", "shard_tokens") if getattr(self, name) is not None]
        if len(given) > 1:
            raise UsageError(f"{kind}: {' and '.join(given)} are given. Measure shards in one of them.")
        for name in given[:1] if given and given[0] != "shard_size" else []:
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise UsageError(f"{kind}({name}={value!r}): give a whole number from 1.")
        if self.shard_size is not None and parse_size(self.shard_size, name="shard_size") < 1:
            raise UsageError(f"{kind}(shard_size={self.shard_size!r}): give a size such as '256MB'.")
        if self.token_count_field is not None and self.tokenizer is not None:
            raise UsageError(f"{kind}: token_count_field and tokenizer are given. Count tokens by one of them.")
        if self.shard_tokens is not None and not self.counts_tokens:
            raise UsageError(
                f"{kind}(shard_tokens={self.shard_tokens}): say how tokens are counted, by token_count_field (a column "
                "with counts) or tokenizer (a folder)."
            )
        self.output_path = str(self.output_path)
        self.fractions = checked_splits(self.splits)
        if self.split_field is not None and len(self.fractions) < 2:
            raise UsageError(
                f"{kind}(split_field={self.split_field!r}): there are no splits to assign documents to. Give splits, "
                "such as {'train': 0.98, 'validation': 0.02}."
            )
        if self.folder.ending is not None:
            raise UsageError(f"{kind}(output_path={self.output_path!r}): shards need a folder, and this names a file.")
        if not is_local(self._steps_path):
            raise UsageError(
                f"{kind}(output_path={self.output_path!r}): intermediate files are mapped into memory, so they have to "
                "lie on a disk. Name a folder for them with cache_path (--cache)."
            )

    # --- what a kind adds ---

    @abstractmethod
    def _sources(self) -> list[Source]:
        """The inputs."""

    def _settings(self) -> dict[str, Any]:
        """What was asked for, as plain values: another value gives other shards."""
        names = (
            "seed", "shard_size", "shard_documents", "shard_tokens", "split_field", "balance", "token_count_field",
            "tokenizer", "text_field", "id_field", "license_field", "output_filetype", "input_blocksize",
        )  # fmt: skip
        writing = {key: value for key, value in (self.write_kwargs or {}).items() if key != "storage_options"}
        splits = [[name, share] for name, share in self.fractions.items()]  # their order counts
        return {**{name: getattr(self, name) for name in names}, "splits": splits, "write": writing}

    def _prepare(self, run: ShardingRun) -> None:
        """Do what has to be known before documents are scattered."""

    def _finish(self, run: ShardingRun, facts: dict[str, Any]) -> None:
        """Add what this kind has to say to the record."""

    # --- places ---

    @property
    def counts_tokens(self) -> bool:
        """Whether documents have token counts."""
        return self.token_count_field is not None or self.tokenizer is not None

    @property
    def token_field(self) -> str | None:
        """The column with token counts, read or made on the way."""
        return TOKEN_COLUMN if self.tokenizer is not None else self.token_count_field

    @property
    def folder(self) -> RunFolder:
        """The output with its record."""
        return RunFolder(self.output_path, self.storage_options, record_path=self.record_path)

    @property
    def storage_options(self) -> dict[str, Any] | None:
        """The options of the file system of the output."""
        options = (self.write_kwargs or {}).get("storage_options")
        return None if options is None else dict(options)

    @property
    def _steps_path(self) -> str:
        return (str(self.cache_path) if self.cache_path else f"{self.folder.record}/{STEPS_FOLDER}").rstrip("/")

    # --- the run ---

    def run(
        self,
        executor: BaseExecutor | str | None = None,
        *,
        fresh: bool = False,
        error_budget: float | int | None = 0.01,
        salvage: bool = False,
        listeners: Sequence[Listener] = (),
        progress: bool | None = None,
    ) -> WorkflowRunResult:
        """Write the shards.

        A run can be interrupted at any time; run it again to resume. A finished run is not repeated.

        Args:
            executor: Where to run the pipelines: an executor or its name; the local one by default.
            fresh: Remove what an earlier run left, and start over.
            error_budget: As in `Pipeline.run`.
            salvage: As in `Pipeline.run`.
            listeners: Called with every event of every pipeline.
            progress: As in `Pipeline.run`.

        Raises:
            InputChangedError: The input is not what an earlier, unfinished run has read.
            OutputExistsError: The output was made with other settings or from another input.
        """
        options = {
            "error_budget": error_budget, "salvage": salvage, "listeners": listeners, "progress": progress,
            "url_field": None,
        }  # fmt: skip
        run = ShardingRun(self, as_executor(executor), self._sources(), fresh=fresh, options=options)
        return run.result() if run.begin() else run.go()

    def tokenizer_stages(self) -> list[Stage]:
        """What counts the tokens of documents that do not carry their counts."""
        if self.tokenizer is None:
            return []
        from gristmill.stages.text.models.token_counter import TokenCounter

        return [TokenCounter(self.tokenizer, text_field=self.text_field, count_field=TOKEN_COLUMN)]

    def placement(self, number: int, source: DocumentSource) -> Placement:
        """How the documents of a source are placed; columns that it does not have are left out.

        Raises:
            MissingColumnError: A column that was named is not there.
        """
        named = {
            "split_field": self.split_field,
            "id_field": self.id_field,
            "license_field": self.license_field,
            "token_count_field": self.token_count_field,
            "text_field": self.text_field if self.tokenizer is not None else None,
        }
        wanted = [name for name in named.values() if name is not None]
        found = source.look_for([*wanted, "id", "license"])
        available = [] if found is None else list(found.names)
        for option, name in named.items():
            if found is not None and name is not None and name not in available:
                raise missing_column(option, name, available, looked_at="" if found.complete else found.looked_at)
        by_id = self.id_field or ("id" if "id" in available else None)
        return Placement(
            seed=self.seed,
            source=number,
            splits=self.fractions,
            split_field=self.split_field or (by_id if len(self.fractions) > 1 else None),
            balance=self.balance,
            token_field=self.token_field,
            id_field=by_id,
            license_field=self.license_field or ("license" if "license" in available else None),
            drop_fields=(TOKEN_COLUMN,) if self.tokenizer is not None else (),
        )

    def document_source(self, paths: str | Sequence[str], filetype: str | None = None) -> DocumentSource:
        """The documents at some paths."""
        given = paths if isinstance(paths, str) else tuple(map(str, paths))
        storage = (self.read_kwargs or {}).get("storage_options")
        return DocumentSource(
            given,
            filetype or find_filetype(given, storage_options=storage),
            self.input_blocksize or _BLOCKSIZE,
            None,
            None,
            dict(self.read_kwargs) if self.read_kwargs else None,
        )

    def __repr__(self) -> str:
        return f"{type(self).__name__}(output_path={self.output_path!r})"


class ShardingRun:
    """One run of a workflow: its steps, and what has come of them so far."""

    def __init__(
        self,
        workflow: ShardingWorkflow,
        executor: BaseExecutor,
        sources: list[Source],
        *,
        fresh: bool,
        options: Mapping[str, Any],
    ) -> None:
        self.workflow = workflow
        self.executor = executor
        self.sources = sources
        self.fresh = fresh
        self.options = dict(options)
        self.folder = workflow.folder
        self.root = step_folder(workflow._steps_path)
        self.partitions: list[list[Partition]] = [source.documents.partitions() for source in sources]
        self.notes: list[str] = []
        self.times: dict[str, float] = {}
        self.begun = time.monotonic()
        settings = {**workflow._settings(), "inputs": [self._fingerprints(at) for at in range(len(sources))]}
        text = json.dumps(settings, sort_keys=True, default=str).encode()
        self.digest = xxhash.xxh3_128_hexdigest(text)

    def _fingerprints(self, at: int) -> list[tuple[str, str]]:
        return [(partition.id, partition.fingerprint()) for partition in self.partitions[at]]

    # --- before ---

    def begin(self) -> bool:
        """Look at what is there; gives True where the run is already complete.

        Raises:
            OutputExistsError: The output was made with other settings or from another input.
            InputChangedError: An unfinished run has read another input.
        """
        for source, partitions in zip(self.sources, self.partitions, strict=True):
            check_apart(self.folder, partitions, source.documents.searched_folders())
        if self.fresh:
            self.folder.remove(self.folder.record_path("dataset"))
            self._remove_steps()
            self.folder.remove_tree(documents_path(self.folder))
            return False
        done = read_dataset_record(self.folder)
        if done is not None:
            if done["digest"] != self.digest:
                raise OutputExistsError(
                    f"{self.folder.path} holds the finished result of another '{done['kind']}': its input or its "
                    "settings were different. Start over with --fresh (fresh=True), or write to another folder.",
                    path=self.folder.path,
                )
            self._clean()
            return True
        check_usable(self.root, write=False)
        check_usable(self.folder)
        self._check_space()
        for source, partitions in zip(self.sources, self.partitions, strict=True):
            differences = input_differences(partitions, self._step_folder(source.step), complete=False)
            if differences:
                raise InputChangedError(
                    f"The input is not what the unfinished run in {self.folder.path} has read: "
                    f"{first_named(differences)}. Every document's place depends on all the others: restore the input, "
                    "or start over with --fresh (fresh=True).",
                    differences=differences,
                )
        return False

    def _check_space(self) -> None:
        size = sum(part.size for one in self.partitions for partition in one for part in partition.ranges[:1])
        place = FreeSpace.of(self.root.path)
        if place.free is not None and 2 * size > place.free:
            self.note(
                f"Intermediate files and output may take about {format_size(2 * size)} (more if the input is "
                f"compressed), and the disk of {self.root.path} has {format_size(place.free)} free.",
            )

    def note(self, text: str) -> None:
        """Say something about the run, now and in its record."""
        self.notes.append(text)
        for listener in self.options["listeners"]:
            listener(Notice(text, level="warning"))

    # --- the steps ---

    def go(self) -> WorkflowRunResult:
        """Run all steps."""
        with InputDigests(self.partitions) as digests:
            self.workflow._prepare(self)
            runs = [self._scatter(source) for source in self.sources]
            shards = self._plan(runs)
            written = self._write(runs, shards)
            self._trace(runs, shards)
            return self._record(runs, shards, written, digests.found())

    def step(self, name: str, stages: Sequence[Stage], *, output: RunFolder | None = None, **options: Any) -> Any:
        """Run one pipeline."""
        begun = time.monotonic()
        given = {
            **self.options,
            "ignore_failures": False,
            "report": False,
            "id_field": None,
            "alarm_share": None,
            **options,
        }
        pipeline = Pipeline(f"{self.workflow.name}: {name}", stages=list(stages))
        folder = output or self._step_folder(name)
        fresh = self.fresh and output is not None
        result = pipeline.run(executor=self.executor, fresh=fresh, record_path=folder.record, **given)
        self.times[name] = time.monotonic() - begun
        return result

    def path(self, step: str) -> str:
        """The folder of a step."""
        return f"{self.root.path}/{step}"

    def _step_folder(self, step: str) -> RunFolder:
        return step_folder(self.path(step))

    @property
    def filetype(self) -> str:
        """What is written: as asked for, or as read."""
        kinds = {source.documents.filetype for source in self.sources}
        return self.workflow.output_filetype or ("parquet" if kinds == {"parquet"} else "jsonl")

    @property
    def as_records(self) -> bool:
        """Whether documents are scattered as JSONL records; columns are kept where Parquet goes to Parquet."""
        return self.filetype == "jsonl" or any(source.documents.filetype == "jsonl" for source in self.sources)

    def _scatter(self, source: Source) -> RunFiles:
        writer = ScatterWriter(self.path(source.step), source.placement, as_records=self.as_records)
        self.step(source.step, [source.documents.reader(), *source.stages, writer], id_field=None)
        differences = input_differences(source.documents.partitions(), self._step_folder(source.step), complete=True)
        if differences:
            raise InputChangedError(
                f"The input was changed during the run: {first_named(differences)}. Start over with --fresh "
                "(fresh=True).",
                differences=differences,
            )
        runs = runs_of(self.path(source.step))
        source.facts.update(self._facts_of(source, runs))
        return runs

    def _facts_of(self, source: Source, runs: RunFiles) -> dict[str, Any]:
        entries = list(Manifest(self._step_folder(source.step)).load().values())
        documents = stored = tokens = 0
        licenses: dict[str, int] = {}
        for file in runs.files:
            table = open_run(file.path)
            documents += table.num_rows
            stored += int(column(table, "size").sum())
            tokens += int(column(table, "tokens").sum())
            if "license" in table.column_names:
                for one in table.column("license").value_counts().to_pylist():
                    name = one["values"] or "unknown"
                    name = name if name in licenses or len(licenses) < _LICENSES else "other"
                    licenses[name] = licenses.get(name, 0) + one["counts"]
        return {
            "name": source.name,
            "documents_read": sum(entry.rows_read for entry in entries),
            "quarantined": sum(entry.quarantined for entry in entries),
            "documents": documents,
            "bytes": stored,
            "tokens": tokens if self.workflow.counts_tokens else None,
            "licenses": licenses,
        }

    def _plan(self, runs: list[RunFiles]) -> list[Shard]:
        workflow = self.workflow
        unit, size = "size", parse_size(workflow.shard_size or DEFAULT_SHARD_SIZE, name="shard_size")
        if workflow.shard_documents is not None:
            unit, size = "documents", workflow.shard_documents
        elif workflow.shard_tokens is not None:
            unit, size = "tokens", workflow.shard_tokens
        shards = plan_shards(runs, splits=list(workflow.fractions), unit=unit, size=size)
        there = {shard.split for shard in shards}
        for name, share in workflow.fractions.items():
            if name not in there:
                self.note(f"The split {name!r} ({share:g}) got no documents: there are too few, or too few groups.")
        return shards

    def _write(self, runs: list[RunFiles], shards: list[Shard]) -> int:
        settings = dict(self.workflow.write_kwargs or {})
        kind = ParquetWriter if self.filetype == "parquet" else JsonlWriter
        writer = kind(self.workflow.output_path, settings)
        named = {source.placement.id_field for source in self.sources}
        by_id = next(iter(sorted(filter(None, named))), None)
        stages: list[Stage] = [ShardSource(runs, shards), ShardReader(by_id if len(named) == 1 else None), writer]
        result = self.step("shards", stages, output=self.folder, id_field=by_id, report=True)
        return int(result.report.rows_written)

    def _trace(self, runs: list[RunFiles], shards: list[Shard]) -> None:
        place = documents_path(self.folder)
        settings = {"storage_options": self.workflow.storage_options} if self.workflow.storage_options else None
        reader = TraceReader(
            [source.name for source in self.sources],
            [[partition.id for partition in one] for one in self.partitions],
            offsets=self.filetype == "jsonl",
        )
        self.step(
            DOCUMENTS,
            [ShardSource(runs, shards), reader, ParquetWriter(place, settings)],
            output=step_folder(place, self.workflow.storage_options),
        )

    # --- after ---

    def _record(
        self, runs: list[RunFiles], shards: list[Shard], written: int, digests: list[list[dict[str, Any]]]
    ) -> WorkflowRunResult:
        scattered = sum(source.facts["documents"] for source in self.sources)
        if scattered != written:
            raise ConservationError(
                f"{scattered} documents were scattered, but the shards hold {written}. The output is not marked as "
                "complete; start over with --fresh (fresh=True)."
            )
        for source, files in zip(self.sources, digests, strict=True):
            source.facts["files"] = files
        split_of = {shard.name: shard.split for shard in shards}
        found = shard_facts(self.folder)
        for one in found:
            name = one["file"].split(".")[0]
            one["split"] = split_of.get(name, "")
        facts: dict[str, Any] = {
            "kind": self.workflow.name,
            "digest": self.digest,
            "settings": self.workflow._settings(),
            "versions": {
                "gristmill": __version__,
                "python": ".".join(map(str, sys.version_info[:3])),
                "pyarrow": pa.__version__,
                "numpy": np.__version__,
            },
            "sources": [source.facts for source in self.sources],
            "shards": found,
            "splits": self._split_totals(found),
            "totals": {
                "documents": written,
                "bytes": sum(one["bytes"] for one in found),
                "tokens": _sum_or_none([source.facts["tokens"] for source in self.sources]),
            },
            "notes": self.notes,
        }
        self.workflow._finish(self, facts)
        write_dataset_record(self.folder, _plain(facts))
        self._clean()
        return self.result()

    def _split_totals(self, found: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, int]]:
        totals: dict[str, dict[str, int]] = {}
        for one in found:
            total = totals.setdefault(one["split"], {"documents": 0, "bytes": 0, "shards": 0})
            for key, value in (("documents", one["documents"]), ("bytes", one["bytes"]), ("shards", 1)):
                total[key] += value
        return totals if self.workflow.fractions else {}

    def _clean(self) -> None:
        """Remove the intermediate files: the shards hold everything that was in them."""
        if not self.workflow.keep_steps:
            self._remove_steps()

    def _remove_steps(self) -> None:
        # A cache may be a folder that holds other things too.
        place = local_path(self.root.path)
        for name in sorted(os.listdir(place)) if os.path.isdir(place) else ():
            if _STEP.fullmatch(name):
                self.root.remove_tree(self.root.join(name))

    def result(self) -> WorkflowRunResult:
        """What the record says."""
        record = read_dataset_record(self.folder)
        assert record is not None
        result = WorkflowRunResult(self.workflow.name)
        result.extend_metadata({key: value for key, value in record.items() if key not in ("seal", "format", "digest")})
        result.add_metadata("output", self.workflow.output_path)
        result.add_metadata("total_time", time.monotonic() - self.begun)
        result.add_metadata("times", dict(self.times))
        return result


def _sum_or_none(values: Sequence[int | None]) -> int | None:
    there = [value for value in values if value is not None]
    return sum(there) if there else None


def _plain(value: Any) -> Any:
    """A value as JSON has it."""
    if isinstance(value, Mapping):
        return {str(key): _plain(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    if isinstance(value, np.generic):
        value = value.item()
    return None if isinstance(value, float) and not math.isfinite(value) else value
