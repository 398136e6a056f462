"""Processes of a run are killed, stopped and signalled, its output is deleted, its disk is full: nothing is lost."""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.hostile.attempt import FULL
from tests.hostile.mill import Mill, can_mount, ended, processes_of, remove, stopped_in_the_middle
from tests.outputs import record_of

MODES = ["streaming", "batch"] if FULL else ["streaming"]
KILLS = 25 if FULL else 1
VICTIMS = ["driver", "worker", "fork server"] if FULL else ["driver", "fork server"]
SIGNALS = ["TERM", "INT", "HUP", "QUIT", "STOP"] if FULL else ["TERM"]
ROUNDS = 8 if FULL else 1


@pytest.fixture(scope="module")
def mill(tmp_path_factory: pytest.TempPathFactory) -> Mill:
    made = Mill(tmp_path_factory.mktemp("mill"))
    made.expected()
    return made


def strike(victims: str, driver: int, number: signal.Signals) -> int:
    """Send a signal to processes of a run; returns how many received it."""
    hit = 0
    for pid in processes_of(driver)[victims]:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)
            hit += 1
    return hit


def completed(mill: Mill, output: Path, mode: str) -> int:
    """Run until the output is complete; returns how many runs that took."""
    for reruns in (1, 2):
        said = mill.run(mill.command(output, mode=mode))
        assert said.kind, said
        if said.code == 0:
            return reruns
    raise AssertionError(said)


def left_in_memory(driver: int) -> list[str]:
    """The folders of shared memory that belong to a driver, once its fork server had time to remove them."""
    found: list[str] = []
    until = time.monotonic() + 30
    while time.monotonic() < until:
        found = [path.name for path in Path(f"/dev/shm/gristmill-{os.getuid()}").glob(f"*-{driver}-*")]
        if not found:
            break
        time.sleep(0.02)
    return found


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("victims", VICTIMS)
def test_killed_at_random_moments(
    mill: Mill, tmp_path: Path, victims: str, mode: str, record_property: Callable[..., None]
) -> None:
    """`kill -9` of driver, workers or fork server at random moments: the same bytes; the driver must be run again."""
    draw = random.Random(f"{victims} {mode}")
    hits = 0
    for number in range(KILLS):
        output = tmp_path / f"out-{number}"
        process = mill.start(mill.command(output, mode=mode))
        # Twice, as what was started again can be killed too.
        for _ in range(2):
            if victims != "fork server":
                time.sleep(draw.uniform(0.05, 0.6) * mill.usual_s)
            if victims != "driver":  # they live for a part of the run only, workers for a short one
                while process.poll() is None and not processes_of(process.pid)[victims]:
                    time.sleep(0.005)
                time.sleep(draw.uniform(0, 0.1 if victims == "worker" else 0.5) * mill.usual_s)
            hits += strike(victims, process.pid, signal.SIGKILL)
        said = ended(process)
        if victims == "driver":
            assert said.code == -signal.SIGKILL or said.code == 0, said
            assert left_in_memory(process.pid) == []
        else:
            assert said.code == 0, said
        if said.code:
            completed(mill, output, mode)
        mill.check(output)
        remove(output)
    record_property("tried", hits)
    assert hits or KILLS < 5


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", SIGNALS)
def test_other_signals(mill: Mill, tmp_path: Path, name: str, mode: str, record_property: Callable[..., None]) -> None:
    """TERM, INT, HUP, QUIT, STOP and CONT to driver, workers or fork server: the same bytes after at most two runs."""
    draw = random.Random(f"{name} {mode}")
    victims, hits = ["driver", "worker", "fork server"], 0
    for number in range(ROUNDS):
        output = tmp_path / f"out-{number}"
        process = mill.start(mill.command(output, mode=mode))
        time.sleep(draw.uniform(0.05, 0.9) * mill.usual_s)
        victim = victims[number % 3]
        hits += strike(victim, process.pid, getattr(signal, f"SIG{name}"))
        if name == "STOP":
            time.sleep(0.3)
            hits += strike(victim, process.pid, signal.SIGCONT)
        said = ended(process)
        if victim != "driver" or name == "STOP":
            assert said.code == 0, (victim, said)
        if said.code:
            assert completed(mill, output, mode) == 1
        mill.check(output)
        remove(output)
    record_property("tried", hits)


def test_the_fork_server_killed_as_it_starts(mill: Mill, tmp_path: Path, record_property: Callable[..., None]) -> None:
    """`kill -9` of the fork server milliseconds after it starts: it is restarted, and the run succeeds."""
    delays = [n * mill.usual_s / 60 for n in range(40)] if FULL else [0.05 * mill.usual_s]
    for delay in delays:
        output = tmp_path / f"out-{delay}"
        process = mill.start(mill.command(output))
        while process.poll() is None and not strike("fork server", process.pid, signal.SIGCONT):
            time.sleep(0.001)
        time.sleep(delay)
        strike("fork server", process.pid, signal.SIGKILL)
        said = ended(process)
        assert said.code == 0, (delay, said)
        mill.check(output)
        remove(output)
    record_property("tried", len(delays))


def delete_all(folder: Path) -> None:
    """Delete a folder into which a run is writing."""
    while folder.exists():
        shutil.rmtree(folder, ignore_errors=True)


def delete_output(output: Path) -> str:
    delete_all(output)
    return "incomplete"


def delete_record(output: Path) -> str:
    record = record_of(output)
    delete_all(record)
    return f"{record.name}/|without a record"


def delete_file(output: Path) -> str:
    path = min(output.glob("*.jsonl"))
    path.unlink()
    return path.name


def lengthen_file(output: Path) -> str:
    path = min(output.glob("*.jsonl"))
    with path.open("a") as file:
        file.write("{}\n")
    return path.name


def delete_entry(output: Path) -> str:
    min((record_of(output) / "manifest").glob("[!.]*.json")).unlink()  # not one that is being written
    return "without a record"


def delete_ledger(output: Path) -> str:
    path = min((record_of(output) / "ledger").glob("*.parquet"))
    path.unlink()
    return path.name


@pytest.mark.parametrize(
    "harm",
    [delete_output, delete_file, *([lengthen_file, delete_record, delete_entry, delete_ledger] if FULL else [])],
)
def test_output_harmed_during_the_run(mill: Mill, tmp_path: Path, harm: Callable[[Path], str]) -> None:
    """The output, its record or a file deleted or changed: the run fails and names it; running again repairs it."""
    output = tmp_path / "out"
    process = stopped_in_the_middle(mill, output)
    try:
        named = harm(output)
    finally:
        process.send_signal(signal.SIGCONT)
    said = ended(process)
    assert said.code == 1, said
    assert said.kind, said
    assert any(words in said.err for words in named.split("|")), said
    completed(mill, output, "streaming")
    mill.check(output)


@pytest.mark.parametrize("workers", [2, 0] if FULL else [2])
def test_full_disk(mill: Mill, tmp_path: Path, workers: int) -> None:
    """A full output disk: one sentence that says so; with free space, running again completes."""
    output, copy = tmp_path / "small" / "out", tmp_path / "copy" / "out"
    output.parent.mkdir()
    copy.parent.mkdir()
    mill.expected()
    run = " ".join(mill.command(output, workers=workers))
    if can_mount():
        first = f"mount -t tmpfs -o size=400k none {output.parent} && {run}"
        again = f"mount -o remount,size=100m {output.parent} && {run} && cp -r {output.parent}/* {copy.parent}"
        script = f"{first}; code=$?; {again} 2>/dev/null || exit 99; exit $code"
        said = mill.run(["unshare", "-m", "sh", "-c", script])
    else:
        said = mill.run(["sh", "-c", f"ulimit -f 20; {run}"])
        assert mill.run(["sh", "-c", run]).code == 0
        output.parent.rename(copy.parent)
    assert said.code == 1, said
    assert said.kind, said
    assert "the disk is full" in said.err or "ulimit -f" in said.err
    assert "run the same command again" in said.err
    mill.check(copy)
