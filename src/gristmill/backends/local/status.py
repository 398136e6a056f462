"""What a worker is doing right now, readable by the driver even after the worker was killed.

One page of memory shared by two processes: a worker writes, the driver reads, no message and no system call between
them. There are two slots, written in turn, each with its own sequence number and checksum. A reader takes the newest
slot whose checksum holds, so a write that was cut short (by a signal, or seen half done from another core) hides only
itself.
"""

from __future__ import annotations

import enum
import mmap
import os
import struct
import tempfile
import time
import zlib
from dataclasses import dataclass, replace

__all__ = ["Phase", "StatusBlock", "StatusWriter", "WorkerStatus"]

_BODY = struct.Struct("=12q")
_CHECK = struct.Struct("=I")
_SLOT_BYTES = 256
_SLOTS = 2
_BLOCK_BYTES = mmap.PAGESIZE


class Phase(enum.IntEnum):
    """The part of its life a worker is in."""

    STARTING = 0
    IDLE = 1
    SETUP = 2
    RECEIVING = 3
    PROCESSING = 4
    SENDING = 5
    TEARDOWN = 6
    STOPPING = 7


@dataclass(frozen=True, slots=True)
class WorkerStatus:
    """One consistent reading of a status block.

    Attributes:
        task: Sequence number of the task in hand; -1 for none.
        batch: Number of the batch within the task; -1 for none.
        stage: Index of the stage that runs; -1 for none.
        lo: First row of the slice in hand.
        hi: One past its last row.
        phase: The part of its life the worker is in.
        started_ns: When the work in hand began, on the monotonic clock, which all processes of a machine share.
        beats: Grows with every sign of life.
        rss_bytes: Resident memory when last looked at; 0 before.
        cpu_ns: Processor time of the worker so far.
        written_ns: When this was written, on the same clock.
    """

    task: int = -1
    batch: int = -1
    stage: int = -1
    lo: int = 0
    hi: int = 0
    phase: Phase = Phase.STARTING
    started_ns: int = 0
    beats: int = 0
    rss_bytes: int = 0
    cpu_ns: int = 0
    written_ns: int = 0

    @property
    def running_s(self) -> float:
        """Seconds since the work in hand began; 0.0 when there is none."""
        return max(0.0, (time.monotonic_ns() - self.started_ns) / 1e9) if self.started_ns else 0.0


def _pack(sequence: int, status: WorkerStatus) -> bytes:
    body = _BODY.pack(
        sequence,
        status.task,
        status.batch,
        status.stage,
        status.lo,
        status.hi,
        int(status.phase),
        status.started_ns,
        status.beats,
        status.rss_bytes,
        status.cpu_ns,
        status.written_ns,
    )
    return body + _CHECK.pack(zlib.crc32(body))


def _unpack(slot: bytes) -> tuple[int, WorkerStatus] | None:
    body = slot[: _BODY.size]
    (check,) = _CHECK.unpack_from(slot, _BODY.size)
    sequence, task, batch, stage, lo, hi, phase, started, beats, rss, cpu, written = _BODY.unpack(body)
    # An untouched slot is all zeros; its sequence number tells it from a written one.
    if sequence == 0 or zlib.crc32(body) != check:
        return None
    return sequence, WorkerStatus(task, batch, stage, lo, hi, Phase(phase), started, beats, rss, cpu, written)


class StatusBlock:
    """The shared page, as the driver holds it; it has no name on disk, so nothing is left behind by any death."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._memory = mmap.mmap(descriptor, _BLOCK_BYTES)

    @classmethod
    def create(cls) -> StatusBlock:
        """A new page of zeros."""
        if hasattr(os, "memfd_create"):
            descriptor = os.memfd_create("gristmill-status", os.MFD_CLOEXEC)
        else:
            with tempfile.TemporaryFile(prefix="gristmill-status-") as file:
                descriptor = os.dup(file.fileno())
        os.ftruncate(descriptor, _BLOCK_BYTES)
        return cls(descriptor)

    def fileno(self) -> int:
        """The descriptor to hand to the worker."""
        return self._descriptor

    def release_descriptor(self) -> None:
        """Close the descriptor once the worker has it; the memory stays readable."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def read(self) -> WorkerStatus:
        """The newest complete status; the default one before the worker wrote any."""
        best: tuple[int, WorkerStatus] | None = None
        for slot in range(_SLOTS):
            at = slot * _SLOT_BYTES
            found = _unpack(self._memory[at : at + _BODY.size + _CHECK.size])
            if found is not None and (best is None or found[0] > best[0]):
                best = found
        return best[1] if best is not None else WorkerStatus()

    def close(self) -> None:
        """Give the page back."""
        self.release_descriptor()
        self._memory.close()


class StatusWriter:
    """The worker's side of a status block; every call is a few microseconds and cannot fail."""

    def __init__(self, descriptor: int) -> None:
        self._memory = mmap.mmap(descriptor, _BLOCK_BYTES)
        self._sequence = 0
        self.status = WorkerStatus()
        self._statm = -1

    def update(
        self,
        *,
        phase: Phase | None = None,
        task: int | None = None,
        batch: int | None = None,
        stage: int | None = None,
        rows: tuple[int, int] | None = None,
        restart_clock: bool = False,
    ) -> None:
        """Say what is being done; what is not given stays.

        Args:
            phase: The part of its life the worker enters.
            task: Sequence number of the task.
            batch: Number of the batch within the task.
            stage: Index of the stage.
            rows: The slice in hand, first row and one past the last.
            restart_clock: Whether the work in hand begins now (time limits count from here).
        """
        now = time.monotonic_ns()
        old = self.status
        lo, hi = (old.lo, old.hi) if rows is None else rows
        self._write(
            WorkerStatus(
                task=old.task if task is None else task,
                batch=old.batch if batch is None else batch,
                stage=old.stage if stage is None else stage,
                lo=lo,
                hi=hi,
                phase=old.phase if phase is None else phase,
                started_ns=now if restart_clock else old.started_ns,
                beats=old.beats + 1,
                rss_bytes=old.rss_bytes,
                cpu_ns=time.process_time_ns(),
                written_ns=now,
            )
        )

    def idle(self) -> None:
        """Say that nothing is in hand."""
        old = self.status
        self._write(
            WorkerStatus(
                phase=Phase.IDLE,
                beats=old.beats + 1,
                rss_bytes=old.rss_bytes,
                cpu_ns=time.process_time_ns(),
                written_ns=time.monotonic_ns(),
            )
        )

    def beat(self) -> None:
        """Give a sign of life."""
        self.update()

    def note_memory(self) -> int:
        """Look at this process's resident memory, write it down and return it (0 where the system does not say)."""
        rss = self.resident_bytes()
        if rss:
            now = time.monotonic_ns()
            self._write(replace(self.status, rss_bytes=rss, beats=self.status.beats + 1, written_ns=now))
        return rss

    def resident_bytes(self) -> int:
        """This process's resident memory, without writing it down, from any thread (0 where the system is silent)."""
        if self._statm == -1:
            try:
                self._statm = os.open("/proc/self/statm", os.O_RDONLY | os.O_CLOEXEC)
            except OSError:
                self._statm = -2
        if self._statm < 0:
            return 0
        return int(os.pread(self._statm, 128, 0).split()[1]) * mmap.PAGESIZE

    def _write(self, status: WorkerStatus) -> None:
        self._sequence += 1
        at = (self._sequence % _SLOTS) * _SLOT_BYTES
        packed = _pack(self._sequence, status)
        self._memory[at : at + len(packed)] = packed
        self.status = status

    def close(self) -> None:
        """Give the page back."""
        if self._statm >= 0:
            os.close(self._statm)
            self._statm = -1
        self._memory.close()
