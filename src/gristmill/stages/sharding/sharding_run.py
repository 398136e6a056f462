"""One run of a shuffle or mixture: its steps as pipelines with files between them, and its record at the end."""

from __future__ import annotations

import json
import math
import os
import re
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import xxhash

from gristmill import __version__
from gristmill.backends.base import BaseExecutor
from gristmill.errors import ConservationError, InputChangedError, OutputExistsError
from gristmill.figures import format_size, parse_size
from gristmill.ledger.record.dataset_record import (
    DOCUMENTS,
    documents_path,
    read_dataset_record,
    shard_facts,
    write_dataset_record,
)
from gristmill.ledger.record.layout import RunFolder, step_folder
from gristmill.ledger.record.manifest import Manifest
from gristmill.observe.events import Notice
from gristmill.pipeline.output import check_apart, check_usable
from gristmill.pipeline.pipeline import Pipeline
from gristmill.pipeline.workflow import WorkflowRunResult
from gristmill.stages.base import ProcessingStage
from gristmill.stages.deduplication.forecast import FreeSpace
from gristmill.stages.deduplication.sorted_runs import RunFiles, column, open_run, runs_of
from gristmill.stages.deduplication.source import (
    DocumentSource,
    first_named,
    input_differences,
)
from gristmill.stages.sharding.input_digests import InputDigests
from gristmill.stages.sharding.keys import Placement
from gristmill.stages.sharding.scatter import ScatterWriter
from gristmill.stages.sharding.shards import Shard, ShardReader, ShardSource, plan_shards
from gristmill.stages.sharding.trace import TraceReader
from gristmill.stages.text.io.writer import JsonlWriter, ParquetWriter
from gristmill.storage.files import local_path
from gristmill.storage.partitions import Partition

if TYPE_CHECKING:
    from gristmill.stages.sharding.workflow import ShardingWorkflow

Stage = ProcessingStage[Any, Any]

DEFAULT_SHARD_SIZE = 256 << 20
_LICENSES = 1000
"""Maximum number of different licences to list per source."""
_STEP = re.compile(r"(scatter|sizes|values|caps)-\d{3}")


@dataclass
class Source:
    """One input: its location, its name, and how it is processed before it is scattered."""

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


class ShardingRun:
    """One run of a workflow: its steps, and their results so far."""

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
        """Inspect the existing files. Returns True if the run is already complete.

        Raises:
            OutputExistsError: The output was made with other settings or from another input.
            InputChangedError: The input changed since an unfinished run read it.
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
                    f"{self.folder.path} holds the finished result of another '{done['kind']}', with a different "
                    "input or settings. Start over with --fresh (fresh=True), or write to another folder.",
                    path=self.folder.path,
                )
            self.clean()
            return True
        check_usable(self.root, write=False)
        check_usable(self.folder)
        self._check_space()
        for source, partitions in zip(self.sources, self.partitions, strict=True):
            differences = input_differences(partitions, self._step_folder(source.step), complete=False)
            if differences:
                raise InputChangedError(
                    f"The input changed since the unfinished run in {self.folder.path} read it: "
                    f"{first_named(differences)}. Every document's position depends on all the others: restore the "
                    "input, or start over with --fresh (fresh=True).",
                    differences=differences,
                )
        return False

    def _check_space(self) -> None:
        files = {part.path: part.size for one in self.partitions for partition in one for part in partition.ranges}
        size = sum(files.values())
        place = FreeSpace.of(self.root.path)
        if place.free is not None and 2 * size > place.free:
            self.note(
                f"Intermediate files and output may take about {format_size(2 * size)} (more if the input is "
                f"compressed), but the disk of {self.root.path} has {format_size(place.free)} free.",
            )

    def note(self, text: str) -> None:
        """Report a note about the run, now and in its record."""
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
        """The output format: as requested, or that of the input."""
        kinds = {source.documents.filetype for source in self.sources}
        return self.workflow.output_filetype or ("parquet" if kinds == {"parquet"} else "jsonl")

    @property
    def as_records(self) -> bool:
        """Whether documents are scattered as JSONL records, unless both input and output are Parquet."""
        return self.filetype == "jsonl" or any(source.documents.filetype == "jsonl" for source in self.sources)

    def _scatter(self, source: Source) -> RunFiles:
        writer = ScatterWriter(self.path(source.step), source.placement, as_records=self.as_records)
        self.step(source.step, [source.documents.reader(), *source.stages, writer], id_field=None)
        differences = input_differences(source.documents.partitions(), self._step_folder(source.step), complete=True)
        if differences:
            raise InputChangedError(
                f"The input changed during the run: {first_named(differences)}. Start over with --fresh (fresh=True).",
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
        sizes = (part for one in runs for part in one.parts(unit)) if unit != "documents" else ()
        longest = max((int(part.max(initial=0)) for part in sizes), default=0)
        if longest > size:
            what = "bytes" if unit == "size" else unit
            self.note(
                f"The longest document has {longest:,} {what}, more than the {size:,} of a shard: documents are never "
                "cut, so its shard is larger."
            )
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
                f"{scattered} documents were read, but the shards hold {written}. The output is not marked as "
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
        self.clean()
        return self.result()

    def _split_totals(self, found: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, int]]:
        totals: dict[str, dict[str, int]] = {}
        for one in found:
            total = totals.setdefault(one["split"], {"documents": 0, "bytes": 0, "shards": 0})
            for key, value in (("documents", one["documents"]), ("bytes", one["bytes"]), ("shards", 1)):
                total[key] += value
        return totals if self.workflow.fractions else {}

    def clean(self) -> None:
        """Remove the intermediate files: the shards hold all of their contents."""
        if not self.workflow.keep_steps:
            self._remove_steps()

    def _remove_steps(self) -> None:
        # A cache may be a folder that holds other things too.
        place = local_path(self.root.path)
        for name in sorted(os.listdir(place)) if os.path.isdir(place) else ():
            if _STEP.fullmatch(name):
                self.root.remove_tree(self.root.join(name))

    def result(self) -> WorkflowRunResult:
        """The content of the record."""
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
    """A value in JSON form."""
    if isinstance(value, Mapping):
        return {str(key): _plain(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    if isinstance(value, np.generic):
        value = value.item()
    return None if isinstance(value, float) and not math.isfinite(value) else value
