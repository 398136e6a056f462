"""`run.json`: what a run did and what it cost, gathered from its events and from the manifest."""

from __future__ import annotations

import contextlib
import datetime as dt
import json
import math
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import KW_ONLY, asdict, dataclass, field
from itertools import starmap
from typing import TYPE_CHECKING, Any, cast

import xxhash

from gristmill import __version__
from gristmill.errors import VerificationError
from gristmill.ledger.record.layout import RECORD_FILES, RunFolder
from gristmill.ledger.record.manifest import DamagedFile, Manifest, ManifestTotals, check_shape
from gristmill.ledger.record.plan_record import plan_digest, read_plan
from gristmill.ledger.record.shape import RUN
from gristmill.ledger.record.trail import CONVERTED, StageCount, StageTime
from gristmill.observe.events import (
    Event,
    Notice,
    PartitionCommitted,
    PartitionFailed,
    RunFinished,
    RunStarted,
    Sample,
    SegmentPlan,
    TaskFinished,
    WorkerStarted,
    WorkerStopped,
)
from gristmill.storage.atomic import json_bytes

if TYPE_CHECKING:
    from gristmill.ledger.record.run_history import RunHistory

RUNNING = "running"
_MAX_NOTICES = 100
_MAX_DAMAGED = 10
_RENEW_S = 5.0
"""Seconds between two updates of the record during a run."""
_RENEW_REMOTE_S = 30.0
"""The same on an object store, where a write takes some tenths of a second."""
_NAMED = 3
_NO_HISTORY: dict[str, Any] = {"seconds": [], "rows_read": [], "rows_written": [], "memory_bytes": [], "segments": []}
_NO_WAITS = {
    "starved_seconds": 0.0,
    "blocked_seconds": 0.0,
    "starting_seconds": 0.0,
    "retries": 0,
    "crashes": 0,
    "recycles": 0,
}
"""The value used instead for a short run in the calling process."""


def read_run(folder: RunFolder) -> dict[str, Any] | None:
    """The record of the last run; None if there is none.

    Raises:
        VerificationError: The file is damaged.
    """
    place = folder.record_path("run")
    try:
        record = json.loads(folder.read(place))
    except FileNotFoundError:
        return None
    except (ValueError, RecursionError) as error:
        raise VerificationError(f"{place} is damaged: {error}.", path=place) from error
    try:
        check_shape(record, RUN)
    except ValueError as error:
        raise VerificationError(f"{place} is not the record of a run: {error}.", path=place) from error
    return cast(dict[str, Any], record)


@dataclass(frozen=True, slots=True)
class AlarmLimits:
    """Thresholds for alarms.

    Attributes:
        max_dropped_share: A stage that drops more than this share of its rows; None is off.
        no_effect_rows: A stage that leaves at least this many rows unchanged; None is off.
        min_rows: Minimum number of rows for shares to be meaningful.
    """

    max_dropped_share: float | None = 0.9
    no_effect_rows: int | None = 10_000
    min_rows: int = 100


@dataclass(slots=True, eq=False)
class RunRecorder:
    """Listens to a run and keeps its record: add it to the `EventStream`, then read `record()`.

    With a folder, `run.json` is written when the run starts and when it ends, and every few seconds in between, so that
    the record of a killed run shows how far it got. Rows are those of all committed partitions, also of earlier runs
    that this one resumed (while it runs, those of its own tasks); times, bytes and memory are those of this run alone.

    Attributes:
        folder: The output folder; None keeps the record in memory only.
        limits: When to raise an alarm.
        quiet_stages: Stages that are not expected to drop or change anything.
        peak_memory: Bytes already known to have been used, for executors that send no samples.
        previous: The record of the previous run, if it is no longer in the folder.
        files: What happened to the files of the input; None for that of the previous run.
        plan_digest: The digest of the plan that runs; nothing is written if the folder holds another one.
        committed: The totals of the manifest at the end of the run.
    """

    folder: RunFolder | None = None
    _: KW_ONLY
    limits: AlarmLimits | None = None
    quiet_stages: Collection[str] = ()
    peak_memory: int = 0
    previous: Mapping[str, Any] | None = None
    files: Mapping[str, Any] | None = None
    plan_digest: str = ""
    committed: ManifestTotals | None = field(default=None, init=False)
    _started: RunStarted | None = field(default=None, init=False)
    _finished: RunFinished | None = field(default=None, init=False)
    _first_output: float | None = field(default=None, init=False)
    _counts: dict[str, StageCount] = field(default_factory=dict, init=False)
    _times: dict[str, StageTime] = field(default_factory=dict, init=False)
    _committed: int = field(default=0, init=False)
    _notices: list[dict[str, str]] = field(default_factory=list, init=False)
    _alive: dict[int, set[int]] = field(default_factory=dict, init=False)
    _most_workers: dict[int, int] = field(default_factory=dict, init=False)
    _deaths: dict[str, int] = field(default_factory=dict, init=False)
    _history: RunHistory | None = field(default=None, init=False)
    _failures: dict[str, int] = field(default_factory=dict, init=False)
    _hashes: dict[str, str] = field(default_factory=dict, init=False)
    _written_at: float = field(default=0.0, init=False)

    def __call__(self, event: Event) -> None:
        """Process an event."""
        if isinstance(event, TaskFinished | Sample) and self.folder is not None:
            # These come from the counting thread, and often enough.
            pause = _RENEW_S if "://" not in self.folder.record else _RENEW_REMOTE_S
            if time.monotonic() - self._written_at >= pause:
                with contextlib.suppress(OSError):  # if the output is not writable either, that error ends the run
                    self._write()
        if isinstance(event, TaskFinished):
            for stage, counts in event.counts.items():
                self._counts.setdefault(stage, StageCount()).add(counts)
            for stage, times in event.times.items():
                self._times.setdefault(stage, StageTime()).add(times)
            self._most_workers.setdefault(event.segment, 1)
            if event.attempt > 1:
                for waits in self._with_history().stages_of(event.segment):
                    waits.retries += event.attempt - 1
        elif isinstance(event, PartitionCommitted):
            self._committed += 1
            if self._first_output is None and event.files:
                self._first_output = event.at
        elif isinstance(event, Sample):
            self.peak_memory = max(self.peak_memory, event.memory_bytes)
            for segment, workers in enumerate(event.workers):
                self._most_workers[segment] = max(self._most_workers.get(segment, 0), workers)
            if event.worker_bytes:  # otherwise a short run in the calling process
                self._with_history().add(event, *self._rows())
        elif isinstance(event, WorkerStarted):
            alive = self._alive.setdefault(event.segment, set())
            alive.add(event.worker)
            self._most_workers[event.segment] = max(self._most_workers.get(event.segment, 0), len(alive))
        elif isinstance(event, WorkerStopped):
            self._alive.setdefault(event.segment, set()).discard(event.worker)
            if not event.expected:
                self._deaths[event.cause] = self._deaths.get(event.cause, 0) + 1
            for waits in self._with_history().stages_of(event.segment):
                waits.crashes += not event.expected
                waits.recycles += event.cause == "recycled"
        elif isinstance(event, PartitionFailed):
            self._failures[event.stage] = self._failures.get(event.stage, 0) + 1
        elif isinstance(event, Notice):
            if event.level != "info" and len(self._notices) < _MAX_NOTICES:
                self._notices.append({"level": event.level, "message": event.message})
        elif isinstance(event, RunStarted):
            self._started = event
            if self._history is not None:
                self._history.begin(event.segments)
            self._hashes = {}
            if self.folder is not None and self.previous is None:
                with contextlib.suppress(VerificationError):  # a damaged record is replaced now
                    self.previous = read_run(self.folder)
            self._write()
        elif isinstance(event, RunFinished):
            self._finished = event
            if self._history is not None:
                self._history.finish(event.at, *self._rows())
            # Show the error that ended the run, even if the record can no longer be written (a full disk).
            with contextlib.suppress(*(() if event.status == "done" else (OSError,))):
                if self.folder is not None:
                    manifest = Manifest(self.folder)
                    self.committed = manifest.totals()
                    if event.status == "done" and manifest.pending and manifest.settle():
                        self.committed = manifest.totals()
                self._write()

    def begin_step(self, segments: tuple[SegmentPlan, ...]) -> None:
        """The following events belong to an earlier step of the run, which has these segments."""
        self._with_history().begin(segments)

    def _with_history(self) -> RunHistory:
        if self._history is None:
            from gristmill.ledger.record.run_history import RunHistory

            self._history = RunHistory(self._started.at if self._started else time.time())
            self._history.begin(self._started.segments if self._started else ())
        return self._history

    def _rows(self) -> tuple[int, int]:
        """The rows that tasks of this run have read and written so far."""
        stages = self._started.stages if self._started else ()
        made = (self._counts[stage].created for stage in stages if stage in self._counts)
        last = self._counts.get(stages[-1]) if stages else None
        return next(filter(None, made), 0), last.rows_out if last else 0

    def _write(self) -> None:
        """Write the current record to `run.json`, with the hashes of the files beside it and its own checksum."""
        if self.folder is not None:
            self._written_at = time.monotonic()
            plan = read_plan(self.folder) if self.plan_digest else None
            if plan is not None and plan_digest(plan) != self.plan_digest:
                return  # another pipeline has taken over the output, and this is its record now
            if not self._hashes or self._finished is not None:
                self._hashes = file_hashes(self.folder)
            record = {**self.record(), "sealed": self._hashes}
            record["seal"] = checksum(record)
            self.folder.write(self.folder.record_path("run"), json_bytes(record))

    def record(self) -> dict[str, Any]:
        """The record as plain values."""
        started, finished = self._started, self._finished
        committed = ManifestTotals() if self.committed is None else self.committed
        rows = committed.stages or self._counts
        counts: dict[str, StageCount] = {}
        for name in (*(started.stages if started else ()), *rows):
            if name in rows or name in self._times:
                counts[name] = rows.get(name, StageCount())
        begin, end = started.at if started else None, finished.at if finished else None
        times = {
            name: None if at is None else dt.datetime.fromtimestamp(at, dt.UTC).isoformat(timespec="milliseconds")
            for name, at in (("started", begin), ("updated", end or time.time()), ("finished", end))
        }
        spans = {
            name: None if begin is None or at is None else round(max(0.0, at - begin), 3)
            for name, at in (("wall_seconds", end), ("time_to_first_output_seconds", self._first_output))
        }
        record: dict[str, Any] = {
            "format": 1,
            "version": __version__,
            "status": finished.status if finished else RUNNING,
            "error": finished.error if finished else None,
            "output": None if self.folder is None else self.folder.path,
            "pipeline": started.pipeline if started else "",
            "executor": started.executor if started else "",
            **times,
            **spans,
            "peak_memory_bytes": self.peak_memory,
            "partitions": started.partitions if started else 0,
            "partitions_done_before": started.partitions_done_before if started else 0,
            "partitions_committed": self._committed,
            "files": (self.previous or {}).get("files") if self.files is None else self.files,
            "input_bytes": started.input_bytes if started else 0,
            "source_bytes": committed.source_bytes,
            "output_bytes": committed.output_bytes,
            "rows_read": committed.rows_read,
            "rows_written": committed.rows_written,
            "rows_dropped": committed.rows_dropped,
            "rows_quarantined": committed.quarantined,
            "stages": list(starmap(self._stage, counts.items())),
            "worker_deaths": dict(sorted(self._deaths.items())),
            "notices": list(self._notices),
            "history": _NO_HISTORY if self._history is None else self._history.record(),
        }
        if not committed.partitions:  # a run without a writer, or one that has committed nothing
            for count in counts.values():
                record["rows_read"] = record["rows_read"] or count.created
                record["rows_written"] = count.rows_out  # of the last stage
                record["rows_dropped"] += sum(count.dropped.values())
                record["rows_quarantined"] += sum(count.quarantined.values())
        complete = finished is not None and finished.status == "done"
        # The sizes of the last finished run, passed on by unfinished ones.
        record["last_done"] = _last_done(record if complete else self.previous)
        record["alarms"] = (
            find_alarms(
                counts,
                damaged=committed.damaged,
                limits=self.limits,
                quiet_stages=self.quiet_stages,
                run=record,
                previous=_last_done(self.previous),
            )
            if complete
            else []
        )
        return record

    def _stage(self, name: str, count: StageCount) -> dict[str, Any]:
        times = self._times.get(name, StageTime())
        seen = self._counts.get(name, StageCount())
        workers = 0
        for segment in self._started.segments if self._started else ():
            if name in segment.stages:
                workers = max(workers, self._most_workers.get(segment.index, 0))
        return {
            "stage": name,
            **asdict(count),
            "bytes_in": seen.bytes_in,
            "bytes_out": seen.bytes_out,
            "busy_seconds": round(times.busy_s, 6),
            "calls": times.calls,
            "workers": workers,
            "failures": self._failures.get(name, 0),
            # In the calling process, a stage never waits, and its memory is that of the run.
            **(
                {**_NO_WAITS, "peak_memory_bytes": self.peak_memory}
                if self._history is None
                else self._history.waits[name].record()
            ),
            "custom": {key: value for key, value in sorted(times.custom.items()) if math.isfinite(value)},
        }


def file_hashes(folder: RunFolder) -> dict[str, str]:
    """The hashes of the files of a run that neither belong to a partition nor are this record."""
    found = {}
    for kind in ("plan", "recipe", "left_out", "summary"):
        with contextlib.suppress(FileNotFoundError):
            data = folder.read(folder.record_path(kind))
            found[RECORD_FILES[kind]] = "xxh3:" + xxhash.xxh3_128_hexdigest(data)
    return found


def checksum(record: Mapping[str, Any]) -> str:
    """A hash of everything in a record except `seal`, where the hash is stored."""
    values = dict(record)
    values.pop("seal", None)
    return xxhash.xxh3_64_hexdigest(json.dumps(values, sort_keys=True).encode())


def encoded_record(record: Mapping[str, Any]) -> bytes:
    """A record as JSON, with its checksum as `seal`."""
    return json_bytes({**record, "seal": checksum(record)})


def checked_record(data: bytes, shown: str, hint: str = "") -> dict[str, Any]:
    """The record that `encoded_record` made, with its seal.

    Raises:
        VerificationError: It was edited or damaged; the message ends with `hint`.
    """
    try:
        record = json.loads(data)
    except ValueError as error:
        raise VerificationError(f"{shown} is damaged: {error}.{hint}", path=shown) from error
    if not isinstance(record, dict) or record.get("seal") != checksum(record):
        told = f"{shown} was edited or damaged: its content does not match its checksum.{hint}"
        raise VerificationError(told, path=shown)
    if data != json_bytes(record):
        raise VerificationError(f"{shown} has the right content but was rewritten (bytes differ).{hint}", path=shown)
    return record


def with_checksum(page: bytes) -> bytes:
    """A page about a run, followed by its hash in a comment."""
    return page + f"<!-- xxh3:{xxhash.xxh3_128_hexdigest(page)} -->\n".encode()


def _last_done(record: Mapping[str, Any] | None) -> dict[str, Any] | None:
    if record is None:
        return None
    if record.get("status") == "done":
        return {
            "source_bytes": record.get("source_bytes"),
            "partitions": record.get("partitions"),
            "rows_read": record.get("rows_read"),
        }
    before = record.get("last_done")
    return dict(before) if isinstance(before, dict) else None


def find_alarms(
    stages: Mapping[str, StageCount],
    *,
    limits: AlarmLimits | None = None,
    quiet_stages: Collection[str] = (),
    run: Mapping[str, Any] | None = None,
    previous: Mapping[str, Any] | None = None,
    damaged: Sequence[DamagedFile] = (),
) -> list[str]:
    """The alarms of a run.

    Args:
        stages: Counts in the order of the plan; the first and last ones are reader and writer and may have no effect.
        limits: When to raise an alarm.
        quiet_stages: Stages that are not expected to drop or change anything (they only add columns).
        run: `partitions`, `source_bytes` and `rows_read` of this run.
        previous: The same for the previous run.
        damaged: Damaged input files.
    """
    limits = limits or AlarmLimits()
    found = list(map("{}.".format, damaged[:_MAX_DAMAGED]))
    if len(damaged) > _MAX_DAMAGED:
        found.append(f"{len(damaged) - _MAX_DAMAGED} more damaged input files; see 'gristmill verify OUTPUT'.")
    idle_stages: list[str] = []
    names = list(stages)
    if names and stages[names[0]].quarantined and not stages[names[0]].rows_out:
        records = sum(stages[names[0]].quarantined.values())
        found.append(f"Stage {names[0]!r} could not read anything: all {records} records are in quarantine.")
    for name, count in stages.items():
        gone = sum(count.dropped.values())
        if limits.max_dropped_share is not None and count.rows_in >= limits.min_rows:
            share = (gone - count.dropped.get(CONVERTED, 0)) / count.rows_in
            if share > limits.max_dropped_share:
                reason = max(count.dropped, key=lambda key: count.dropped[key])
                found.append(
                    f"Stage {name!r} dropped {share:.1%} of {count.rows_in} rows, mostly as {reason!r} "
                    f"({count.dropped[reason]}); dropping more than {limits.max_dropped_share:.0%} is usually a "
                    "mistake."
                )
        ends = name in (names[0], names[-1]) or name in quiet_stages
        effect = gone or count.created or count.changed or count.touched or count.quarantined
        idle = not effect
        if limits.no_effect_rows is not None and not ends and idle and count.rows_in >= limits.no_effect_rows:
            idle_stages.append(name)
    if idle_stages:
        # One alarm for all of them: in a long cascade some filters rarely find anything.
        least = min(stages[name].rows_in for name in idle_stages)
        named = ", ".join(map(repr, idle_stages[:_NAMED]))
        more = f" and {len(idle_stages) - _NAMED} more" if len(idle_stages) > _NAMED else ""
        found.append(
            f"Stage {named} had no effect on {least} rows. Check its fields and thresholds."
            if len(idle_stages) == 1
            else f"Stages {named}{more} had no effect on {least} rows or more. Check their fields and thresholds."
        )
    for key, what in (("source_bytes", "bytes"), ("partitions", "partitions"), ("rows_read", "rows")):
        now, before = (run or {}).get(key), (previous or {}).get(key)
        if isinstance(now, int) and isinstance(before, int) and now < before:
            found.append(f"The input shrank since the last run: {now} {what} instead of {before}.")
            break
    return found
