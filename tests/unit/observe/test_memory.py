"""Limits are the tightest that bind us; memory is what processes really hold."""

from __future__ import annotations

import mmap
import os
import shutil
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from gristmill.backends.base import gpu_names
from gristmill.observe.memory import (
    GpuDevice,
    OutOfMemoryCounter,
    available_memory,
    cpu_count,
    descendants,
    gpu_devices,
    gpu_memory_gb,
    measure_tree,
    memory_limit,
    process_start_time,
)


class Machine:
    """A `/proc` and a `/sys/fs/cgroup` made of plain files."""

    def __init__(self, root: Path, groups: str) -> None:
        self.proc = root / "proc"
        self.cgroups = root / "cgroup"
        (self.proc / "self").mkdir(parents=True)
        (self.proc / "self" / "cgroup").write_text(groups)
        self.cgroups.mkdir()

    def write(self, path: str, text: str) -> None:
        file = self.cgroups / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)


def limit(machine: Machine) -> int:
    return memory_limit(proc=machine.proc, cgroups=machine.cgroups)


def test_version_two_takes_the_tightest_group_on_the_way_up(tmp_path: Path) -> None:
    machine = Machine(tmp_path, "0::/a/b\n")
    machine.write("a/b/memory.max", "max\n")
    machine.write("a/memory.max", "104857600\n")
    machine.write("memory.max", "209715200\n")
    assert limit(machine) == 100 << 20


def test_version_one_without_limit_gives_the_machine(tmp_path: Path) -> None:
    machine = Machine(tmp_path, "4:memory:/x\n0::/\n")
    machine.write("memory/x/memory.limit_in_bytes", "9223372036854771712\n")
    assert limit(machine) == psutil.virtual_memory().total


def test_version_one_in_a_container_that_shows_the_path_of_its_host(tmp_path: Path) -> None:
    machine = Machine(tmp_path, "4:memory:/docker/0123\n")
    machine.write("memory/memory.limit_in_bytes", "52428800\n")
    machine.write("memory/memory.usage_in_bytes", "20971520\n")
    machine.write("memory/memory.stat", "cache 99\ntotal_inactive_file 1048576\n")
    assert limit(machine) == 50 << 20
    assert available_memory(proc=machine.proc, cgroups=machine.cgroups) == 31 << 20


def test_what_is_used_up_leaves_nothing(tmp_path: Path) -> None:
    machine = Machine(tmp_path, "0::/\n")
    machine.write("memory.max", "1000\n")
    machine.write("memory.current", "2000\n")
    assert available_memory(proc=machine.proc, cgroups=machine.cgroups) == 0


def test_without_groups_the_machine_is_the_limit(tmp_path: Path) -> None:
    assert memory_limit(proc=tmp_path, cgroups=tmp_path) == psutil.virtual_memory().total
    assert 0 < available_memory() <= memory_limit() <= psutil.virtual_memory().total


@pytest.mark.parametrize(
    ("text", "expected"),
    [("max 100000", 8), ("150000 100000", 2), ("100000 100000", 1), ("1000 100000", 1), ("1600000 100000", 8)],
)
def test_processors_follow_a_quota(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, expected: int) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: set(range(8)))
    machine = Machine(tmp_path, "0::/\n")
    machine.write("cpu.max", text)
    assert cpu_count(proc=machine.proc, cgroups=machine.cgroups) == expected


def test_processors_follow_a_quota_of_version_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: set(range(8)))
    machine = Machine(tmp_path, "3:cpu,cpuacct:/x\n")
    machine.write("cpu,cpuacct/x/cpu.cfs_quota_us", "-1\n")
    machine.write("cpu,cpuacct/cpu.cfs_quota_us", "300000\n")
    machine.write("cpu,cpuacct/cpu.cfs_period_us", "100000\n")
    assert cpu_count(proc=machine.proc, cgroups=machine.cgroups) == 3


def test_processors_follow_affinity() -> None:
    assert 1 <= cpu_count() <= len(os.sched_getaffinity(0))


@pytest.mark.parametrize(
    ("groups", "path", "text"),
    [
        ("0::/a\n", "a/memory.events", "low 0\noom 5\noom_kill {}\n"),
        ("4:memory:/a\n", "memory/a/memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill {}\n"),
    ],
)
def test_kills_for_want_of_memory_are_noticed_once(tmp_path: Path, groups: str, path: str, text: str) -> None:
    machine = Machine(tmp_path, groups)
    (machine.proc / "vmstat").write_text("oom_kill 100\n")
    machine.write(path, text.format(3))
    counter = OutOfMemoryCounter(proc=machine.proc, cgroups=machine.cgroups)
    assert not counter.rose()
    machine.write(path, text.format(4))
    assert counter.rose()
    assert not counter.rose()
    (machine.proc / "vmstat").write_text("oom_kill 101\n")
    assert not counter.rose(), "a kill outside our group is not ours"


def test_without_a_group_counter_the_machine_s_counts(tmp_path: Path) -> None:
    machine = Machine(tmp_path, "0::/\n")
    (machine.proc / "vmstat").write_text("nr_free 1\noom_kill 1\n")
    counter = OutOfMemoryCounter(proc=machine.proc, cgroups=machine.cgroups)
    (machine.proc / "vmstat").write_text("nr_free 1\noom_kill 2\n")
    assert counter.rose()


def test_own_memory_is_seen_to_grow() -> None:
    me = os.getpid()
    # A page of a library counts for less when another process maps it too: one may just do so.
    for _ in range(10):
        before = measure_tree([me])
        held = mmap.mmap(-1, 64 << 20)
        held.write(b"x" * (64 << 20))
        after = measure_tree([me])
        held.close()
        assert after.per_pid == {me: after.pss_bytes}
        if after.pss_bytes - before.pss_bytes > 60 << 20:
            break
    assert after.pss_bytes - before.pss_bytes > 60 << 20


def test_processes_that_are_gone_are_left_out() -> None:
    assert measure_tree([2**22 + 5]).per_pid == {}
    assert process_start_time(2**22 + 5) is None


def test_a_process_that_lives_has_a_start_time() -> None:
    assert process_start_time(os.getpid()) is not None


# --- GPUs ---


@pytest.mark.parametrize(
    ("visible", "names"),
    [
        ("", []),
        ("-1", []),
        (" ", []),
        ("NoDevFiles", []),
        ("0,3", ["0", "3"]),
        ("2,-1,1", ["2"]),
        ("GPU-5a, 1", ["GPU-5a", "1"]),
    ],
)
def test_gpus_are_those_that_cuda_would_show(monkeypatch: pytest.MonkeyPatch, visible: str, names: list[str]) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert gpu_names() == names
    assert gpu_names(0) == []
    assert len(gpu_names(3)) == 3, "slots that are asked for beyond the devices there are"


_DRIVER = """
static unsigned long long sizes[] = {80000000000ULL, 24000000000ULL};
int nvmlInit_v2(void) { return 0; }
int nvmlShutdown(void) { return 0; }
int nvmlDeviceGetCount_v2(unsigned *count) { *count = 2; return 0; }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **device) { *device = sizes + index; return 0; }
int nvmlDeviceGetMemoryInfo(void *device, unsigned long long *memory) {
    memory[0] = *(unsigned long long *)device;
    memory[1] = 0;
    memory[2] = 1000;
    return 0;
}
int nvmlDeviceGetUtilizationRates(void *device, unsigned *rates) { rates[0] = 75; return device == sizes; }
"""


def test_the_driver_is_asked_for_the_memory_of_the_smallest_gpu(tmp_path: Path) -> None:
    """A library with the functions of NVIDIA's, called as that one is."""
    assert gpu_memory_gb(str(tmp_path / "no-driver.so")) is None
    if shutil.which("cc") is None:
        pytest.skip("needs a C compiler")
    (tmp_path / "nvml.c").write_text(_DRIVER)
    library = tmp_path / "nvml.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-o", str(library), str(tmp_path / "nvml.c")], check=True)
    assert gpu_memory_gb(str(library)) == 24.0
    assert gpu_devices(str(library)) == [GpuDevice(80 * 10**9, 1000, None), GpuDevice(24 * 10**9, 1000, 0.75)]


def test_a_tree_is_known_down_to_its_leaves() -> None:
    code = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'print(1, flush=True); input()'])"
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        child.stdout.readline()  # by now the grandchild runs
        found = descendants(os.getpid())
        assert child.pid in found
        assert len(descendants(child.pid)) == 1
        assert set(descendants(child.pid)) < set(found)
        child.communicate(b"\n")
    assert descendants(child.pid) == []
