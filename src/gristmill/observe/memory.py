"""Available memory, CPU cores and GPUs, and how much of the memory a run's processes use.

Processes are measured by PSS: a page shared by n processes counts 1/n in each, so the sum over a tree of forked workers
is what the machine really provides. Limits are the tightest of the machine's and of every enclosing control group.
"""

from __future__ import annotations

import ctypes
import math
import mmap
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

__all__ = [
    "GpuDevice",
    "MemorySample",
    "OutOfMemoryCounter",
    "available_memory",
    "cpu_count",
    "descendants",
    "gpu_devices",
    "gpu_memory_gb",
    "measure_tree",
    "memory_limit",
    "private_bytes",
    "process_start_time",
]

_PROC = Path("/proc")
_CGROUPS = Path("/sys/fs/cgroup")
# Version 1 writes "no limit" as the largest multiple of a page; nothing real is near.
_UNLIMITED = 1 << 60
_NVML = "libnvidia-ml.so.1"


class MemorySample(NamedTuple):
    """Memory of several processes at one moment.

    Attributes:
        pss_bytes: The sum; shared pages count once.
        per_pid: Memory of each process that still existed.
    """

    pss_bytes: int
    per_pid: dict[int, int]


def measure_tree(pids: Iterable[int]) -> MemorySample:
    """The memory used by the processes `pids`; those that have ended are skipped.

    Makes the kernel walk the page tables, one to two milliseconds per process with our packages loaded: fine a few
    times a second, too slow for every batch.
    """
    per_pid: dict[int, int] = {}
    for pid in pids:
        held = _pss(pid)
        if held is not None:
            per_pid[pid] = held
    return MemorySample(sum(per_pid.values()), per_pid)


def descendants(pid: int) -> list[int]:
    """The direct and indirect child processes of `pid`; empty if the system does not report them."""
    found: list[int] = []
    waiting = [pid]
    while waiting:
        folder = f"/proc/{waiting.pop()}/task"
        try:
            threads = os.listdir(folder)
        except OSError:
            continue
        for thread in threads:
            try:
                with open(f"{folder}/{thread}/children", "rb", buffering=0) as file:
                    children = [int(word) for word in file.read().split()]
            except OSError:
                continue
            found += children
            waiting += children
    return found


def _pss(pid: int) -> int | None:
    try:
        with open(f"/proc/{pid}/smaps_rollup", "rb", buffering=0) as file:
            text = file.read()
    except (FileNotFoundError, PermissionError):
        return _rss(pid)
    except ProcessLookupError:
        return None
    at = text.find(b"\nPss:")
    # A process that is exiting no longer has a memory map and uses no memory.
    return int(text[at + 5 :].split(None, 1)[0]) * 1024 if at >= 0 else 0


def _rss(pid: int) -> int | None:
    import psutil

    try:
        return int(psutil.Process(pid).memory_info().rss)
    except (psutil.NoSuchProcess, psutil.ZombieProcess):
        return None
    except psutil.AccessDenied:
        return 0


def private_bytes(pid: int) -> int:
    """The memory of a process that is not backed by files, as counted by the kernel; 0 if unknown.

    Memory shared with the process that it was forked from counts in both.
    """
    try:
        with open(f"/proc/{pid}/statm", "rb", buffering=0) as file:
            words = file.read(128).split()
    except OSError:
        return 0
    return (int(words[1]) - int(words[2])) * mmap.PAGESIZE


def process_start_time(pid: int) -> int | None:
    """When process `pid` started, in system ticks; None if there is no such process.

    Together with the pid it identifies a process permanently: pids are reused, pairs are not.
    """
    try:
        text = _PROC.joinpath(str(pid), "stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        if _PROC.joinpath("self/stat").exists():
            return None
        import psutil

        try:
            return int(psutil.Process(pid).create_time() * 1000)
        except psutil.Error:
            return None
    # The name may contain anything, including parentheses and blanks; fields are counted from the last closing one.
    fields = text.rpartition(")")[2].split()
    # A zombie no longer runs and will never clean up.
    return None if fields[0] in ("Z", "X") else int(fields[19])


def _group_folders(controller: str, *, proc: Path, cgroups: Path) -> Iterator[tuple[Path, int]]:
    """The control-group folders that limit this process, innermost first, with the version of each."""
    try:
        lines = (proc / "self" / "cgroup").read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if controllers == "":
            version, roots = 2, [cgroups, cgroups / "unified"]
        elif controller in controllers.split(","):
            version, roots = 1, [cgroups / controllers, cgroups / controller]
        else:
            continue
        for root in roots:
            if root.is_dir():
                # In a container the path may be that of the host, where the mount shows only our own group: folders
                # that are not there are skipped on the way up.
                inner = root / path.lstrip("/")
                for folder in [inner, *inner.parents]:
                    if folder.is_dir() and folder.is_relative_to(root):
                        yield folder, version
                break


def _number(path: Path) -> int | None:
    try:
        text = path.read_text().strip()
    except OSError:
        return None
    return int(text) if text.lstrip("-").isdigit() else None


def _field(path: Path, name: str) -> int | None:
    try:
        lines = path.read_text().splitlines()
    except OSError:
        return None
    for line in lines:
        key, _, value = line.partition(" ")
        if key == name:
            return int(value)
    return None


def memory_limit(*, proc: Path = _PROC, cgroups: Path = _CGROUPS) -> int:
    """Maximum memory of this process and its children in bytes: that of the machine or the tightest group limit."""
    import psutil

    limit = int(psutil.virtual_memory().total)
    for folder, version in _group_folders("memory", proc=proc, cgroups=cgroups):
        bound = _number(folder / ("memory.max" if version == 2 else "memory.limit_in_bytes"))
        if bound is not None and bound < _UNLIMITED:
            limit = min(limit, bound)
    return limit


def available_memory(*, proc: Path = _PROC, cgroups: Path = _CGROUPS) -> int:
    """Bytes that can be allocated now without swapping or exceeding a group limit."""
    import psutil

    free = int(psutil.virtual_memory().available)
    for folder, version in _group_folders("memory", proc=proc, cgroups=cgroups):
        two = version == 2
        bound = _number(folder / ("memory.max" if two else "memory.limit_in_bytes"))
        used = _number(folder / ("memory.current" if two else "memory.usage_in_bytes"))
        if bound is None or used is None or bound >= _UNLIMITED:
            continue
        # Cached file pages count as used but are reclaimed immediately when memory is needed.
        cached = _field(folder / "memory.stat", "inactive_file" if two else "total_inactive_file") or 0
        free = min(free, max(0, bound - used + cached))
    return free


def cpu_count(*, proc: Path = _PROC, cgroups: Path = _CGROUPS) -> int:
    """CPU cores this process may use: its affinity, further limited by group quotas (rounded up), at least 1."""
    count = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else (os.cpu_count() or 1)
    for folder, version in _group_folders("cpu", proc=proc, cgroups=cgroups):
        if version == 2:
            try:
                words = (folder / "cpu.max").read_text().split()
            except OSError:
                continue
            quota = int(words[0]) if words[0] != "max" else None
            period: int | None = int(words[1])
        else:
            quota = _number(folder / "cpu.cfs_quota_us")
            period = _number(folder / "cpu.cfs_period_us")
        if quota is not None and period and quota > 0:
            count = min(count, math.ceil(quota / period))
    return max(1, count)


class GpuDevice(NamedTuple):
    """A GPU of this machine: its memory, and its recent utilisation (None: unknown)."""

    total_bytes: int
    used_bytes: int
    utilisation: float | None


def gpu_devices(library: str = _NVML) -> list[GpuDevice]:
    """The NVIDIA GPUs of this machine, as reported by the driver; empty without a driver.

    `library` is the one shipped with the driver (NVML).
    """
    try:
        nvml = ctypes.CDLL(library)
    except OSError:
        return []
    if nvml.nvmlInit_v2() != 0:
        return []
    try:
        count, found = ctypes.c_uint(), []
        nvml.nvmlDeviceGetCount_v2(ctypes.byref(count))
        for index in range(count.value):
            device, total_free_used = ctypes.c_void_p(), (ctypes.c_ulonglong * 3)()
            nvml.nvmlDeviceGetHandleByIndex_v2(index, ctypes.byref(device))
            if nvml.nvmlDeviceGetMemoryInfo(device, total_free_used) != 0:
                continue
            core_memory = (ctypes.c_uint * 2)()  # in percent
            told = nvml.nvmlDeviceGetUtilizationRates(device, core_memory) == 0
            found.append(GpuDevice(total_free_used[0], total_free_used[2], core_memory[0] / 100 if told else None))
        return found
    finally:
        nvml.nvmlShutdown()


def gpu_memory_gb(library: str = _NVML) -> float | None:
    """The memory of the smallest NVIDIA GPU of this machine; None without one.

    The smallest, so that a share of any device is enough.
    """
    return min((device.total_bytes / 1e9 for device in gpu_devices(library)), default=None)


class OutOfMemoryCounter:
    """Detects whether the kernel's out-of-memory killer has acted since the last check.

    Reads the counter of our own control group if it has one, otherwise that of the machine, which also counts kills of
    unrelated processes.
    """

    def __init__(self, *, proc: Path = _PROC, cgroups: Path = _CGROUPS) -> None:
        self._source = self._find(proc, cgroups)
        self._seen = self._count()

    @staticmethod
    def _find(proc: Path, cgroups: Path) -> Path | None:
        candidates = [
            folder / ("memory.events" if version == 2 else "memory.oom_control")
            for folder, version in _group_folders("memory", proc=proc, cgroups=cgroups)
        ]
        for path in [*candidates, proc / "vmstat"]:
            if _field(path, "oom_kill") is not None:
                return path
        return None

    def _count(self) -> int:
        return (_field(self._source, "oom_kill") or 0) if self._source is not None else 0

    def rose(self) -> bool:
        """Whether there was a kill since the last call."""
        count = self._count()
        rose = count > self._seen
        self._seen = count
        return rose
