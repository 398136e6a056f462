"""Kill it anywhere, run it again, get the same bytes: real processes, real kills, a real full disk."""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from gristmill.backends.local import LocalExecutor
from gristmill.ledger.ask.ledger import Ledger
from gristmill.ledger.prove.verify import verify
from gristmill.ledger.record.quarantine import read_quarantine
from gristmill.pipeline import Pipeline
from gristmill.pipeline.describe import describe_plan
from gristmill.stages.text.filters import ScoreFilter, WordCountFilter
from gristmill.stages.text.io import JsonlReader, JsonlWriter
from tests.integration.trust_host import Host
from tests.integration.trust_job import Deadly, make_input
from tests.outputs import contents_of, record_of

FILES = 12
PATIENCE_S = 600.0
"""How long a test waits for what must happen, on a machine however busy."""


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Host]:
    made = Host(tmp_path_factory.mktemp("host"))
    yield made
    made.close()


@pytest.fixture(scope="module")
def few(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_input(tmp_path_factory.mktemp("few") / "in", files=2)


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_input(tmp_path_factory.mktemp("many") / "in", files=FILES)


def assert_same(output: Path, expected: dict[str, bytes], where: object) -> None:
    found = contents_of(output)
    assert sorted(found) == sorted(expected), where
    for name, data in expected.items():
        assert found[name] == data, (where, name)
    report = verify(str(output))
    assert report.ok, (where, str(report))


# --- at operations on files ---


@pytest.mark.parametrize(("format", "number"), [("jsonl", 45), ("parquet", 10)])
def test_death_at_file_operations(host: Host, few: Path, tmp_path: Path, format: str, number: int) -> None:
    """Before, in the middle of and after things that are done to files below the output, commits above all."""
    whole = tmp_path / "whole"
    told = host.run(few, whole, format=format)
    assert told["code"] == 0, told
    expected = contents_of(whole)
    assert {name.split("/")[1] for name in expected if "/" in name} >= {"ledger", "index", "manifest", "quarantine"}
    dice = random.Random(17)
    points = [(at, how) for at in range(1, told["operations"] + 1) for how in ("before", "after")]
    for at, how in sorted(dice.sample(points, number)):
        output = tmp_path / f"out-{at}-{how}"
        told = host.run(few, output, format=format, die_at=at, how=how)
        assert told["code"] == -signal.SIGKILL, (at, told)
        # Some die once more on the way back.
        if dice.random() < 0.3:
            host.run(few, output, format=format, die_at=dice.randrange(1, 40), how=dice.choice(["before", "after"]))
        told = host.run(few, output, format=format)
        assert told["code"] == 0, (at, how, told)
        assert_same(output, expected, (at, how))


# --- at any moment, with workers ---


def _committed(output: Path) -> int:
    manifest = record_of(output) / "manifest"
    return sum(name.endswith(".json") for name in os.listdir(manifest)) if manifest.is_dir() else 0


def _wait_for(condition: Callable[[], bool]) -> bool:
    end = time.monotonic() + PATIENCE_S
    while time.monotonic() < end:
        if condition():
            return True
        time.sleep(0.001)
    return False


def _workers(driver: int) -> list[psutil.Process]:
    """The worker processes of a driver: the children of its fork server."""
    try:
        children = psutil.Process(driver).children(recursive=True)
        return [child for child in children if child.ppid() != driver]
    except psutil.NoSuchProcess:
        return []


@pytest.mark.parametrize("segments", [1, 2])
def test_killed_drivers_and_workers(host: Host, many: Path, tmp_path: Path, segments: int) -> None:
    """Every run is killed several times, the driver as a whole or all workers at once, and taken up again."""
    whole = tmp_path / "whole"
    assert host.run(many, whole, segments=segments)["code"] == 0
    expected = contents_of(whole)
    dice = random.Random(segments)
    output = tmp_path / "out"
    worker_deaths = 0
    for target in (2, 5, 8):
        # However fast it is, it does not get to the end before it is killed: its last stage lets no more files through.
        hold = f"{'picky' if segments == 1 else 'apart'}:{target + 3}"
        before = _committed(output)
        driver = host.start(many, output, workers=2, segments=segments, hold=hold)
        ended = f"driver {target} ended early"
        if target == 5:
            # They are at work by now, not still being set up.
            assert _wait_for(lambda: _committed(output) > before), ended  # noqa: B023
            for worker in _workers(driver.pid):
                with contextlib.suppress(psutil.NoSuchProcess):
                    worker.kill()
                    worker_deaths += 1
        assert _wait_for(lambda: _committed(output) >= target), ended  # noqa: B023
        time.sleep(dice.random() * 0.03)
        left = psutil.Process(driver.pid).children(recursive=True)
        assert driver.kill() == -signal.SIGKILL
        assert not psutil.wait_procs(left, timeout=PATIENCE_S)[1], "processes outlived their driver"
    told = host.run(many, output, workers=2, segments=segments)
    assert told["code"] == 0, told
    assert worker_deaths
    assert_same(output, expected, worker_deaths)


def test_random_moments(host: Host, many: Path, tmp_path: Path) -> None:
    """Driver deaths at random times of a run in one process, three on the way to each output."""
    whole = tmp_path / "whole"
    begun = time.monotonic()
    assert host.run(many, whole)["code"] == 0
    seconds = time.monotonic() - begun
    expected = contents_of(whole)
    dice = random.Random(5)
    for number in range(4):
        output = tmp_path / f"out-{number}"
        kills = 0
        while kills < 3:
            driver = host.start(many, output)
            time.sleep(dice.random() * seconds * 0.7)
            if driver.kill() == -signal.SIGKILL:
                kills += 1
            else:  # it was through already: this run is faster than the one that was timed
                shutil.rmtree(output)
                seconds *= 0.7
                kills = 0
        told = host.run(many, output)
        assert told["code"] == 0, told
        assert_same(output, expected, number)


# --- documents that kill ---


def test_a_document_that_kills_can_be_replayed(few: Path, tmp_path: Path) -> None:
    def job(out: str) -> Pipeline:
        stages = [ScoreFilter(WordCountFilter(min_words=3)), Deadly(str(tmp_path / "trouble"))]
        reader = JsonlReader(str(few), files_per_partition=1)
        return Pipeline("deadly", stages=[reader, *stages, JsonlWriter(str(tmp_path / out))])

    engine = LocalExecutor(config={"num_cpus": 1})
    job("whole").run(executor=engine)
    (tmp_path / "trouble").touch()
    assert job("out").run(executor=engine).report.quarantined == 3
    killed = [entry for entry in read_quarantine(tmp_path / "out") if entry.record.stage == "deadly"]
    assert [(entry.id, entry.record.row) for entry in killed] == [("1-20", 20)]
    assert Ledger(tmp_path / "out").why("1-20").status == "quarantined"
    (tmp_path / "trouble").unlink()
    report = job("out").replay(engine, cause=killed[0].record.cause)
    # A record that cannot be read is in the same partition, which is redone as a whole.
    assert (report.records, report.written, report.still_quarantined) == (2, 1, 2)
    assert_same(tmp_path / "out", contents_of(tmp_path / "whole"), report)


# --- several processes, one folder ---


def test_two_processes_in_one_folder(host: Host, many: Path, tmp_path: Path) -> None:
    whole = tmp_path / "whole"
    assert host.run(many, whole)["code"] == 0
    for workers in (0, 2):
        output = tmp_path / f"out-{workers}"
        drivers = [host.start(many, output, workers=workers) for _ in range(3 - workers // 2)]
        for driver in drivers:
            told = driver.wait()
            assert told["code"] == 0, told
            assert told["counts"]["WordCountFilter"][0] == FILES * 29
        assert_same(output, contents_of(whole), workers)


# --- the plan in another process ---


def test_another_process_describes_the_same_plan() -> None:
    """Nothing depends on addresses or on the order of sets, or no run could be taken up."""
    from tests.unit.pipeline.test_describe import many_kinds

    program = (
        "import json; from tests.unit.pipeline.test_describe import *; "
        "print(json.dumps(describe_plan(many_kinds()), sort_keys=True))"
    )
    told = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        check=True,
        cwd=Path(__file__).resolve().parents[2],
        env={**os.environ, "PYTHONHASHSEED": "77"},
    ).stdout
    assert json.loads(told) == json.loads(json.dumps(describe_plan(many_kinds())))


# --- a full disk ---


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 400 kB; only root may make one, for others `test_no_room_for_a_file` does what can be done."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=400k", "tmpfs", str(folder)], capture_output=True, text=True, check=False
    )
    if mounted.returncode:
        pytest.skip(f"cannot mount a small disk: {mounted.stderr.strip()}")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


@pytest.mark.parametrize("workers", [0, 2])
def test_no_room_for_a_file(host: Host, tmp_path: Path, workers: int) -> None:
    """The system refuses to let one file grow, as it does on a full disk, and needs no rights to be told so."""
    source = make_input(tmp_path / "in", files=3)
    line = '{"id": "long", "text": "' + "word " * 30_000 + '"}\n'
    (source / "part-001.jsonl").write_text(line * 4)
    assert host.run(source, tmp_path / "whole")["code"] == 0
    output = tmp_path / "out"
    told = host.run(source, output, workers=workers, file_limit=200_000)
    assert told["code"] == 1, told
    assert "exceeds the maximum file size here" in told["error"], told
    assert "run the same command again" in told["error"], told
    assert not (output / "part-001.jsonl").exists()
    told = host.run(source, output, workers=workers)
    assert told["code"] == 0, told
    assert told["done_before"] > 0
    assert_same(output, contents_of(tmp_path / "whole"), "more allowed")


@pytest.mark.parametrize("workers", [0, 2])
def test_full_disk(host: Host, many: Path, tmp_path: Path, small_disk: Path, workers: int) -> None:
    whole = tmp_path / "whole"
    assert host.run(many, whole)["code"] == 0
    expected = contents_of(whole)
    needed = sum(-(-len(data) // 4096) * 4096 for data in expected.values())
    assert needed < 380_000
    ballast = small_disk / "ballast"
    ballast.write_bytes(b"x" * (400 * 1024 - needed // 2))
    output = small_disk / "out"
    told = host.run(many, output, workers=workers)
    assert told["code"] == 1, told
    assert "disk is full" in told["error"], told
    assert "again" in told["error"], told
    found = contents_of(output)
    entries = [name for name in found if "/manifest/" in name and b'"committed"' in found[name]]
    assert 0 < len(entries) < FILES
    for name in entries:
        part = Path(name).stem
        assert found[name] == expected[name]
        assert found[f"{part}.jsonl"] == expected[f"{part}.jsonl"]
    ballast.unlink()
    told = host.run(many, output, workers=workers)
    assert told["code"] == 0, told
    assert_same(output, expected, "room made")
