"""Odd surroundings: the same bytes, or one clear sentence and the same bytes once the cause is gone."""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.hostile.attempt import FULL
from tests.hostile.mill import Mill, Said, can_mount, ended, remove, stopped_in_the_middle
from tests.outputs import record_of

NOBODY = 65534


class Case(NamedTuple):
    """Surroundings of a run.

    Attributes:
        shell: A line of shell; `RUN` stands for the command, `HERE` for a folder that can be used.
        says: Words of the error that ends it; None: the run must end well.
        env: Variables to set, or with None to remove.
        small: Tried in every test run.
        workers: How many workers the run has.
    """

    shell: str = "RUN"
    says: str | None = None
    env: Mapping[str, str | None] = {}
    small: bool = False
    workers: int = 2


def chosen(cases: Mapping[str, Case]) -> list[Any]:
    return [pytest.param(case, id=name) for name, case in cases.items() if FULL or case.small]


@pytest.fixture(scope="module")
def mill(tmp_path_factory: pytest.TempPathFactory) -> Mill:
    made = Mill(tmp_path_factory.mktemp("mill"))
    made.expected()
    return made


def run_in(case: Case, mill: Mill, folder: Path, *, before: str = "") -> Said:
    """Run in these surroundings and, if that fails as it should, again without them; the output must be the same."""
    output = folder / "out"
    run = shlex.join(mill.command(output, workers=case.workers))
    line = case.shell.replace("RUN", run).replace("HERE", str(folder))
    said = mill.run([*shlex.split(before), "sh", "-c", line], env=case.env)
    assert said.kind, said
    if case.says is None:
        assert said.code == 0, said
    else:
        assert said.code in (1, 2), said
        assert case.says in said.err, said
        assert mill.run(mill.command(output)).code == 0
    mill.check(output)
    return said


STREAMS = {
    "all closed": Case("RUN <&- >&- 2>&-", small=True),
    "all closed, one process": Case("RUN <&- >&- 2>&-", workers=0),
    "no input": Case("RUN <&-"),
    "no output": Case("RUN >&-"),
    "no errors": Case("RUN 2>&-"),
    "json to a closed stream": Case("RUN --json >&-"),
    "full device for errors": Case("RUN 2>/dev/full"),
    "full device for output": Case("RUN >/dev/full", says="No space left"),
    "nobody reads the progress": Case("{ RUN 2>&3 3>&- | :; } 3>&1"),
}


@pytest.mark.parametrize("case", chosen(STREAMS))
def test_standard_streams(case: Case, mill: Mill, tmp_path: Path) -> None:
    """Closed, full or broken standard streams: the same bytes, and no printed text ends up in a data file."""
    run_in(case, mill, tmp_path)


STRANGE = {
    "ASCII and umask 077": Case(
        "umask 077; RUN",
        env={"LC_ALL": "POSIX", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "COLUMNS": "1", "TERM": None},
        small=True,
    ),
    "C": Case(env={"LC_ALL": "C"}),
    "Latin-1": Case(env={"PYTHONIOENCODING": "latin-1"}),
    "Turkish": Case(env={"LC_ALL": "tr_TR.UTF-8"}),
    "no such zone": Case(env={"TZ": ":/nonsense"}),
    "far zone": Case(env={"TZ": "Pacific/Kiritimati"}),
    "no terminal, one column": Case(env={"TERM": None, "COLUMNS": "1", "LINES": "1"}),
    "no columns, in colour": Case(env={"COLUMNS": "0", "FORCE_COLOR": "1"}),
    "unknown terminal": Case(env={"COLUMNS": "x", "TERM": "nonsense"}),
    "hash seed 1": Case(env={"PYTHONHASHSEED": "1"}),
    "hash seed 4242": Case(env={"PYTHONHASHSEED": "4242"}),
    "optimised": Case(env={"PYTHONOPTIMIZE": "2"}),
    "warnings are errors": Case(env={"PYTHONWARNINGS": "error"}),
    "almost no variables": Case("env -i PATH=$PATH PYTHONPATH=$PYTHONPATH RUN"),
    "umask 077": Case("umask 077; RUN"),
    "umask 000": Case("umask 000; RUN"),
}


@pytest.mark.parametrize("case", chosen(STRANGE))
def test_locale_zone_terminal_and_umask(case: Case, mill: Mill, tmp_path: Path) -> None:
    """Strange locales, time zones, terminals, hash seeds and umasks: the same bytes."""
    run_in(case, mill, tmp_path)
    mode = (tmp_path / "out").stat().st_mode & 0o777
    assert mode & 0o077 == 0 or "umask 077" not in case.shell


LIMITS = {
    "8 open files": Case("ulimit -n 8; RUN", says="ulimit -n"),
    "16 open files": Case("ulimit -n 16; RUN", says="(-n)"),
    "20 open files": Case("ulimit -n 20; RUN", says="(-n)", small=True),
    "48 open files": Case("ulimit -n 48; RUN"),
    "64 open files": Case("ulimit -n 64; RUN"),
    "16 open files, one process": Case("ulimit -n 16; RUN", workers=0),
    "400 MB of addresses": Case("ulimit -v 400000; RUN", says="ulimit -v"),
    "4 GB of addresses": Case("ulimit -v 4000000; RUN"),
    "files of 10 kB": Case("ulimit -f 20; RUN", says="ulimit -f", workers=0),
}


@pytest.mark.parametrize("case", chosen(LIMITS))
def test_low_limits(case: Case, mill: Mill, tmp_path: Path) -> None:
    """Low limits on open files, address space and file size: the same bytes, or a sentence that names the limit."""
    run_in(case, mill, tmp_path)


@pytest.fixture(scope="module")
def public_mill() -> Iterator[Mill]:
    """One that other users can read: pytest keeps its own folders private."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        yield Mill(Path(folder))


@pytest.mark.skipif(os.getuid() != 0 or shutil.which("setpriv") is None, reason="needs root, to become another user")
@pytest.mark.parametrize("processes", [1, 2, 4, 6, 8, 10, 12, 16] if FULL else [2])
@pytest.mark.parametrize("workers", [2, 0] if FULL else [2])
def test_few_processes(public_mill: Mill, processes: int, workers: int) -> None:
    """A low limit on processes and threads: the same bytes, or one sentence; running again completes."""
    # OpenBLAS answers a lack of threads with SIGINT, as if the user had pressed Ctrl-C.
    mill, output = public_mill, public_mill.folder / "out"
    env = {"OPENBLAS_NUM_THREADS": "1"}
    become = f"setpriv --reuid={NOBODY} --regid={NOBODY} --clear-groups"
    become += " --inh-caps=+dac_override --ambient-caps=+dac_override"  # the files of the tests are root's
    run = shlex.join(mill.command(output, workers=workers, recipe="whole.yaml"))
    limited = f"prlimit --nproc={processes}:{processes} {run}"
    said = mill.run([*shlex.split(become), "sh", "-c", f"exec {limited}"], env=env)
    assert said.kind, said
    if said.code:
        assert "process" in said.err
        assert mill.run(mill.command(output, recipe="whole.yaml")).code == 0
    mill.check(output, recipe="whole.yaml")
    remove(output)


READ_ONLY = "mount -t tmpfs -o ro none"
MOUNTS = {
    "shared memory of 1 MB": Case("mount -t tmpfs -o size=1m none /dev/shm && RUN"),
    "read-only shared memory": Case(f"{READ_ONLY} /dev/shm && RUN", small=True),
    "no room for data between processes": Case(
        "mount -t tmpfs -o size=1m none /dev/shm && mkdir HERE/t && mount -t tmpfs -o size=48k none HERE/t "
        "&& TMPDIR=HERE/t RUN",
        says="no room for",
    ),
    "read-only temporary folders": Case(
        f"mount -t tmpfs none /mnt && {READ_ONLY} /var/tmp && export TMPDIR=/mnt && mount -o remount,ro /mnt && RUN"
    ),
    "read-only home": Case(f"{READ_ONLY} /mnt && HOME=/mnt XDG_CACHE_HOME=/mnt RUN"),
    "read-only home and installation": Case(
        "mkdir HERE/t && mount --bind SOURCE SOURCE && mount -o remount,ro,bind SOURCE "
        f"&& {READ_ONLY} /mnt && HOME=/mnt XDG_CACHE_HOME=/mnt TMPDIR=HERE/t RUN"
    ),
}


@pytest.mark.skipif(not can_mount(), reason="needs the right to mount file systems")
@pytest.mark.parametrize("case", chosen(MOUNTS))
def test_file_systems(case: Case, mill: Mill, tmp_path: Path) -> None:
    """Tiny or read-only shared memory, temporary folder, home, installation: the same bytes, or an error naming it."""
    source = str(Path(__file__).parents[2] / "src")
    run_in(case._replace(shell=case.shell.replace("SOURCE", source)), mill, tmp_path, before="unshare -m")


def grow(folder: Path) -> None:
    with (folder / "f11.jsonl").open("a") as file:
        file.write('{"id": "new", "text": "' + "some more words " * 30 + '"}\n')


def shrink(folder: Path) -> None:
    os.truncate(folder / "f11.jsonl", 5000)


def empty(folder: Path) -> None:
    os.truncate(folder / "f11.jsonl", 0)


def replace(folder: Path) -> None:
    shutil.copy(folder / "f03.jsonl", folder / ".other")
    os.replace(folder / ".other", folder / "f11.jsonl")


def vanish(folder: Path) -> None:
    (folder / "f11.jsonl").unlink()


def appear(folder: Path) -> None:
    shutil.copy(folder / "f03.jsonl", folder / "g.jsonl")


def touch(folder: Path) -> None:
    os.utime(folder / "f11.jsonl", (4e9, 4e9))


CHANGES: list[Callable[[Path], None]] = [grow, shrink, empty, replace, vanish, appear, touch]


@pytest.mark.parametrize("change", CHANGES if FULL else [shrink])
@pytest.mark.parametrize("when", ["during", "between"] if FULL else ["during"])
def test_input_changed(tmp_path: Path, when: str, change: Callable[[Path], None]) -> None:
    """Input that grows, shrinks, is replaced, vanishes or appears during a run or between two: never a mixture."""
    mill = Mill(tmp_path)
    output, fresh = tmp_path / "out", tmp_path / "fresh"
    # One worker takes the files in order, so that the last one is still to come.
    process = stopped_in_the_middle(mill, output, recipe="whole.yaml", workers=1)
    try:
        change(mill.input)
        if when == "between":
            process.kill()
    finally:
        process.send_signal(signal.SIGCONT)
    said = ended(process)
    if when == "during":
        assert said.kind, said
        if change in (grow, shrink, empty, replace, touch):
            assert said.code == 1, said
            assert "f11.jsonl was changed during the run" in said.err, said
            assert not (output / "f11.jsonl").exists()
        elif change is vanish:
            assert "f11.jsonl' existed when the run was planned but is gone" in said.err, said
        else:
            assert said.code == 0, said
    again = mill.run(mill.command(output, "--error-budget", "none", recipe="whole.yaml"))
    assert again.code in (0, 3), again
    undisturbed = mill.run(mill.command(fresh, "--error-budget", "none", recipe="whole.yaml"))
    assert undisturbed.code == again.code
    assert {path.name: path.read_bytes() for path in output.iterdir()} == {
        path.name: path.read_bytes() for path in fresh.iterdir()
    }


@pytest.mark.parametrize("name", ["staging", "manifest", "ledger", "index"] if FULL else ["ledger"])
def test_links_in_the_record(mill: Mill, tmp_path: Path, name: str) -> None:
    """A symbolic link in place of a folder of the record: rejected; nothing is written or removed at its target."""
    output, outside = tmp_path / "out", tmp_path / "outside"
    outside.mkdir()
    (outside / "keep.txt").write_text("precious")
    record_of(output).mkdir()
    (record_of(output) / name).symlink_to(outside)
    said = mill.run(mill.command(output, workers=0))
    assert said.code == 1, said
    assert said.kind, said
    assert f"{name} is a symbolic link" in said.err
    assert {path.name: path.read_text() for path in outside.iterdir()} == {"keep.txt": "precious"}
    (record_of(output) / name).unlink()
    assert mill.run(mill.command(output)).code == 0
    mill.check(output)


@pytest.mark.parametrize("name", ["plan.json", "ledger/f00.parquet", "manifest/f00.json"] if FULL else ["plan.json"])
def test_links_to_files(mill: Mill, tmp_path: Path, name: str) -> None:
    """A symbolic link in place of a file of the record: its target stays as it is."""
    output, outside = tmp_path / "out", tmp_path / "keep.txt"
    outside.write_text("precious")
    link = record_of(output) / name
    link.parent.mkdir(parents=True)
    link.symlink_to(outside)
    said = mill.run(mill.command(output, workers=0))
    assert said.kind, said
    assert outside.read_text() == "precious"
    if said.code:
        remove(output)
        assert mill.run(mill.command(output, workers=0)).code == 0
    mill.check(output)


@pytest.mark.skipif(not FULL, reason="a part of `make test-hostile`; a smaller one is in tests/integration")
@pytest.mark.parametrize("attempt", range(6))
def test_two_pipelines_into_one_output(mill: Mill, tmp_path: Path, attempt: int) -> None:
    """Two different pipelines into one output at once: never a complete mixture; started over, either completes."""
    output = tmp_path / "out"
    mill.expected("whole.yaml")
    other = (mill.folder / "whole.yaml").read_text().replace("min_words: 50", "min_words: 150")
    (mill.folder / "other.yaml").write_text(other)
    commands = [mill.command(output, recipe=recipe) for recipe in ("whole.yaml", "other.yaml")]
    said = [ended(process) for process in [mill.start(command) for command in commands]]
    assert all(one.kind for one in said), said
    assert [one.code for one in said] != [0, 0], said
    if said[0].code == 0:
        mill.check(output, recipe="whole.yaml")
    if said[1].code == 0:
        mill.check(output, recipe="other.yaml")
    assert mill.run([*commands[0], "--fresh"]).code == 0
    mill.check(output, recipe="whole.yaml")


CLOCK = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stddef.h>
#include <time.h>
static const long BACK = 315360000;
int clock_gettime(clockid_t clock, struct timespec *at) {
    int (*real)(clockid_t, struct timespec *) = dlsym(RTLD_NEXT, "clock_gettime");
    int result = real(clock, at);
    if (clock == CLOCK_REALTIME) at->tv_sec -= BACK;
    return result;
}
time_t time(time_t *at) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (at != NULL) *at = now.tv_sec;
    return now.tv_sec;
}
"""


@pytest.mark.skipif(not FULL or shutil.which("cc") is None, reason="a part of `make test-hostile`, with a C compiler")
@pytest.mark.parametrize("when", ["during", "resume"])
def test_clock_set_back(mill: Mill, tmp_path: Path, when: str) -> None:
    """The clock set back ten years, for a whole run or only when it resumes: the same bytes."""
    (tmp_path / "clock.c").write_text(CLOCK)
    library = tmp_path / "clock.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-o", library, tmp_path / "clock.c", "-ldl"], check=True)
    output = tmp_path / "out"
    if when == "resume":
        process = stopped_in_the_middle(mill, output)
        process.kill()
        ended(process)
    year = subprocess.run(
        ["python3", "-c", "import time; print(time.gmtime().tm_year)"],
        env={**os.environ, "LD_PRELOAD": str(library)},
        check=True,
        capture_output=True,
    )
    assert int(year.stdout) < time.gmtime().tm_year - 8
    said = mill.run(mill.command(output), env={"LD_PRELOAD": str(library)})
    assert said.code == 0, said
    mill.check(output)
