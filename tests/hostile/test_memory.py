"""Input and stages that want all the memory: what is decoded stays bounded, and what takes too much is stopped."""

from __future__ import annotations

import ast
import json
import os
import re
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from gristmill.backends.local import LocalExecutor
from gristmill.errors import WorkerError
from gristmill.ledger.record.quarantine import read_quarantine
from gristmill.observe.memory import descendants, private_bytes
from gristmill.pipeline import Pipeline
from gristmill.stages.base import ProcessingStage
from gristmill.stages.text.io.reader import JsonlReader
from gristmill.stages.text.io.writer import JsonlWriter
from gristmill.storage.files import list_files
from gristmill.storage.parquet_blocks import read_parquet_blocks
from gristmill.storage.partitions import make_partitions
from gristmill.tasks.document import DocumentBatch
from tests.hostile.attempt import FULL, attempt, attempt_fresh

MIB = 1 << 20
GIB = 1 << 30
LARGE = "x" * MIB


def repeated(value: Any, rows: int) -> pa.DictionaryArray:
    return pa.DictionaryArray.from_arrays(pa.array([0] * rows, pa.int32()), pa.array([value]))


def write(path: Path, rows: int, /, *, store_schema: bool = False, options: Any = (), **columns: Any) -> int:
    """Write a file that compresses to nothing; with a schema of Arrow, columns come back as dictionaries."""
    pq.write_table(pa.table(columns), path, compression="zstd", store_schema=store_schema, **dict(options))
    return rows


def dictionary(path: Path) -> int:
    """2,000 texts of 1 MiB that are one."""
    return write(path, 2000, id=range(2000), text=repeated(LARGE, 2000))


def typed(path: Path) -> int:
    """The same, to be read as a dictionary, which only the first stage writes out."""
    return write(path, 2000, id=range(2000), text=repeated(LARGE, 2000), store_schema=True)


def hidden(path: Path) -> int:
    """The same, behind ordinary rows, so that the average row is small."""
    ids = pa.array([0] * 60_000 + [1] * 2000, pa.int32())
    text = pa.DictionaryArray.from_arrays(ids, pa.array(["an ordinary line", LARGE]))
    return write(path, 62_000, text=text)


def columns(path: Path) -> int:
    """200 columns of 1,000 texts of 20 KB."""
    one = repeated("y" * 20_000, 1000)
    return write(path, 1000, text=one, **{f"c{n}": one for n in range(200)})


def numbers(path: Path) -> int:
    """300 million equal numbers."""
    rows = 300_000_000
    numbers = pa.Array.from_buffers(pa.int8(), rows, [None, pa.py_buffer(bytes(rows))])
    return write(path, rows, text=numbers, options={"row_group_size": rows})


def lists(path: Path) -> int:
    """Forty rows, each a list of 50 texts of 1 MiB."""
    whole = pa.ListArray.from_arrays(pa.array(range(0, 2001, 50), pa.int32()), repeated(LARGE, 2000))
    return write(path, 40, text=["a"] * 40, parts=whole)


def deltas(path: Path) -> int:
    """Texts of 1 MiB that share all but their last bytes with the one before."""
    rows = 1200
    texts = pa.array([f"{LARGE}{n:05}" for n in range(rows)])
    return write(
        path, rows, text=texts, options={"use_dictionary": False, "column_encoding": {"text": "DELTA_BYTE_ARRAY"}}
    )


def one_value(path: Path) -> int:
    """One text of 700 MiB between two short ones."""
    texts = pa.array(["a", "z" * (700 * MIB), "b"], pa.large_string())
    return write(path, 3, text=texts, options={"use_dictionary": False})


def lying(path: Path) -> int:
    """The same, with a footer that says the column takes 300 bytes."""
    one_value(path)
    content = path.read_bytes()
    size = pq.ParquetFile(path).metadata.row_group(0).column(0).total_uncompressed_size
    said, false = _varint(size), _varint(300, len(_varint(size)))
    start = len(content) - 8 - int.from_bytes(content[-8:-4], "little")
    assert said in content[start:]
    path.write_bytes(content[:start] + content[start:].replace(said, false))
    assert pq.ParquetFile(path).metadata.row_group(0).column(0).total_uncompressed_size == 300
    return 3


def _varint(number: int, length: int = 0) -> bytes:
    """A number as Thrift writes it, with as many bytes as asked."""
    number, found = 2 * number, bytearray()
    while number > 127 or len(found) + 1 < length:
        found.append(number & 127 | 128)
        number >>= 7
    return bytes([*found, number])


BOMBS: list[Callable[[Path], int]] = [typed, hidden]
LARGE_BOMBS: list[Callable[[Path], int]] = [dictionary, columns, lists, numbers, deltas, one_value, lying]


def read_all(path: Path | str, **options: Any) -> tuple[int, int, list[tuple[int, str]], int]:
    """Rows read, the largest block, the bad records, and by how much the process has grown at its largest, in MiB."""
    files = list_files(str(path), extensions=".parquet")
    (partition,) = make_partitions(files, format="parquet", files_per_partition=1)
    Path("/proc/self/clear_refs").write_text("5")  # the peak is measured from here
    before, rows, largest, bad = _peak(), 0, 0, []
    for block in read_parquet_blocks(partition, **options):
        rows += block.table.num_rows
        largest = max(largest, block.nbytes)
        bad += [(one.row, one.cause) for one in block.bad]
    return rows, largest // MIB, bad, (_peak() - before) // MIB


def _peak() -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM"))


@pytest.mark.parametrize("bomb", BOMBS + (LARGE_BOMBS if FULL else []), ids=lambda bomb: bomb.__name__)
def test_parquet_bombs(bomb: Callable[[Path], int], tmp_path: Path, record_property: Any) -> None:
    """A few kilobytes of Parquet that expand to gigabytes: read in bounded blocks, or quarantined by position."""
    record_property("tried", 1)
    path = tmp_path / "bomb.parquet"
    rows = int(attempt(lambda: bomb(path), seconds=120).detail)  # not here: what an allocator has it keeps
    # In a new interpreter: a fork of a process that has read a lot keeps what its allocator has set aside.
    outcome = attempt_fresh("tests.hostile.test_memory", "read_all", str(path))
    assert outcome.kind == "done", outcome
    found, largest, bad, grown = ast.literal_eval(outcome.detail)
    if bomb in (one_value, lying):
        assert bad == [(0, "record_too_large")] or bad == [(1, "record_too_large")], bad
    else:
        assert (found, bad) == (rows, [])
    assert largest <= 4 * 16
    assert grown < 900, f"{path.stat().st_size} bytes took {grown} MiB"


ROWS = 300 if FULL else 12


class Greedy(ProcessingStage):
    """Takes `size` bytes at once for the documents it is told about, and touches them all."""

    name = "greedy"

    def __init__(self, ids: set[str], size: int) -> None:
        self.ids = ids
        self.size = size

    def process(self, task: DocumentBatch) -> DocumentBatch:
        if self.ids.intersection(task.column("id").to_pylist()):
            taken = np.ones(self.size, np.uint8)
            time.sleep(5 if taken[-1] else 0)  # long enough to be seen
        return task


def run_greedy(
    folder: Path, stage: Greedy, *, batch_bytes: str = "1MB", **config: Any
) -> tuple[set[str], dict[str, str], int]:
    """What is written, what is quarantined, and the most that a process of the run took, looked at from outside."""
    source, out, most = folder / "in", folder / "out", 0
    source.mkdir()
    for file in range(2):
        records = ({"id": f"{file}-{row}", "text": "some words"} for row in range(ROWS))
        (source / f"{file}.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))

    def watch() -> None:
        nonlocal most
        while not over.wait(0.002):
            most = max(most, *map(private_bytes, [0, *descendants(os.getpid())]))

    over = threading.Event()
    watcher = threading.Thread(target=watch)
    watcher.start()
    reader = JsonlReader(str(source), read_kwargs={"batch_bytes": batch_bytes})
    stages = [reader, stage, JsonlWriter(str(out))]
    try:
        Pipeline("greedy", stages=stages).run(LocalExecutor({"num_cpus": 1, **config}), error_budget=None)
    finally:
        over.set()
        watcher.join()
    kept = {json.loads(line)["id"] for file in out.glob("*.jsonl") for line in file.read_text().splitlines()}
    aside = {json.loads(entry.record.raw)["id"]: entry.record.cause for entry in read_quarantine(str(out))}
    return kept, aside, most


class Hoarder(Greedy):
    """Keeps what it takes for every batch."""

    name = "hoarder"
    hoard: list[Any] | None = None

    def process(self, task: DocumentBatch) -> DocumentBatch:
        self.hoard = [*(self.hoard or []), np.ones(self.size, np.uint8)]
        time.sleep(0.02)
        return task


def greedy(folder: str, size: int, ids: list[str], **config: Any) -> Any:
    """What `run_greedy` returns, as plain values, or what the run says when it fails."""
    stage = Greedy(set(ids), size) if ids else Hoarder(set(), size)
    try:
        kept, aside, most = run_greedy(Path(folder), stage, memory_budget="1GB", **config)
    except WorkerError as error:
        return str(error)
    return len(kept), aside, most


def fresh(*args: object, **config: Any) -> Any:
    """The answer of `greedy` in a new process: what this one holds by now would count against the budget."""
    outcome = attempt_fresh("tests.hostile.test_memory", "greedy", *args, **config)
    assert outcome.kind == "done", outcome
    return ast.literal_eval(outcome.detail)


@pytest.mark.skipif(not FULL, reason="replaces several workers; made by make test-hostile")
def test_a_stage_that_keeps_more_than_the_budget(tmp_path: Path, record_property: Any) -> None:
    """A stage that leaks memory from batch to batch: the run fails and says so, no document is blamed."""
    record_property("tried", 1)
    said = fresh(str(tmp_path), 50 * MIB, [], batch_bytes="500B")
    assert re.search(r"hoarder.*memory budget.*It keeps memory from batch to batch", said), said
    assert not list(read_quarantine(str(tmp_path / "out")))


def test_a_stage_that_takes_more_than_the_budget(tmp_path: Path, record_property: Any) -> None:
    """A stage that allocates five times the budget within a second: stopped in time, its document quarantined."""
    record_property("tried", 1)
    kept, aside, most = fresh(str(tmp_path), 5 * GIB, ["1-7"])
    assert aside == {"1-7": "memory budget"}
    assert kept == 2 * ROWS - 1
    assert most < 1.5 * GIB


@pytest.mark.skipif(not FULL, reason="replaces workers; made by make test-hostile")
def test_a_stage_that_takes_more_than_the_budget_may_end_the_run(tmp_path: Path, record_property: Any) -> None:
    """The same with on_memory=fail: the run fails and names the stage."""
    record_property("tried", 1)
    said = fresh(str(tmp_path), 5 * GIB, ["1-7"], on_memory="fail")
    assert re.search(r"Stage 'greedy' alone used more memory .* \(1.0 GB\)", said), said
